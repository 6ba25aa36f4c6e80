"""What a clustering score would be without the noise, from the noised vectors alone.

The noise's law is public, so two estimates are made, and none is given that is not good enough:

- *extrapolation* (SIMEX: Cook and Stefanski 1994). Laplace noise of scale b is the member t = 1 of
  the family with characteristic function (1 + b²s²)^−t. More noise of the family is added to the
  vectors, they are labelled and scored anew, less the noise's known share, and a parabola through
  the scores is read at t = 0. It assumes nothing of the vectors, and its error is found by leaving
  out a tenth of them at a time (jackknife), as it moves beside the raw score.
- *model*, where that error is too large, as plain moments must be for tight clusters: clusters of
  Dirichlet vectors are fitted through the noise. Fleets drawn from the fit, noised and fitted in
  turn, show its bias and its error, and whether the vectors look like it.

"Not identifiable" is the answer where neither holds.

The model is a mixture of Dirichlets over a vector and what it lacks of mass 1: of a device with
fewer records than nominal that is much. A mean of probability vectors varies as m·(1 − m)/(a + 1)
about its cluster's mean m, which is the Dirichlet law; noise of a known scale blurs it. Two steps:

1. means and weights by a likelihood that takes the coordinates of a vector as independent given its
   cluster (a composite likelihood: Varin, Reid, Firth 2011): each is a Beta law blurred by Laplace,
   summed on a grid;
2. the concentration, which decides the scatter within clusters, by the full likelihood, averaged
   over vectors drawn from the clusters. That a vector's entries sum to 1 is half of what is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.evaluation.cluster_metrics import (
    Labeller,
    on_simplex,
    scatter,
    scatter_ratio,
    silhouette_squared,
)

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

# Bins of [0, 1], fine at both ends, where probabilities pile up.
_ENDS = np.geomspace(1e-3, 0.1, 14)
_EDGES = np.concatenate([[0.0], _ENDS, np.linspace(0.1, 0.9, 30)[1:-1], 1 - _ENDS[::-1], [1.0]])
_MIDDLES = (_EDGES[1:] + _EDGES[:-1]) / 2
_LEAST_MEAN = 2e-3
_FIRST_CONCENTRATION = 12.0
_CLEARLY = 3.0  # standard errors
_CONCENTRATIONS = [-2.0, 8.0]  # natural logarithms
_ITERATIONS, _FURTHER_ITERATIONS = 60, 20
# Of the second step: draws a cluster, concentrations tried and how far (natural logarithm).
_DRAWS, _STEPS, _REACH = 600, 7, 1.0
_LEAST_POSTERIOR = 1e-3


@dataclass(frozen=True)
class CorrectedScore:
    """A score without its noise, and its standard error; None where `reason` says why.

    `method` is `extrapolation`, `model` or empty.
    """

    score: float | None
    error: float | None
    method: str
    reason: str


@dataclass(frozen=True)
class CorrectableScore:
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
    "CALINSKI_HARABASZ_SCORE": CorrectableScore(
        "Calinski-Harabasz",
        _ratio_plain,
        lambda points, labels, variance: scatter(points, labels, variance)[1] / len(points),
        _ratio_whole,
    ),
    "SILHOUETTE_SCORE": CorrectableScore(
        "silhouette of squared distances",
        silhouette_squared,
        silhouette_squared,
        lambda part, points, variance, clusters: part,
    ),
}


def corrected_score(
    points: Array, target: CorrectableScore, label: Labeller, scale: float, variance: float
) -> CorrectedScore:
    """The score of `points` (n, k) as if they had no noise.

    Each coordinate carries Laplace noise of `scale` and `variance`. Deterministic: what is drawn
    here protects nobody, so its seed is fixed.
    """
    points = np.clip(points, -_LARGEST, _LARGEST)  # so that no square overflows
    labels = label(points)
    if len(points) < 3 * _PARTS or len(np.unique(labels)) < 2:
        return CorrectedScore(None, None, "", f"{NOT_IDENTIFIABLE}: too few uploads or clusters")
    with np.errstate(all="ignore"):  # judged by what comes out
        score, error = _extrapolated(points, target, label, scale, variance)
    extrapolated = CorrectedScore(score, error, "extrapolation", "")
    if _good(score, error, EXTRAPOLATION_ERROR):
        return extrapolated
    modelled = _by_model(points, target, label, scale)
    if modelled.score is None and _good(score, error, UNMODELLED_ERROR):
        return extrapolated
    return modelled


def _by_model(
    points: Array, target: CorrectableScore, label: Labeller, scale: float
) -> CorrectedScore:
    """The model's answer, or why it has none."""
    labels = label(points)
    if points.size > MAX_MODEL_VALUES:
        points = points[: MAX_MODEL_VALUES // points.shape[1]]
        labels = label(points)
    fit = fit_dirichlets(points, labels, scale)
    if fit.certainty < CERTAINTY:
        return CorrectedScore(None, None, "", f"{NOT_IDENTIFIABLE}: the noise hides which is which")
    score, error, fits = _modelled(points, fit, target, label, scale)
    if not fits:
        return CorrectedScore(None, None, "", f"{NOT_IDENTIFIABLE}: not like clusters under noise")
    if not _good(score, error, MODEL_ERROR):
        return CorrectedScore(None, None, "", f"{NOT_IDENTIFIABLE}: its error would pass 15 %")
    return CorrectedScore(score, error, "model", "")


def _good(score: float, error: float, limit: float) -> bool:
    return math.isfinite(score) and math.isfinite(error) and error <= limit * abs(score)


def _extrapolated(
    points: Array, target: CorrectableScore, label: Labeller, scale: float, variance: float
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
    points: Array, fit: DirichletMixture, target: CorrectableScore, label: Labeller, scale: float
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
    target: CorrectableScore,
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


@dataclass(frozen=True)
class DirichletMixture:
    """Clusters of weights (q,), means and one concentration, of vectors of `values` entries (k).

    Means are (q, k), or (q, k + 1) with the slack of mass 1 last, where a fleet's vectors lack
    some: a device with fewer records than nominal sends less. `posterior` (n, q) is the probability
    of each cluster for each of the vectors fitted.
    """

    weights: Array
    means: Array
    concentration: float
    posterior: Array
    values: int

    @property
    def certainty(self) -> float:
        """Mean over vectors of the likeliest cluster's probability: 1 where each is sure."""
        return float(self.posterior.max(axis=1).mean())

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """`count` noise-free vectors (count, k)."""
        cluster = rng.choice(len(self.weights), count, p=self.weights)
        return _dirichlet(self.means[cluster], self.concentration, rng)[:, : self.values]

    def impute(self, points: Array, scale: float, rng: np.random.Generator) -> Array:
        """What the points (n, k) may have been before their noise, drawn given the points."""
        best, found = np.full(len(points), -np.inf), np.empty_like(points)
        for rows, log_weight, drawn in self._against(points, scale, self.concentration, rng):
            # The largest of log weights with Gumbel noise falls as the weights are.
            raced = log_weight + rng.gumbel(size=log_weight.shape)
            first = raced.argmax(axis=1)
            value = raced[np.arange(len(rows)), first]
            wins = value > best[rows]
            best[rows[wins]], found[rows[wins]] = value[wins], drawn[first[wins]]
        return found

    def log_likelihood(
        self, points: Array, scale: float, concentration: float, rng: np.random.Generator
    ) -> float:
        """Of points (n, k) at another concentration, averaged over draws."""
        total = np.full(len(points), -np.inf)
        for rows, log_weight, _ in self._against(points, scale, concentration, rng):
            top = log_weight.max(axis=1, initial=-np.inf)
            mass = np.log(np.exp(log_weight - top[:, None]).sum(axis=1))
            total[rows] = np.logaddexp(total[rows], top + mass)
        return float(total.sum())

    def _against(
        self, points: Array, scale: float, concentration: float, rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.intp], Array, Array]]:
        """For each cluster: the rows that may be its own, their log weights (rows, draws) against
        vectors drawn from it, and those vectors (draws, k)."""
        for cluster, mean in enumerate(self.means):
            rows = np.flatnonzero(self.posterior[:, cluster] > _LEAST_POSTERIOR)
            drawn = _dirichlet(np.repeat(mean[None], _DRAWS, axis=0), concentration, rng)
            drawn = drawn[:, : self.values]
            distance = np.zeros((len(rows), _DRAWS))
            for ours, theirs in zip(points[rows].T, drawn.T, strict=True):
                distance += np.abs(ours[:, None] - theirs)
            yield rows, math.log(self.weights[cluster] + 1e-300) - distance / scale, drawn


def fit_dirichlets(
    points: Array, labels: NDArray[np.int64], scale: float, near: DirichletMixture | None = None
) -> DirichletMixture:
    """The mixture for points (n, k) with Laplace noise of `scale`, one Dirichlet per label.

    Maximum likelihood by L-BFGS, started at the labels' own means, or `near` a fit of such points;
    then the concentration by the largest of a cubic through the full likelihood. Deterministic.
    """
    from scipy.optimize import minimize

    if near is None:
        kinds, sizes = np.unique(labels, return_counts=True)
        means = np.stack([points[labels == kind].mean(axis=0) for kind in kinds])
        made = _with_slack if _lacks_mass(points, scale) else on_simplex
        means = np.stack([made(mean) for mean in means])
        start = _parameters(np.maximum(means, _LEAST_MEAN), sizes, _FIRST_CONCENTRATION)
    else:
        start = _parameters(near.means, near.weights, near.concentration)
        means = near.means
    likelihood = _Likelihood(points, means.shape, scale)
    free = start.size - 1
    found = minimize(
        likelihood,
        np.clip(start, [-12.0] * free + _CONCENTRATIONS[:1], [12.0] * free + _CONCENTRATIONS[1:]),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-12.0, 12.0)] * free + [(_CONCENTRATIONS[0], _CONCENTRATIONS[1])],
        options={"maxiter": _ITERATIONS if near is None else _FURTHER_ITERATIONS},
    )
    means, weights, concentration = likelihood.unpack(found.x)
    likelihood(found.x)
    values = points.shape[1]
    first = DirichletMixture(weights, means, concentration, likelihood.posterior, values)
    return replace(first, concentration=_concentration(first, points, scale))


def _lacks_mass(points: Array, scale: float) -> bool:
    """Whether the mean mass of points (n, k) is below 1 by more than their noise explains.

    A model whose masses are all 1 knows more, and tells clusters apart under heavier noise.
    """
    error = math.sqrt(2 * points.shape[1] / len(points)) * scale
    return 1 - float(points.sum(axis=1).mean()) > _CLEARLY * error


def _with_slack(mean: Array) -> Array:
    """The nearest vector (k,) with entries >= 0 and mass 1 at most, and its slack: (k + 1,)."""
    inside = np.maximum(mean, 0.0)
    inside = inside if inside.sum() <= 1 else on_simplex(mean)
    return np.append(inside, max(1 - inside.sum(), 0.0))


def _parameters(means: Array, weights: NDArray[Any], concentration: float) -> Array:
    """The parameters of a mixture, as `_Likelihood` takes them."""
    tiny = 1e-300
    logs = [np.log(means + tiny).ravel(), np.log(weights + tiny)]
    return np.append(np.concatenate(logs), math.log(concentration))


def _concentration(fit: DirichletMixture, points: Array, scale: float) -> float:
    """The likeliest concentration near the fit's own, from draws."""
    rng = np.random.default_rng(_SEED)
    steps = np.linspace(-_REACH, _REACH, _STEPS)
    logs = [
        fit.log_likelihood(points, scale, fit.concentration * math.exp(step), rng) for step in steps
    ]
    fine = np.linspace(-_REACH, _REACH, 401)
    best = fine[np.polyval(np.polyfit(steps, logs, 3), fine).argmax()]
    return fit.concentration * math.exp(float(best))


class _Likelihood:
    """Minus the mean log likelihood and its gradient, for SciPy.

    Parameters are the logits of the means (q·k, or q·(k + 1) with a slack, which is not seen), of
    the weights (q) and the log concentration.
    """

    def __init__(self, points: Array, shape: tuple[int, ...], scale: float) -> None:
        self._shape, self._count = shape, len(points)
        # Likelihood (k, n, bins) of each value, were its noise-free one in the middle of a bin.
        self._blur = np.exp(-np.abs(points.T[:, :, None] - _MIDDLES) / scale) / (2 * scale)
        self.posterior = np.zeros((len(points), shape[0]))

    def unpack(self, parameters: Array) -> tuple[Array, Array, float]:
        """Means (q, k or k + 1), weights (q,) and the concentration."""
        clusters, width = self._shape
        means = _softmax(parameters[: clusters * width].reshape(clusters, width))
        return means, _softmax(parameters[clusters * width : -1]), float(np.exp(parameters[-1]))

    def __call__(self, parameters: Array) -> tuple[float, Array]:
        means, weights, concentration = self.unpack(parameters)
        seen = means[:, : len(self._blur)]
        bins = _beta_bins(seen, concentration)
        values = self._blur @ bins.transpose(1, 2, 0) + 1e-300  # (k, n, q)
        joint = np.log(weights) + np.log(values).sum(axis=0)
        top = joint.max(axis=1, keepdims=True)
        posterior = np.exp(joint - top)
        total = posterior.sum(axis=1, keepdims=True)
        self.posterior = posterior = posterior / total
        # What one more unit of a bin's mass would add to the likelihood: (q, k, bins).
        pull = ((posterior / values).transpose(0, 2, 1) @ self._blur).transpose(1, 0, 2)
        step = 1e-4 * seen * (1 - seen) + 1e-9
        by_mean = np.zeros_like(means)
        moved = (_beta_bins(seen + step, concentration) - bins) * pull
        by_mean[:, : len(self._blur)] = moved.sum(axis=2) / step
        wider = _beta_bins(seen, concentration * (1 + 1e-4)) - bins
        gradient = [
            (means * (by_mean - (means * by_mean).sum(axis=1, keepdims=True))).ravel(),
            posterior.sum(axis=0) - self._count * weights,
            [float((wider * pull).sum()) / 1e-4],
        ]
        value = -float((top + np.log(total)).sum()) / self._count
        return value, -np.concatenate(gradient) / self._count


def _beta_bins(means: Array, concentration: float) -> Array:
    """Mass (q, k, bins) of Beta(m·a, (1 − m)·a) in each bin."""
    from scipy.special import betainc

    first = np.maximum(means * concentration, 1e-6)[..., None]
    second = np.maximum(concentration - first, 1e-6)
    mass: NDArray[Any] = np.diff(betainc(first, second, _EDGES), axis=-1)
    return mass


def _dirichlet(means: Array, concentration: float, rng: np.random.Generator) -> Array:
    raw = rng.standard_gamma(np.maximum(means * concentration, 1e-3)) + 1e-300
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def _softmax(logits: Array) -> Array:
    raw = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raw / raw.sum(axis=-1, keepdims=True))
