"""Training that an attacker rehearses: heads of `fm` on chosen records, with noise or without."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.parts.exchange import TRAIN, Tensors
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_budget import FmParameters
from edgeveil.parts.models.softmax_head import head_probabilities
from edgeveil.parts.setting import Setting
from edgeveil.privacy.events import Event, GaussianEvent
from edgeveil.privacy.gaussian_mechanism import diagonal_of_triangle

Float64 = NDArray[np.float64]


def trained(
    parameters: FmParameters,
    setting: Setting,
    records: Records,
    rng: np.random.Generator | None = None,
) -> Iterator[Tensors]:
    """The global model after each round; `records` pools those of `setting.devices` devices.

    With `rng` the mean carries the noise of so many devices, drawn as one normal variable: this
    is an attacker's rehearsal, nothing of it is released.
    """
    device, cloud = FmDevice(parameters, setting), FmCloud(parameters, setting)
    state = cloud.initial_state()
    for exchange in cloud.plan():
        tensors = cloud.package(state, exchange)
        mean = device.sums(exchange, tensors, records) / setting.devices
        if rng is not None:
            event = device.budget.events[exchange.phase]
            spread = np.sqrt(event_variances(event) / setting.devices)
            mean = mean + (rng.normal(size=spread.shape) * spread).reshape(mean.shape)
        segments = device.finish(exchange, tensors, mean, "cpu")
        state = cloud.absorb(state, exchange, segments, setting.devices)
        if exchange.phase == TRAIN:
            yield cloud.model(state)


def event_variances(event: Event) -> Float64:
    """Of each value that a Gaussian event releases, in steps²: a matrix's diagonal has more."""
    if not isinstance(event, GaussianEvent):
        raise PrivacyError(f"'{event.what}' is not Gaussian")
    result = np.full(event.coordinates, float(event.finest_sigma_squared))
    if event.finest_sigma_squared < event.sigma_squared:
        result[diagonal_of_triangle(event.coordinates)] = float(event.sigma_squared)
    return result


def confidence(phi: Float64, labels: NDArray[np.int64], model: Tensors) -> Float64:
    """log p − log(1 − p) (n,) of the true classes' probabilities p (Carlini et al. 2022)."""
    chances = head_probabilities(phi, model)[np.arange(len(labels)), labels]
    bounded = np.clip(chances, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(bounded) - np.log1p(-bounded))


def normal_curve(fpr: Float64, mu: float) -> Float64:
    """The most that μ-GDP allows: Φ(Φ⁻¹(FPR) + μ) (Dong, Roth and Su 2022)."""
    from scipy.stats import norm

    return np.asarray(norm.cdf(norm.ppf(fpr) + mu))


def dp_curve(fpr: Float64, epsilon: float, delta: float) -> Float64:
    """The most that (ε, δ)-DP allows (Kairouz et al. 2015)."""
    first = math.exp(min(epsilon, 700.0)) * fpr + delta
    second = 1 - math.exp(-epsilon) * (1 - delta - fpr)
    return np.asarray(np.clip(np.minimum(first, second), 0.0, 1.0))
