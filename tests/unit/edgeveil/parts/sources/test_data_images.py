"""Image folders: one form for all pictures, classes by folder, and no picture stops a device."""

import struct
import zlib

import numpy as np
import pytest

from edgeveil.config.data import Images
from edgeveil.parts.sources.images import PART
from edgeveil.parts.sources.source import Origin

Image = pytest.importorskip("PIL.Image")
PETS = ("cat", "dog")


def read(folder, form):
    return PART.read(Origin(folder, images=form))


def put(folder, name, pixels, **options):
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(file, **options)
    return file


def grey(value, shape=(2, 3)):
    return np.full(shape, value, np.uint8)


@pytest.fixture
def folder(tmp_path):
    put(tmp_path, "dog/b.png", grey(20))
    put(tmp_path, "dog/a.PNG", grey(10))
    put(tmp_path, "cat/z.png", np.dstack([grey(90), grey(60), grey(30)]))
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_folders_and_files_are_taken_by_name(folder):
    records = read(folder, Images(size=(2, 3), classes=PETS))
    assert records.x.shape == (3, 2, 3)
    assert records.y.tolist() == [0, 1, 1]
    assert records.x[1:, 0, 0].tolist() == [10.0, 20.0]
    assert round(float(records.x[0, 0, 0])) == round(0.299 * 90 + 0.587 * 60 + 0.114 * 30)
    colours = read(folder, Images(size=(2, 3), colours="rgb", classes=PETS)).x
    assert colours.shape == (3, 3, 2, 3)
    assert colours[:2, :, 1, 2].tolist() == [[90.0, 60.0, 30.0], [10.0, 10.0, 10.0]]


def test_named_classes_number_a_device_that_lacks_one(folder):
    form = Images(size=(2, 3), classes=("bird", "dog"))
    assert read(folder, form).y.tolist() == [-1, 1, 1]  # cats are none of the classes
    (fault,) = PART.faults(Origin(path=folder, images=form))
    assert fault.startswith(f"{folder / 'cat/z.png'}: ")


def test_another_size_is_scaled_and_16_bits_are_kept_in_range(tmp_path):
    put(tmp_path, "a/large.png", np.repeat(np.repeat([[0, 200]], 8, 0), 8, 1).astype(np.uint8))
    put(tmp_path, "a/like.jpeg", grey(120, (16, 16)), quality=95)
    put(tmp_path, "a/wide.png", np.full((2, 2), 0x80FF, np.uint16))
    x = read(tmp_path, Images(size=(2, 2), classes=("a",))).x
    assert x[0, :, 0].max() < 50 and x[0, :, 1].min() > 150
    assert np.all(np.abs(x[1] - 120) < 3)
    assert x[2].tolist() == [[128.0, 128.0], [128.0, 128.0]]


def bomb(width, height):
    """A PNG whose header says more pixels than it holds."""
    header, found = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")):
        found += struct.pack(">I", len(data)) + kind + data
        found += struct.pack(">I", zlib.crc32(kind + data))
    return found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"GIF89a" + bytes(20), "cannot be read"),  # of no format that is read
        (bomb(9000, 9000), "9000 by 9000 pixels"),
        (bomb(60000, 60000), "cannot be read"),
        (bomb(4, 4), "cannot be read"),
    ],
)
def test_a_bad_picture_drops_itself_alone(folder, content, message):
    (folder / "cat" / "bad.png").write_bytes(content)
    records = read(folder, Images(size=(2, 3), classes=PETS))
    assert np.isnan(records.x[0]).all()
    assert records.y.tolist() == [0, 0, 1, 1]
    assert np.isfinite(records.x[1:]).all()
    (fault,) = PART.faults(Origin(path=folder, images=Images(size=(2, 3), classes=PETS)))
    assert fault.startswith(f"{folder / 'cat' / 'bad.png'}: ")
    assert message in fault
