"""`load.html`: a load test's result on one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from edgeveil_lab.load import plots
from edgeveil_lab.load.drift import FLAT_MIB_PER_HOUR, drifts
from edgeveil_lab.load.table import mib, ms, per_upload, rate, shortened, warnings
from edgeveil_tools.pages import write_page
from edgeveil_tools.report.plots import byte_text

Result = Mapping[str, Any]
_FILTERS: dict[str, Callable[..., str]] = {
    "rate": rate,
    "ms": ms,
    "mib": mib,
    "size": byte_text,
    "reasons": shortened,
    "per_upload": per_upload,
}


def write_load_report(result: Result, path: Path) -> None:
    """Write the page. Of a sweep the largest count is shown in full."""
    sweep = result.get("sweep") or []
    shown = sweep[-1] if sweep else result
    pictures = {
        "throughput": plots.throughput_plot(shown["series"]),
        "latency": plots.latency_plot(shown),
        "memory": plots.memory_plot(shown["series"]),
        "phases": plots.phases_plot(shown["rounds"]),
        "raw": plots.raw_plot(shown),
        "cost": plots.cost_plot(sweep),
        "sweep": plots.sweep_plot(sweep),
    }
    content = {
        "result": shown,
        "options": shown["options"],
        "sweep": sweep,
        "uploads": sum(row["uploads"] for row in shown["rounds"]),
        "pictures": {name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - our own
        "warnings": list(warnings(result)),
        "drifts": drifts(shown),
        "flat_mib_per_hour": FLAT_MIB_PER_HOUR,
        "conditions": list(_conditions(shown["options"])),
    }
    write_page(path, "load.html", content, _FILTERS)


def _conditions(options: Mapping[str, Any]) -> list[str]:
    """What made it harder than a steady load, in words."""
    found = []
    if options.get("ramp_s"):
        found.append(f"connected over {options['ramp_s']:g} s")
    if options.get("drop"):
        found.append(f"{options['drop']:.0%} of the devices go away in each round")
    if options.get("slow"):
        link = byte_text(options["slow_bytes_per_s"])
        found.append(f"{options['slow']:.0%} of the devices on links of {link} a second")
    if options.get("reconnect_storm"):
        found.append("all connections cut in each round")
    if options.get("interval_s"):
        found.append(f"a round every {options['interval_s']:g} s")
    return found
