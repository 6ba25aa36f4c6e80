"""A file's bytes by slices, whatever becomes of its name."""

import gc
from pathlib import Path

import pytest

from edgeveil.storage import FileData


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(bytes(range(256)) * 10)
    return path


def test_slices_are_those_of_the_bytes_even_of_a_file_that_is_renamed_or_removed(path):
    data, whole = FileData(path), path.read_bytes()
    path.rename(path.with_name("other"))
    path.with_name("other").unlink()
    for part in (slice(0, 5), slice(5, None), slice(-3, None), slice(None), slice(9, 2)):
        assert data[part] == whole[part]
    assert len(data) == len(whole) and data[2550:9999] == whole[2550:]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_descriptor_is_given_back_when_nobody_uses_it(path):
    gc.collect()  # what other tests left in circles is not to go meanwhile
    before = descriptors()
    for _ in range(50):
        FileData(path)
    assert descriptors() == before
