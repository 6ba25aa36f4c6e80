"""Workers that hold simulated devices on a Ray cluster, or on a Ray that is started here.

Each is an actor that asks for one processor and the memory that it may take. A machine of the
cluster needs EdgeVeil of this version, and the records at the same place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

from edgeveil.errors import EdgeVeilError, JobFailed, UsageError
from edgeveil.ray_cluster import imported_ray, join_cluster
from edgeveil.units import byte_text
from edgeveil_tools.simulation.devices import SimulatedDevices, SimulatedFleet
from edgeveil_tools.simulation.workers import LOOK_S, Call

ROOM_S = 120.0  # until the cluster has room for all actors
BASE_BYTES = 512 << 20  # of a worker: libraries, model, the records' shares at work
_KEY = "local_run.ray_address"


class RayWorkers:
    """See `edgeveil_tools.simulation.workers.Workers`.

    Raises UsageError where Ray is not there, of another version or has no room.
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        count: int,
        address: str | None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self.name, self._ray, self._ours = "ray", imported_ray("local_run.engine"), False
        self._actors: list[Any] = []
        self._connect(address)
        memory = BASE_BYTES + 2 * fleet.kept_bytes
        remote = self._ray.remote(num_cpus=1, memory=memory, max_restarts=0)(_Actor)
        try:
            given = self._ray.put(fleet)
            self._actors = [remote.remote(given) for _ in range(count)]
            self._wait_for_room(memory, look)
        except BaseException:
            self.stop()
            raise

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._actors)

    @property
    def pids(self) -> Sequence[int]:
        """None: Ray accounts for its processes, which may be anywhere."""
        return ()

    def each(
        self, calls: Sequence[Sequence[Call]], look: Callable[[], object]
    ) -> Iterator[tuple[int, Any]]:
        """See `Workers`."""
        waiting, under_way = [iter(of) for of in calls], dict[Any, int]()

        def send_next(worker: int) -> None:
            call = next(waiting[worker], None)
            if call is not None:
                under_way[self._actors[worker].call.remote(*call)] = worker

        for worker in range(self.count):
            send_next(worker)
        while under_way:
            ready, _ = self._ray.wait([*under_way], num_returns=1, timeout=LOOK_S)
            look()
            for done in ready:
                worker = under_way.pop(done)
                result = self._got(done, worker)
                send_next(worker)
                yield worker, result

    def stop(self) -> None:
        """End the actors, and the Ray that was started or joined for them."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()

    def _got(self, done: Any, worker: int) -> Any:
        try:
            result = self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            raise JobFailed(
                f"a worker on Ray is gone ({type(error).__name__})",
                where=f"simulation-{worker + 1}",
                fix="see Ray's own logs; where memory ran out ask for fewer workers; run again",
            ) from None
        if isinstance(result, EdgeVeilError):
            raise JobFailed(result.what, where=result.where, fix=result.fix)
        return result

    def _connect(self, address: str | None) -> None:
        if self._ray.is_initialized() and address is None:
            return  # a notebook's own
        join_cluster(address, _KEY)
        self._ours = True

    def _wait_for_room(self, memory: int, look: Callable[[], object]) -> None:
        """Until every actor is there, of this version."""
        begun_s, missing = time.monotonic(), {a.version.remote(): a for a in self._actors}
        own = metadata.version("edgeveil")
        while missing:
            ready, _ = self._ray.wait([*missing], num_returns=1, timeout=LOOK_S)
            look()
            for done in ready:
                del missing[done]
                found = self._got(done, 0)
                if found != own:
                    raise UsageError(
                        f"a machine of the cluster has EdgeVeil {found}, this one {own}",
                        where=_KEY,
                        fix="install the same version on all machines",
                    )
            if missing and time.monotonic() - begun_s > ROOM_S:
                raise UsageError(
                    f"the Ray cluster has no room for {len(missing)} of {self.count} workers, each"
                    f" with one processor and {byte_text(memory)}",
                    where="local_run.workers",
                    fix="ask for fewer workers, or add machines",
                )


class _Actor:
    """Holds devices; one thread computes."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        import torch
        from threadpoolctl import threadpool_limits

        torch.set_num_threads(1)
        self._limits = threadpool_limits(1)
        self._fleet = fleet
        self._devices: SimulatedDevices | None = None

    def version(self) -> str:
        return metadata.version("edgeveil")

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._devices = self._devices or SimulatedDevices(self._fleet)
            return getattr(self._devices, name)(*arguments)
        except EdgeVeilError as error:
            return JobFailed(error.what, where=error.where, fix=error.fix)
