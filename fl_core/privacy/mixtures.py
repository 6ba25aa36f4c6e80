"""Gaussian and pure-ε releases on the same data, composed by privacy-loss distributions.

Every (ε, 0)-DP release is dominated by randomised response at ε (Kairouz, Oh and Viswanath
2015), a μ-GDP release by a pair of Gaussians, and an adaptive composition by the product of the
dominating pairs (Zhu, Dong and Wang 2022). `dp-accounting` composes these numerically, rounding
losses upward. It is an optional library (extra `cloud`): without it there is no curve, and the
caller keeps basic composition, which is valid and looser.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction

POINTS = 1 << 17  # of the grid of losses: decides time and tightness, not validity
GROUPS = 16  # each costs a convolution
# Covers the absolute error of the library's FFT, measured below 1e-12 at 10,000 compositions.
FFT_SLACK = 1e-10

Curve = Callable[[float], float]


def mixture_curve(mu: float, pure: Mapping[Fraction, int]) -> Curve | None:
    """δ(ε), never too small, of a μ-GDP release (μ > 0) and `pure[ε₀]` releases of each pure ε₀.

    Few groups enter the composition: of more, near ones are merged at an ε not below theirs, and
    past the largest the ε add up. None where the library is missing.
    """
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    groups, rest = _grouped(pure)
    offset = math.nextafter(float(sum(e * count for e, count in rest)), math.inf) if rest else 0.0
    step = _loss_step(mu, groups)
    composed = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=step
    )
    for e, count in groups:
        rounded = step * math.ceil(e / Fraction(step))  # exact: a step has few digits
        one = common.DifferentialPrivacyParameters(rounded)
        part = privacy_loss_distribution.from_privacy_parameters(one, step)
        composed = composed.compose(part.self_compose(count))
    return lambda epsilon: float(composed.get_delta_for_epsilon(epsilon - offset)) + FFT_SLACK


def _grouped(
    pure: Mapping[Fraction, int],
) -> tuple[list[tuple[Fraction, int]], list[tuple[Fraction, int]]]:
    """The groups to compose, those of largest total first, and the rest."""
    merged = Counter(pure)
    if len(merged) > GROUPS:
        merged.clear()
        for e, count in pure.items():
            merged[Fraction(_short(math.nextafter(float(e), math.inf), 3))] += count
    ranked = sorted(merged.items(), key=lambda item: (-item[0] * item[1], item[0]))
    return ranked[:GROUPS], ranked[GROUPS:]


def _loss_step(mu: float, groups: list[tuple[Fraction, int]]) -> float:
    """A grid step that divides the first group's ε (nearly) and spans the losses in `POINTS`."""
    spread = mu * (mu + 18.0)
    for e, count in groups:
        one = float(e)
        spread += 2 * one * min(count, count * math.tanh(one / 2) + 9 * math.sqrt(count))
    first = float(groups[0][0])
    times = max(1, math.floor(first * POINTS / spread))
    # Of 24 digits, so that its multiples are exact in float64.
    return _short(max(first / times, spread / POINTS), 24)


def _short(value: float, digits: int) -> float:
    """The least number not below `value` > 0 that has so many binary digits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, digits)), exponent - digits)
