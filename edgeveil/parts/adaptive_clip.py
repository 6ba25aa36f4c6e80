"""A clip norm that follows a quantile of the updates' norms (Andrew et al. 2021, algorithm 1).

Beside its update each device says whether that was within the clip norm, and the cloud moves the
norm: C ← C·exp(−η·(share within − γ)). Both stand in one vector under one Gaussian noise: the
update clipped to √(1 − s) of the sensitivity, the bit as ±√s of it, so the two together are within
the whole, against a device that sends zeros. What follows from the noised sums is post-processing,
and the next norm is public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeveil.privacy.gaussian_mechanism import Int64, clipped_steps

CLIP_NORM, WITHIN = "clip-norm", "clip-within"  # no weight has a name like that
SMALLEST, LARGEST = 1e-6, 1e6  # what a norm can become


@dataclass(frozen=True)
class AdaptiveClip:
    """`quantile` γ, `rate` η, and the `share` s of the squared sensitivity that the bit has.

    `first` is the clip norm of the first round.
    """

    first: float
    quantile: float
    rate: float
    share: float
    sensitivity_steps: int

    @property
    def bit_steps(self) -> int:
        """What a bit is worth."""
        return math.isqrt(int(self.share * self.sensitivity_steps**2))

    @property
    def update_steps(self) -> int:
        """What an update is clipped to."""
        return math.isqrt(self.sensitivity_steps**2 - self.bit_steps**2)

    def steps(self, values: NDArray[np.float64], clip_norm: float) -> Int64:
        """The update (d,) clipped to `clip_norm`, and its bit: (d + 1,), before any noise.

        The L2 norm of the result is at most `sensitivity_steps`, whatever the update.
        """
        relative = values / clip_norm
        steps = clipped_steps(relative * self.update_steps, self.update_steps, 0)
        within = float(np.sqrt(np.square(relative).sum())) <= 1
        return np.append(steps, self.bit_steps if within else -self.bit_steps)

    def step(self, clip_norm: float) -> float:
        """What one step of an update is worth."""
        return clip_norm / self.update_steps

    def moved(self, clip_norm: float, mean_bit: float) -> float:
        """The next clip norm, from the mean of the noised bits in steps."""
        within = (mean_bit / self.bit_steps + 1) / 2
        factor = math.exp(-self.rate * (min(max(within, 0.0), 1.0) - self.quantile))
        return min(max(clip_norm * factor, SMALLEST), LARGEST)
