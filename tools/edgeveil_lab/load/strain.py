"""How hard a generator works while uploads are under way, and how late it is."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

_SCHEDSTAT = Path("/proc/self/schedstat")


class Strain(msgspec.Struct):
    """Sums over the time from a round's first offer to its last answer, seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    waited_s: float = 0.0
    """Ready to run, and no core was free."""
    late_s: float = 0.0
    looks: float = 0.0
    worst_s: float = 0.0

    @property
    def busy(self) -> float:
        """Share of the time that it ran or would have, had there been a core."""
        return (self.cpu_s + self.waited_s) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def mean_late_s(self) -> float:
        """How long something that happens at any time waits for the loop."""
        return self.late_s / self.looks if self.looks else 0.0

    def late(self, lag_s: float, every_s: float) -> None:
        """The loop was late by so much; it is looked at `every_s`.

        A long stall stands for all the looks that it swallowed, late by half of it on average.
        """
        swallowed = lag_s / every_s
        if swallowed <= 1:
            self.looks, self.late_s = self.looks + 1, self.late_s + lag_s
        else:
            self.looks += swallowed
            self.late_s += swallowed * lag_s / 2
        self.worst_s = max(self.worst_s, lag_s)


class Meter:
    """Adds up a process's strain, from look to look."""

    def __init__(self) -> None:
        self.strain = Strain()
        self._before = _now()

    def look(self, lag_s: float, every_s: float, *, counts: bool) -> None:
        """The loop was late by `lag_s`; `counts` while uploads are under way."""
        before, self._before = self._before, _now()
        if counts:
            wall_s, cpu_s, waited_s = (b - a for a, b in zip(before, self._before, strict=True))
            self.strain.wall_s += wall_s
            self.strain.cpu_s += cpu_s
            self.strain.waited_s += waited_s
            self.strain.late(lag_s, every_s)


def _now() -> tuple[float, float, float]:
    return time.monotonic(), time.process_time(), _waited_s()


def _waited_s() -> float:
    """Time of the main thread in the run queue; 0 where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(_SCHEDSTAT.read_text("ascii").split()[1]) / 1e9
    return 0.0
