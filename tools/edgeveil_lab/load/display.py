"""Terminal output of a load test: live figures and the result's tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgeveil.units import byte_text, seconds_text
from edgeveil_lab.load.run_log import faults
from edgeveil_lab.load.scenario import LoadOptions

Result = Mapping[str, Any]
_REASONS = 4
_PERCENTILES = ("p50", "p95", "p99", "max")


def show_result(console: Console, result: Result) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in _figures(result):
        table.add_row(name, Text(value))
    console.print("", table)
    if cells := result["cells"]:
        columns = ["cell", "connected", "reconnects", "uploads", "lost", "left out", "rounds"]
        columns += ["acknowledged, p99", "counted, p99"]
        console.print("", table_of(columns, map(_cell_row, cells)))
    idle, drift = result["idle"], result["drift"]
    columns = ["process", "CPU", "of a core", "CPU per upload", "peak memory"]
    columns += ["idle, of a core"] * bool(idle) + ["MiB an hour"] * bool(drift)
    rows = []
    for name, used in result["processes"].items():
        percent, cost_ms = used["cpu_percent"], used["cpu_ms_per_upload"]
        row = [name, "–" if used["cpu_s"] is None else f"{used['cpu_s']:.1f} s"]
        row += ["–" if percent is None else f"{percent:.0f} %"]
        row += ["–" if cost_ms is None else f"{rate(cost_ms)} ms"]
        row += [size_text(used["peak_rss_bytes"])]
        row += [f"{rate(idle['cpu_percent'].get(name))} %"] if idle else []
        row += [_growth(drift.get(name))] if drift else []
        rows.append(row)
    console.print("", table_of(columns, rows))
    for line in warnings(result):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    console.print()


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _figures(result: Result) -> Iterator[tuple[str, str]]:
    """Yield (name, figure), the most important first; unmeasured figures are left out."""
    connects, uploads = result["connects"], sum(row["uploads"] for row in result["rounds"])
    yield "devices", f"{connects['devices']:,} connected at {rate(connects['per_s'])} a second"
    if connects["failed"]:
        yield "failed connections", f"{connects['failed']:,}"
    if uploads:
        rounds = len(result["rounds"])
        counted = f"{uploads:,} counted in {rounds} round{'s' * (rounds != 1)}"
        yield "uploads", f"{rate(result['uploads_per_s'])} a second, {counted}"
        moved = result["mb_per_s"]
        yield "MB a second", f"{rate(moved['up'])} up, {rate(moved['down'])} down"
        for name in ("acknowledged", "counted"):
            found = result["latency_s" if name == "counted" else "acknowledged_s"]
            yield f"{name} after", ", ".join(f"{one} {ms(found[one])}" for one in _PERCENTILES)
    yield "lost, duplicated", f"{result['lost']:,}, {result['duplicated']:,}"
    yield "refused", shortened(result["refused"])
    if idle := result["idle"]:
        yield "held idle", f"{idle['seconds']:.0f} s at {rate(idle['bytes_per_s'] / 1e3)} kB/s"
    if raw := result["raw"]:
        moved = f"{rate(raw['mb_per_s']['up'])} MB/s up, {rate(raw['uploads_per_s'])} uploads/s"
        share = result["raw_ratio"]
        yield "of a bare relay", f"{'–' if share is None else f'{share:.0%}'}; it carries {moved}"


def _cell_row(one: Result) -> list[str]:
    counts = ("connected", "reconnects", "acknowledged", "lost", "left_out")
    return [
        one["cell"],
        *(f"{one[name]:,}" for name in counts),
        f"{one['rounds']} of {one['rounds'] + one['rounds_without']}",
        *(f"{ms(one[k]['p50'])}, {ms(one[k]['p99'])}" for k in ("acknowledged_s", "latency_s")),
    ]


def _growth(drift: Result | None) -> str:
    if drift is None:
        return "–"
    return f"{drift['mib_per_hour']:+.1f} ± {drift['error']:.1f}, {drift['verdict']}"


def warnings(result: Result) -> Iterator[str]:
    """Yield limits of the figures: a saturated generator, or losses."""
    if note := result["generator"]["note"]:
        yield f"The figures are the generator's own limit: {note}"
    yield from result.get("warnings", ())
    yield from faults(result)


def shortened(reasons: Mapping[str, int]) -> str:
    """Return the most frequent reasons with their counts, `none` without any."""
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    parts = [f"{name} {count:,}" for name, count in ordered[:_REASONS]]
    others = sum(count for _, count in ordered[_REASONS:])
    return ", ".join([*parts, *([f"others {others:,}"] if others else [])]) or "none"


def rate(value: float | None) -> str:
    """Return a figure with about three digits: `0.84`, `12.3`, `1,240`."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ms(seconds: float | None) -> str:
    """Return `0.84 ms`, `640 ms`, `1.4 s`; `–` for None."""
    return "–" if seconds is None else seconds_text(seconds)


def size_text(count: float | None) -> str:
    return "–" if count is None else byte_text(count)


_LINE_S = 5.0  # interval of lines without a terminal; a change of phase prints one too


class LoadView:
    """Shows samples, the entries of `SampleSeries.take`."""

    def __init__(self, options: LoadOptions, console: Console) -> None:
        self._options, self._console = options, console
        self._status = console.status("starting")
        self._last_kind, self._last_s = "", 0.0

    def __enter__(self) -> LoadView:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def note(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def update(self, sample: Mapping[str, Any]) -> None:
        now_s, kind = time.monotonic(), sample["phase"].partition(" ")[0]
        if self._console.is_terminal:
            self._status.update(Text(self._line(sample)))
        elif kind != self._last_kind or now_s - self._last_s >= _LINE_S:
            self._last_kind, self._last_s = kind, now_s
            self.note(self._line(sample))

    def _line(self, sample: Mapping[str, Any]) -> str:
        done, latency_s = sample["rounds_done"], sample["latency_s"]
        line = (
            f"{sample['t_s']:7.1f} s  {sample['phase']}:"
            f" {sample['connected']:,} of {self._options.devices:,} connected"
            f" · {done} round{'s' * (done != 1)} · {sample['uploads']:,} uploads"
            f" · {rate(sample['uploads_per_s'])} uploads/s"
            f" · {rate(sample['bytes_up'] / 1e6)} MB/s up"
            f" · {rate(sample['bytes_down'] / 1e6)} MB/s down"
        )
        if latency_s["p50"] is not None:
            line += f" · latency p50 {ms(latency_s['p50'])}, p99 {ms(latency_s['p99'])}"
        return line + (f" · refused: {shortened(sample['refused'])}" if sample["refused"] else "")
