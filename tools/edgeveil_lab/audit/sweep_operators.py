"""Does an operator's time, memory or failure follow its values? Every allowed one is tried.

    python -m edgeveil_lab.audit.sweep_operators            the table, for this machine
    python -m edgeveil_lab.audit.sweep_operators --write    and into docs/threat-model.md

Each operator, in each variant that has a kernel, runs on families of values of one
shape under ONNX Runtime, as a device runs it. Times are the least of interleaved repetitions.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import OPERATORS, check_graph
from edgeveil.evaluation.onnx_session import aligned, open_session, run_session
from edgeveil_lab.audit.sweep_variants import SHAPE, Variant, variants

REPETITIONS = 15
NOTABLE = 1.15  # a smaller ratio is within what the same work takes twice
PAGE = Path(__file__).parents[3] / "docs" / "threat-model.md"
START, END = "<!-- operators: start -->\n", "<!-- operators: end -->\n"


def families(shape: tuple[int, ...] = SHAPE) -> dict[str, NDArray[np.float32]]:
    """Values of one shape, by what is special about them."""
    chance, one = np.random.default_rng(0), np.ones(shape, np.float32)
    info = np.finfo(np.float32)
    normal = chance.normal(size=shape).astype(np.float32)
    alternating = one.copy().reshape(-1)
    alternating[::2] = -1
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, info.max, -info.max, 1e-40], np.float32)
    return {
        "ones": one,
        "zeros": one * 0,
        "normal": normal,
        "0 … 1": chance.random(shape, dtype=np.float32),
        "sorted": np.sort(normal.reshape(-1)).reshape(shape),
        "alternating": alternating.reshape(shape),
        "whole": np.rint(normal * 100),
        "large": normal * np.float32(1e30),
        "small": normal * np.float32(1e-30),
        "±90": normal * np.float32(90),
        "near 1": 1 + normal * np.float32(1e-6),
        "largest": one * info.max,
        "-largest": one * info.min,
        "least normal": one * info.smallest_normal,
        "subnormal": np.full(shape, 12345, np.uint32).view(np.float32),
        "NaN": one * np.float32(np.nan),
        "inf": one * np.float32(np.inf),
        "-inf": one * np.float32(-np.inf),
        "special": chance.choice(special, shape),
    }


@dataclass(frozen=True)
class Row:
    """What one variant did: seconds by family, MiB by family, and what failed."""

    variant: Variant
    times_s: Mapping[str, float]
    peaks_mib: Mapping[str, float]
    failed: str = ""
    refused: str = ""

    @property
    def ratio(self) -> float:
        """The slowest family's time over the fastest one's."""
        return max(self.times_s.values()) / min(self.times_s.values()) if self.times_s else 0.0

    def cells(self) -> tuple[str, ...]:
        """Name, fastest family's time, ratio, slowest family, spread of memory, failures."""
        if not self.times_s:
            return (self.variant.name, "–", "–", "–", "–", self.failed)
        least = min(self.times_s.values()) * 1e6
        slowest = max(self.times_s, key=lambda name: self.times_s[name])
        spread = max(self.peaks_mib.values()) - min(self.peaks_mib.values())
        verdict = "(not allowed)" if self.refused else self.failed or "none"
        return (
            self.variant.name,
            f"{least:.0f}",
            f"{self.ratio:.2f}",
            slowest if self.ratio >= NOTABLE else "–",
            f"{spread:.1f}",
            verdict,
        )


def swept(variant: Variant, repetitions: int = REPETITIONS) -> Row:
    """Run one variant on every family."""
    graph = variant.graph()
    try:
        check_graph(graph)
        refused = ""
    except DataError as error:
        refused = error.what
    try:
        session = open_session(graph)
    except DataError:
        return Row(variant, {}, {}, failed="has no such kernel", refused=refused)
    times: dict[str, float] = {}
    peaks: dict[str, float] = {}
    shapes, failed = set(), []
    feeds = {name: {"x": aligned(values)} for name, values in families().items()}
    for name, feed in feeds.items():
        try:
            start_mib = _resident_mib(reset=True)
            shapes.add(run_session(session, "y", feed).shape)
            peaks[name] = _resident_mib() - start_mib
        except Exception as error:  # ONNX Runtime's own exceptions have no common root
            failed.append(f"{name}: {type(error).__name__}")
    for _ in range(repetitions):
        for name in peaks:
            start = time.perf_counter()
            run_session(session, "y", feeds[name])
            took = time.perf_counter() - start
            times[name] = min(took, times.get(name, took))
    if len(shapes) > 1:
        failed.append(f"shapes {sorted(shapes)}")
    return Row(variant, times, peaks, ", ".join(failed), refused)


def _resident_mib(*, reset: bool = False) -> float:
    """This process's resident memory, at its peak since the last reset; 0 where unknown."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def table(rows: list[Row], least: float = 0.0) -> str:
    """The table in Markdown, the widest ratios first; those under `least` only counted."""
    from importlib.metadata import version

    heads = ("operator", "fastest, µs", "slowest ÷ fastest", "slowest on", "memory ±, MiB", "fails")
    lines = [
        f"ONNX Runtime {version('onnxruntime')} on {platform.machine()} ({_processor()}), one"
        f" thread, {int(np.prod(SHAPE))} values, {len(families())} families of values, least of"
        f" {REPETITIONS} interleaved runs each.",
        "",
        "| " + " | ".join(heads) + " |",
        "|---|--:|--:|---|--:|---|",
    ]
    told = [row for row in rows if row.ratio >= least or row.refused or row.failed]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in sorted(told, key=lambda r: -r.ratio)]
    if len(told) < len(rows):
        lines += ["", f"The other {len(rows) - len(told)} variants: below {least:g}, none fails."]
    return "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return told.split("model name")[1].split(":")[1].split("\n")[0].strip()


def main(argv: list[str] | None = None, tell: Callable[[str], object] = print) -> int:
    """0: every allowed operator answers every family; 1: one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m edgeveil_lab.audit.sweep_operators", description=__doc__
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args(argv)
    rows = [swept(variant) for variant in variants()]
    missing = OPERATORS - {row.variant.operator for row in rows}
    text = table(rows)
    tell(text)
    if missing:
        tell(f"not tried: {', '.join(sorted(missing))}")
    if options.write:
        before, rest = PAGE.read_text().split(START)
        PAGE.write_text(f"{before}{START}\n{table(rows, NOTABLE)}\n{END}{rest.split(END)[1]}")
    broken = [row for row in rows if row.failed and row.times_s and not row.refused]
    return 1 if missing or broken else 0


if __name__ == "__main__":
    sys.exit(main())
