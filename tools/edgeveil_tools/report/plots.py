"""The pictures of a run as inline SVG: accuracy, ε, clusters, bytes, time, and who holds what."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from edgeveil.evaluation.clustering import project_2d
from edgeveil.jobs import Job
from edgeveil.parts.partitions.dealing import low_quality_devices
from edgeveil.privacy.guarantee import up
from edgeveil.units import byte_text as byte_text
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.local_run import LocalRun

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
STEPS = (
    ("seal_s", "seal", PURPLE),
    ("broadcast_s", "broadcast", BLUE),
    ("wait_s", "wait for devices", ORANGE),
    ("absorb_s", "open, aggregate, test", GREEN),
)
HOPS = (
    ("cloud_to_proxy", "cloud → proxy"),
    ("proxy_to_devices", "proxy → devices"),
    ("devices_to_proxy", "devices → proxy"),
    ("proxy_to_cloud", "proxy → cloud"),
)
PANELS = 6
COLLUSION = "collusion"  # training's ε if all others collude
_UNITS = {"training": "record", "inference": "device"}
NUMBERED = 60  # more points than this stay without their cluster's number
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


def accuracy_plot(rounds: Sequence[Mapping[str, Any]], reference: Sequence[float]) -> str:
    """Accuracy after each round, against the noise-free reference; "" where none was measured."""
    points = [(row["round"], row["accuracy"]) for row in rounds if row["accuracy"] is not None]
    if not points:
        return ""
    with svg_figure(7.4, 3.2, "accuracy") as (figure, done):
        axes = figure.add_subplot()
        lowest = min([value for _, value in points] + list(reference[: points[-1][0]]))
        if reference:
            shown = [(k, v) for k, v in enumerate(reference, 1) if k <= points[-1][0]]
            axes.plot(*zip(*shown, strict=True), color=ORANGE, linestyle="--", marker="s")
            _at_end(axes, shown[-1], "without noise", ORANGE, above=shown[-1][1] > points[-1][1])
        axes.plot(*zip(*points, strict=True), color=BLUE, marker="o")
        above = not reference or points[-1][1] >= shown[-1][1]
        _at_end(axes, points[-1], "this run", BLUE, above=above)
        axes.set_ylim(max(0.0, math.floor(lowest * 20 - 0.5) / 20), 1.0)
        axes.set_xlim(points[0][0] - 0.4, points[-1][0] + 0.4 + 0.16 * len(points))
        step = max(1, math.ceil(points[-1][0] / 20))
        axes.set_xticks([number for number, _ in points if number % step == 0])
        axes.set_xlabel("training round")
        axes.set_title("accuracy on the cloud's test records")
        axes.grid(axis="y")
    return done[0]


def epsilon_plot(rows: Sequence[Mapping[str, Any]], units: Mapping[str, str] = _UNITS) -> str:
    """ε by plan after each exchange, training above inference, each per its unit.

    With shared noise training's panel has a second line, the ε if all others collude. What costs
    nothing or has no proven ε has no panel; "" where none is left.
    """
    shown = spent(rows)
    if not shown:
        return ""
    with svg_figure(7.4, 0.7 + 1.6 * len(shown), "epsilon") as (figure, done):
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, key in zip(panels, shown, strict=True):
            colour = BLUE if key == "training" else RED
            largest = _draw_course(axes, rows, key, colour)
            axes.set_title(f"{key}: ε by plan, per {units[key]}")
            if key == "training" and any(COLLUSION in row["epsilon"] for row in rows):
                largest = max(largest, _draw_course(axes, rows, COLLUSION, ORANGE))
                axes.set_title(f"{axes.get_title('left')}; dashed, if all others collude")
            axes.set_ylim(0, max(1e-9, 1.22 * largest) or 1)
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
            axes.grid(axis="y")
        _exchange_ticks(panels[-1], rows)
        panels[-1].set_xlim(-0.5, len(rows) - 0.5 + 0.02 * len(rows))
    return done[0]


def spent(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of training and inference, what has an ε by plan after any exchange."""
    return [key for key in _UNITS if any(row["epsilon"].get(key) for row in rows)]


def _draw_course(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, colour: str) -> float:
    """One ε by exchange as steps, the last one in figures; the largest of them."""
    course = [row["epsilon"].get(key) for row in rows]
    values = np.array([np.nan if v is None else v for v in course], np.float64)
    edges = np.arange(len(rows) + 1) - 0.5
    drawn = np.append(values, values[-1])  # an exchange's ε stands over its own place
    line = "--" if key == COLLUSION else "-"
    axes.step(edges, drawn, where="post", color=colour, linestyle=line)
    if key != COLLUSION:
        axes.fill_between(edges, drawn, step="post", color=colour, alpha=0.15, linewidth=0)
    if np.isfinite(values[-1]):
        end = (len(rows) - 0.5, float(values[-1]))
        _at_end(axes, end, up(float(values[-1])), colour, above=True)
    return float(np.nanmax([*values, 0.0]))


def cluster_plot(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Uploaded softmax vectors in 2-D, one panel per evaluation, coloured by cluster.

    `evaluations` are the `clusters` of committed exchanges with `round` added. All panels share
    one projection, so they can be compared. At most six are shown, evenly chosen.
    """
    usable = [e for e in evaluations if e.get("vectors")]
    if not usable:
        return ""
    picks = np.unique(np.linspace(0, len(usable) - 1, min(PANELS, len(usable))).round().astype(int))
    chosen = [usable[k] for k in picks]
    points = project_2d(np.concatenate([np.asarray(e["vectors"], np.float64) for e in chosen]))
    limits = _limits(points)
    columns = min(3, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    with svg_figure(7.4, 2.75 * lines, "clusters") as (figure, done):
        start = 0
        for position, evaluation in enumerate(chosen, start=1):
            axes = figure.add_subplot(lines, columns, position)
            part = points[start : start + len(evaluation["vectors"])]
            start += len(part)
            _scatter(axes, part, np.asarray(evaluation["labels"], np.int64))
            axes.set_title(_panel_title(evaluation), fontsize=8.5)
            axes.set_xlim(*limits[0])
            axes.set_ylim(*limits[1])
            axes.tick_params(labelleft=False, labelbottom=False)
            for spine in axes.spines.values():
                spine.set_visible(True)
    return done[0]


def bytes_plot(hops: Mapping[str, int]) -> str:
    """Payload bytes by hop; "" where they are unknown."""
    if not any(hops.get(key) for key, _ in HOPS):
        return ""
    with svg_figure(7.4, 1.9, "bytes") as (figure, done):
        axes = figure.add_subplot()
        values = [hops.get(key, 0) for key, _ in HOPS]
        axes.barh([name for _, name in HOPS], values, color=BLUE, height=0.62)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.16 * max(values))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        for place, value in enumerate(values):
            axes.annotate(
                byte_text(value), (value, place), (5, 0), textcoords="offset points", va="center"
            )
    return done[0]


def timeline_plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of each exchange by step, stacked; "" where nothing was committed."""
    if not any(row.get("timeline") for row in rows):
        return ""
    with svg_figure(7.4, 3.2, "timeline") as (figure, done):
        axes = figure.add_subplot()
        places, bottom = np.arange(len(rows)), np.zeros(len(rows))
        for key, name, colour in STEPS:
            heights = np.array([float(row.get("timeline", {}).get(key) or 0) for row in rows])
            axes.bar(places, heights, bottom=bottom, color=colour, label=name, width=0.72)
            bottom += heights
        axes.set_title("seconds")
        axes.grid(axis="y")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, handlelength=1.0)
        _exchange_ticks(axes, rows)
    return done[0]


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


def _at_end(axes: Axes, point: tuple[float, float], text: str, colour: str, *, above: bool) -> None:
    axes.annotate(
        text,
        point,
        (6, 5 if above else -5),
        textcoords="offset points",
        color=colour,
        va="bottom" if above else "top",
        ha="left" if text.isalpha() or " " in text else "right",
        fontweight="bold",
    )


def _exchange_ticks(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Round numbers, and the names of the preparatory phases before them."""
    names = [str(row.get("round", row.get("phase", ""))) for row in rows]
    step = max(1, math.ceil(len(names) / 24))
    ticks = [k for k, row in enumerate(rows) if "phase" in row or k % step == 0]
    axes.set_xticks(ticks, [names[k] for k in ticks])
    for label in axes.get_xticklabels():
        if not label.get_text().isdecimal():
            label.set_rotation(35)
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    axes.set_xlabel("training round, after the preparatory exchanges")


def _scatter(axes: Axes, points: Any, labels: Any) -> None:
    numbered = len(points) <= NUMBERED
    for label in np.unique(labels):
        mask = labels == label
        colour = _FAINT if label < 0 else CLUSTERS[int(label) % len(CLUSTERS)]
        size = 120 if numbered else 14
        axes.scatter(points[mask, 0], points[mask, 1], size, color=colour, alpha=0.85, linewidths=0)
        if numbered and label >= 0:
            for x, y in points[mask]:
                axes.annotate(
                    str(label), (x, y), ha="center", va="center", color="white",
                    fontsize=7, fontweight="bold", annotation_clip=True,
                )  # fmt: skip


def _limits(points: Any) -> list[tuple[float, float]]:
    finite = points[np.isfinite(points).all(axis=1)]
    if not len(finite):
        return [(-1.0, 1.0), (-1.0, 1.0)]
    low, high = finite.min(axis=0), finite.max(axis=0)
    margin = np.maximum(0.12 * (high - low), 1e-6)
    return [(float(a), float(b)) for a, b in zip(low - margin, high + margin, strict=True)]


def _panel_title(evaluation: Mapping[str, Any]) -> str:
    score = evaluation.get("score")
    kind = str(evaluation.get("eval_type", "")).removesuffix("_SCORE").replace("_", "-").lower()
    shown = "no score" if score is None else f"{kind} {score:.2f}".replace("-0", "−0")
    return f"round {evaluation['round']} · {shown}"


_FAINTEST = 0.12  # of one record, so that it is seen


@dataclass(frozen=True)
class Holdings:
    """What was dealt. `counts` (devices, classes), by the labels that the devices see."""

    counts: NDArray[np.int64]
    low_quality: NDArray[np.int64]  # numbers of these devices, from 0
    kind: str

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Records of each device (devices,)."""
        return np.asarray(self.counts.sum(axis=1), dtype=np.int64)


def holdings(job: Job, run: LocalRun) -> Holdings:
    """Count the records that the run dealt."""
    records, shares = dealt(job, run)
    classes = job.data.classes
    counts = np.zeros((len(shares), classes), np.int64)
    for row, share in zip(counts, shares, strict=True):
        y = records.y[share]
        row[:] = np.bincount(y[(y >= 0) & (y < classes)], minlength=classes)
    poor = low_quality_devices(run.devices, run.partition, run.seed)
    return Holdings(counts, poor, run.partition.kind)


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
