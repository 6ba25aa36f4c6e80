"""`python -m edgeveil_cloud.compute.on_ray DESCRIPTOR COUNT ADDRESS`: runs slices on Ray.

A task gets the sealed bytes of its slice and the opening key, nothing else of the batch. The
starter repeats failed slices; Ray does not, so it keeps no tasks.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from typing import Any

import numpy as np

from edgeveil.errors import UsageError
from edgeveil.heap import keep_memory_private
from edgeveil.ray_cluster import ClusterAway, join_cluster
from edgeveil.storage import FileData
from edgeveil_cloud.compute.processes import (
    SliceFailure,
    WorkerRefusal,
    receive_file,
    receive_value,
    send_value,
)
from edgeveil_cloud.open_segments import Place, RoundOpening

ROOM_S = 120.0  # timeout of a slice: queueing, transfer and work
PROBE_S = 20.0  # timeout of the version probe, on a cluster that may be busy


class _Excerpt:
    """Given ranges of a batch, as `edgeveil.protocol.transfer.Data`."""

    def __init__(self, places: Iterator[Place], sealed: memoryview) -> None:
        self._sealed, self._starts, size = sealed, dict[int, int](), 0
        for offset, size_bytes in places:
            self._starts[offset] = size
            size += size_bytes

    def __len__(self) -> int:
        return len(self._sealed)

    def __getitem__(self, part: slice) -> bytes:
        start = self._starts[part.start]
        return bytes(self._sealed[start : start + part.stop - part.start])


def opened(fields: Any, packed: bytes, sealed: Any) -> object:
    """Open a slice on a machine of the cluster; return its result or SliceFailure."""
    keep_memory_private()  # it holds a round's key
    try:
        of = pickle.loads(packed)  # noqa: S301 - from the cloud, which the cluster runs code of
        return of.opened(
            RoundOpening.from_fields(fields), _Excerpt(of.places(), memoryview(sealed))
        )
    except Exception as error:  # its text could quote what was opened
        return SliceFailure(type(error).__name__)


def _task(own: str) -> Callable[..., object]:
    """Return the Ray task; a nested function is pickled by value, whatever version is there."""

    def task(*work: Any) -> object:
        from importlib import metadata

        try:
            found = metadata.version("edgeveil")
        except metadata.PackageNotFoundError:
            found = "none"
        if found != own or not work:
            return found
        from edgeveil_cloud.compute.on_ray import opened

        return opened(*work)

    return task


class RayTasks:
    """A cluster; raises UsageError as `join_cluster`, or for another EdgeVeil version there."""

    def __init__(self, count: int, address: str | None) -> None:
        self._ray = join_cluster(address, "cloud.compute", count)
        self._own = metadata.version("edgeveil")
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(_task(self._own))
        with suppress(self._ray.exceptions.RayError):  # busy: checked with the first slice
            found = self._ray.get(self._task.remote(), timeout=PROBE_S)
            if found != self._own:
                refused = self._other(found)
                raise UsageError(refused.what, where=refused.where, fix=refused.fix)

    def result(self, fields: Any, of: Any, data: FileData) -> object:
        sealed = b"".join(data[offset : offset + size] for offset, size in of.places())
        try:
            # As an array it is passed in memory shared by all tasks of a machine.
            under_way = self._task.remote(fields, pickle.dumps(of), np.frombuffer(sealed, np.uint8))
            found: object = self._ray.get(under_way, timeout=ROOM_S)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.cancel(under_way, force=True)
            return WorkerRefusal(
                f"no machine of the Ray cluster opened some uploads in {ROOM_S:g} s",
                "cloud.compute.workers",
                "set fewer workers, add machines, or stop other work on them",
            )
        except self._ray.exceptions.RayError as error:
            return SliceFailure(type(error).__name__)
        return self._other(found) if isinstance(found, str) else found

    def _other(self, found: str) -> WorkerRefusal:
        return WorkerRefusal(
            f"a machine of the Ray cluster has EdgeVeil {found}, this one {self._own}",
            "cloud.compute.address",
            "install the same version on all machines",
        )


def serve(starter: socket.socket, tasks: RayTasks, count: int) -> None:
    """Serve `count` slices at a time; raises EOFError or OSError when the starter ends."""
    sending = threading.Lock()

    def do(number: int, fields: Any, of: Any, data: FileData) -> None:
        try:
            result = tasks.result(fields, of, data)
        except Exception as error:
            result = SliceFailure(type(error).__name__)
        data.close()
        with suppress(OSError), sending:
            send_value(starter, (number, result))

    threads = ThreadPoolExecutor(count)
    while True:
        number, fields, of = receive_value(starter)
        threads.submit(do, number, fields, of, FileData(receive_file(starter)))


def main(starter: socket.socket, count: int, address: str | None) -> None:
    """Serve until the starter ends; raises EOFError or OSError then."""
    keep_memory_private()  # slices come with a round's key
    try:
        tasks = RayTasks(count, address)
    except UsageError as error:
        away = isinstance(error, ClusterAway)
        send_value(starter, WorkerRefusal(error.what, error.where, error.fix, away))
        return
    send_value(starter, None)  # ready
    serve(starter, tasks, count)


if __name__ == "__main__":
    descriptor, count, address = sys.argv[1:]
    with suppress(EOFError, OSError), socket.socket(fileno=int(descriptor)) as own:
        main(own, int(count), address or None)
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    os._exit(0)  # without waiting for threads
