"""What a person sees while a local run works: a live display, or plain lines in a file or pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgeveil.privacy.guarantee import up
from edgeveil_tools.live_view import Picture
from edgeveil_tools.local.children import Children

MIB = 1 << 20


@dataclass
class View:
    """How the run stands. ε are by plan so far, one training and one inference."""

    exchanges: int
    rounds: int
    devices: int
    doing: str = "starting"
    committed: int = 0
    round: int = 0
    online: int = 0
    uploads: int = 0
    declined: int = 0
    selected: int | None = None
    accuracy: float | None = None
    reference: float | None = None
    training_epsilon: float | None = None
    inference_epsilon: float | None = None
    memory_bytes: int = 0


class Progress(Picture):
    """Shows a View: live on a terminal, else one line whenever something is committed."""

    def __init__(
        self, view: View, stream: IO[str], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.view = view
        super().__init__(Console(file=stream, highlight=False))
        self._now_s, self._started_s = now_s, now_s()
        self._said = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self._now_s() - self._started_s

    def doing(self, what: str) -> None:
        """What goes on now; a line of its own where nothing is live."""
        self.view.doing = what
        if not self.live and what != self._said:
            self._said = what
            self.note(f"{self.elapsed_s:6.1f} s  {what}")

    def committed(self) -> None:
        """The view has a newly committed exchange."""
        view = self.view
        if not self.live:
            figures = [f"{view.uploads} answered"]
            if view.declined:
                figures.append(f"{view.declined} declined")
            if view.accuracy is not None:
                figures.append(f"accuracy {view.accuracy:.3f}")
            figures.append(_by_plan(view))
            self.note(f"{self.elapsed_s:6.1f} s  {view.doing}: {', '.join(figures)}")
            self._said = view.doing

    def picture(self) -> RenderableType:
        view = self.view
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, view.exchanges), completed=view.committed, width=28)
        head.add_row(bar, Text(f"round {view.round} of {view.rounds}", style="bold"), view.doing)
        return Group(head, *(Text(" · ".join(line), no_wrap=True) for line in self._lines()))

    def _lines(self) -> tuple[list[str], list[str]]:
        """How it goes, and what came of it; each fits 80 columns."""
        view = self.view
        asked = view.devices if view.selected is None else view.selected
        going = [f"{view.online}/{view.devices} online", f"{view.uploads}/{asked} answered"]
        if view.declined:
            going.append(f"{view.declined} declined")
        going += [f"{view.memory_bytes // MIB} MiB", f"{self.elapsed_s:.0f} s"]
        accuracy = f"accuracy {_figure(view.accuracy)}"
        if view.reference is not None:
            accuracy += f" (without noise {view.reference:.3f})"
        return going, [accuracy, _by_plan(view)]


class MemoryPeak:
    """The largest memory seen; looks at most once per `every_s`."""

    def __init__(self, children: Children, every_s: float = 1.0) -> None:
        self._children, self._every_s, self._next_s = children, every_s, 0.0
        self.peak_bytes = 0

    def look(self) -> int:
        """The memory now, or as of the last look."""
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + self._every_s
            self.last_bytes = self._children.memory_bytes()
            self.peak_bytes = max(self.peak_bytes, self.last_bytes)
        return self.last_bytes

    last_bytes = 0


def _by_plan(view: View) -> str:
    parts = (view.training_epsilon, view.inference_epsilon)
    training, inference = ("–" if part is None else up(part, 3) for part in parts)
    return f"ε by plan: training {training}, inference {inference}"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
