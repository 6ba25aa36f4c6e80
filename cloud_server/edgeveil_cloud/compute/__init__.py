"""Where the segments of a batch are opened: in the cloud's own process, its workers, or on Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from edgeveil_cloud.compute.processes import BatchFile, ComputeError, WorkerProcesses
from edgeveil_cloud.open_segments import RoundOpening, Slice

if TYPE_CHECKING:  # a worker needs no site file
    from edgeveil.sites.cloud import ComputeAt

__all__ = ["BatchFile", "ComputeError", "Workers", "workers_of"]

MOST_BY_ITSELF = 8  # workers that `auto` takes

Result = TypeVar("Result")


class Workers(Protocol):
    """Open slices of a batch side by side. For calls from any thread, one batch after the other."""

    count: int
    """Slices that are worked on at one time."""
    least_bytes: int
    """Of sealed segments; fewer are not worth the way to a worker."""

    def run(
        self,
        opening: RoundOpening,
        data: BatchFile,
        slices: Sequence[Slice[Result]],
        take: Callable[[int, Result], None],
    ) -> None:
        """Open all of them; `take` gets each one's number and result, in the order of their ends.

        Raises ComputeError where a slice ended its worker again and again, or nothing can work.
        """
        ...

    def close(self) -> None:
        """End them, whatever they do."""
        ...


def workers_of(at: ComputeAt) -> Workers | None:
    """What a site file asks for; None: the cloud's own process. Raises UsageError where Ray is not
    installed, does not answer, or is another one than the cluster's."""
    if at.engine == "ray":
        count = 0 if at.workers == "auto" else at.workers
        pool = WorkerProcesses(count, ray_address=at.address or "local")
        try:
            pool.start()
        except BaseException:
            pool.close()
            raise
        return pool
    count = _processors() if at.workers == "auto" else at.workers
    return WorkerProcesses(count) if count else None


def _processors() -> int:
    """One each, as far as they go; with a single one there is nothing to share out."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 0 if not found or found < 2 else min(found, MOST_BY_ITSELF)
