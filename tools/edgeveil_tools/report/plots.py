"""Pictures drawn by matplotlib, of the lab's pages and of who holds what: their style and form."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from edgeveil_tools.report.holdings import Holdings

# Stand-ins that become the page's own colours, so that one picture suits light and dark.
_INK, _FAINT = "#010203", "#040506"
# Okabe and Ito's colours, told apart with every common colour vision.
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7",
)  # fmt: skip
_PAGE = {
    _INK: "var(--ink)",
    _FAINT: "var(--line)",
    BLUE.lower(): "var(--blue)",
    ORANGE.lower(): "var(--orange)",
    RED.lower(): "var(--red)",
}
CLUSTERS = (BLUE, ORANGE, GREEN, RED, SKY, PURPLE, "#B8A500", "#8A8A8A", "#5B4FA2", "#8C5A2B")
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "svg.fonttype": "path",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 4.5,
}


@contextmanager
def svg_figure(width: float, height: float, name: str) -> Iterator[tuple[Figure, list[str]]]:
    """A figure to draw on (inches); afterwards the list holds its SVG."""
    done: list[str] = []
    # The salt keeps the ids of several pictures in one page apart, and the same at every run.
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, done
        raw = io.StringIO()
        figure.savefig(raw, format="svg", transparent=True, metadata={"Date": None})
    svg = raw.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for stand_in, colour in _PAGE.items():
        svg = svg.replace(stand_in, colour)
    # Ids of axes and paths repeat from figure to figure.
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    done.append(svg)


@contextmanager
def file_figure(width: float, height: float, kind: str) -> Iterator[tuple[Figure, list[bytes]]]:
    """A figure for a page of its own (inches); afterwards the list holds a png or svg file."""
    done: list[bytes] = []
    with mpl.rc_context({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "edgeveil"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, done
        raw = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(raw, format=kind, dpi=160, metadata=metadata)
    done.append(raw.getvalue())


_FAINTEST = 0.12  # of one record, so that it is seen


def holdings_plot(held: Holdings) -> str:
    """Devices from left to right: how many records, and below of which classes, as inline SVG."""
    with svg_figure(7.4, holdings_height(held), "holdings") as (figure, done):
        draw_holdings(figure, held)
    return done[0]


def holdings_height(held: Holdings) -> float:
    """Of the picture, in inches."""
    classes: int = held.counts.shape[1]
    return 2.2 + min(2.6, 0.16 * classes)


def draw_holdings(figure: Figure, held: Holdings) -> None:
    """Fill an empty figure."""
    devices, classes = held.counts.shape
    sizes, grid = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [1.0, holdings_height(held) - 1.4]}
    )
    _draw_sizes(sizes, held)
    grid.imshow(
        _shades(held),
        aspect="auto",
        origin="lower",
        interpolation="none",
        extent=(0.5, devices + 0.5, -0.5, classes - 0.5),
    )
    grid.set_title(f"records by class; the fullest colour stands for {held.counts.max()}")
    grid.set_ylabel("class")
    grid.set_xlabel("device")
    for axis in (grid.xaxis, grid.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    grid.set_xlim(0.5, devices + 0.5)


def _draw_sizes(axes: Axes, held: Holdings) -> None:
    """One area for good and one for low-quality devices: few paths, however many devices."""
    edges = np.arange(len(held.sizes) + 1) + 0.5
    poor = np.isin(np.arange(len(held.sizes)), held.low_quality)
    axes.stairs(np.where(poor, 0, held.sizes), edges, fill=True, color=BLUE)
    if poor.any():
        axes.stairs(np.where(poor, held.sizes, 0), edges, fill=True, color=RED)
    axes.set_title("records")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.tick_params(labelbottom=False)
    axes.set_ylim(0, 1.08 * max(1, int(held.sizes.max())))
    axes.grid(axis="y")


def _shades(held: Holdings) -> NDArray[np.float64]:
    """Colours (classes, devices, 4): opaque where most is held, clear where nothing is."""
    counts = held.counts.T
    shades = np.empty((*counts.shape, 4))
    shades[..., :3] = to_rgb(BLUE)
    shades[:, held.low_quality, :3] = to_rgb(RED)
    share = np.sqrt(counts / max(1, int(counts.max())))  # so that few among many are still seen
    shades[..., 3] = np.where(counts > 0, _FAINTEST + (1 - _FAINTEST) * share, 0.0)
    return shades
