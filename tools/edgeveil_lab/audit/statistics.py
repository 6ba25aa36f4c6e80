"""Two-sample test of an audit: the lower bound on ε that the counts of an event prove.

(ε, δ)-DP bounds both ratios of an event's probabilities under two neighbours, and those of its
complement. Clopper and Pearson (1934) bound the probabilities from the counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import bisect
from scipy.special import betainccinv, betaincinv, ndtr
from scipy.stats import binom

from edgeveil.privacy.accountant import LARGEST_EPSILON, gaussian_delta

BETA = 1e-6  # probability that a whole audit accuses at least one sound mechanism
POWER = 0.99
# Candidates for the δ at which a Gaussian's curve is audited; the most sensitive is chosen.
DELTAS = (0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-5)
TYPICAL = 64  # tests of an audit, used only to choose δ


@dataclass(frozen=True)
class EventCounts:
    runs: int
    without: int
    present: int


def lower_bound(counts: EventCounts, delta: float, beta: float) -> float:
    """Return a lower bound on ε with confidence 1 − `beta`; 0 if nothing is proven.

    Four one-sided bounds at beta/4 hold together, so all four ratios may be used."""
    without = _interval(counts.without, counts.runs, beta / 4)
    present = _interval(counts.present, counts.runs, beta / 4)
    return _epsilon(without, present, delta)


def caught(claimed: float, delta: float, runs: int, rate: float, beta: float) -> float:
    """Return the smallest true ε detected with power 0.99 (inf: none) at this event `rate`."""
    base = min(max(rate, 1 / runs), 1 - 1 / runs)
    low, high = base, 1.0

    def found(p: float) -> bool:
        return pessimistic(base, p, delta, runs, beta) > claimed

    if not found(high):
        return math.inf
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return _epsilon((base, base), (high, high), delta)


def pessimistic(without: float, present: float, delta: float, runs: int, beta: float) -> float:
    """Return the bound that an event of these probabilities reaches in 99 % of audits or more."""
    tail = (1 - POWER) / 2
    few, many = (int(binom.ppf(at, runs, p)) for at, p in ((tail, present), (1 - tail, without)))
    return lower_bound(EventCounts(runs, many, few), delta, beta)


def gaussian_threshold(mu: float, runs: int) -> tuple[float, float]:
    """Return (threshold, δ) of the likelihood-ratio event that audits μ-GDP.

    For T ~ N(0, 1) against N(μ, 1), P₁ − e^ε·P₀ is largest for T >= ε/μ + μ/2 (Balle and Wang
    2018). δ is chosen to detect the smallest lack of noise, independently of any draw."""

    def least_lack(delta: float) -> float:
        """Return the share of the noise that must be missing to be detected."""
        epsilon = epsilon_at(mu, delta)
        edge = epsilon / mu + mu / 2
        low, high = 0.0, 0.9
        for _ in range(12):
            middle = (low + high) / 2
            present, without = (float(ndtr((at - edge) / (1 - middle))) for at in (mu, 0))
            found = pessimistic(without, present, delta, runs, BETA / TYPICAL) > epsilon
            low, high = (low, middle) if found else (middle, high)
        return high

    usable = [delta for delta in DELTAS if gaussian_delta(0.0, mu) > delta]
    best = min(usable or DELTAS[-1:], key=least_lack)
    return epsilon_at(mu, best) / mu + mu / 2, best


def epsilon_at(mu: float, delta: float) -> float:
    return float(bisect(lambda e: gaussian_delta(e, mu) - delta, 0.0, LARGEST_EPSILON))


def _interval(count: int, runs: int, tail: float) -> tuple[float, float]:
    """Return one-sided Clopper–Pearson bounds at `tail`."""
    low = float(betaincinv(count, runs - count + 1, tail)) if count else 0.0
    high = float(betainccinv(count + 1, runs - count, tail)) if count < runs else 1.0
    return low, high


def _epsilon(a: tuple[float, float], b: tuple[float, float], delta: float) -> float:
    """Return the largest ln((P − δ)/P′) that the bounds prove, in both directions and events."""
    not_a, not_b = (1 - a[1], 1 - a[0]), (1 - b[1], 1 - b[0])
    largest = 0.0
    for one, other in ((a, b), (b, a), (not_a, not_b), (not_b, not_a)):
        excess = one[0] - delta
        if excess > 0:
            largest = max(largest, math.log(excess / other[1]) if other[1] > 0 else math.inf)
    return largest
