"""What a person sees while a load test runs: a live picture, or plain lines in a file or pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.table import mib, ms, rate, shortened
from edgeveil_tools.display import LiveDisplay

_LINE_S = 5.0  # without a terminal, a line so often and when something else than a round begins


class LiveView(LiveDisplay):
    """Shows samples as they come: entries of the result's `series`, with `phase` in words.

    Where known, a sample also has `rounds_done`, `latency_s` {p50, p99} and `refused`. `devices`
    may be set anew, as a sweep's turns do.
    """

    def __init__(
        self,
        options: LoadOptions,
        console: Console,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console)
        self.devices = options.counts[0]
        self._options, self._now_s = options, now_s
        self._newest: Mapping[str, Any] | None = None
        self._said, self._said_s = "", 0.0

    def update(self, sample: Mapping[str, Any]) -> None:
        """The newest sample."""
        self._newest = sample
        now_s, phase = self._now_s(), str(sample.get("phase", ""))
        kind = phase.partition(" ")[0]
        if not self.live and (kind != self._said or now_s - self._said_s >= _LINE_S):
            self._said, self._said_s = kind, now_s
            going = " · ".join([*self._going(sample), *self._figures(sample)])
            self.note(f"{sample['t_s']:7.1f} s  {phase}: {going}")

    def picture(self) -> RenderableType:
        """All of it, for a terminal."""
        newest = self._newest
        if newest is None:
            return Text("starting")
        head = Table.grid(padding=(0, 1))
        head.add_row(
            ProgressBar(total=1.0, completed=self._share(newest), width=28),
            Text(str(newest.get("phase", "")), style="bold"),
            Text(f"{newest['t_s']:.0f} s"),
        )
        lines = [
            Text(" · ".join(parts), no_wrap=True)
            for parts in (self._going(newest), self._figures(newest))
        ]
        if newest.get("refused"):
            lines.append(Text(f"refused: {shortened(newest['refused'])}", style="yellow"))
        return Group(head, *lines, self._processes(newest))

    def _share(self, sample: Mapping[str, Any]) -> float:
        """How much is done, by time or by rounds."""
        options = self._options
        done = sample.get("rounds_done") or 0
        if options.minutes is not None:
            return min(1.0, float(sample["t_s"]) / (60 * options.minutes))
        if options.rounds and done:
            return min(1.0, done / options.rounds)
        return 0.0

    def _going(self, sample: Mapping[str, Any]) -> list[str]:
        parts = [f"{sample['connected']:,} of {self.devices:,} connected"]
        if done := sample.get("rounds_done"):
            parts.append(f"{done} round{'s' * (done != 1)}")
        return [*parts, f"{sample['uploads']:,} uploads"]

    def _figures(self, sample: Mapping[str, Any]) -> list[str]:
        parts = [
            f"{rate(sample['uploads_per_s'])} uploads/s",
            f"{rate(sample['bytes_up'] / 1e6)} MB/s up",
            f"{rate(sample['bytes_down'] / 1e6)} MB/s down",
        ]
        latency_s = sample.get("latency_s") or {}
        if latency_s.get("p50"):
            parts.append(f"latency p50 {ms(latency_s['p50'])}, p99 {ms(latency_s.get('p99'))}")
        return parts

    @staticmethod
    def _processes(sample: Mapping[str, Any]) -> Table:
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "right"):
            table.add_column(justify=justify)
        for name, rss_bytes in sample.get("rss_bytes", {}).items():
            cpu = sample.get("cpu_percent", {}).get(name)
            table.add_row(name, mib(rss_bytes), "" if cpu is None else f"{cpu:.0f} % of a core")
        return table
