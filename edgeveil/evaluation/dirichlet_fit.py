"""Clusters of probability vectors seen through known Laplace noise: a mixture of Dirichlets.

A mean of probability vectors varies as m·(1 − m)/(a + 1) about its cluster's mean m, which is the
Dirichlet law; noise of a known scale blurs it. Two steps:

1. means and weights by a likelihood that takes the coordinates of a vector as independent given its
   cluster (a composite likelihood: Varin, Reid, Firth 2011): each is a Beta law blurred by Laplace,
   summed on a grid;
2. the concentration, which decides the scatter within clusters, by the full likelihood, averaged
   over vectors drawn from the clusters. That a vector's entries sum to 1 is half of what is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Bins of [0, 1], fine at both ends, where probabilities pile up.
_ENDS = np.geomspace(1e-3, 0.1, 14)
_EDGES = np.concatenate([[0.0], _ENDS, np.linspace(0.1, 0.9, 30)[1:-1], 1 - _ENDS[::-1], [1.0]])
_MIDDLES = (_EDGES[1:] + _EDGES[:-1]) / 2
_LEAST_MEAN = 2e-3
_FIRST_CONCENTRATION = 12.0
_CONCENTRATIONS = [-2.0, 8.0]  # natural logarithms
_ITERATIONS, _FURTHER_ITERATIONS = 60, 20
# Of the second step: draws a cluster, concentrations tried and how far (natural logarithm).
_DRAWS, _STEPS, _REACH, _SEED = 600, 7, 1.0, 1
_LEAST_POSTERIOR = 1e-3


@dataclass(frozen=True)
class DirichletMixture:
    """Clusters of weights (q,), means (q, k) and one concentration.

    `posterior` (n, q) is the probability of each cluster for each of the vectors fitted.
    """

    weights: Array
    means: Array
    concentration: float
    posterior: Array

    @property
    def certainty(self) -> float:
        """Mean over vectors of the likeliest cluster's probability: 1 where each is sure."""
        return float(self.posterior.max(axis=1).mean())

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """`count` noise-free vectors (count, k)."""
        cluster = rng.choice(len(self.weights), count, p=self.weights)
        return _dirichlet(self.means[cluster], self.concentration, rng)

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
        means = np.stack([_on_simplex(points[labels == kind].mean(axis=0)) for kind in kinds])
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
    first = DirichletMixture(weights, means, concentration, likelihood.posterior)
    return replace(first, concentration=_concentration(first, points, scale))


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

    Parameters are the logits of the means (q·k), of the weights (q) and the log concentration.
    """

    def __init__(self, points: Array, shape: tuple[int, ...], scale: float) -> None:
        self._shape, self._count = shape, len(points)
        # Likelihood (k, n, bins) of each value, were its noise-free one in the middle of a bin.
        self._blur = np.exp(-np.abs(points.T[:, :, None] - _MIDDLES) / scale) / (2 * scale)
        self.posterior = np.zeros((len(points), shape[0]))

    def unpack(self, parameters: Array) -> tuple[Array, Array, float]:
        """Means (q, k), weights (q,) and the concentration."""
        clusters, k = self._shape
        means = _softmax(parameters[: clusters * k].reshape(clusters, k))
        return means, _softmax(parameters[clusters * k : -1]), float(np.exp(parameters[-1]))

    def __call__(self, parameters: Array) -> tuple[float, Array]:
        means, weights, concentration = self.unpack(parameters)
        bins = _beta_bins(means, concentration)
        values = self._blur @ bins.transpose(1, 2, 0) + 1e-300  # (k, n, q)
        joint = np.log(weights) + np.log(values).sum(axis=0)
        top = joint.max(axis=1, keepdims=True)
        posterior = np.exp(joint - top)
        total = posterior.sum(axis=1, keepdims=True)
        self.posterior = posterior = posterior / total
        # What one more unit of a bin's mass would add to the likelihood: (q, k, bins).
        pull = ((posterior / values).transpose(0, 2, 1) @ self._blur).transpose(1, 0, 2)
        step = 1e-4 * means * (1 - means) + 1e-9
        by_mean = ((_beta_bins(means + step, concentration) - bins) * pull).sum(axis=2) / step
        wider = _beta_bins(means, concentration * (1 + 1e-4)) - bins
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


def _on_simplex(vector: Array) -> Array:
    """The nearest vector with entries >= 0 and sum 1 (Duchi et al. 2008)."""
    falling = np.sort(vector)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(vector) + 1)
    return np.asarray(np.maximum(vector - excess[np.flatnonzero(falling > excess)[-1]], 0.0))
