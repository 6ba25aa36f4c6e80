"""Reads records in a fork, which hands the arrays over to the process that keeps them.

A record that makes its reader fail, end or wait does so in the fork: the keeper goes on.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.errors import DataError, RecordsError

Halves = tuple[Records, Records]
_Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]
_SIZE_BYTES = 8


class _Outcome(msgspec.Struct, frozen=True):
    """What is handed over first: the shapes of both halves' arrays, or why there are none."""

    shapes: tuple[_Shapes, ...] = ()
    unreadable: str = ""


_decoder = msgspec.msgpack.Decoder(_Outcome)


def read_in_fork(read: Callable[[], Halves], limit_s: float) -> Halves | RecordsError:
    """Run `read` in a fork and return what it returns, or the RecordsError that it raises.

    Returns RecordsError too where it ends the fork or takes longer than `limit_s`. Raises DataError
    where it raises anything else.
    """
    ours, forks = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(ours)  # else it would wait for ever for a keeper that is gone
            with suppress(Exception):
                _hand_over(read, forks)
        finally:
            os._exit(0)
    os.close(forks)
    try:
        return _taken_over(ours, time.monotonic() + limit_s)
    except EOFError:
        return RecordsError("reading them did not end as it should")
    except MemoryError:
        return RecordsError("they take more memory than there is")
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _hand_over(read: Callable[[], Halves], to: int) -> None:
    halves: tuple[Records, ...] = ()
    try:
        halves = read()
        outcome = _Outcome(tuple(_shapes(half) for half in halves))
    except RecordsError as error:
        outcome = _Outcome(unreadable=str(error))
    except Exception:
        outcome = _Outcome()
    head = msgspec.msgpack.encode(outcome)
    with os.fdopen(to, "wb") as pipe:
        pipe.write(len(head).to_bytes(_SIZE_BYTES, "big") + head)
        for array in (array for half in halves for array in _arrays(half)):
            pipe.write(np.ascontiguousarray(array).data)


def _shapes(half: Records) -> _Shapes:
    return half.x.shape, half.y.shape, None if half.stored is None else half.stored.shape


def _arrays(half: Records) -> Iterator[NDArray[np.float32] | NDArray[np.int64]]:
    yield from (half.x, half.y)
    if half.stored is not None:
        yield half.stored


def _taken_over(pipe: int, until_s: float) -> Halves | RecordsError:
    """Raises EOFError where the fork ended or the time is over before all is there; DataError."""
    size = bytearray(_SIZE_BYTES)
    _fill(memoryview(size), pipe, until_s)
    head = bytearray(int.from_bytes(size, "big"))
    _fill(memoryview(head), pipe, until_s)
    outcome = _decoder.decode(head)
    if outcome.unreadable:
        return RecordsError(outcome.unreadable)
    if not outcome.shapes:
        raise DataError("cannot be read in this form", where="data", fix="see `edgeveil check`")
    training, evaluation = (_half(shapes, pipe, until_s) for shapes in outcome.shapes)
    return training, evaluation


def _half(shapes: _Shapes, pipe: int, until_s: float) -> Records:
    x, y, stored = shapes
    half = Records(
        np.empty(x, np.float32),
        np.empty(y, np.int64),
        None if stored is None else np.empty(stored, np.float32),
    )
    for array in _arrays(half):
        if array.nbytes:
            _fill(array.data.cast("B"), pipe, until_s)
    return half


def _fill(whole: memoryview, pipe: int, until_s: float) -> None:
    while whole:
        left_s = max(0.0, until_s - time.monotonic())
        found = os.readv(pipe, [whole]) if select.select([pipe], [], [], left_s)[0] else 0
        if not found:
            raise EOFError
        whole = whole[found:]
