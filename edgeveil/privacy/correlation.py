"""Noise of which each round takes back a share of the round before: a matrix mechanism.

Round t opens X_t + N_t - γ·N_{t-1}, γ = coefficient/2⁸: independent noise N on C·X, where
C = (I - γ·shift)⁻¹ has γ^(t-s) at (t, s) (Choquette-Choo et al. 2023). A device adds at most the
clip norm to X in each of `participations` rounds, `min_separation` or more apart. The entries of C
are not negative and fall along a column, so that its part of C·X is longest for equal updates in
the first such rounds (Kalinin and Lampert 2024, thm 2). The taken-back share is rounded to whole
steps, which moves each coordinate of each round by less than a step (`docs/privacy.md`, "Correlated
noise")."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from edgeveil.crypto.ring import NOISE_BITS
from edgeveil.errors import PrivacyError

_ONE = 1 << NOISE_BITS
_FINE_BITS = 64  # of fixed-point sums, each step rounded up


@dataclass(frozen=True)
class Correlation:
    """Public facts of the noise: T rounds, k participations, b apart, and γ·2⁸."""

    rounds: int
    participations: int
    min_separation: int
    coefficient: int

    def __post_init__(self) -> None:
        least = min(self.rounds, self.participations, self.min_separation)
        fits = (self.participations - 1) * self.min_separation < self.rounds
        if least < 1 or not fits or not 0 <= self.coefficient < _ONE:
            what = (
                "correlated noise needs rounds for all participations, and a coefficient below 256"
            )
            raise PrivacyError(what)

    @classmethod
    def of_least_error(cls, rounds: int, participations: int, min_separation: int) -> Correlation:
        """Return the facts with the γ of least mean square error over the models of all rounds."""
        return _least_error(rounds, participations, min_separation)

    @cached_property
    def squared_sensitivity(self) -> int:
        """Squared L2 norm of C's columns 0, b, 2b … summed, for a clip norm of 1; in 2⁻⁶⁴ steps.

        As if rounds went on after the last, so that fewer participations have less each."""
        found = [(x * x >> _FINE_BITS) + 1 for x in self._shifts()]
        squared = self.coefficient**2
        return sum(found) + -(-found[-1] * squared // (_ONE**2 - squared))

    def sensitivity_steps(self, clip_steps: int, coordinates: int) -> int:
        """Return each participation's part of the whole L2 sensitivity, rounded up.

        As many independent releases of this sensitivity have at least the μ of the mechanism, for
        any number of participations up to k."""
        each = clip_steps * _root_up(self.squared_sensitivity // self.participations + 1)
        # ‖C‖₂ <= Σ γ^j < 1/(1 - γ), times √(d·T) steps of rounding; in 2⁻³² steps.
        rounding = _root_up(coordinates * self.rounds << _FINE_BITS)
        each += -(-rounding * _ONE // (_ONE - self.coefficient))
        return -(-each >> _FINE_BITS // 2)

    @property
    def gain(self) -> float:
        """How much smaller the last model's noise is than with independent noise at equal price."""
        left = 1 - self.coefficient / _ONE
        squared = self.squared_sensitivity / (1 << _FINE_BITS) * (1 + (self.rounds - 1) * left**2)
        return math.sqrt(self.participations * self.rounds / squared)

    def _shifts(self) -> Iterator[int]:
        """Yield the entries of the summed columns, rounded up, in 2⁻⁶⁴ steps."""
        value, one = 0, 1 << _FINE_BITS
        for round in range(self.rounds):
            value = -(-value * self.coefficient >> NOISE_BITS)
            number, off = divmod(round, self.min_separation)
            value += one if not off and number < self.participations else 0
            yield value


def _root_up(squared: int) -> int:
    """Return the square root rounded up; of a number in 2⁻⁶⁴ steps it is in 2⁻³² steps."""
    return math.isqrt(squared - 1) + 1 if squared else 0


@lru_cache(maxsize=64)
def _least_error(rounds: int, participations: int, min_separation: int) -> Correlation:
    def error(coefficient: int) -> float:
        # The model after t rounds has noise N_t + (1 - γ)·(N_1 + … + N_{t-1}).
        one = Correlation(rounds, participations, min_separation, coefficient)
        left = 1 - coefficient / _ONE
        return one.squared_sensitivity * (1 + (rounds - 1) / 2 * left**2)

    best = min(range(_ONE), key=error)
    return Correlation(rounds, participations, min_separation, best)
