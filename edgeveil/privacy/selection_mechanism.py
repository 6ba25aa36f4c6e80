"""Private selection: the index of a good candidate, by exact sampling on integer scores.

The exponential mechanism (McSherry and Talwar 2007): one unit changes any score by at most
`sensitivity_steps` Δ; with scale t it is (2Δ/t)-DP, and (Δ/t)-DP where one unit moves all scores in
one direction (`docs/privacy.md`, "Selection"). No float decides the result; the number of draws
depends on the scores.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import SelectionEvent
from edgeveil.privacy.sampler import LazyUniform, RandomBytes, os_random

SOURCE = "McSherry and Talwar 2007; monotonic: Dwork and Roth 2014, sec. 3.4"


def selection_event(
    what: str,
    candidates: int,
    sensitivity_steps: int,
    epsilon: float | Fraction,
    *,
    monotonic: bool = False,
) -> SelectionEvent:
    """Return the event of a selection at pure `epsilon`; `monotonic` halves the scale."""
    if not 0 < epsilon < math.inf or sensitivity_steps <= 0:
        raise PrivacyError(f"{what}: needs ε > 0 and a sensitivity > 0, got ε = {epsilon}")
    scale = Fraction(sensitivity_steps * (1 if monotonic else 2)) / Fraction(epsilon)
    return SelectionEvent(
        what=what,
        unit="record",
        mechanism="exponential",
        candidates=candidates,
        sensitivity_steps=sensitivity_steps,
        scale_numerator=scale.numerator,
        scale_denominator=scale.denominator,
        grid_bits=0,
        monotonic=monotonic,
        source=SOURCE,
    )


def exponential_mechanism(
    scores: NDArray[np.int64], event: SelectionEvent, random_bytes: RandomBytes = os_random
) -> tuple[int, SelectionEvent]:
    """Return an index into `scores` (n,), P(i) ∝ exp(score_i / scale), and its event."""
    if scores.shape != (event.candidates,):
        raise PrivacyError(f"{event.what}: shape {scores.shape}, priced as ({event.candidates},)")
    random_bytes = bound(random_bytes, event, scores)
    exact = [int(score) for score in scores]  # the difference of two int64 may not be one
    best, scale = max(exact), Fraction(event.scale_numerator, event.scale_denominator)
    while True:
        index = _below(event.candidates, random_bytes)
        uniform = LazyUniform(_uint64(random_bytes), 64, random_bytes)
        if uniform.less_than_exp((best - exact[index]) / scale):
            return index, event


def _below(count: int, random_bytes: RandomBytes) -> int:
    accepted = (1 << 64) // count * count
    while True:
        drawn = _uint64(random_bytes)
        if drawn < accepted:
            return drawn % count


def _uint64(random_bytes: RandomBytes) -> int:
    return int.from_bytes(random_bytes(8), "little")
