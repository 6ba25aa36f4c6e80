"""The noise that an event of `fm` states, added to the exact sum."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from edgeveil.errors import PrivacyError
from edgeveil.parts.methods.fm_sums import PRODUCT_BITS
from edgeveil.parts.methods.triangle import upper
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import ClaimedEvent, Event, GaussianEvent, LaplaceEvent
from edgeveil.privacy.gaussian_mechanism import diagonal_of_triangle, gaussian
from edgeveil.privacy.grid import Int64, exact_matmul
from edgeveil.privacy.laplace_mechanism import laplace
from edgeveil.privacy.sampler import RandomBytes, discrete_gaussian


def noised(total: Int64, event: Event, random_bytes: RandomBytes) -> Int64:
    """`total`, in steps, plus the event's noise."""
    if isinstance(event, GaussianEvent):
        return gaussian(total, event, random_bytes)[0]
    if isinstance(event, LaplaceEvent):
        return laplace(total, event, random_bytes)[0]
    if isinstance(event, ClaimedEvent):
        source = bound(random_bytes, event, total)
        return total + wishart(total.size, event.claimed_epsilon, source)
    raise PrivacyError(f"'{event.what}' states no noise")


def wishart(size: int, epsilon: float, random_bytes: RandomBytes) -> Int64:
    """Upper triangle (`size` = D(D+1)/2 values) of ZZᵀ, Z (D, D+1) with entries N(0, 1/(2ε)).

    As DELM, alg. 2; in steps of 2**-24, Z on 2**-12. No guarantee is proven for it.
    """
    d = len(diagonal_of_triangle(size))
    variance = Fraction(1 << PRODUCT_BITS) / (2 * Fraction(epsilon))
    z = discrete_gaussian(variance, (d, d + 1), random_bytes)
    return np.asarray(upper(exact_matmul(z, z.T)), dtype=np.int64)
