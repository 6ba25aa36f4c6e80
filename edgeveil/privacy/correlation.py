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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

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
        if least < 1 or not 0 <= self.coefficient < _ONE:
            raise PrivacyError("correlated noise needs rounds, and a coefficient below 256")

    @classmethod
    def of_least_error(cls, rounds: int, participations: int, min_separation: int) -> Correlation:
        """Return the facts with the γ of least mean square error over the models of all rounds."""
        return _least_error(rounds, participations, min_separation)

    @cached_property
    def squared_norms(self) -> tuple[int, ...]:
        """Squared L2 norms of C's first 1, 2 … of columns 0, b, 2b … summed; in 2⁻⁶⁴ steps."""
        powers = [1 << _FINE_BITS]  # of γ, rounded up
        while len(powers) < self.rounds:
            powers.append(-(-powers[-1] * self.coefficient >> NOISE_BITS))
        squares = list(accumulate((x * x >> _FINE_BITS) + 1 for x in powers))
        found, total, overlaps = list[int](), 0, 0
        for first in range(0, self.rounds, self.min_separation)[: self.participations]:
            # Its product with a column that began i rounds before is γ^i of its own square.
            own = squares[self.rounds - first - 1] * ((1 << _FINE_BITS) + 2 * overlaps)
            total += (own >> _FINE_BITS) + 1
            found.append(total)
            after = first + self.min_separation
            overlaps += powers[after] if after < self.rounds else 0
        return tuple(found)

    @property
    def squared_sensitivity(self) -> int:
        """Square of the L2 sensitivity for a clip norm of 1, in 2⁻⁶⁴ steps."""
        return self.squared_norms[-1]

    def sensitivity_steps(self, clip_steps: int, coordinates: int) -> int:
        """Return the sensitivity of one participation as an independent release, rounded up.

        As many releases as participations, all or fewer, have at least the μ of these."""
        # ‖C‖₂ <= Σ γ^j < 1/(1 - γ), times √(d·T) steps of rounding; in 2⁻³² steps.
        rounding = _root_up(coordinates * self.rounds << _FINE_BITS)
        rounding = -(-rounding * _ONE // (_ONE - self.coefficient))
        moved = (clip_steps * _root_up(squared) + rounding for squared in self.squared_norms)
        # Of few columns the last may be cut short: then fewer participations cost more each.
        each = max(math.isqrt((x * x - 1) // count) + 1 for count, x in enumerate(moved, 1))
        return -(-each >> _FINE_BITS // 2)

    @property
    def gain(self) -> float:
        """How much smaller the last model's noise is than with independent noise at equal price."""
        left = 1 - self.coefficient / _ONE
        squared = self.squared_sensitivity / (1 << _FINE_BITS) * (1 + (self.rounds - 1) * left**2)
        return math.sqrt(self.participations * self.rounds / squared)


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
