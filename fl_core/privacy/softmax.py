"""Laplace noise on softmax uploads, with the event that prices it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fl_core.errors import PrivacyError
from fl_core.privacy.events import LaplaceEvent, UnprotectedEvent
from fl_core.privacy.mechanisms import laplace_event, scale_of
from fl_core.privacy.sampler import RandomBytes, discrete_laplace, os_random

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

SOFTMAX_BITS = 20


def softmax_event(
    classes: int, epsilon: float | Fraction | None, *, sensitivity: int = 2
) -> LaplaceEvent | UnprotectedEvent:
    """The event of one mean-softmax upload of `classes` values; `epsilon` None: no noise.

    The proven L1 sensitivity is 2. With `sensitivity=1` the noise is as a text asks that takes
    it to be 1, and the event's ε, being proven, is 2·epsilon.
    """
    if epsilon is None:
        return UnprotectedEvent(
            what="mean softmax, sent without noise", unit="device", purpose="infer"
        )
    if sensitivity not in (1, 2):
        raise PrivacyError(f"softmax sensitivity must be 1 or 2, got {sensitivity}")
    steps = 1 << SOFTMAX_BITS
    event = laplace_event(
        "mean softmax", 2 * steps, sensitivity * steps, epsilon, classes, SOFTMAX_BITS
    )
    return replace(event, unit="device", purpose="infer")


def softmax_laplace(
    mean_softmax: NDArray[np.floating],
    epsilon: float | Fraction | None,
    *,
    sensitivity: int = 2,
    random_bytes: RandomBytes = os_random,
) -> tuple[Float64, LaplaceEvent | UnprotectedEvent]:
    """Mean softmax (k,) floored to steps of 2**-20, with discrete Laplace noise of scale
    sensitivity/ε; returned as float64 on that grid. See `softmax_event` for the price.

    Total: NaN and negative entries count as 0, an over-sum is scaled down, so that any two
    inputs differ by at most 2 in L1 after flooring.
    """
    steps = _probability_steps(mean_softmax)
    event = softmax_event(len(steps), epsilon, sensitivity=sensitivity)
    if isinstance(event, LaplaceEvent):
        steps = steps + discrete_laplace(scale_of(event), steps.shape, random_bytes)
    noised: Float64 = steps.astype(np.float64) * 2.0**-SOFTMAX_BITS
    return noised, event


def _probability_steps(values: NDArray[np.floating]) -> Int64:
    """Floored steps (k,), each >= 0 and of sum <= 2**20, checked in integers."""
    one = 1 << SOFTMAX_BITS
    p = np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64).ravel(), nan=0.0), 0.0, 1.0)
    steps = np.floor(p / max(1.0, float(p.sum())) * one).astype(np.int64)
    excess = int(steps.sum()) - one
    return steps if excess <= 0 else np.maximum(steps - excess, 0)
