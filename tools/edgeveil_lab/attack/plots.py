"""The pictures of an attack: what was reconstructed, and how well members are told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from edgeveil_lab.attack.inversion import METHODS, Inversion, InversionResult
from edgeveil_lab.attack.membership import Membership, RocCurve, dp_curve, normal_curve
from edgeveil_lab.pages import BLUE, GREEN, ORANGE, PURPLE, RED
from edgeveil_lab.pages import STYLE as PLOT_STYLE

INK, FAINT, PAPER = "#23272e", "#8a929c", "#ffffff"
LEAST = 1e-3  # of the logarithmic axes
STYLE: dict[str, Any] = {
    **PLOT_STYLE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.fontsize": 8,
    "savefig.facecolor": PAPER,
    "savefig.dpi": 150,
}


def draw_inversion(inversion: Inversion, path: Path) -> None:
    """Originals above, then each method without noise, then each with the recorded noise."""
    counts = sorted({found.records for found in inversion.results})
    rows = [("original", None), *((name, noise) for noise in (False, True) for name in METHODS)]
    side = inversion.originals.shape[1]
    gap = max(1, side // 14)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.6 + 0.66 * sum(counts), 0.9 + 0.74 * len(rows)))
        grid = figure.add_gridspec(
            len(rows),
            len(counts),
            width_ratios=[count * (side + gap) - gap for count in counts],
            left=0.13,
            right=0.99,
            top=0.945,
            bottom=0.02,
            wspace=0.06,
            hspace=0.16,
        )
        for column, count in enumerate(counts):
            for row, (name, noise) in enumerate(rows):
                axes = figure.add_subplot(grid[row, column])
                found = _found(inversion, count, name, noise)
                images = inversion.originals[:count] if found is None else found.images
                _strip(axes, images, gap)
                if row == 0:
                    axes.set_title(f"{count} record{'s' if count > 1 else ''}", pad=6)
                if column == 0:
                    axes.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=8)
        _side_note(figure, grid, rows, False, "without noise", ORANGE)
        _side_note(figure, grid, rows, True, "with the noise", BLUE)
        figure.savefig(path)


def draw_membership(membership: Membership, epsilon: float, delta: float, path: Path) -> None:
    """Two log-log curves, with what the guarantee allows at most, and the AUC by round."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11.4, 4.9), layout="constrained")
        first, second, third = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
        _curves(first, membership.model, "From the global model")
        _curves(second, membership.upload, "From one device's uploads")
        fpr = np.logspace(np.log10(LEAST), 0, 200)
        allowed = np.minimum(normal_curve(fpr, membership.mu_job), dp_curve(fpr, epsilon, delta))
        for axes in (first, second):
            axes.plot(fpr, allowed, color=INK, lw=1.2, ls=(0, (4, 2)))
            axes.fill_between(fpr, allowed, 1, color=FAINT, alpha=0.16, lw=0)
            axes.text(0.0013, 0.62, "ruled out by the guarantee", fontsize=8, color=INK)
            axes.legend(loc="upper center", bbox_to_anchor=(0.48, -0.14), handlelength=1.8)
        numbers = np.arange(1, len(membership.rounds) + 1)
        noised, free = np.array(membership.rounds).T
        for values, colour, name in (
            (free, ORANGE, "without noise"),
            (noised, BLUE, "with the noise"),
        ):
            third.plot(numbers, values, color=colour, lw=2)
            third.annotate(
                name,
                (numbers[-1], values[-1]),
                (0, 7),
                textcoords="offset points",
                ha="right",
                color=colour,
                fontweight="bold",
            )
        third.axhline(0.5, color=FAINT, lw=0.8, ls=":")
        third.set_title("AUC of the loss, round by round")
        third.set_xlabel("training round")
        third.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        third.set_ylim(0.48, max(0.6, float(np.max(free)) + 0.05))
        figure.savefig(path)


def _found(
    inversion: Inversion, count: int, name: str, noise: bool | None
) -> InversionResult | None:
    wanted = (count, name, noise)
    results = inversion.results
    return next((r for r in results if (r.records, r.method, r.noise) == wanted), None)


def _strip(axes: Axes, images: Any, gap: int) -> None:
    """Images side by side with `gap` pixels of paper between them."""
    side = images.shape[1]
    strip = np.ones((side, len(images) * (side + gap) - gap))
    for k, image in enumerate(images):
        left = k * (side + gap)
        strip[:, left : left + side] = 0.96 * (1 - image)
    axes.imshow(strip, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _side_note(
    figure: Figure,
    grid: Any,
    rows: list[tuple[str, bool | None]],
    noise: bool,
    text: str,
    colour: str,
) -> None:
    places = [k for k, (_, noisy) in enumerate(rows) if noisy is noise]
    top = grid[places[0], 0].get_position(figure).y1
    bottom = grid[places[-1], 0].get_position(figure).y0
    figure.text(
        0.012,
        (top + bottom) / 2,
        text,
        rotation=90,
        ha="center",
        va="center",
        color=colour,
        fontweight="bold",
    )
    line = mpl.lines.Line2D(
        [0.026, 0.026], [bottom, top], color=colour, lw=2, transform=figure.transFigure
    )
    figure.add_artist(line)


def _curves(axes: Axes, curves: tuple[RocCurve, ...], title: str) -> None:
    colours = iter((BLUE, ORANGE, PURPLE, RED, GREEN))
    known: dict[str, str] = {}
    for curve in curves:
        colour = known.setdefault(curve.name, next(colours, INK))
        how = "" if curve.noise else ", without noise"
        axes.plot(
            np.maximum(curve.fpr, LEAST / 10),
            np.maximum(curve.tpr, LEAST / 10),
            color=colour,
            lw=1.8 if curve.noise else 1.3,
            ls="-" if curve.noise else (0, (1.5, 1)),
            label=f"{curve.name}{how}: AUC {curve.auc:.2f}",
        )
    axes.plot([LEAST, 1], [LEAST, 1], color=FAINT, lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(LEAST, 1)
    axes.set_ylim(LEAST, 1.05)
    axes.set_title(title)
    axes.set_xlabel("false positives")
    axes.set_ylabel("true positives")
