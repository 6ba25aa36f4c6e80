"""What a person sees of a load test: live figures and the result's table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgeveil.units import byte_text, seconds_text
from edgeveil_lab.load.run_log import drifts, faults
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_tools.display import LiveDisplay

# --- the result for a terminal: what was reached, and what each process took for it ---

Result = Mapping[str, Any]
_REASONS = 4
PERCENTILES = ("p50", "p95", "p99", "max")
_TIMES = ("acknowledged_s", "latency_s")


def show_result(console: Console, result: Result) -> None:
    console.print()
    table = Table.grid(padding=(0, 2))
    for name, value in result_figures(result):
        table.add_row(name, Text(value))
    console.print(table)
    if result.get("cells"):
        console.print()
        console.print(_table(CELL_COLUMNS, map(cell_row, result["cells"])))
    console.print()
    console.print(_processes(result))
    for line in warnings(result):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    console.print()


def result_figures(result: Result) -> Iterator[tuple[str, str]]:
    """(what, how much), the most telling first. What was not measured is left out."""
    connects, uploads = result["connects"], sum(row["uploads"] for row in result["rounds"])
    yield "devices", f"{connects['devices']:,} connected at {rate(connects['per_s'])} a second"
    if connects.get("failed"):
        yield "failed connections", f"{connects['failed']:,}"
    if uploads:
        rounds = len(result["rounds"])
        counted = f"{uploads:,} counted in {rounds} round{'s' * (rounds != 1)}"
        yield "uploads", f"{rate(result['uploads_per_s'])} a second, {counted}"
        moved = result["mb_per_s"]
        yield "MB a second", f"{rate(moved.get('up'))} up, {rate(moved.get('down'))} down"
        if result.get("acknowledged_s"):
            yield "acknowledged after", _latency(result["acknowledged_s"])
        yield "counted after", _latency(result["latency_s"])
    yield "lost, duplicated", f"{result['lost']:,}, {result['duplicated']:,}"
    yield "refused", shortened(result["refused"])
    if idle := result.get("idle"):
        yield "held idle", f"{idle['seconds']:.0f} s at {rate(idle['bytes_per_s'] / 1e3)} kB/s"
    if raw := result.get("raw"):
        share = result.get("raw_ratio")
        moved = f"{rate(raw['mb_per_s']['up'])} MB/s up, {rate(raw['uploads_per_s'])} uploads/s"
        yield "bare relay", moved + ("" if share is None else f"; EdgeVeil reaches {share:.0%}")


def warnings(result: Result) -> Iterator[str]:
    """What stands against the figures: a generator at its limits, or losses."""
    if result["generator"].get("bottleneck"):
        yield f"The figures are the generator's own limit: {result['generator']['note']}"
    yield from result.get("warnings", ())
    yield from faults(result)


def shortened(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts, `none` without any."""
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    parts = [f"{name} {count:,}" for name, count in ordered[:_REASONS]]
    rest = sum(count for _, count in ordered[_REASONS:])
    return ", ".join([*parts, *([f"others {rest:,}"] if rest else [])]) or "none"


def rate(value: float | None) -> str:
    """A figure with about three digits: `0.84`, `12.3`, `1,240`."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ms(seconds: float | None) -> str:
    """`0.84 ms`, `640 ms`, `1.4 s`; `–` where it is not known."""
    return "–" if seconds is None else seconds_text(seconds)


def size_text(count: float | None) -> str:
    """`84 MiB`; `–` where it is not known."""
    return "–" if count is None else byte_text(count)


def _latency(latency_s: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {ms(latency_s.get(name))}" for name in PERCENTILES)


CELL_COLUMNS = (
    *("cell", "connected", "reconnects", "uploads", "lost", "left out", "rounds"),
    *("acknowledged, p99", "counted, p99"),
)


def cell_row(one: Result) -> list[str]:
    """A cell's figures under `CELL_COLUMNS`: its acknowledged uploads, of these the lost ones and
    those of rounds that were made without it, its share of the rounds, times (p50, p99)."""
    counts = ("connected", "reconnects", "acknowledged", "lost", "left_out")
    return [
        str(one["cell"]),
        *(f"{one[name]:,}" for name in counts),
        f"{one['rounds']} of {one['rounds'] + one['rounds_without']}",
        *(f"{ms(one[key]['p50'])}, {ms(one[key]['p99'])}" for key in _TIMES),
    ]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("cell", "process") else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _processes(result: Result) -> Table:
    idle, grown = result.get("idle"), {one.process: one for one in drifts(result)}
    columns = ["process", "CPU", "of a core", "CPU per upload", "peak memory"]
    columns += ["idle, of a core"] if idle else []
    columns += ["MiB an hour"] if grown else []
    rows = []
    for name, used in result["processes"].items():
        percent = used["cpu_percent"]
        row = [name, "–" if used["cpu_s"] is None else f"{used['cpu_s']:.1f} s"]
        row += ["–" if percent is None else f"{percent:.0f} %"]
        row += [per_upload(result, name), size_text(used["peak_rss_bytes"])]
        row += [f"{rate(idle['cpu_percent'].get(name))} %"] if idle else []
        row += [str(grown.get(name, "–"))] if grown else []
        rows.append(row)
    return _table(columns, rows)


def per_upload(result: Result, process: str) -> str:
    cost_ms = result["cpu_ms_per_upload"].get(process)
    return "–" if cost_ms is None else f"{rate(cost_ms)} ms"


# --- while it runs: a live picture, or plain lines in a file or pipe ---

_LINE_S = 5.0  # without a terminal, a line so often and when something else than a round begins


class LoadView(LiveDisplay):
    """Shows samples, entries of the result's `series` with `phase`.

    Where known, a sample also has `rounds_done`, `latency_s` {p50, p99} and `refused`.
    """

    def __init__(
        self,
        options: LoadOptions,
        console: Console,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console)
        self._options, self._now_s = options, now_s
        self._newest: Mapping[str, Any] | None = None
        self._said, self._said_s = "", 0.0

    def update(self, sample: Mapping[str, Any]) -> None:
        self._newest = sample
        now_s, phase = self._now_s(), str(sample.get("phase", ""))
        kind = phase.partition(" ")[0]
        if not self.live and (kind != self._said or now_s - self._said_s >= _LINE_S):
            self._said, self._said_s = kind, now_s
            going = " · ".join([*self._going(sample), *self._figures(sample)])
            self.note(f"{sample['t_s']:7.1f} s  {phase}: {going}")

    def picture(self) -> RenderableType:
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
        parts = [f"{sample['connected']:,} of {self._options.devices:,} connected"]
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
        if latency_s.get("p50") is not None:
            parts.append(f"latency p50 {ms(latency_s['p50'])}, p99 {ms(latency_s.get('p99'))}")
        return parts

    @staticmethod
    def _processes(sample: Mapping[str, Any]) -> Table:
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "right"):
            table.add_column(justify=justify)
        for name, rss_bytes in sample.get("rss_bytes", {}).items():
            cpu = sample.get("cpu_percent", {}).get(name)
            table.add_row(
                name, size_text(rss_bytes), "" if cpu is None else f"{cpu:.0f} % of a core"
            )
        return table
