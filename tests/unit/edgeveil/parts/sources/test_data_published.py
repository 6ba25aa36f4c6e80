"""MNIST, EMNIST and CIFAR in their published files: read as described, refused with the place."""

import gzip
import struct

import numpy as np
import pytest

from edgeveil.config.data import DataSource
from edgeveil.errors import DataError
from edgeveil.parts import own_records as device
from edgeveil.parts.own_records import local_records, own_records
from edgeveil.parts.sources.idx import CIFAR10_FILES, CIFAR100_FILES, EMNIST_FILES, MNIST_FILES
from tests.kits.published_sets import read_published

TRAIN, TEST = 30, 12


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def pixels(count):
    return (np.arange(count * 28 * 28) % 251).reshape(count, 28, 28)


@pytest.fixture
def folder(tmp_path):
    """MNIST of a few records."""
    for (images, labels), count in ((MNIST_FILES.train, TRAIN), (MNIST_FILES.test, TEST)):
        (tmp_path / images).write_bytes(idx(pixels(count)))
        (tmp_path / labels).write_bytes(idx(np.arange(count) % 10))
    return tmp_path


def source(folder, index=None, **more):
    if index is not None:
        more["shard"] = {"devices": 3, "index": index, "partition": {"kind": "iid"}}
    return DataSource(name="mnist", source="mnist", path=folder, **more)


def put_emnist(folder, labels=(0, 46, 9)):
    images = pixels(len(labels))
    for names in (EMNIST_FILES.train, EMNIST_FILES.test):
        (folder / names[0]).write_bytes(idx(images))
        (folder / names[1]).write_bytes(idx(np.array(labels)))
    return images


def cifar_record(*labels):
    """A record whose first row is red, green and blue of another strength in each column."""
    planes = [bytes(colour + column for column in range(32)) + bytes(992) for colour in (1, 2, 3)]
    return bytes(labels) + b"".join(planes)


def put_cifar(folder, files, *records):
    for name in files.names:
        (folder / name).write_bytes(b"".join(records))


def test_training_half_is_dealt_and_test_half_is_the_clouds(folder):
    train = read_published("mnist", folder, "train")
    assert (train.x.shape, train.x.dtype) == ((TRAIN, 28, 28), np.float32)
    assert np.array_equal(train.x, pixels(TRAIN))
    parts = [own_records(source(folder, index)) for index in range(3)]
    assert sorted(np.concatenate([p.x for p in parts]).sum((1, 2))) == sorted(train.x.sum((1, 2)))
    test = local_records(source(folder))
    assert np.array_equal(test.x, pixels(TEST))
    assert list(test.y) == list(np.arange(TEST) % 10)
    assert np.array_equal(local_records(source(folder, test_records=5)).x, pixels(5))
    with pytest.raises(DataError, match="0 to 12"):
        local_records(source(folder, test_records=13))


def test_devices_of_one_process_read_their_files_once_and_change_no_others_records(
    folder, monkeypatch
):
    device.dealt_records.cache_clear()
    own_records(source(folder, 0)).x[:] = -1
    monkeypatch.setattr(device, "load_records", None)
    assert len(own_records(source(folder, 2))) == TRAIN // 3
    assert own_records(source(folder, 0)).x.min() == 0


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images.idx3-ubyte"])
def test_unpacked_and_dotted_names_are_found(folder, name):
    packed = folder / "train-images-idx3-ubyte.gz"
    (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert not MNIST_FILES.missing(folder)
    assert len(read_published("mnist", folder, "train")) == TRAIN


@pytest.mark.parametrize("name", MNIST_FILES.names[:2])
def test_missing_file_is_named_with_all_that_are_wanted(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError) as caught:
        read_published("mnist", folder, "train")
    assert all(one in str(caught.value) for one in MNIST_FILES.names)
    assert MNIST_FILES.missing(folder) == [name]


@pytest.mark.parametrize("place", ["", "gzip"])  # that of its archive
def test_emnist_is_turned_upright_and_keeps_its_labels(tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    images = put_emnist(tmp_path / place)
    records = read_published("emnist", tmp_path, "train")
    assert np.array_equal(records.x, images.transpose(0, 2, 1))
    assert records.y.tolist() == [0, 46, 9]
    assert records.x.flags.c_contiguous


@pytest.mark.parametrize(
    ("name", "files", "labels", "wanted"),
    [("cifar10", CIFAR10_FILES, (7,), 7), ("cifar100", CIFAR100_FILES, (3, 99), 99)],
)
def test_cifar_is_read_by_colour_row_and_column(tmp_path, name, files, labels, wanted):
    put_cifar(tmp_path, files, cifar_record(*labels), cifar_record(*[0] * len(labels)))
    train = read_published(name, tmp_path, "train")
    assert train.x.shape == (2 * len(files.train), 3, 32, 32)
    assert train.y[:2].tolist() == [wanted, 0]
    assert train.x[0, :, 0, 5].tolist() == [1 + 5, 2 + 5, 3 + 5]
    assert train.x[0, :, 1:].max() == 0


def test_a_label_outside_the_classes_is_refused_with_record_and_byte(tmp_path):
    put_cifar(tmp_path, CIFAR10_FILES, cifar_record(9), cifar_record(10))
    put_cifar(tmp_path, CIFAR100_FILES, cifar_record(0, 100))
    put_emnist(tmp_path, (1, 47))
    for name, place, label in (
        ("cifar10", "byte 3073: record 1", 10),
        ("cifar100", "byte 1: record 0", 100),
        ("emnist", "byte 9: record 1", 47),  # of another split
    ):
        with pytest.raises(DataError, match=f"{place} has the label {label}") as caught:
            read_published(name, tmp_path, "train")
        assert caught.value.where and caught.value.fix
