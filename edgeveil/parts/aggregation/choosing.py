"""Which k of n uploads count, by a score: the best, or drawn by the exponential mechanism."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.aggregation.base import RuleParameters
from edgeveil.privacy.sampler import RandomBytes
from edgeveil.privacy.selection import exponential_mechanism, selection_event

Int64 = NDArray[np.int64]


class ChoosingParameters(RuleParameters):
    """What the rules say that choose uploads by a score."""

    k: int = Field(ge=1, le=10**6, examples=[50])
    """Uploads that count in a round; no more than come in."""
    sampling: Literal["exponential", "top_k"] = "exponential"
    """`exponential`: k draws without replacement, better ones likelier. `top_k`: the best k."""
    epsilon_3: float = Field(default=1.0, gt=0, le=1e6)
    """ε₃ of the draws of one round, as the text claims it; no proven guarantee, see the notes."""


def best(scores: NDArray[np.generic], k: int, random_bytes: RandomBytes) -> list[int]:
    """The indices of the k largest scores (n,); among equal ones chance decides, not order."""
    ties = np.frombuffer(random_bytes(8 * len(scores)), "<u8")
    return sorted(np.lexsort((ties, -scores.astype(np.float64)))[:k].tolist())


def drawn(
    scores: Int64, k: int, sensitivity: int, epsilon: Fraction, random_bytes: RandomBytes
) -> list[int]:
    """k indices without replacement, each draw with P(i) ∝ exp(ε·score_i / (2·sensitivity)).

    `epsilon` is one draw's. Exact: scores are integers, and no float decides.
    """
    left = list(range(len(scores)))
    for _ in range(k):
        event = selection_event("aggregation", len(left), sensitivity, epsilon)
        at, _event = exponential_mechanism(scores[left], event, random_bytes)
        left.pop(at)
    return sorted(set(range(len(scores))) - set(left))
