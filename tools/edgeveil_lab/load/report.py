"""`load.html`: the terminal's tables, each round, and plots as inline SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from edgeveil_lab.load.display import rate, show_result, table_of
from edgeveil_lab.load.run_log import MIB
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.pages import CLUSTERS, STYLE, inline_svg
from edgeveil_tools.result import write_whole

Result = Mapping[str, Any]
_COUNTS = ("round", "attempt", "selected", "uploads")
_TIMES = {
    "uploads/s": "uploads_per_s",
    "seconds": "seconds",
    "broadcast": "broadcast_s",
    "upload": "upload_s",
    "hand over": "handover_s",
    "open, aggregate": "absorb_s",
}
_SHOWN_SAMPLES = 720


@mpl.rc_context(STYLE)
def over_time(series: Sequence[Result]) -> str:
    series = series[:: math.ceil(len(series) / _SHOWN_SAMPLES)]
    unit_s, unit = (60.0, "minutes") if series[-1]["t_s"] > 300 else (1.0, "seconds")
    times = [sample["t_s"] / unit_s for sample in series]
    names = dict.fromkeys(name for sample in series for name in sample["rss_bytes"])
    rss = {name: [one["rss_bytes"].get(name, np.nan) / MIB for one in series] for name in names}
    panels = {
        "connected devices": {"": [one["connected"] for one in series]},
        "uploads acknowledged a second": {"": [one["uploads_per_s"] for one in series]},
        "MB a second at the devices": {
            way: [one[f"bytes_{way}"] / 1e6 for one in series] for way in ("up", "down")
        },
        "MiB in memory": rss,
    }
    figure = Figure(figsize=(7.4, 7.6), layout="constrained")
    rows = figure.subplots(len(panels), 1, sharex=True, height_ratios=(1, 1, 1, 2))
    for axes, (title, lines) in zip(rows, panels.items(), strict=True):
        for (name, values), colour in zip(lines.items(), CLUSTERS * 9, strict=False):
            axes.plot(times, values, color=colour, label=name, linewidth=1.4)
        if len(lines) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.set(title=title, ylim=(0, None))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.grid(axis="y")
    rows[-1].set_xlabel(unit)
    return inline_svg(figure)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Load test · EdgeVeil</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 980px; margin: 0 auto; padding: 40px 20px; font: 16px system-ui, sans-serif; }}
pre {{ font-size: 13px; overflow-x: auto; }}
svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
<pre>{code}</pre>
</body>
</html>
"""


def write_load_report(result: Result, path: Path) -> None:
    console = Console(record=True, file=io.StringIO(), width=120, highlight=False, markup=False)
    default = LoadOptions().model_dump(mode="json")
    changed = {key: value for key, value in result["options"].items() if value != default[key]}
    options = ", ".join(f"{key} {value}" for key, value in changed.items())
    status = f"Load test: {result['status']} {result['reason']}"
    console.print(status, f"with {options or 'the default options'}", sep="\n")
    console.print(", ".join(f"{key} {value}" for key, value in result["environment"].items()))
    show_result(console, result)
    rows = (
        [*(str(row[key]) for key in _COUNTS), *(rate(row[key]) for key in _TIMES.values())]
        for row in result["rounds"]
    )
    console.print(table_of((*_COUNTS, *_TIMES), rows))
    svg = over_time(result["series"]) if len(result["series"]) > 1 else ""
    page = console.export_html(code_format=_PAGE, inline_styles=True)
    figure = f'<figure role="img" aria-label="over time">{svg}</figure>\n</body>'
    write_whole(path, page.replace("</body>", figure).encode("utf-8"))
