"""The folder of one run: gone with it, and swept by the next run where it was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from edgeveil.errors import UsageError
from edgeveil.transport.process import LOCK_FILE, OwnFolder

PREFIX = "edgeveil-run-"
MEMORY = Path("/dev/shm")  # noqa: S108 - ledgers that nobody keeps need not reach a disk
MEMORY_BYTES = 8 << 30  # of free memory, to keep them there


@contextmanager
def scratch(*, keep: bool, in_memory: bool) -> Iterator[Path]:
    """A folder of mode 0700, removed at the end unless `keep`; in memory where there is room.

    The lock in it says that its run lives. A folder that is kept has none, so nobody sweeps it.
    """
    roomy = MEMORY.is_dir() and psutil.virtual_memory().available > MEMORY_BYTES
    parent = MEMORY if in_memory and not keep and roomy else Path(tempfile.gettempdir())
    sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    if keep:
        yield folder
        return
    with OwnFolder(folder):
        try:
            (folder / "site").mkdir()  # a site begins in an empty folder
            yield folder / "site"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path, prefix: str = PREFIX) -> None:
    """Remove what this user's killed runs left in `parent`."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(UsageError, OSError):
            if (folder / LOCK_FILE).is_file() and folder.stat().st_uid == os.getuid():
                with OwnFolder(folder):
                    shutil.rmtree(folder, ignore_errors=True)
