"""Prices: Gaussian DP for Gaussian events, exact sums for pure ε, and their mixtures.

Sources: Dong, Roth and Su (2022), cor. 2.13 (δ(ε)) and 3.3 (μ² adds up, adaptively too); Balle and
Wang (2018), thm 8. Discreteness costs (1 + e^ε)·Σ coordinates·TV, TV <= 1/(16σ²)
(`docs/privacy.md`). *Mixtures*: pure releases are dominated by randomised response at ε (Kairouz,
Oh and Viswanath 2015), μ-GDP ones by a pair of Gaussians, Poisson-sampled ones by that pair mixed,
compositions by their product (Zhu, Dong and Wang 2022). `dp-accounting` (extra `cloud`) composes
these numerically, rounding upward; without it basic composition or log moments are valid and
looser.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial, reduce
from typing import Any

from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import (
    ClaimedEvent,
    Event,
    GaussianEvent,
    NoisyEvent,
    PoissonSampled,
    PureEvent,
    SharedGaussian,
    Status,
    Unit,
    UnprotectedEvent,
    as_single,
    as_summed,
    for_one_record,
)
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.moments import (
    ORDERS,
    ROUND_UP,
    Moments,
    added,
    delta_at,
    gaussian_moments,
    log_moments,
    most_taken,
    pure_moments,
    sampled_moments,
    times,
)

FINEST_SIGMA_BITS = 20  # coarser Gaussian noise is not priced as Gaussian DP
LARGEST_EPSILON = 700.0
HAIR = 1.0 - 2.0**-40  # room for the rounding of a sum of shares of ε

POINTS = 1 << 17  # size of the loss grid: affects time and tightness, not validity
GROUPS = 16  # each costs a convolution
# Cover the absolute error of the library's FFT, measured below 1e-12 at 10,000 compositions and
# at 2.6e-10 at 3,000,000, as powers of rounded values.
FFT_SLACK, SLACK_EACH = 1e-10, 2.0**-50

SAMPLED_POINTS = 1 << 15  # for sampled steps, whose library rounds to second order
MOST_POINTS = 1 << 18  # a finer composition takes minutes
LEAST_CHANCE = 50.0  # the grid omits losses of probability e^-50 or less

Curve = Callable[[float], float]


@dataclass(frozen=True)
class SampledSteps:
    probability: float
    mu: float
    steps: int

    @property
    def moments(self) -> Moments:
        return times(sampled_moments(self.probability, self.mu), self.steps)


def discreteness_tv(event: NoisyEvent) -> float:
    """Bound the total variation of all draws to a rounded Gaussian, for σ >= 2**20 steps."""
    one, steps = (event, 1) if isinstance(event, GaussianEvent) else (event.event, event.steps)
    if one.finest_sigma_squared < 1 << (2 * FINEST_SIGMA_BITS):
        what = f"{one.what}: noise of {one.sigma_steps:.3g} steps is too coarse to price"
        raise PrivacyError(what, fix=f"use a finer grid (at least 2^{FINEST_SIGMA_BITS} steps)")
    return one.coordinates * steps / (16.0 * one.finest_sigma_squared)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return δ(ε) of μ-GDP: Φ(-ε/μ + μ/2) - e^ε·Φ(-ε/μ - μ/2), rounded up where e^ε overflows."""
    if mu == 0:
        return 0.0
    first = _phi(-epsilon / mu + mu / 2)
    if epsilon > LARGEST_EPSILON:
        return first
    second = math.exp(epsilon) * _phi(-epsilon / mu - mu / 2)
    return max(0.0, first - second) + 1e-12 * first


def total_mu(events: Iterable[GaussianEvent]) -> float:
    return math.sqrt(math.fsum(event.mu**2 for event in events))


def mu_for(epsilon: float, delta: float) -> float:
    """Return the largest μ (to 1e-12, rounded down) whose Gaussian-DP curve passes (ε, δ)."""
    _check(epsilon, delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    return _halved(lambda mu: gaussian_delta(epsilon, mu) > delta, low, high, 1e-12)[0]


def epsilon(events: Iterable[Event], delta: float) -> Guarantee:
    """Return (ε, δ) of releasing all `events` on the same data; `colluding` if noise is shared."""
    listed = tuple(events)
    summed = tuple(map(as_summed, listed))
    found = replace(_epsilon(summed, delta), among_others=_among_others(summed, delta))
    shared = [event for event in listed if isinstance(event, SharedGaussian)]
    if not shared:
        return found
    single = tuple(map(as_single, listed))
    largest = max(epsilon_on_any_grid(single, delta), found.epsilon)
    among = _among_others(single, delta)
    alone = replace(found, epsilon=largest, among_others=among, mu=None)
    return replace(found, colluding=alone, honest=max(event.honest for event in shared))


def epsilon_on_any_grid(events: tuple[Event, ...], delta: float) -> float:
    """Return ε; if the grid is too coarse, the looser bounds of log moments, valid on any grid."""
    known = [moments for event in events if (moments := log_moments(event)) is not None]
    try:
        found = _epsilon(events, delta).epsilon
    except PrivacyError:
        if len(known) < len(events):
            return math.inf
        found = _by_moments(known, delta)
    sampled = _sampled(Counter(event for event in events if isinstance(event, NoisyEvent)))
    if not sampled or len(known) < len(events):
        return found
    # But for a chance of δ/2 a record is in few samples, whose steps compose as Gaussian ones: far
    # less than the above where a step has hardly any noise.
    pairs = zip(events, known, strict=True)
    parts = [
        m for e, m in pairs if not isinstance(e, PoissonSampled) or e.sampling_probability == 1
    ]
    for one in sampled:
        most = most_taken(one.probability, one.steps, delta / 2 / len(sampled))
        parts.append(times(gaussian_moments(one.mu), most))
    return min(found, _by_moments(parts, delta / 2))


def _by_moments(parts: Iterable[Moments], delta: float) -> float:
    together = added(parts)
    return least_epsilon(lambda e: delta_at(e, together), 0.0, delta)


def _epsilon(events: Iterable[Event], delta: float) -> Guarantee:
    """Return (ε, δ) by basic composition or that of loss distributions, if smaller."""
    listed = tuple(events)
    units = {event.unit for event in listed}
    if len(units) > 1:
        raise PrivacyError("events of different units have no common ε; price each unit separately")
    unit: Unit = units.pop() if units else "record"
    pure = Counter(e.epsilon for e in listed if isinstance(e, PureEvent) and e.epsilon)
    claimed = math.fsum(e.claimed_epsilon for e in listed if isinstance(e, ClaimedEvent))
    noisy = Counter(e for e in listed if isinstance(e, NoisyEvent))
    exact = sum((e * n for e, n in pure.items()), Fraction(0))
    proven = math.nextafter(float(exact), math.inf) if exact else 0.0
    mu, steps = 0.0, frozenset[SampledSteps]()
    if noisy:
        if any(getattr(event, "of_part", False) for event in noisy):
            raise PrivacyError("a part of what is sampled is priced by log moments only")
        tv = math.fsum(n * discreteness_tv(event) for event, n in noisy.items())
        groups, steps = frozenset(pure.items()), _sampled(noisy)
        mu = math.sqrt(math.fsum(n * _squared_mu(event) for event, n in noisy.items()))
        if steps:
            proven = _with_sampled(mu, tv, delta, groups, steps)
        else:
            proven = _with_gaussians(mu, tv, delta, proven, groups)
    total = math.nextafter(proven + claimed, math.inf) if claimed else proven
    status: Status = weakest(event.status for event in listed)
    if any(isinstance(event, UnprotectedEvent) for event in listed):
        total = math.inf
    spent = delta if noisy else 0.0
    gaussian = mu if status == "proven" and not (pure or steps) else None
    return Guarantee(total, spent, unit, status, mu=gaussian or None)


def _among_others(events: tuple[Event, ...], delta: float) -> float | None:
    for_records = tuple(map(for_one_record, events))
    changes = zip(for_records, events, strict=True)
    if all(_moves(one) == _moves(event) for one, event in changes):
        return None
    return epsilon_on_any_grid(for_records, delta)


def _moves(event: Event) -> tuple[int, bool]:
    return getattr(event, "sensitivity_steps", 0), getattr(event, "of_part", False)


def pure_epsilon(events: Iterable[Event]) -> Fraction:
    """Return the exact sum of pure ε. Raises `PrivacyError` if an event has none."""
    total = Fraction(0)
    for event in events:
        if not isinstance(event, PureEvent):
            raise PrivacyError(f"'{event.what}' has no pure ε")
        total += event.epsilon
    return total


def weakest(statuses: Iterable[Status]) -> Status:
    found = set(statuses)
    if "none" in found:
        return "none"
    return "claimed" if "claimed" in found else "proven"


@lru_cache(maxsize=256)
def _with_gaussians(
    mu: float, tv: float, delta: float, pure: float, groups: frozenset[tuple[Fraction, int]]
) -> float:
    """Return ε of a μ-GDP release with TV error `tv`, composed with pure releases of sum `pure`."""
    alone = _finite(least_epsilon(lambda e: gaussian_delta(e, mu), tv, delta), delta)
    if not pure:
        return alone
    basic = math.nextafter(pure + alone, math.inf)
    curve = mixture_curve(mu, dict(groups)) if mu and basic <= LARGEST_EPSILON else None
    return min(basic, least_epsilon(curve, tv, delta, alone)) if curve else basic


@lru_cache(maxsize=256)
def _with_sampled(
    mu: float,
    tv: float,
    delta: float,
    groups: frozenset[tuple[Fraction, int]],
    sampled: frozenset[SampledSteps],
) -> float:
    """Return ε of sampled steps composed with a μ-GDP and pure releases; total TV error `tv`."""
    pure = [times(pure_moments(math.nextafter(float(e), math.inf)), n) for e, n in groups]
    moments = added([gaussian_moments(mu), *pure, *[steps.moments for steps in sampled]])
    high = _finite(least_epsilon(lambda e: delta_at(e, moments), 0.0, delta), delta)
    curve = mixture_curve(mu, dict(groups), sampled)
    if curve is None:
        return high

    def holds(e: float) -> bool:
        return curve(e) + (1 + math.exp(e)) * tv <= delta

    if not holds(high):
        return high
    return _halved(holds, 0.0, high, 1e-7)[1] * ROUND_UP


def _squared_mu(event: NoisyEvent) -> float:
    if isinstance(event, GaussianEvent):
        return event.mu**2
    return event.steps * event.event.mu**2 if event.sampling_probability == 1 else 0.0


def _sampled(noisy: Mapping[NoisyEvent, int]) -> frozenset[SampledSteps]:
    steps: Counter[tuple[float, float]] = Counter()
    for event, count in noisy.items():
        if isinstance(event, PoissonSampled) and event.sampling_probability < 1:
            steps[event.sampling_probability, event.event.mu] += count * event.steps
    return frozenset(SampledSteps(q, mu, count) for (q, mu), count in steps.items())


def _finite(value: float, delta: float) -> float:
    if not 0 < delta < 1:
        raise PrivacyError(f"privacy.delta: must be in (0, 1), got {delta}")
    if value == math.inf:
        what = f"no finite ε at δ = {delta}: too much is released, or the grid is too coarse"
        raise PrivacyError(what, fix="raise delta or add noise")
    return value


def least_epsilon(curve: Curve, tv: float, delta: float, start: float = 0.0) -> float:
    """Return the least ε >= `start` with δ(ε) + (1 + e^ε)·TV <= δ, rounded up, or infinity."""

    def holds(candidate: float) -> bool:
        return curve(candidate) + (1 + math.exp(candidate)) * tv <= delta

    if holds(start):
        return start
    low, high = start, max(start, 2.0**-10)
    while not holds(high):
        low, high = high, high * 1.05
        if high > LARGEST_EPSILON:
            return math.inf
    return _halved(holds, low, high, 1e-12)[1] * ROUND_UP


def _halved(
    holds: Callable[[float], bool], low: float, high: float, tolerance: float
) -> tuple[float, float]:
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _check(epsilon_: float, delta: float) -> None:
    if not 0 < epsilon_ <= LARGEST_EPSILON:
        what = f"ε must be in (0, {LARGEST_EPSILON:g}], got {epsilon_:g}"
        raise PrivacyError(what, where="privacy.epsilon", fix="set for example 8")
    if not 0 < delta < 1:
        what = f"δ must be in (0, 1), got {delta:g}"
        raise PrivacyError(what, where="privacy.delta", fix="set for example 1e-5")


def mixture_curve(
    mu: float, pure: Mapping[Fraction, int], sampled: frozenset[SampledSteps] = frozenset()
) -> Curve | None:
    """Return an upper bound δ(ε) of a μ-GDP release, `pure[ε₀]` releases of each ε₀, and `sampled`.

    None if the library is missing or too slow. Of many groups close ones merge upward, small ones
    add."""
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    groups, rest = _grouped(pure)
    offset = math.nextafter(float(sum(e * count for e, count in rest)), math.inf) if rest else 0.0
    step = _loss_step(mu, groups, sampled)
    if step is None:
        return None
    gaussian = partial(
        privacy_loss_distribution.from_gaussian_mechanism, value_discretization_interval=step
    )
    parts: list[Any] = [gaussian(1 / mu)] if mu else []
    for one in sorted(sampled, key=lambda group: (group.probability, group.mu)):
        noise = gaussian(1 / one.mu, sampling_prob=one.probability)
        parts.append(noise.self_compose(one.steps))
    for e, count in groups:
        rounded = step * math.ceil(e / Fraction(step))  # exact: a step has few digits
        worst = common.DifferentialPrivacyParameters(rounded)
        response = privacy_loss_distribution.from_privacy_parameters(worst, step)
        parts.append(response.self_compose(count))
    composed = reduce(lambda one, other: one.compose(other), parts)
    count = sum(one.steps for one in sampled) + sum(count for _, count in groups)
    slack = FFT_SLACK + count * SLACK_EACH
    return lambda epsilon: float(composed.get_delta_for_epsilon(epsilon - offset)) + slack


def _grouped(
    pure: Mapping[Fraction, int],
) -> tuple[list[tuple[Fraction, int]], list[tuple[Fraction, int]]]:
    merged = Counter(pure)
    if len(merged) > GROUPS:
        merged.clear()
        for e, count in pure.items():
            merged[Fraction(_short(math.nextafter(float(e), math.inf), 3))] += count
    ranked = sorted(merged.items(), key=lambda item: (-item[0] * item[1], item[0]))
    return ranked[:GROUPS], ranked[GROUPS:]


def _loss_step(
    mu: float, groups: list[tuple[Fraction, int]], sampled: frozenset[SampledSteps]
) -> float | None:
    spread = mu * (mu + 18.0)
    for e, count in groups:
        one = float(e)
        spread += 2 * one * min(count, count * math.tanh(one / 2) + 9 * math.sqrt(count))
    points = SAMPLED_POINTS if sampled and not groups else POINTS
    # For each group a loss exceeded with probability e^-50 at most (Markov, on the moments).
    moments = [zip(ORDERS, group.moments, strict=True) for group in sampled]
    spread += sum(2 * min((m + LEAST_CHANCE) / order for order, m in pairs) for pairs in moments)
    # About a quarter of the standard deviation of one step's loss.
    fine = [s.probability * math.sqrt(math.expm1(min(s.mu**2, 50.0))) / 4 for s in sampled]
    step = min([spread / points, *fine])
    if step * MOST_POINTS < spread:
        return None
    if groups:
        first = float(groups[0][0])
        step = max(first / max(1, math.floor(first / step)), step)
    return _short(step, 24)  # so that its multiples are exact in float64


def _short(value: float, digits: int) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, digits)), exponent - digits)
