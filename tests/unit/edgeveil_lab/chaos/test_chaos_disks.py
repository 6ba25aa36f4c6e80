"""Disks that are really full, seen by their own run alone, and gone with it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgeveil_lab.chaos.supervisor import Disks, own_disks

READ_MOUNTS = "import pathlib; print(pathlib.Path('/proc/thread-self/mounts').read_text())"


def apart(play: Callable[[Disks], None], folder: Path, *, keep: bool = False) -> None:
    """A thread has the mounts of its own that a run has; those of the other tests stay."""

    def run() -> str:
        with own_disks(folder, keep=keep) as disks:
            if disks.by == "full":
                play(disks)
            return disks.by

    with ThreadPoolExecutor(1) as pool:
        if pool.submit(run).result() == "limit":
            pytest.skip("may not mount a file system here")


def test_a_full_one_takes_nothing_more_until_there_is_room(tmp_path: Path) -> None:
    def play(disks: Disks) -> None:
        (disk,) = disks.under(tmp_path / "cloud")
        for content in (b"some", bytes(10_000)):
            (disk.folder / "before").write_bytes(content)
            disk.fill()
            with pytest.raises(OSError, match="No space left") as caught:
                (disk.folder / "more").write_bytes(bytes(4096))
            assert caught.value.errno == errno.ENOSPC
            assert (disk.folder / "before").read_bytes() == content
            disk.make_room()
            (disk.folder / "more").write_bytes(bytes(1 << 20))
            (disk.folder / "more").unlink()

    apart(play, tmp_path)


def test_it_is_seen_here_and_by_children_alone_and_leaves_nothing(tmp_path: Path) -> None:
    def play(disks: Disks) -> None:
        (disk,) = disks.under(tmp_path / "one")
        (disk.folder / "file").write_bytes(b"some")
        child = subprocess.run([sys.executable, "-c", READ_MOUNTS], capture_output=True, text=True)
        assert str(disk.folder) in child.stdout
        outside = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/mounts").read_text()
        assert str(disk.folder) not in outside

    apart(play, tmp_path)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert list((tmp_path / "one").iterdir()) == []


def test_what_it_holds_can_be_kept(tmp_path: Path) -> None:
    def play(disks: Disks) -> None:
        for name in ("one", "two"):
            (disk,) = disks.under(tmp_path / name)
            (disk.folder / "file").write_text(name)
            disk.fill()

    apart(play, tmp_path, keep=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    for name in ("one", "two"):
        assert (tmp_path / name / "file").read_text() == name
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_without_the_right_to_mount_there_are_none(tmp_path: Path) -> None:
    assert Disks("limit").under(tmp_path / "one") == []
    assert not (tmp_path / "one").exists()
