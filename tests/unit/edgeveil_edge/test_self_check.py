"""What a device lacks is said before a round finds out, with the fix."""

import errno
import os
from dataclasses import replace

import pytest

from edgeveil_edge.self_check import LEAST_MEMORY_BYTES, BoxFacts, self_check
from tests.unit.edgeveil_edge.edge_kit import site

NOW_S = 1_800_000_000.0
WELL = BoxFacts(
    now_s=lambda: NOW_S,
    installed=lambda _library: True,
    free_bytes=lambda _folder: 1 << 40,
    memory_bytes=lambda: 1 << 36,
)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ({"installed": lambda library: library != "onnxruntime"}, "edgeveil[infer]"),
        ({"installed": lambda library: library != "torch"}, "edgeveil[train]"),
        ({"now_s": lambda: 0.0}, "the clock says 1970-01-01"),
        ({"free_bytes": lambda _folder: 511 << 20}, "511 MiB are free, a round may take 512 MiB"),
        ({"memory_bytes": lambda: LEAST_MEMORY_BYTES // 2}, "128 MiB are available"),
    ],
)
def test_each_want_is_said_alone(tmp_path, lacks, said):
    box = site(tmp_path, policy={"min_devices": 3, "allowed_methods": ("fm", "dp_sgd")})
    assert self_check(box, WELL) == []
    (only,) = self_check(box, replace(WELL, **lacks))
    assert said in only


def test_a_box_that_cannot_be_asked_is_no_end(tmp_path):
    def without_proc():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/meminfo")

    (only,) = self_check(site(tmp_path), replace(WELL, memory_bytes=without_proc))
    assert "/proc/meminfo: free disk space and memory cannot be measured" in only


def test_a_clock_behind_the_device_s_own_files_is_not_believed(tmp_path):
    (tmp_path / "ledger.sqlite").touch()
    os.utime(tmp_path / "ledger.sqlite", (NOW_S, NOW_S + 86401))
    assert "before this device's own files" in self_check(site(tmp_path), WELL)[0]
    os.utime(tmp_path / "ledger.sqlite", (NOW_S, NOW_S + 86399))
    assert self_check(site(tmp_path), WELL) == []


def test_data_that_are_not_there_or_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "own.npz"
    box = site(tmp_path, data={"name": "own", "source": "npz", "path": path})
    assert "is not there" in self_check(box, WELL)[0]
    path.write_bytes(b"no archive")
    assert self_check(box, WELL) == []  # not read at the start
    assert str(path) in self_check(box, WELL, read_records=True)[0]
    assert self_check(site(tmp_path), WELL, read_records=True) == []  # the digits
