"""Clustering scores against ε for simulated fleets: raw, corrected and without noise.

    python -m edgeveil_lab.cluster_scores [--devices 1000] [--out docs/images/cluster_scores.png]
    python -m edgeveil_lab.cluster_scores --sums

Draws the picture of docs/privacy.md and prints its table; with --sums prints that of scores from
sums over records alone. Seeded: the same at every run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from edgeveil.errors import UsageError
from edgeveil.evaluation.cluster_metrics import by_argmax, calinski_harabasz, davies_bouldin
from edgeveil.evaluation.cluster_sums import STEP_BITS, ClusterSums
from edgeveil.evaluation.figures import CLUSTER_SCORES, score_text
from edgeveil.evaluation.noise_correction import (
    NOT_IDENTIFIABLE,
    TARGETS,
    CorrectedScore,
    corrected_score,
)
from edgeveil.privacy.events import GaussianEvent, LaplaceEvent
from edgeveil.privacy.gaussian_mechanism import counts_event
from edgeveil.privacy.laplace_mechanism import noise_law, softmax_laplace
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.registry import Table
from edgeveil_lab.pages import BLUE, GREEN, ORANGE, STYLE

# --- simulated fleets: softmax vectors as devices would have them before any noise ---

Float64 = NDArray[np.float64]
CLASSES = 10
_LEAST = 1e-4


def fleet(name: str, devices: int, seed: int) -> Float64:
    """Noise-free vectors (devices, 10) of a kind of `FLEETS`. Raises UsageError."""
    if devices < 1:
        raise UsageError(f"{devices} devices", where="devices", fix="ask for at least 1")
    return FLEETS[name](devices, np.random.default_rng([seed, devices]))


def _own(share: float, confusion: Float64) -> Float64:
    """Mean vectors (10, 10) of one-class devices: `share` on their own class, the rest confused."""
    return share * np.eye(CLASSES) + (1 - share) * confusion


def _even() -> Float64:
    return np.asarray((1 - np.eye(CLASSES)) / (CLASSES - 1))


def _uneven() -> Float64:
    """Some classes are alike: fixed and uneven confusions, as learned models have them."""
    raw = np.random.default_rng(5).gamma(0.5, 1.0, (CLASSES, CLASSES)) * (1 - np.eye(CLASSES))
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def _about(means: Float64, concentration: float, rng: np.random.Generator) -> Float64:
    raw = rng.standard_gamma(np.maximum(means, _LEAST) * concentration)
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def _one_class(devices: int, rng: np.random.Generator) -> Float64:
    return _about(_own(0.9, _even())[rng.integers(0, CLASSES, devices)], 10.3, rng)


def _alike(devices: int, rng: np.random.Generator) -> Float64:
    return _about(_own(0.85, _uneven())[rng.integers(0, CLASSES, devices)], 12.0, rng)


def _unbalanced(devices: int, rng: np.random.Generator) -> Float64:
    sizes = np.arange(1, CLASSES + 1) / 55
    return _about(_own(0.88, _uneven())[rng.choice(CLASSES, devices, p=sizes)], 12.0, rng)


def _early(devices: int, rng: np.random.Generator) -> Float64:
    return _about(_own(0.6, _uneven())[rng.integers(0, CLASSES, devices)], 15.0, rng)


def _records(devices: int, rng: np.random.Generator) -> Float64:
    """Means over 16 records whose class is mistaken now and then: no Dirichlet law."""
    shares = _own(0.88, _uneven())[rng.integers(0, CLASSES, devices)]
    counts = rng.multinomial(16, shares / shares.sum(axis=1, keepdims=True))
    return np.asarray(0.01 + 0.9 * counts / 16)


def _two_class(devices: int, rng: np.random.Generator) -> Float64:
    pairs = np.stack([rng.choice(CLASSES, 2, replace=False) for _ in range(devices)])
    share = rng.uniform(0.3, 0.7, devices)[:, None]
    mixed = share * np.eye(CLASSES)[pairs[:, 0]] + (1 - share) * np.eye(CLASSES)[pairs[:, 1]]
    return np.asarray(0.9 * mixed + 0.1 * rng.dirichlet(np.ones(CLASSES), devices))


def _iid(devices: int, rng: np.random.Generator) -> Float64:
    return np.asarray(rng.dirichlet(np.full(CLASSES, 30.0), devices))


FLEETS: Table[Callable[[int, np.random.Generator], Float64]] = Table(
    "fleet",
    {
        "one-class": _one_class,
        "alike": _alike,
        "unbalanced": _unbalanced,
        "early": _early,
        "records": _records,
        "two-class": _two_class,
        "iid": _iid,
    },
)


# --- scores at each ε ---

EPSILONS = (1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500, 1e3, 1e4, 1e5, 1e6)
FLEET, SEED = "unbalanced", 1
_HIDDEN = "#EDEDED"


@dataclass(frozen=True)
class ScoreCurve:
    """One score at each ε: without noise, raw, and corrected."""

    name: str
    true: float
    raw: tuple[float, ...]
    corrected: tuple[CorrectedScore, ...]


def score_curve(
    kind: str, devices: int, epsilons: Sequence[float] = EPSILONS, name: str = FLEET
) -> ScoreCurve:
    """The score `kind` of `TARGETS` for a fleet whose uploads are noised at each ε."""
    clean, target = fleet(name, devices, SEED), TARGETS[kind]
    raw, corrected = [], []
    for number, epsilon in enumerate(epsilons):
        points, event = softmax_laplace(clean, epsilon, random_bytes=SeededRandom(number))
        if not isinstance(event, LaplaceEvent):
            raise TypeError("an upload with an ε has noise")
        raw.append(target.plain(points, by_argmax(points)))
        corrected.append(corrected_score(points, target, by_argmax, *noise_law(event)))
    true = target.plain(clean, by_argmax(clean))
    return ScoreCurve(target.name, true, tuple(raw), tuple(corrected))


def picture(
    courses: Sequence[ScoreCurve], path: Path, epsilons: Sequence[float] = EPSILONS
) -> None:
    """Draw one panel a score."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        panels = figure.subplots(1, len(courses), squeeze=False)[0]
        for axes, found in zip(panels, courses, strict=True):
            _panel(axes, found, np.asarray(epsilons, np.float64))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160, metadata={"Software": None})


def _panel(axes: Axes, found: ScoreCurve, epsilons: Any) -> None:
    has = np.array([c.score is not None for c in found.corrected])
    scores = np.array([np.nan if c.score is None else c.score for c in found.corrected])
    errors = np.array([0.0 if c.error is None else c.error for c in found.corrected])
    edges = np.sqrt(epsilons[1:] * epsilons[:-1])
    bounds = np.concatenate([[epsilons[0] / 1.4], edges, [epsilons[-1] * 1.4]])
    for place in np.flatnonzero(~has):
        axes.axvspan(bounds[place], bounds[place + 1], color=_HIDDEN, linewidth=0)
    axes.axhline(found.true, color=GREEN, linestyle="--", linewidth=1.5)
    axes.plot(epsilons, found.raw, color=ORANGE, marker="s")
    axes.errorbar(epsilons, scores, errors, color=BLUE, marker="o", capsize=2.5, elinewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(bounds[0], bounds[-1])
    if found.true > 1:
        axes.set_yscale("log")
        axes.set_ylim(0.7 * min(found.raw), 1.7 * found.true)
    else:
        axes.set_ylim(0, 1.12)
    axes.set_title(found.name)
    axes.set_xlabel("ε of one upload")
    _labels(axes, found, epsilons, has)


def _labels(axes: Axes, found: ScoreCurve, epsilons: Any, has: Any) -> None:
    """Names beside the lines, in their colours."""

    def say(x: float, y: float, text: str, colour: str, up: float, side: str = "left") -> None:
        axes.annotate(
            text, (x, y), (0, up), textcoords="offset points", color=colour, ha=side, va="center"
        )

    middle = len(epsilons) // 2
    say(epsilons[-1], found.true, "without noise", GREEN, 9, "right")
    say(epsilons[middle - 2] * 1.3, found.raw[middle - 2], "raw", ORANGE, -8)
    if has.any():
        first = int(np.flatnonzero(has)[0])
        say(epsilons[first], found.true, "corrected", BLUE, 14)
    if not has.all():
        low, high = axes.get_ylim()
        y = low * (high / low) ** 0.6 if axes.get_yscale() == "log" else (low + high) / 2
        hidden = np.log(epsilons[: np.flatnonzero(has)[0] if has.any() else None])
        x = float(np.exp((hidden[0] + hidden[-1]) / 2)) if len(hidden) else epsilons[0]
        say(x, y, f"corrected:\n{NOT_IDENTIFIABLE}".replace(" ", "\n"), "#666666", 0, "center")


def table(courses: Sequence[ScoreCurve], epsilons: Sequence[float] = EPSILONS) -> str:
    """The figures as a Markdown table."""
    heads = [f"{c.name}: raw | corrected" for c in courses]
    lines = ["| ε | " + " | ".join(heads) + " |", "| --- |" + " --- | --- |" * len(courses)]
    for row, epsilon in enumerate(epsilons):
        cells = [f"{c.raw[row]:.3g} | {_cell(c.corrected[row])}" for c in courses]
        lines.append(f"| {epsilon:g} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "| none | " + " | ".join(f"{c.true:.3g} | " for c in courses) + "|"])


def _cell(found: CorrectedScore) -> str:
    if found.score is None or found.error is None:
        return NOT_IDENTIFIABLE
    return f"{found.score:.3g} ± {found.error:.1g} ({found.method})"


# --- scores from sums ---

RECORDS, OF_SUMS, HONEST = (500, 2_000, 10_000, 50_000), (1.0, 2.0, 8.0), 0.64


def sums_table() -> str:
    """Scores from sums over so many records, at each ε, beside scikit-learn's, as Markdown: about
    corners, and about the means of such sums. Noise is shared, and a part of HONEST is counted on.
    """
    names = " | ".join(CLUSTER_SCORES.values())
    rows = [f"| records | ε | centroids | {names} |", "| --- " * 6 + "|"]
    for records in RECORDS:
        points = fleet(FLEET, records, SEED)
        for epsilon in OF_SUMS:
            kind = ClusterSums(CLASSES)
            for about in ("corners", "means"):
                told, moved = _of_sums(kind, points, epsilon, records)
                cells = " | ".join(score_text(told, name) for name in CLUSTER_SCORES)
                rows.append(f"| {records:,} | {epsilon:g} | {about} | {cells} |")
                kind = kind.of_broadcast(moved)
        labels = points.argmax(axis=1)
        exact, _ = _of_sums(ClusterSums(CLASSES), points, math.inf, records)
        found = (calinski_harabasz(points, labels), davies_bouldin(points, labels))
        cells = " | ".join(f"{value:.4g}" for value in (exact["silhouette"], *found))
        rows.append(f"| {records:,} | none | scikit-learn | {cells} |")
    return "\n".join(rows)


def _of_sums(
    kind: ClusterSums, points: Float64, epsilon: float, records: int
) -> tuple[Mapping[str, Any], NDArray[np.int64]]:
    """Scores of sums that cost ε with a second exchange of the same, and the next centroids."""
    counts = kind.of(points, np.zeros(0, np.int64)).astype(np.float64)
    deviation = 0.0
    if math.isfinite(epsilon):
        asked = kind.sensitivity_squared, kind.cells, epsilon, 1e-5, 2
        event = counts_event("sums", *asked, fine_bits=STEP_BITS)
        if not isinstance(event, GaussianEvent):
            raise TypeError("sums have Gaussian noise")
        deviation = math.sqrt(event.sigma_squared / HONEST) * 2.0**-event.grid_bits
        chance = np.random.default_rng([SEED, records, int(epsilon), len(kind.centroids)])
        counts += chance.normal(0.0, deviation, counts.size)
    return kind.figures(counts, deviation), kind.moved(counts, deviation)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw and print."""
    parser = argparse.ArgumentParser(prog="edgeveil_lab.cluster_scores", description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("docs/images/cluster_scores.png"))
    parser.add_argument("--sums", action="store_true", help="print scores from sums alone")
    args = parser.parse_args(argv)
    if args.sums:
        print(sums_table())
        return 0
    courses = [score_curve(kind, args.devices) for kind in TARGETS]
    picture(courses, args.out)
    print(table(courses))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
