"""Attacks on single mechanisms: two neighbours whose whole gap is on one coordinate.

One call on many equal values plays many runs, each call with a noise context of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count as count_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.keys import NoiseKey
from edgeveil.data.split import sample_slots
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.derived import DerivedRandom, NoiseContext, noise_context_key
from edgeveil.privacy.duchi_mechanism import duchi_event, duchi_mechanism
from edgeveil.privacy.events import Event, GaussianEvent, for_one_record
from edgeveil.privacy.gaussian_mechanism import diagonal_of_triangle, gaussian, gaussian_event
from edgeveil.privacy.laplace_mechanism import (
    RECORD_BITS,
    SOFTMAX_BITS,
    laplace,
    laplace_event,
    mean_steps,
    noised_mean,
    softmax_event,
    softmax_laplace,
)
from edgeveil.privacy.selection_mechanism import exponential_mechanism, selection_event
from edgeveil_lab.audit.statistics import gaussian_threshold

Hits = NDArray[np.bool_]
Play = Callable[[bool, int], Hits]
Statistic = Callable[[bool, int], NDArray[np.float64]]

BITS = 28
ONE = 1 << BITS
FINEST = 53  # a float64 sum around 1 has no bits below; noise around 0 has
MU = 1.5
EPSILON = 1.0
TRIANGLE = 30  # rows of a matrix; on its diagonal, runs per call
CANDIDATES = 20
LOW_BITS = ("lowest bit", "off the grid")
MANY = 50  # records of an attacked person or device


@dataclass(frozen=True)
class Effort:
    """Runs per side: `values` where one call draws many, `calls` of a mechanism, `jobs` played."""

    values: int
    calls: int
    jobs: int


QUICK = Effort(values=400_000, calls=4_000, jobs=350)  # about 3 minutes on two idle cores
FULL = Effort(values=2_000_000, calls=200_000, jobs=100_000)


@dataclass(frozen=True)
class Claim:
    """An event and the (ε, δ) that bounds it; without `proven` only a paper claims the bound."""

    event: str
    epsilon: float
    delta: float = 0.0
    proven: bool = True


@dataclass(frozen=True)
class Attack:
    """Two neighbouring inputs; `play(present, runs)` returns (claims, runs), the events' hits."""

    mechanism: str
    title: str
    claims: tuple[Claim, ...]
    play: Play
    runs: int

    @property
    def name(self) -> str:
        return f"{self.mechanism}: {self.title}"


def past(
    mechanism: str, title: str, runs: int, statistic: Statistic, edge: float, *claims: Claim
) -> Attack:
    """Build an attack with one event, the statistic reaches `edge`; all claims share the draws."""

    def play(present: bool, count: int) -> Hits:
        return np.tile(statistic(present, count) >= edge, (len(claims), 1))

    return Attack(mechanism, title, claims, play, runs)


def each(one: Callable[[bool], float]) -> Statistic:
    return lambda present, count: np.array([one(present) for _ in range(count)])


def gaussian_law(event: Event) -> GaussianEvent:
    """Return `event` as a GaussianEvent; raises TypeError for any other noise."""
    if not isinstance(event, GaussianEvent):
        raise TypeError(f"noise that is not Gaussian: {event.what}")
    return event


_key = cache(NoiseKey.generate)
_asked = count_from(0)


def fresh_noise() -> DerivedRandom:
    """Return derived noise for a context that was never used before."""
    context = NoiseContext("audit", "", next(_asked), bytes(32))
    return DerivedRandom(noise_context_key(_key(), context))


def derived(mechanism: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values, **options: mechanism(*values, random_bytes=fresh_noise(), **options)


Noise = Callable[[NDArray[Any], Any], tuple[NDArray[Any], Any]]
Softmax = Callable[..., tuple[NDArray[np.float64], Any]]
Select = Callable[[NDArray[np.int64], Any], tuple[int, Any]]

_gaussian: Noise = derived(gaussian)
_laplace: Noise = derived(laplace)
_duchi: Noise = derived(duchi_mechanism)
_softmax: Softmax = derived(softmax_laplace)


def gaussian_attack(runs: int, mechanism: Noise = _gaussian) -> Attack:
    one = gaussian_event("audit", ONE, MU, 1, grid_bits=BITS)
    edge, delta = gaussian_threshold(one.mu, runs)
    claimed = epsilon([one], delta).epsilon

    def play(present: bool, count: int) -> Hits:
        event = gaussian_event("audit", ONE, MU, count, grid_bits=BITS)
        out = mechanism(np.full(count, ONE * present, np.int64), event)[0]
        statistic = out.astype(np.float64) / math.sqrt(event.sigma_squared)
        return np.stack([statistic >= edge, *low_bits(out, BITS)])

    claims = claims_with_bits("past the threshold", claimed, delta)
    return Attack("gaussian", "one value", claims, play, runs)


def symmetric_attack(runs: int, mechanism: Noise = _gaussian, *, diagonal: bool) -> Attack:
    """Attack the symmetric layout, with the gap on or off the diagonal.

    Norm 1 allows 1/√2 at two mirrored places, of which the triangle holds one."""
    size = TRIANGLE * (TRIANGLE + 1) // 2
    event = gaussian_event("audit", ONE, MU, size, grid_bits=BITS, layout="symmetric")
    edge, delta = gaussian_threshold(event.mu, runs)
    places = diagonal_of_triangle(size)
    if not diagonal:
        places = np.setdiff1d(np.arange(size), places)
    gap = ONE if diagonal else int(ONE / math.sqrt(2))
    scale = math.sqrt(event.sigma_squared if diagonal else event.finest_sigma_squared)

    def play(present: bool, count: int) -> Hits:
        total = np.zeros(size, np.int64)
        total[places] = gap * present
        calls = -(-count // len(places))
        out = np.concatenate([mechanism(total, event)[0][places] for _ in range(calls)])[:count]
        return np.stack([out.astype(np.float64) / scale >= edge, *low_bits(out, BITS)])

    claims = claims_with_bits("past the threshold", epsilon([event], delta).epsilon, delta)
    title = f"symmetric matrix, {'on' if diagonal else 'off'} the diagonal"
    return Attack("gaussian", title, claims, play, runs)


def laplace_attack(runs: int, mechanism: Noise = _laplace) -> Attack:
    """Build the attack on discrete Laplace noise; past the larger value the ratio is e^ε."""

    def play(present: bool, count: int) -> Hits:
        event = laplace_event("audit", ONE, ONE, EPSILON, count, BITS)
        out = mechanism(np.full(count, ONE * present, np.int64), event)[0]
        return np.stack([out >= ONE, *low_bits(out, BITS)])

    claims = claims_with_bits("past the value", EPSILON)
    return Attack("laplace", "one value", claims, play, runs)


def two_value_attack(runs: int, mechanism: Noise = _duchi) -> Attack:
    def play(present: bool, count: int) -> Hits:
        event = duchi_event("audit", Fraction(EPSILON), count)
        out = mechanism(np.full(count, 1.0 if present else -1.0), event)[0]
        return np.stack([out > 0, np.abs(out) != np.abs(out[0])])

    claims = (Claim("the upper value", EPSILON), Claim("another size", EPSILON))
    return Attack("two_value", "one value", claims, play, runs)


def selection_attack(runs: int, mechanism: Select | None = None, *, monotonic: bool) -> Attack:
    """Attack one candidate's score; with many candidates the ratio comes near e^ε."""
    select = mechanism or derived(exponential_mechanism)
    event = selection_event("audit", CANDIDATES, 1, EPSILON, monotonic=monotonic)
    first = np.arange(CANDIDATES) == 0
    scores = [(~first & (not monotonic)).astype(np.int64), first.astype(np.int64)]
    title = f"{CANDIDATES} candidates{', monotonic' if monotonic else ''}"
    claim = Claim("the favoured one", epsilon([event], 0.0).epsilon)
    favoured = each(lambda present: select(scores[present], event)[0] == 0)
    return past("exponential", title, runs, favoured, 1, claim)


def softmax_attack(runs: int, mechanism: Softmax = _softmax, *, sensitivity: int) -> Attack:
    """Attack a mean softmax; with `sensitivity` 1 also a paper's ε, half of the proven one."""
    event = softmax_event(2, EPSILON, sensitivity=sensitivity)

    def play(present: bool, count: int) -> Hits:
        sure = np.array([0.0, 1.0]) if present else np.array([1.0, 0.0])
        draws = [mechanism(sure, EPSILON, sensitivity=sensitivity)[0] for _ in range(count)]
        hits = _swapped(np.stack(draws))
        return np.stack(hits if sensitivity == 2 else [*hits, hits[0]])

    claims = claims_with_bits("both classes past theirs", epsilon([event], 0.0).epsilon)
    if sensitivity == 1:
        claims += (Claim("both classes past theirs", EPSILON, proven=False),)
    return Attack("softmax", f"mean, sensitivity {sensitivity}", claims, play, runs)


def record_attack(runs: int, mechanism: Softmax | None = None, nominal: int = 1) -> Attack:
    """Attack the mean softmax of `nominal` records by an added record of another class."""
    noised = mechanism or derived(noised_mean)
    event = softmax_event(2, EPSILON, nominal=nominal)
    held = np.array([nominal << RECORD_BITS, 0])
    more = np.array([0, 1 << RECORD_BITS])
    edge = mean_steps(held + more, nominal)

    def play(present: bool, count: int) -> Hits:
        total = held + more if present else held
        out = np.stack([noised(total, nominal, EPSILON)[0] for _ in range(count)])
        swapped = (out[:, 0] <= edge[0]) & (out[:, 1] >= edge[1])
        return np.stack([swapped, *low_bits(out[:, 1], SOFTMAX_BITS)])

    claimed = epsilon([for_one_record(event)], 0.0).epsilon
    claims = claims_with_bits("both classes past theirs", claimed)
    return Attack("softmax", "mean, one record among others", claims, play, runs)


def per_sample_attack(runs: int, mechanism: Softmax = _softmax) -> Attack:
    """Attack per-sample softmax by an added record that takes another record's slot."""
    key = bytes(32)
    held = np.zeros((1, 1), np.float32)
    ranked = (np.array([[0], [k]], np.float32) for k in range(1, 64))
    both = next(x for x in ranked if sample_slots(x, 1, key)[0] == 1)
    event = softmax_event(2, EPSILON, samples=1)

    def play(present: bool, count: int) -> Hits:
        x = both if present else held
        sure = [0.0, 1.0] if sample_slots(x, 1, key)[0] else [1.0, 0.0]
        return np.stack(_swapped(mechanism(np.tile(sure, (count, 1)), EPSILON, sensitivity=2)[0]))

    claims = claims_with_bits("both classes past theirs", epsilon([event], 0.0).epsilon)
    return Attack("softmax", "per sample, one slot", claims, play, runs)


def _swapped(out: NDArray[np.float64]) -> list[Hits]:
    hit = (out[:, 0] <= 0) & (out[:, 1] >= 1)
    return [hit, *low_bits(out[:, 1] * 2.0**SOFTMAX_BITS, SOFTMAX_BITS)]


def low_bits(out: NDArray[np.generic], bits: int) -> tuple[Hits, Hits]:
    """Return two events on the last bits of outputs in steps of 2**-`bits`: odd, off every grid."""
    steps = out.astype(np.float64)
    finest = np.ldexp(steps, FINEST - bits)
    return np.floor(steps) % 2 == 1, finest != np.floor(finest)


def claims_with_bits(event: str, claimed: float, delta: float = 0.0) -> tuple[Claim, ...]:
    return tuple(Claim(name, claimed, delta) for name in (event, *LOW_BITS))


def single_mechanisms(effort: Effort) -> tuple[Attack, ...]:
    values, calls = effort.values, effort.calls
    return (
        gaussian_attack(values),
        symmetric_attack(max(1, values // 4), diagonal=True),
        symmetric_attack(values, diagonal=False),
        laplace_attack(values),
        two_value_attack(values),
        selection_attack(calls, monotonic=False),
        selection_attack(calls, monotonic=True),
        softmax_attack(calls, sensitivity=2),
        softmax_attack(calls, sensitivity=1),
        record_attack(calls),
        per_sample_attack(calls),
    )
