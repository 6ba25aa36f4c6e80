"""A load test's result for a terminal: what was reached, and what each process took for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgeveil_lab.load.drift import drifts
from edgeveil_lab.load.verdict import faults

Result = Mapping[str, Any]
_REASONS = 4
_PERCENTILES = ("p50", "p95", "p99", "max")


def show(console: Console, result: Result) -> None:
    """Print the figures, then the processes; of a sweep a line for each count of devices."""
    console.print()
    if result.get("sweep"):
        console.print(_sweep(result["sweep"]))
    else:
        table = Table.grid(padding=(0, 2))
        for name, value in figures(result):
            table.add_row(name, Text(value))
        console.print(table)
        console.print()
        console.print(_processes(result))
    for line in warnings(result):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    console.print()


def figures(result: Result) -> Iterator[tuple[str, str]]:
    """(what, how much), the most telling first. What was not measured is left out."""
    connects, uploads = result["connects"], sum(row["uploads"] for row in result["rounds"])
    yield "devices", f"{connects['devices']:,} connected at {rate(connects['per_s'])} a second"
    if connects.get("failed"):
        yield "failed connections", f"{connects['failed']:,}"
    if uploads:
        rounds = len(result["rounds"])
        counted = f"{uploads:,} counted in {rounds} round{'s' * (rounds != 1)}"
        yield "uploads", f"{rate(result['uploads_per_s'])} a second, {counted}"
        yield "MB a second", _up_and_down(result["mb_per_s"])
        if result.get("acknowledged_s"):
            yield "acknowledged after", _latency(result["acknowledged_s"])
        yield "counted after", _latency(result["latency_s"])
    yield "lost, duplicated", f"{result['lost']:,}, {result['duplicated']:,}"
    yield "refused", shortened(result["refused"])
    if idle := result.get("idle"):
        yield "held idle", f"{idle['seconds']:.0f} s at {rate(idle['bytes_per_s'] / 1e3)} kB/s"
    if result.get("raw"):
        raw, share = result["raw"], result.get("raw_ratio")
        measured = f"{rate(raw['mb_per_s']['up'])} MB/s up, {rate(raw['uploads_per_s'])} uploads/s"
        yield "bare relay", measured + ("" if share is None else f"; EdgeVeil reaches {share:.0%}")


def warnings(result: Result) -> Iterator[str]:
    """What stands against the figures: a generator at its limits, or losses."""
    for one in result.get("sweep") or [result]:
        generator = one["generator"]
        if generator.get("bottleneck"):
            yield f"The figures are the generator's own limit: {generator['note']}"
        yield from one.get("warnings", ())
        yield from faults(one)


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
    """`0.84 ms`, `640 ms`, `1.40 s`."""
    if seconds is None:
        return "–"
    return f"{rate(seconds)} s" if seconds >= 1 else f"{rate(1000 * seconds)} ms"


def mib(count: float | None) -> str:
    """`84 MiB`."""
    return "–" if count is None else f"{count / (1 << 20):,.0f} MiB"


def _up_and_down(mb: Mapping[str, float]) -> str:
    return f"{rate(mb.get('up'))} up, {rate(mb.get('down'))} down"


def _latency(latency_s: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} {ms(latency_s.get(name))}" for name in _PERCENTILES)
    return f"{shown}; jitter {ms(latency_s.get('jitter'))}"


def _processes(result: Result) -> Table:
    idle, grown = result.get("idle"), {one.process: one for one in drifts(result)}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("process")
    columns = ["CPU", "of a core", "CPU per upload", "peak memory"]
    columns += ["idle, of a core"] if idle else []
    columns += ["MiB an hour"] if grown else []
    for name in columns:
        table.add_column(name, justify="right")
    for name, used in result["processes"].items():
        percent = used["cpu_percent"]
        cells = [
            "–" if used["cpu_s"] is None else f"{used['cpu_s']:.1f} s",
            "–" if percent is None else f"{percent:.0f} %",
        ]
        cells += [per_upload(result, name), mib(used["peak_rss_bytes"])]
        cells += [f"{rate(idle['cpu_percent'].get(name))} %"] if idle else []
        cells += [str(grown.get(name, "–"))] if grown else []
        table.add_row(name, *cells)
    return table


def per_upload(result: Result, process: str) -> str:
    """Processor time of one process for one upload."""
    cost_ms = result["cpu_ms_per_upload"].get(process)
    return "–" if cost_ms is None else f"{rate(cost_ms)} ms"


def _sweep(results: list[Result]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("devices", "uploads/s", "MB/s up", "p50", "p99", "lost", "proxy CPU", "cloud CPU"):
        table.add_column(name, justify="right")
    for one in results:
        latency_s = one["latency_s"]
        table.add_row(
            f"{one['connects']['devices']:,}",
            rate(one["uploads_per_s"]),
            rate(one["mb_per_s"]["up"]),
            ms(latency_s.get("p50")),
            ms(latency_s.get("p99")),
            f"{one['lost']:,}",
            *(per_upload(one, name) for name in ("proxy", "cloud")),
        )
    return table
