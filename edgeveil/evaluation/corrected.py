"""What a clustering score would be without the noise, from the noised vectors alone.

The noise's law is public, so two estimates are made, and none is given that is not good enough:

- *extrapolation* (SIMEX: Cook and Stefanski 1994). Laplace noise of scale b is the member t = 1 of
  the family with characteristic function (1 + b²s²)^−t. More noise of the family is added to the
  vectors, they are labelled and scored anew, less the noise's known share, and a parabola through
  the scores is read at t = 0. It assumes nothing of the vectors, and its error is found by leaving
  out a tenth of them at a time (jackknife), as it moves beside the raw score.
- *model* (`dirichlet_fit.py`), where that error is too large, as plain moments must be for tight
  clusters: clusters of Dirichlet vectors are fitted through the noise. Fleets drawn from the fit,
  noised and fitted in turn, show its bias and its error, and whether the vectors look like it.

"Not identifiable" is the answer where neither holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeveil.evaluation.cluster_labels import Labeller
from edgeveil.evaluation.cluster_metrics import scatter, scatter_ratio, silhouette_squared
from edgeveil.evaluation.dirichlet_fit import DirichletMixture, fit_dirichlets

Array = NDArray[np.float64]
NOT_IDENTIFIABLE = "not identifiable"

EXTRAPOLATION_ERROR = 0.06  # largest relative standard error
UNMODELLED_ERROR = 0.1  # the same where no model fits
MODEL_ERROR = 0.15
CERTAINTY = 0.85
MISFIT = 0.001  # least p of the Kolmogorov-Smirnov test
MAX_MODEL_VALUES = 20_000
_LARGEST = 1e9
_EXTRA_NOISE = (0.25, 0.5, 0.75, 1.0, 1.5)
_COPIES, _PARTS, _FLEETS, _IMPUTATIONS, _SEED = 6, 10, 8, 3, 1


@dataclass(frozen=True)
class Corrected:
    """A score without its noise, and its standard error; None where `reason` says why.

    `method` is `extrapolation`, `model` or empty.
    """

    score: float | None
    error: float | None
    method: str
    reason: str


@dataclass(frozen=True)
class Target:
    """A score that can be corrected.

    `plain` is the score of noise-free points and their labels. `part` is what is extrapolated, of
    points with noise of a variance; `whole` makes the score of it, given points, variance and
    the number of clusters.
    """

    name: str
    plain: Callable[[Array, NDArray[np.int64]], float]
    part: Callable[[Array, NDArray[np.int64], float], float]
    whole: Callable[[float, Array, float, int], float]


def _ratio_whole(within: float, points: Array, variance: float, clusters: int) -> float:
    # All scatter together needs no labels, so that its noise comes off exactly.
    n, k = points.shape
    total = float(((points - points.mean(axis=0)) ** 2).sum()) - variance * k * (n - 1)
    return scatter_ratio(total - within * n, within * n, n, clusters)


def _ratio_plain(points: Array, labels: NDArray[np.int64]) -> float:
    between, within, clusters = scatter(points, labels)
    return scatter_ratio(between, within, len(points), clusters)


TARGETS = {
    "CALINSKI_HARABASZ_SCORE": Target(
        "Calinski-Harabasz",
        _ratio_plain,
        lambda points, labels, variance: scatter(points, labels, variance)[1] / len(points),
        _ratio_whole,
    ),
    "SILHOUETTE_SCORE": Target(
        "silhouette of squared distances",
        silhouette_squared,
        silhouette_squared,
        lambda part, points, variance, clusters: part,
    ),
}


def corrected_score(
    points: Array, target: Target, label: Labeller, scale: float, variance: float
) -> Corrected:
    """The score of `points` (n, k) as if they had no noise.

    Each coordinate carries Laplace noise of `scale` and `variance`. Deterministic: what is drawn
    here protects nobody, so its seed is fixed.
    """
    points = np.clip(points, -_LARGEST, _LARGEST)  # so that no square overflows
    labels = label(points)
    if len(points) < 3 * _PARTS or len(np.unique(labels)) < 2:
        return Corrected(None, None, "", f"{NOT_IDENTIFIABLE}: too few uploads or clusters")
    with np.errstate(all="ignore"):  # judged by what comes out
        score, error = _extrapolated(points, target, label, scale, variance)
    extrapolated = Corrected(score, error, "extrapolation", "")
    if _good(score, error, EXTRAPOLATION_ERROR):
        return extrapolated
    modelled = _by_model(points, target, label, scale)
    if modelled.score is None and _good(score, error, UNMODELLED_ERROR):
        return extrapolated
    return modelled


def _by_model(points: Array, target: Target, label: Labeller, scale: float) -> Corrected:
    """The model's answer, or why it has none."""
    labels = label(points)
    if points.size > MAX_MODEL_VALUES:
        points = points[: MAX_MODEL_VALUES // points.shape[1]]
        labels = label(points)
    fit = fit_dirichlets(points, labels, scale)
    if fit.certainty < CERTAINTY:
        return Corrected(None, None, "", f"{NOT_IDENTIFIABLE}: the noise hides which is which")
    score, error, fits = _modelled(points, fit, target, label, scale)
    if not fits:
        return Corrected(None, None, "", f"{NOT_IDENTIFIABLE}: not like clusters under noise")
    if not _good(score, error, MODEL_ERROR):
        return Corrected(None, None, "", f"{NOT_IDENTIFIABLE}: its error would pass 15 %")
    return Corrected(score, error, "model", "")


def _good(score: float, error: float, limit: float) -> bool:
    return math.isfinite(score) and math.isfinite(error) and error <= limit * abs(score)


def _extrapolated(
    points: Array, target: Target, label: Labeller, scale: float, variance: float
) -> tuple[float, float]:
    """The extrapolated score and its standard error."""
    copies = list(_noisier(points, scale))
    labelled = [(amount, noised, label(noised)) for amount, noised in copies]
    clusters = len(np.unique(labelled[0][2]))
    amounts = np.array([amount for amount, _, _ in labelled])
    # The vectors as they are count for as much as all copies of one amount.
    weights = np.sqrt(np.where(amounts == 1.0, _COPIES, 1.0))

    def estimate(kept: NDArray[np.bool_]) -> float:
        parts = [target.part(z[kept], lab[kept], variance * a) for a, z, lab in labelled]
        at_zero = float(np.polyfit(amounts, parts, 2, w=weights)[-1])
        return target.whole(at_zero, points[kept], variance, clusters)

    score = estimate(np.ones(len(points), dtype=np.bool_))
    raw = target.plain(points, labelled[0][2])
    left_out = np.arange(len(points)) % _PARTS
    # What the score moves with the vectors themselves is no error: the raw one moves with it.
    share = score / raw if raw > 0 and score > 0 else 1.0
    each = np.array(
        [
            estimate(kept) - share * target.plain(points[kept], labelled[0][2][kept])
            for kept in (left_out != part for part in range(_PARTS))
        ]
    )
    spread = float(((each - each.mean()) ** 2).sum())
    return score, math.sqrt((_PARTS - 1) / _PARTS * spread)


def _noisier(points: Array, scale: float) -> Iterator[tuple[float, Array]]:
    """(amount of noise, points): as they are, of amount 1, and copies with more."""
    rng = np.random.default_rng(_SEED)
    yield 1.0, points
    for more in _EXTRA_NOISE:
        for _ in range(_COPIES):
            # The difference of two Gamma(t) variables has the law of amount t.
            extra = rng.standard_gamma(more, points.shape) - rng.standard_gamma(more, points.shape)
            yield 1.0 + more, points + scale * extra


def _modelled(
    points: Array, fit: DirichletMixture, target: Target, label: Labeller, scale: float
) -> tuple[float, float, bool]:
    """The fit's score less its bias, its standard error, and whether the points look like it."""
    rng = np.random.default_rng(_SEED)
    count = len(points)
    logs, seen = [], []
    for _ in range(_FLEETS):
        fleet = fit.draw(count, rng)
        true = target.plain(fleet, label(fleet))
        noised = fleet + rng.laplace(0.0, scale, fleet.shape)
        again = fit_dirichlets(noised, label(noised), scale, near=fit)
        found = _fitted(again, noised, target, label, scale, rng)
        logs.append(math.log(found / true) if min(found, true) > 0 else math.inf)
        seen.append(noised)
    if not np.isfinite(logs).all():
        return math.nan, math.inf, True
    score = _fitted(fit, points, target, label, scale, rng) * math.exp(-float(np.mean(logs)))
    return score, abs(score) * float(np.std(logs, ddof=1)), _alike(points, np.concatenate(seen))


def _fitted(
    fit: DirichletMixture,
    points: Array,
    target: Target,
    label: Labeller,
    scale: float,
    rng: np.random.Generator,
) -> float:
    """The mean score of what the points may have been, given the fit."""
    fleets = [fit.impute(points, scale, rng) for _ in range(_IMPUTATIONS)]
    return float(np.mean([target.plain(fleet, label(fleet)) for fleet in fleets]))


def _alike(points: Array, drawn: Array) -> bool:
    """Whether the largest entries and their lead look as in points drawn from the model."""
    from scipy.stats import ks_2samp

    tops = [np.sort(part, axis=1)[:, -2:] for part in (points, drawn)]
    ours, theirs = (np.column_stack([top, top[:, 1] - top[:, 0]]) for top in tops)
    return all(ks_2samp(a, b).pvalue >= MISFIT for a, b in zip(ours.T, theirs.T, strict=True))
