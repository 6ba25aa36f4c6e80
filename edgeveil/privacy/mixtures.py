"""Releases of several kinds on the same data, composed by privacy-loss distributions.

Every (ε, 0)-DP release is dominated by randomised response at ε (Kairouz, Oh and Viswanath
2015), a μ-GDP release by a pair of Gaussians, a Poisson-sampled one by that pair mixed (in either
direction), and an adaptive composition by the product of the dominating pairs (Zhu, Dong and Wang
2022). `dp-accounting` composes these numerically, rounding losses upward. It is an optional
library (extra `cloud`): without it there is no curve, and the caller keeps basic composition or
log moments, which are valid and looser.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from edgeveil.privacy.moments import ORDERS, Moments, sampled_moments, times

POINTS = 1 << 17  # of the grid of losses: decides time and tightness, not validity
GROUPS = 16  # each costs a convolution
# Cover the absolute error of the library's FFT, measured below 1e-12 at 10,000 compositions and
# at 2.6e-10 at 3,000,000: a power of what rounding has touched.
FFT_SLACK, SLACK_EACH = 1e-10, 2.0**-50

SAMPLED_POINTS = 1 << 15  # for sampled steps, whose library rounds to second order
MOST_POINTS = 1 << 18  # past them, and of losses finer than the grid, a composition takes minutes
LEAST_CHANCE = 50.0  # losses of chance e^-50 or less need no room on the grid

Curve = Callable[[float], float]


@dataclass(frozen=True)
class Sampled:
    """So many `steps`, each on a Poisson sample, of noise that is `mu`-GDP without sampling."""

    probability: float
    mu: float
    steps: int

    @property
    def moments(self) -> Moments:
        """Of all its steps."""
        return times(sampled_moments(self.probability, self.mu), self.steps)


def mixture_curve(
    mu: float, pure: Mapping[Fraction, int], sampled: frozenset[Sampled] = frozenset()
) -> Curve | None:
    """δ(ε), never too small, of a μ-GDP release, `pure[ε₀]` releases of each ε₀, and `sampled`.

    At least one of μ and `sampled` must be there. Few groups of pure releases enter the
    composition: of more, near ones are merged at an ε not below theirs, and past the largest the
    ε add up. None where the library is missing, or would take minutes: many tiny sampled steps.
    """
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    groups, rest = _grouped(pure)
    offset = math.nextafter(float(sum(e * count for e, count in rest)), math.inf) if rest else 0.0
    step = _loss_step(mu, groups, sampled)
    if step is None:
        return None
    parts: list[Any] = []
    if mu:
        noise = privacy_loss_distribution.from_gaussian_mechanism(
            1 / mu, value_discretization_interval=step
        )
        parts.append(noise)
    for one in sorted(sampled, key=lambda group: (group.probability, group.mu)):
        noise = privacy_loss_distribution.from_gaussian_mechanism(
            1 / one.mu, value_discretization_interval=step, sampling_prob=one.probability
        )
        parts.append(noise.self_compose(one.steps))
    for e, count in groups:
        rounded = step * math.ceil(e / Fraction(step))  # exact: a step has few digits
        worst = common.DifferentialPrivacyParameters(rounded)
        response = privacy_loss_distribution.from_privacy_parameters(worst, step)
        parts.append(response.self_compose(count))
    composed = parts[0]
    for part in parts[1:]:
        composed = composed.compose(part)
    count = sum(one.steps for one in sampled) + sum(count for _, count in groups)
    slack = FFT_SLACK + count * SLACK_EACH
    return lambda epsilon: float(composed.get_delta_for_epsilon(epsilon - offset)) + slack


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


def _loss_step(
    mu: float, groups: list[tuple[Fraction, int]], sampled: frozenset[Sampled]
) -> float | None:
    """A grid step that spans the losses in so many points and divides the first ε (nearly).

    None where a sampled step's loss would be lost between so many points.
    """
    spread = mu * (mu + 18.0)
    for e, count in groups:
        one = float(e)
        spread += 2 * one * min(count, count * math.tanh(one / 2) + 9 * math.sqrt(count))
    points = SAMPLED_POINTS if sampled and not groups else POINTS
    spread += sum(2 * _largest_loss(one) for one in sampled)
    step = min([spread / points, *[_deviation(one) / 4 for one in sampled]])
    if step * MOST_POINTS < spread:
        return None
    if groups:
        first = float(groups[0][0])
        step = max(first / max(1, math.floor(first / step)), step)
    return _short(step, 24)  # so that its multiples are exact in float64


def _deviation(sampled: Sampled) -> float:
    """About the standard deviation of one step's loss: q·√(e^μ² − 1)."""
    return sampled.probability * math.sqrt(math.expm1(min(sampled.mu**2, 50.0)))


def _largest_loss(sampled: Sampled) -> float:
    """A loss that is passed with chance e^-50 at most (Markov, on the moments)."""
    pairs = zip(ORDERS, sampled.moments, strict=True)
    return min((moment + LEAST_CHANCE) / order for order, moment in pairs)


def _short(value: float, digits: int) -> float:
    """The least number not below `value` > 0 that has so many binary digits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, digits)), exponent - digits)
