"""Laplace noise on exact integer sums, and on softmax uploads.

Discrete Laplace noise of scale (L1 sensitivity)/ε in each coordinate is pure ε-DP (Dwork et al.
2006; discrete: Ghosh et al. 2012). A softmax row, floored to integer steps, is >= 0 and sums to at
most 2**20 steps, so any two rows are at most 2·2**20 apart in L1: the sensitivity of a *mean*
upload for any two evaluation sets of a device, and of a *per-sample* upload for one record, which
changes at most one row (`edgeveil/data/split.py`). One record moves a mean by 2/(nominal + 1).
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import Event, LaplaceEvent, Unit, UnprotectedEvent
from edgeveil.privacy.sampler import (
    LARGEST_SCALE,
    RandomBytes,
    discrete_laplace,
    os_random,
    too_much_noise,
)

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

LAPLACE_SOURCE = "Dwork et al. 2006; discrete by Ghosh et al. 2012, Canonne et al. 2020"
SOFTMAX_BITS = 20
RECORD_BITS = 30  # of one record's probabilities: sums of 2**32 records stay below 2**62
_ROOM_SCALES = 72
_NO_NOISE = 300.0  # at e^−300 every draw is 0 in practice


def laplace(
    total: Int64, event: LaplaceEvent, random_bytes: RandomBytes = os_random
) -> tuple[Int64, LaplaceEvent]:
    if total.size != event.coordinates:
        raise PrivacyError(f"{event.what}: {total.size} values, priced as {event.coordinates}")
    noise = discrete_laplace(scale_of(event), total.shape, bound(random_bytes, event, total))
    return total + noise, event


def scale_of(event: LaplaceEvent) -> Fraction:
    return Fraction(event.scale_numerator, event.scale_denominator)


def laplace_event(
    what: str, proven: int, assumed: int, epsilon: float | Fraction, size: int, grid_bits: int
) -> LaplaceEvent:
    """Return the event of `size` values with noise of scale `assumed`/ε, priced by `proven`."""
    if not 0 < epsilon < math.inf or assumed <= 0:
        raise PrivacyError(f"{what}: epsilon must be positive and finite, got {epsilon}")
    scale = Fraction(assumed) / Fraction(epsilon)
    if scale > LARGEST_SCALE:
        raise too_much_noise(what, "raise epsilon")
    return LaplaceEvent(
        what=what,
        unit="record",
        sensitivity_steps=proven,
        scale_numerator=scale.numerator,
        scale_denominator=scale.denominator,
        coordinates=size,
        grid_bits=grid_bits,
        source=LAPLACE_SOURCE,
    )


def softmax_event(
    classes: int,
    epsilon: float | Fraction | None,
    *,
    sensitivity: int = 2,
    samples: int | None = None,
    nominal: int | None = None,
) -> LaplaceEvent | UnprotectedEvent:
    """Return the event of a mean of `classes` values, or of `samples` rows of them.

    `epsilon` None: no noise. `nominal`: divisor of a mean, priced per record too. The L1
    sensitivity is 2; with `sensitivity=1`, as in a paper, the price is 2·epsilon."""
    what = "mean softmax" if samples is None else "per-sample softmax"
    unit: Unit = "device" if samples is None else "record"
    if epsilon is None:
        return UnprotectedEvent(what=f"{what}, sent without noise", unit=unit, purpose="infer")
    if sensitivity not in (1, 2):
        raise PrivacyError(f"softmax sensitivity must be 1 or 2, got {sensitivity}")
    steps = 1 << SOFTMAX_BITS
    size = classes * (samples or 1)
    event = laplace_event(what, 2 * steps, sensitivity * steps, epsilon, size, SOFTMAX_BITS)
    of_record = 0 if nominal is None or samples is not None else record_steps(classes, nominal)
    return replace(event, unit=unit, purpose="infer", record_sensitivity_steps=of_record)


def record_steps(classes: int, nominal: int) -> int:
    """Return the L1 steps of one record in a mean: 2/(nominal + 1), plus flooring per class."""
    moved = -(-(2 << SOFTMAX_BITS) // (nominal + 1)) + classes
    return min(moved, 2 << SOFTMAX_BITS)


def probability_sum(rows: NDArray[np.floating]) -> Int64:
    """Return the exact sum (k,) of probabilities (n, k), in steps of 2**-30; NaN counts as 0."""
    total = np.zeros(rows.shape[1], np.int64)
    for row in rows:
        total += _probability_steps(row, RECORD_BITS)
    return total


def mean_steps(total: NDArray[Any], nominal: int) -> Int64:
    """Return v / max(1, ‖v‖₁) of v = Σp / nominal in steps of 2**-20, floored."""
    over = max(nominal << RECORD_BITS, sum(map(int, total)))
    return np.array([(int(value) << SOFTMAX_BITS) // over for value in total], np.int64)


def noised_mean(
    total: NDArray[Any],
    nominal: int,
    epsilon: float | Fraction | None,
    *,
    sensitivity: int = 2,
    random_bytes: RandomBytes = os_random,
) -> tuple[Int64, LaplaceEvent | UnprotectedEvent]:
    """Return `mean_steps` plus discrete Laplace noise of scale sensitivity/ε, and the event."""
    event = softmax_event(len(total), epsilon, sensitivity=sensitivity, nominal=nominal)
    return _noised(mean_steps(total, nominal), event, random_bytes), event


def _noised(
    steps: Int64, event: LaplaceEvent | UnprotectedEvent, random_bytes: RandomBytes
) -> Int64:
    if not isinstance(event, LaplaceEvent):
        return steps
    return steps + discrete_laplace(scale_of(event), steps.shape, bound(random_bytes, event, steps))


def as_probabilities(steps: Int64) -> Float64:
    """Convert steps of 2**-20 to float64, exactly."""
    return np.asarray(steps.astype(np.float64) * 2.0**-SOFTMAX_BITS)


def softmax_laplace(
    softmax: NDArray[Any],
    epsilon: float | Fraction | None,
    *,
    sensitivity: int = 2,
    random_bytes: RandomBytes = os_random,
) -> tuple[Float64, LaplaceEvent | UnprotectedEvent]:
    """Return probabilities (k,) or (m, k) in steps of 2**-20, plus noise of scale sensitivity/ε."""
    samples = len(softmax) if softmax.ndim == 2 else None
    steps = np.stack([_probability_steps(row) for row in np.atleast_2d(softmax)])
    steps = steps[0] if samples is None else steps
    event = softmax_event(steps.shape[-1], epsilon, sensitivity=sensitivity, samples=samples)
    return as_probabilities(_noised(steps, event, random_bytes)), event


def noise_room(event: LaplaceEvent) -> int:
    """Bound 2^60 noise values in steps, except with probability 2^-40."""
    # For 72 t: 2q^m/(1 + q) < 2·e^-72 < 2^-102 with q = e^(-1/t), m > 72 t.
    return math.ceil(_ROOM_SCALES * scale_of(event))


def largest_softmax(event: Event) -> int:
    """Return a public bound in steps on an entry of a noised upload."""
    return (1 << SOFTMAX_BITS) + (noise_room(event) if isinstance(event, LaplaceEvent) else 0)


def noise_law(event: LaplaceEvent) -> tuple[float, float]:
    """Return (scale, variance) in the data's units: 2q/(1 − q)² steps², q = e^(−1/scale)."""
    step, scale = 2.0**-event.grid_bits, float(scale_of(event))
    half = min(1 / (2 * scale), _NO_NOISE) if scale else _NO_NOISE
    return scale * step, (step / math.sinh(half)) ** 2 / 2


def _probability_steps(values: NDArray[np.floating], bits: int = SOFTMAX_BITS) -> Int64:
    """Return floored steps (k,), each >= 0 and of sum <= 2**bits, checked in integers."""
    one = 1 << bits
    p = np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64).ravel(), nan=0.0), 0.0, 1.0)
    steps = np.floor(p / max(1.0, math.fsum(p)) * one).astype(np.int64)
    excess = int(steps.sum()) - one
    return steps if excess <= 0 else np.maximum(steps - excess, 0)
