"""What `fm` releases, phase by phase: size, and how far one record moves it, in integer steps.

The bounds hold for every record and every broadcast; the proofs are in `docs/privacy.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeveil.parts.features.pca import PcaParameters
from edgeveil.parts.methods.fm_parameters import FmParameters
from edgeveil.parts.methods.fm_sums import LARGEST_L1, PRODUCT_BITS
from edgeveil.parts.methods.triangle import triangle_size
from edgeveil.parts.setting import Setting
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent, LaplaceEvent
from edgeveil.privacy.gaussian_mechanism import Layout, gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace_event

COVARIANCE, CENTRE, QUADRATIC = "covariance", "centre", "quadratic"
# Gaussian sums are moved to the grid 2**-28, so that the noise has 2**20 steps and more; Laplace
# noise is exactly priced on any grid and stays on that of the products.
GAUSSIAN_BITS, LAPLACE_BITS = 28, PRODUCT_BITS
LOCAL_BASIS = ClaimedEvent(
    what="basis of the device's own PCA, without noise",
    unit="record",
    claimed_epsilon=0.0,
    source="DELM, section 6: projecting by it is taken to cost nothing",
)


def phases(parameters: FmParameters, projection: PcaParameters | None) -> tuple[str, ...]:
    """The preparatory exchanges, in order; each is released once."""
    wanted = (
        (COVARIANCE, projection is not None and projection.name != "local_pca"),
        (CENTRE, parameters.centre),
        (QUADRATIC, parameters.quadratic == "once"),
    )
    return tuple(phase for phase, asked in wanted if asked)


@dataclass(frozen=True)
class ReleasedSum:
    """A sum over records before noise.

    `l2` is in units; in a symmetric layout it is the Frobenius norm of the whole matrix.
    `l1_steps` counts the values that are sent, in steps of 2**-24.
    """

    what: str
    size: int
    l2: float
    l1_steps: int
    layout: Layout = "vector"

    def gaussian(self, mu: float) -> GaussianEvent:
        """Its event at `mu`."""
        steps = int(self.l2 * 2.0**GAUSSIAN_BITS)
        return gaussian_event(
            self.what, steps, mu, self.size, grid_bits=GAUSSIAN_BITS, layout=self.layout
        )

    def laplace(self, epsilon: float) -> LaplaceEvent:
        """Its event at pure ε."""
        steps = self.l1_steps
        return laplace_event(self.what, steps, steps, epsilon, self.size, LAPLACE_BITS)


def released_sum(phase: str, parameters: FmParameters, setting: Setting) -> ReleasedSum:
    """The sum of a preparatory phase, or that of the linear terms.

    L1 norms: of φ at most √d. Of the triangle of zzᵀ (‖z‖₁² + ‖z‖²)/2 <= (d + 1)/2. Of z·rᵀ,
    r = p - y clipped, ‖z‖₁·‖r‖₁: at most 2√d, and at most 2√(d(c - 1)/c)·clip, since r's entry at
    the label weighs as much as all the others (up to one step of 2**-12, for rounding).
    """
    d, c, features = setting.dimension, setting.classes, setting.feature_dimension
    one = 1 << PRODUCT_BITS
    if phase == COVARIANCE:
        return _triangle("covariance of the features", features)
    if phase == QUADRATIC:
        return _triangle("sum of quadratic terms", d)
    if phase == CENTRE:
        return ReleasedSum("sum of features", d, 1.0, math.isqrt(d * one * one))
    widest = math.isqrt(d * one)  # ‖z‖₁ in steps of 2**-12
    limit = int(parameters.clip * one) ** 2
    by_factors = widest * LARGEST_L1
    by_norm = math.isqrt(4 * d * (c - 1) * limit // c) + 1 + widest
    return ReleasedSum("sum of linear terms", d * c, parameters.clip, min(by_factors, by_norm))


def _triangle(what: str, d: int) -> ReleasedSum:
    return ReleasedSum(what, triangle_size(d), 1.0, (d + 1) << (PRODUCT_BITS - 1), "symmetric")


def wishart_event(epsilon: float) -> ClaimedEvent:
    """Of a covariance plus ZZᵀ, as the text claims it."""
    return ClaimedEvent(
        what="covariance with Wishart noise",
        unit="record",
        claimed_epsilon=epsilon,
        source="DELM, alg. 2: pure ε, which does not hold (docs/privacy.md)",
    )
