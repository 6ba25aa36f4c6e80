"""A value in [−1, 1] sent as one of two public values, +1/T or −1/T, with the right mean.

P(+) = ½ + ½·T·v, T = (e^ε − 1)/(e^ε + 1): the probabilities of any two values differ by a factor of
at most e^ε (Duchi, Jordan, Wainwright 2018). v is in steps of 2^-20 toward zero and T in steps of
2^-42, rounded down, so one 63-bit integer decides exactly.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import TwoValueEvent, Unit
from edgeveil.privacy.sampler import RandomBytes, os_random

VALUE_BITS, TILT_BITS = 20, 42
_ROOM = 1 - 2.0**-40  # for the rounding of tanh
SOURCE = "Duchi, Jordan, Wainwright 2018; Sun et al. 2021, alg. 2"


def duchi_event(
    what: str, epsilon: Fraction, coordinates: int, *, unit: Unit = "device"
) -> TwoValueEvent:
    """Return the event of values at `epsilon` each. Raises PrivacyError if that is too small."""
    event = TwoValueEvent(
        what=what,
        unit=unit,
        coordinates=coordinates,
        epsilon_numerator=epsilon.numerator,
        epsilon_denominator=epsilon.denominator,
        source=SOURCE,
    )
    if not _tilt(event):
        what = f"{what}: ε = {float(epsilon):.3g} of one value is so small that only noise is sent"
        fix = "raise epsilon, or train a smaller model"
        raise PrivacyError(what, where="privacy.epsilon", fix=fix)
    return event


def duchi_mechanism(
    values: NDArray[np.float64], event: TwoValueEvent, random_bytes: RandomBytes = os_random
) -> tuple[NDArray[np.float64], TwoValueEvent]:
    """Return `values` (any shape), clipped to [−1, 1], each as ±1/T; NaN counts as 0."""
    if values.size != event.coordinates:
        raise PrivacyError(f"{event.what}: {values.size} values, priced as {event.coordinates}")
    tilt = _tilt(event)
    steps = np.trunc(np.clip(np.nan_to_num(values), -1, 1) * 2.0**VALUE_BITS).astype(np.int64)
    source = bound(random_bytes, event, steps)
    words = np.frombuffer(source(8 * values.size), "<u8").reshape(values.shape)
    drawn = (words >> np.uint64(1)).astype(np.int64)
    high = drawn < (1 << (VALUE_BITS + TILT_BITS)) + steps * tilt
    size = 2.0**TILT_BITS / tilt
    return np.where(high, size, -size), event


def _tilt(event: TwoValueEvent) -> int:  # T in steps of 2^-42
    each = event.epsilon_numerator / event.epsilon_denominator
    return int(math.tanh(each / 2) * _ROOM * 2.0**TILT_BITS)
