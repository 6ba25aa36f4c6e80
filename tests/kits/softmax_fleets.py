"""Simulated fleets: softmax vectors as devices would have them before any noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
CLASSES = 10
_LEAST = 1e-4


def fleet(name: str, devices: int, seed: int) -> Float64:
    """Noise-free vectors (devices, 10) of a kind of `FLEETS`."""
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


FLEETS: dict[str, Callable[[int, np.random.Generator], Float64]] = {
    "one-class": _one_class,
    "alike": _alike,
    "unbalanced": _unbalanced,
    "early": _early,
    "records": _records,
    "two-class": _two_class,
    "iid": _iid,
}
