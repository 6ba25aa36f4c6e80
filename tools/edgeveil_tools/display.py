"""Terminal display of a running job, redrawn live."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import IO, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgeveil.evaluation.figures import baseline_text, leading_text
from edgeveil.privacy.guarantee import up
from edgeveil.units import byte_text, seconds_text
from edgeveil_tools.local.run_log import RunProgress, planned_epsilon

_REFRESH_PER_S = 4


class LiveDisplay(ABC):
    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(
                get_renderable=self.picture,
                console=self.console,
                refresh_per_second=_REFRESH_PER_S,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    @property
    def live(self) -> bool:
        return self._live is not None

    def note(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)

    @abstractmethod
    def picture(self) -> RenderableType:
        """Return the picture to draw; called several times a second."""


class RunDisplay(LiveDisplay):
    def __init__(self, stream: IO[str]) -> None:
        super().__init__(Console(file=stream, highlight=False))
        self._view: RunProgress | None = None
        self._updated_s, self._shown = time.monotonic(), ""

    def __call__(self, view: RunProgress) -> None:
        self._view, self._updated_s = view, time.monotonic()
        if view.kind == "note":
            self.note(view.line)
        elif not self.live and (
            view.kind == "committed" or (view.kind == "doing" and view.line != self._shown)
        ):
            self._shown = view.doing
            self.note(f"{view.elapsed_s:6.1f} s  {view.line}")

    def lines(self, rows: Iterable[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name), Text(value))  # names of records are no markup
        self.console.print()
        self.console.print(table)
        self.console.print()

    def picture(self) -> RenderableType:
        view = self._view
        if view is None or not view.all_rounds:
            return Text(view.doing if view else "")
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, view.all_rounds), completed=view.committed, width=28)
        head.add_row(bar, Text(f"round {view.round} of {view.rounds}", style="bold"), view.doing)
        return Group(
            head, *(Text(" · ".join(line), no_wrap=True) for line in self._lines(view) if line)
        )

    def _lines(self, view: RunProgress) -> tuple[list[str], ...]:
        asked = view.devices if view.selected is None else view.selected
        going = [f"{view.online}/{view.devices} online", f"{view.uploads}/{asked} answered"]
        if view.declined:
            going.append(f"{view.declined} declined")
        elapsed_s = view.elapsed_s + time.monotonic() - self._updated_s
        going += [byte_text(view.memory_bytes), seconds_text(round(elapsed_s))]
        name, value = view.leading
        found = f"{name} {'–' if value is None else leading_text(name, value)}"
        baseline = baseline_text(name, value, view.figures) if value is not None else ""
        epsilon = [planned_epsilon(view)]
        if view.collusion_epsilon is not None:
            epsilon.append(f"training {up(view.collusion_epsilon, 3)} if all others collude")
        return going, [found], epsilon, [baseline] if baseline else []
