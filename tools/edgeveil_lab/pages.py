"""Pictures by matplotlib: one style, saved as files or as SVG inside a page."""

from __future__ import annotations

import io
import re
from typing import Any

from matplotlib.figure import Figure

INK, FAINT = "#23272e", "#8a929c"
# Okabe and Ito's colours, told apart with every common colour vision.
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7",
)  # fmt: skip
CLUSTERS = (BLUE, ORANGE, GREEN, RED, SKY, PURPLE, "#B8A500", "#8A8A8A", "#5B4FA2", "#8C5A2B")
STYLE: dict[str, Any] = {
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "svg.fonttype": "path",
    "svg.hashsalt": "edgeveil",  # the same ids at every run
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.markersize": 4.5,
}
"""Parameters for `matplotlib.rc_context`."""


def saved(figure: Figure, kind: str, *, transparent: bool = False) -> bytes:
    raw = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(raw, format=kind, dpi=160, metadata=metadata, transparent=transparent)
    return raw.getvalue()


def inline_svg(figure: Figure) -> str:
    """Return the figure as inline SVG in the text colour of its HTML page."""
    svg = saved(figure, "svg", transparent=True).decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return svg.replace(INK, "currentColor")
