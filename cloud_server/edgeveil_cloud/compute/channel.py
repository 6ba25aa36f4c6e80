"""What the cloud and its workers say to one another, over a pair of Unix sockets.

Each value is pickled, its arrays beside it and never copied together; both ends are one program's.
"""

from __future__ import annotations

import pickle
import socket
from typing import Any

_LENGTH_BYTES = 8
_MARK = b"f"


def say(to: socket.socket, value: object) -> None:
    """Send a value. Raises OSError where nobody is there any more."""
    arrays: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, 5, buffer_callback=arrays.append)
    views = [one.raw() for one in arrays]
    lengths = [len(views), len(body), *(view.nbytes for view in views)]
    to.sendall(b"".join(length.to_bytes(_LENGTH_BYTES, "big") for length in lengths) + body)
    for view in views:
        to.sendall(view)


def hear(of: socket.socket) -> Any:
    """The next value. Raises EOFError or OSError where nobody is there any more."""
    arrays, body = (int.from_bytes(_read(of, _LENGTH_BYTES), "big") for _ in range(2))
    lengths = _read(of, arrays * _LENGTH_BYTES)
    starts = range(0, len(lengths), _LENGTH_BYTES)
    sizes = [int.from_bytes(lengths[start : start + _LENGTH_BYTES], "big") for start in starts]
    text = _read(of, body)
    return pickle.loads(text, buffers=[_read(of, size) for size in sizes])  # noqa: S301


def say_file(to: socket.socket, descriptor: int) -> None:
    """Hand an open file over. Raises OSError."""
    socket.send_fds(to, [_MARK], [descriptor])


def hear_file(of: socket.socket) -> int:
    """An open file that was handed over, to be closed here. Raises EOFError or OSError."""
    mark, descriptors, _, _ = socket.recv_fds(of, len(_MARK), 1)
    if not mark:
        raise EOFError
    return descriptors[0]


def _read(of: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = of.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found
