"""The workers that open batches, where a run has some: where they are, and their kills.

The cloud starts them and starts others, so nobody supervises them here. On Ray there is a cluster
of the run's own that outlives the cloud's lives, as an operator's would.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import psutil

from edgeveil.ray_cluster import imported_ray, join_cluster

ComputeEngine = Literal["local", "ray"]

ASKED_BY = "edgeveil chaos --engine"
WORKERS = 2
HELD_S = 1.0
"""So long one that is to be killed stands still before: it then dies with the work that came to
it meanwhile, which in a small batch takes a moment only."""
_OWN = ("edgeveil_cloud.compute.worker", "edgeveil_cloud.compute.on_ray")
_ON_RAY = ("ray::IDLE", "ray::task")


def check_engine(engine: ComputeEngine | None) -> None:
    """Raise UsageError where Ray is asked for and not installed."""
    if engine == "ray":
        imported_ray(ASKED_BY)


class ComputeWorkers:
    """Those of one run. `stop` ends the cluster, if there is one."""

    def __init__(self, engine: ComputeEngine, seed: int) -> None:
        """Raises UsageError where a Ray cluster cannot be started."""
        self._random = random.Random(f"{seed} compute")  # noqa: S311 - chooses whom to kill
        self._ray: Any = None
        self.settings: dict[str, Any] = {"engine": engine, "workers": WORKERS, "least_bytes": 0}
        if engine == "ray":
            self._ray = join_cluster(None, ASKED_BY, WORKERS)
            self.settings["address"] = self._ray.get_runtime_context().gcs_address
        self._held: list[threading.Timer] = []
        self.killed = 0

    def kill(self) -> None:
        """SIGKILL one of them that is there, a moment after it was stopped."""
        there = sorted(self._there(), key=lambda process: process.pid)
        with suppress(psutil.Error):
            chosen = self._random.choice(there) if there else None
            if chosen is not None:
                chosen.suspend()
                self._held.append(threading.Timer(HELD_S, self._strike, (chosen,)))
                self._held[-1].start()

    @property
    def waiting(self) -> int:
        """Those that stand still and are still to be killed."""
        return sum(timer.is_alive() for timer in self._held)

    def stop(self) -> None:
        """Bring every kill to its end, then the cluster; may be called twice."""
        for timer in self._held:
            timer.join()
        if self._ray is not None:
            self._ray.shutdown()

    def _strike(self, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            process.kill()
            self.killed += 1

    def _there(self) -> Iterator[psutil.Process]:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                words = process.cmdline()
                if words and (words[0].startswith(_ON_RAY) or any(own in words for own in _OWN)):
                    yield process
