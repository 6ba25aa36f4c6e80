"""Pictures of an attack: reconstructed images, and how well members are distinguished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from edgeveil_lab.attack.inversion import METHODS, Inversion
from edgeveil_lab.attack.membership import Membership, RocCurve, dp_curve, normal_curve
from edgeveil_lab.pages import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, STYLE, saved

LEAST = 1e-3  # of the logarithmic axes


@mpl.rc_context(STYLE)
def draw_inversion(inversion: Inversion, path: Path) -> None:
    counts = sorted({found.records for found in inversion.results})
    found = {(one.method, one.noise, one.records): one.images for one in inversion.results}
    rows = [("original", False), *((name, noise) for noise in (False, True) for name in METHODS)]
    side = inversion.originals.shape[1]
    gap = max(1, side // 14)
    size = (2.2 + 0.66 * sum(counts), 0.9 + 0.74 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    widths = [count * (side + gap) - gap for count in counts]
    grid = figure.subplots(len(rows), len(counts), squeeze=False, width_ratios=widths)
    for (name, noise), line in zip(rows, grid, strict=True):
        for axes, count in zip(line, counts, strict=True):
            _strip(axes, found.get((name, noise, count), inversion.originals[:count]), gap)
        label = f"{name},\nwith the noise" if noise else name
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", labelpad=8)
    for axes, count in zip(grid[0], counts, strict=True):
        axes.set_title(f"{count} record{'s' if count > 1 else ''}", pad=6)
    path.write_bytes(saved(figure, "png"))


def _strip(axes: Axes, images: Any, gap: int) -> None:
    side = images.shape[1]
    strip = np.ones((side, len(images) * (side + gap) - gap))
    for k, image in enumerate(images):
        left = k * (side + gap)
        strip[:, left : left + side] = 0.96 * (1 - image)
    axes.imshow(strip, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set(xticks=[], yticks=[], frame_on=False)


@mpl.rc_context(STYLE)
def draw_membership(membership: Membership, epsilon: float, delta: float, path: Path) -> None:
    figure = Figure(figsize=(11.4, 4.9), layout="constrained")
    first, second, third = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    fpr = np.logspace(np.log10(LEAST), 0, 200)
    allowed = np.minimum(normal_curve(fpr, membership.mu_job), dp_curve(fpr, epsilon, delta))
    for axes, curves, source in (
        (first, membership.model, "the global model"),
        (second, membership.upload, "one device's uploads"),
    ):
        _draw_curves(axes, curves)
        axes.plot(fpr, allowed, color=INK, lw=1.2, ls=(0, (4, 2)))
        axes.fill_between(fpr, allowed, 1, color=FAINT, alpha=0.16, lw=0)
        axes.text(0.0013, 0.62, "ruled out by the guarantee", fontsize=8, color=INK)
        axes.set_title(f"From {source}")
        axes.legend(loc="upper center", bbox_to_anchor=(0.48, -0.14), handlelength=1.8)
    numbers = np.arange(1, len(membership.rounds) + 1)
    noised, free = np.array(membership.rounds).T
    third.plot(numbers, free, color=ORANGE, lw=2, label="without noise")
    third.plot(numbers, noised, color=BLUE, lw=2, label="with the noise")
    third.axhline(0.5, color=FAINT, lw=0.8, ls=":")
    third.legend()
    third.set(title="AUC of the loss, round by round", xlabel="training round")
    third.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    third.set_ylim(0.48, max(0.6, float(np.max(free)) + 0.05))
    path.write_bytes(saved(figure, "png"))


def _draw_curves(axes: Axes, curves: tuple[RocCurve, ...]) -> None:
    colours = iter((BLUE, ORANGE, PURPLE, RED, GREEN))
    known: dict[str, str] = {}
    for curve in curves:
        colour = known.setdefault(curve.name, next(colours, INK))
        axes.plot(
            np.maximum(curve.fpr, LEAST / 10),
            np.maximum(curve.tpr, LEAST / 10),
            color=colour,
            ls="-" if curve.noise else (0, (1.5, 1)),
            label=f"{curve.name}{'' if curve.noise else ', without noise'}: AUC {curve.auc:.2f}",
        )
    axes.plot([LEAST, 1], [LEAST, 1], color=FAINT, lw=0.8, ls=":")
    axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1.05))
    axes.set(xlabel="false positives", ylabel="true positives")
