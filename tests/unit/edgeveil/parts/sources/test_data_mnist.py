"""The source `mnist`: four IDX files in a folder, each fault told with file and fix."""

import gzip
import struct

import numpy as np
import pytest

from edgeveil.config.data import DataSource
from edgeveil.errors import DataError
from edgeveil.parts import own_records as device
from edgeveil.parts.own_records import held_records, own_records
from edgeveil.parts.sources import load_records
from edgeveil.parts.sources.idx import MNIST_FILES
from edgeveil.parts.sources.source import Origin
from tests.kits.published_sets import read_published

TRAIN, TEST = 30, 12
FILES = MNIST_FILES.names


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def pixels(count):
    return (np.arange(count * 28 * 28) % 251).reshape(count, 28, 28)


@pytest.fixture
def folder(tmp_path):
    for half, count in (("train", TRAIN), ("t10k", TEST)):
        images = gzip.compress(idx(pixels(count)))
        (tmp_path / f"{half}-images-idx3-ubyte.gz").write_bytes(images)
        (tmp_path / f"{half}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(np.arange(count) % 10))
        )
    return tmp_path


def source(folder, **more):
    return DataSource(name="mnist", source="mnist", path=folder, **more)


def shard(folder, index):
    share = {"devices": 3, "index": index, "partition": {"kind": "iid"}}
    return DataSource(name="mnist", source="mnist", path=folder, shard=share)


def refused(folder):
    with pytest.raises(DataError) as caught:
        load_records("mnist", Origin(path=folder))
    return str(caught.value)


def test_training_half_is_dealt_and_test_half_is_the_clouds(folder):
    train = load_records("mnist", Origin(path=folder))
    assert train.x.shape == (TRAIN, 28, 28)
    assert train.x.dtype == np.float32
    assert np.array_equal(train.x, pixels(TRAIN))
    parts = [own_records(shard(folder, index)) for index in range(3)]
    assert sorted(np.concatenate([p.x for p in parts]).sum((1, 2))) == sorted(train.x.sum((1, 2)))
    test = held_records(source(folder))
    assert np.array_equal(test.x, pixels(TEST))
    assert list(test.y) == list(np.arange(TEST) % 10)


def test_fewer_test_records_are_the_first_ones(folder):
    assert np.array_equal(held_records(source(folder, test_records=5)).x, pixels(5))
    with pytest.raises(DataError, match="0 to 12"):
        held_records(source(folder, test_records=13))


def test_devices_of_one_process_read_their_files_once(folder, monkeypatch):
    device.dealt_records.cache_clear()
    own_records(shard(folder, 0))
    monkeypatch.setattr(device, "load_records", None)
    assert len(own_records(shard(folder, 2))) == TRAIN // 3


def test_what_one_device_changes_in_its_records_no_other_sees(folder):
    own_records(shard(folder, 0)).x[:] = -1
    assert own_records(shard(folder, 0)).x.min() == 0


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images.idx3-ubyte"])
def test_unpacked_and_dotted_names_are_found(folder, name):
    packed = folder / "train-images-idx3-ubyte.gz"
    (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert not MNIST_FILES.missing(folder)
    assert len(read_published("mnist", folder, "train")) == TRAIN


@pytest.mark.parametrize("name", FILES[:2])
def test_missing_file_is_named_with_all_that_are_wanted(folder, name):
    (folder / name).unlink()
    text = refused(folder)
    assert name in text
    assert all(one in text for one in FILES)
    assert MNIST_FILES.missing(folder) == [name]
