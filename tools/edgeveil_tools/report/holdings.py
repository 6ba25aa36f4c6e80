"""Who holds what: the records of each class at each device of a local run, as a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from edgeveil.jobs import Job
from edgeveil.parts.partitions.dealing import low_quality_devices
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.report.plots import BLUE, RED, svg_figure

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
    with svg_figure(7.4, height_of(held), "holdings") as (figure, done):
        draw(figure, held)
    return done[0]


def height_of(held: Holdings) -> float:
    """Of the picture, in inches."""
    classes: int = held.counts.shape[1]
    return 2.2 + min(2.6, 0.16 * classes)


def draw(figure: Figure, held: Holdings) -> None:
    """Fill an empty figure."""
    devices, classes = held.counts.shape
    sizes, grid = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [1.0, height_of(held) - 1.4]}
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
