"""Connections that say nothing reach no broker: the kernel holds them back until a byte has come.

mosquitto 2.0 keeps a connection without a CONNECT for 90 s and has no setting for it, so a crowd of
idle ones takes all its places and nobody else comes in. `TCP_DEFER_ACCEPT` (Linux, tcp(7)) leaves
them with the kernel, which forgets them by itself. The option belongs to the socket, of which a
parent process may have a descriptor (`pidfd_getfd`, Linux 5.6).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from pathlib import Path

_PIDFD_GETFD = 438  # the same number on every processor that Linux has it for
_DEFER_S = 60
_BACKLOG = 4096  # as many as may wait there; somaxconn bounds it
_CLOSED_MEANWHILE = (errno.ENOENT, errno.EBADF, errno.ENOTSOCK)  # or another file by now


def defer_accepts(pid: int) -> int:
    """Hold back what says nothing from a child's listening TCP sockets; how many there are.

    Raises OSError where the system cannot do so, or does not let us.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    process, deferred = os.pidfd_open(pid), 0
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if path.readlink().name.startswith("socket:"):
                    deferred += _defer(_descriptor(process, int(path.name)))
            except OSError as error:
                if error.errno not in _CLOSED_MEANWHILE:
                    raise
    finally:
        os.close(process)
    return deferred


def _defer(descriptor: int) -> bool:
    """Whether it is a listening TCP socket. The descriptor is closed."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
        found.listen(_BACKLOG)
        return True


def _descriptor(process: int, number: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    found = int(library.syscall(_PIDFD_GETFD, process, number, 0))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
