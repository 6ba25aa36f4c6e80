"""Unix sockets that only their owner opens, wherever in the file system they stand."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgeveil.errors import UsageError

_PATH_BYTES = 103  # sun_path with its end, on the systems where it is shortest
_ASK_S = 1.0
_OWNER_ALONE = 0o177


def listen_locally(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0600; one that a process left behind makes room.

    Raises UsageError where another process answers there, or something else stands there.
    """
    try:
        if path.exists() or path.is_symlink():
            _make_room(path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(_OWNER_ALONE)  # so that it never stands there with wider rights
        try:
            with _short(path) as name:
                made.bind(name)
        except OSError:
            made.close()
            raise
        finally:
            os.umask(mask)
        made.listen()
    except OSError as error:
        raise UsageError(
            f"cannot listen here ({error.strerror or error})",
            where=str(path),
            fix="name a path in a folder of this user's, on a local disk",
        ) from None
    return made


def connect_locally(path: Path, timeout_s: float) -> socket.socket:
    """A connection to who listens at `path`. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout_s)
    try:
        with _short(path) as name:
            made.connect(name)
    except OSError:
        made.close()
        raise
    return made


def _make_room(path: Path) -> None:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise UsageError("is there, and is no socket", where=str(path), fix="name another path")
    with suppress(ConnectionRefusedError, FileNotFoundError):
        connect_locally(path, _ASK_S).close()
        raise UsageError(
            "another process listens here", where=str(path), fix="end it, or name another path"
        )
    path.unlink(missing_ok=True)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the path that a socket's address holds: Linux has one by way of an open folder."""
    name = str(path)
    if len(os.fsencode(name)) <= _PATH_BYTES or not Path("/proc/self/fd").is_dir():
        yield name
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
