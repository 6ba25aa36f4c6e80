"""Lower bound on ε from canaries in one run (Steinke, Nasr and Jagielski 2023, thm 5.2).

A fair coin includes each of n canaries. An auditor with the observer's view scores them, guesses
that the r/2 highest were included and the r/2 lowest were not, and abstains on the others. If the
run is (ε, δ)-DP for adding or removing one canary, then with F(v) = P[Binomial(r, e^ε/(1 + e^ε)) ≥
v] the guesses have v right ones with probability at most F(v) + 2nδ·max_i (F(v − i) − F(v))/i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
LEAST_CANARIES = 10
# r is fixed before the run, as the bound demands. A fifth of the canaries detects the smallest lack
# of noise for 300 to 3,000 canaries and ε from 0.5 to 4, within a tenth.
SHARE = 0.2
_LARGEST = 64.0


@dataclass(frozen=True)
class OneRunAudit:
    canaries: int
    right: int
    delta: float

    @classmethod
    def of(cls, scores: Sequence[float], included: Sequence[bool], delta: float) -> OneRunAudit:
        """Guess by `scores` (n,), and count what `included` (n,) confirms."""
        half = guesses(len(scores)) // 2
        order = np.argsort(scores, kind="stable")
        coins = np.asarray(included, np.bool_)[order]
        return cls(len(scores), int((~coins[:half]).sum() + coins[-half:].sum()), delta)

    @property
    def epsilon(self) -> float:
        """The lower bound on ε at `delta`, with probability CONFIDENCE; 0 if nothing is shown."""
        return lower_bound(self.canaries, self.right, self.delta)

    @property
    def plain(self) -> dict[str, Any]:
        """The form in results; `epsilon_if_all_right` is the most that the audit can show."""
        count = guesses(self.canaries)
        return {
            "canaries": self.canaries,
            "guesses": count,
            "right": self.right,
            "confidence": CONFIDENCE,
            "delta": self.delta,
            "epsilon_at_least": self.epsilon,
            "epsilon_if_all_right": lower_bound(self.canaries, count, self.delta),
        }


def guesses(canaries: int) -> int:
    return 2 * max(1, int(canaries * SHARE / 2))


def lower_bound(canaries: int, right: int, delta: float) -> float:
    """Return the largest ε that `right` guesses refute: what refutes ε refutes all below it."""
    low, high = 0.0, _LARGEST
    if _chance(canaries, right, 0.0, delta) > 1 - CONFIDENCE:
        return low
    for _ in range(50):
        middle = (low + high) / 2
        refuted = _chance(canaries, right, middle, delta) <= 1 - CONFIDENCE
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _chance(canaries: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of `right` or more right guesses under (ε, δ)-DP."""
    from scipy.special import bdtrc

    if right == 0:
        return 1.0
    fewer = np.arange(1, right + 1)
    count, accuracy = guesses(canaries), 1 / (1 + math.exp(-epsilon))
    pure = float(bdtrc(right - 1, count, accuracy))
    at_least = np.append(bdtrc(right - 1 - fewer[:-1], count, accuracy), 1.0)
    return pure + 2 * canaries * delta * float(((at_least - pure) / fewer).max())
