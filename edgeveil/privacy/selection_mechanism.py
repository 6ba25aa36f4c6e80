"""Private selection: the index of a good candidate, by exact sampling on integer scores.

One unit changes any score by at most `sensitivity_steps` Δ. With scale t both mechanisms are
(2Δ/t)-DP, and (Δ/t)-DP where one unit moves all scores the same way (`docs/privacy.md`,
"Selection"): the exponential mechanism (McSherry and Talwar 2007), and report-noisy-max with
exponential noise, drawn as permute-and-flip (McKenna and Sheldon 2020; Ding et al. 2021). No float
decides; the number of draws depends on the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import SelectionEvent, Unit
from edgeveil.privacy.sampler import LazyUniform, RandomBytes, os_random

Int64 = NDArray[np.int64]

SOURCES = {
    "exponential": "McSherry and Talwar 2007; monotonic: Dwork and Roth 2014, sec. 3.4",
    "report_noisy_max": "McKenna and Sheldon 2020; Ding et al. 2021",
}


def selection_event(
    what: str,
    candidates: int,
    sensitivity_steps: int,
    epsilon: float | Fraction,
    *,
    mechanism: str = "exponential",
    monotonic: bool = False,
    grid_bits: int = 0,
    unit: Unit = "record",
    purpose: str = "train",
) -> SelectionEvent:
    """The event of one selection at pure `epsilon`, before any record is read. `monotonic`: one
    unit moves all scores in the same direction, so the scale is half. Raises `PrivacyError` for
    impossible values."""
    if not 0 < epsilon < math.inf or sensitivity_steps <= 0:
        raise PrivacyError(
            f"{what}: needs epsilon > 0 and a sensitivity > 0, got epsilon = {epsilon}"
        )
    scale = Fraction(sensitivity_steps * (1 if monotonic else 2)) / Fraction(epsilon)
    return SelectionEvent(
        what=what,
        unit=unit,
        purpose=purpose,
        mechanism=mechanism,
        candidates=candidates,
        sensitivity_steps=sensitivity_steps,
        scale_numerator=scale.numerator,
        scale_denominator=scale.denominator,
        grid_bits=grid_bits,
        monotonic=monotonic,
        source=SOURCES.get(mechanism, ""),
    )


def exponential_mechanism(
    scores: Int64, event: SelectionEvent, random_bytes: RandomBytes = os_random
) -> tuple[int, SelectionEvent]:
    """An index into `scores` (n,), P(i) ∝ exp(score_i / scale), by rejection, and its event. Raises
    `PrivacyError` if the event prices another selection."""
    random_bytes = bound(random_bytes, event, scores)
    wins = _flip(scores, event, "exponential", random_bytes)
    while True:
        index = _below(event.candidates, random_bytes)
        if wins(index):
            return index, event


def report_noisy_max(
    scores: Int64, event: SelectionEvent, random_bytes: RandomBytes = os_random
) -> tuple[int, SelectionEvent]:
    """The index of the largest of `scores` (n,) plus exponential noise, by permute-and-flip, and
    its event. Raises `PrivacyError` as above."""
    random_bytes = bound(random_bytes, event, scores)
    wins = _flip(scores, event, "report_noisy_max", random_bytes)
    order = list(range(event.candidates))
    while True:
        index = order.pop(_below(len(order), random_bytes))
        if wins(index):
            return index, event


def _flip(
    scores: Int64, event: SelectionEvent, mechanism: str, random_bytes: RandomBytes
) -> Callable[[int], bool]:
    """One coin per candidate i and call: heads with probability exp(-(best - score_i)/scale)."""
    if event.mechanism != mechanism or scores.shape != (event.candidates,):
        raise PrivacyError(
            f"{event.what}: {mechanism} on scores of shape {scores.shape}, priced as"
            f" {event.mechanism} on ({event.candidates},)"
        )
    exact = [int(score) for score in scores]  # the difference of two int64 may not be one
    best, scale = max(exact), Fraction(event.scale_numerator, event.scale_denominator)

    def wins(index: int) -> bool:
        uniform = LazyUniform(_word(random_bytes), 64, random_bytes)
        return uniform.less_than_exp((best - exact[index]) / scale)

    return wins


def _below(count: int, random_bytes: RandomBytes) -> int:
    """A uniform integer in [0, count), count <= 2**64, by rejection."""
    accepted = (1 << 64) // count * count
    while True:
        word = _word(random_bytes)
        if word < accepted:
            return word % count


def _word(random_bytes: RandomBytes) -> int:
    return int.from_bytes(random_bytes(8), "little")
