"""What `fm` releases and what it costs: parameters, the size and sensitivity of each phase's sum,
and the budget shared among phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from edgeveil.errors import PrivacyError
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.features.pca import COVARIANCE, PcaParameters
from edgeveil.parts.method_context import MethodContext, MethodParameters
from edgeveil.parts.methods.fm_sums import LARGEST_L1, PRODUCT_BITS, check_sizes, triangle_size
from edgeveil.parts.part import PartBlock
from edgeveil.privacy.accountant import HAIR, discreteness_tv, epsilon, mu_for, pure_epsilon
from edgeveil.privacy.events import (
    ClaimedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    as_single,
    as_summed,
)
from edgeveil.privacy.gaussian_mechanism import Layout, gaussian_event, shared_gaussian
from edgeveil.privacy.grid import GRID_BITS, Int64
from edgeveil.privacy.laplace_mechanism import laplace_event, noise_room, scale_of


class Shares(PartBlock):
    """Budget shares of the preparatory sums, of μ² (Gaussian) or ε (Laplace); training gets the
    rest, and the share of a sum that is not released. A PCA takes its share first."""

    centre: float = Field(default=0.02, gt=0, lt=1)
    """Share for the sum of the features."""
    quadratic: float = Field(default=0.2, gt=0, lt=1)
    """Share for the sum of the quadratic terms."""

    @model_validator(mode="after")
    def _leave_a_rest(self) -> Self:
        if self.centre + self.quadratic >= 1:
            raise ValueError("centre and quadratic must leave a share for the training rounds")
        return self


class FmParameters(MethodParameters):
    """The `train` block of a job with `method: fm`. Hessian bound: Böhning (1992)."""

    method: Literal["fm"] = "fm"
    """The re-expanded functional mechanism for a softmax head, or of a number for a linear one."""
    rounds: int = Field(default=15, ge=1, le=10_000)
    """Training rounds, one Taylor expansion each; preparatory exchanges are not counted."""
    noise: Literal["gaussian", "laplace"] = "gaussian"
    """`gaussian`: (ε, δ). `laplace`: pure ε, with far more noise where there are many features."""
    centre: bool = True
    """Release the sum of the features, so that they can be centred; false: the centre is 0."""
    quadratic: Literal["once", "never"] = "once"
    """`once`: the curvature comes from a released sum. `never`: it is alike in all directions."""
    clip: float = Field(default=0.6, gt=0, le=2.0)
    """L2 bound on one record's linear coefficients; smaller: less noise, more bias."""
    radius: float = Field(default=0.7, ge=1e-3, le=2.0)
    """L2 bound on one record's centred features; public, never taken from the data."""
    ridge: float = Field(default=0.3, gt=0, le=1e3)
    """Ridge, as a multiple of the noise level in the averaged sums."""
    curvature: float = Field(default=0.5, gt=0, le=1.0)
    """Bound on the softmax Hessian; 0.5 is Böhning's, smaller takes longer steps. Not for a label
    that is a number: there the loss is a polynomial itself, and its Hessian known."""
    shares: Shares = Shares()
    """Shares of the budget for the preparatory sums."""
    local_steps: int = Field(default=20, ge=1, le=1000)
    """Steps each device takes on its own noised polynomial in a round; they cost no ε."""
    average_from: float = Field(default=0.7, ge=0, lt=1)
    """Part of the rounds after which the model is the average of the iterates."""
    max_weight: float = Field(default=1024.0, gt=0, le=65536.0)
    """Largest absolute value of a weight."""
    intercept: bool = True
    """Whether each class has an intercept, so that how frequent it is can be learned; inside the
    bound on a record, its size by a public formula. Of a number there always is one."""

    left_out: ClassVar[Mapping[str, Any]] = {"intercept": False}

    @property
    def bias(self) -> bool:
        return self.intercept


NUMBER_INTERCEPT = 1 << (GRID_BITS - 1)  # i = 1/2, of a label that is a number
LARGEST_INTERCEPT = 0.3 * 2**GRID_BITS  # of two classes, without noise
HALVING_NOISE = 0.02  # of which i is half of that


def head_shape(parameters: FmParameters, setting: MethodContext) -> tuple[int, int]:
    """Rows and columns of the head: (d, classes), one row more for the intercept; (d + 1, 1) of a
    number."""
    if setting.regression:
        return (setting.dimension + 1, 1)
    return (setting.dimension + int(parameters.intercept), setting.classes)


# What `fm` releases, phase by phase: size, and how far one record moves it, in integer steps.
#
# The bounds hold for every record and every broadcast; the proofs are in `docs/privacy.md`.

CENTRE, QUADRATIC = "centre", "quadratic"
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
    """A sum over records before noise. `l2` is in units, the Frobenius norm of a symmetric matrix;
    `l1_steps` counts the sent values in steps of 2**-24."""

    what: str
    size: int
    l2: float
    l1_steps: int
    layout: Layout = "vector"

    def gaussian(self, mu: float) -> GaussianEvent:
        steps = int(self.l2 * 2.0**GAUSSIAN_BITS)
        return gaussian_event(
            self.what, steps, mu, self.size, grid_bits=GAUSSIAN_BITS, layout=self.layout
        )

    def laplace(self, epsilon: float) -> LaplaceEvent:
        steps = self.l1_steps
        return laplace_event(self.what, steps, steps, epsilon, self.size, LAPLACE_BITS)


def released_sum(phase: str, parameters: FmParameters, setting: MethodContext) -> ReleasedSum:
    """The sum of a preparatory phase, or of the linear terms.

    L1 of z·rᵀ, r = p - y clipped, is ‖z‖₁·‖r‖₁: at most 2√d, and at most 2√(d(c - 1)/c)·clip, since
    r's entry at the label weighs as much as all others (up to one step of 2**-12). A number's r is
    one value: at most 2√d, and √d·clip. d counts the intercept.
    """
    (d, c), features = head_shape(parameters, setting), setting.feature_dimension
    one = 1 << PRODUCT_BITS
    if phase == COVARIANCE:
        return products_sum("covariance of the features", features)
    if phase == QUADRATIC:
        return products_sum("sum of quadratic terms", d)
    if phase == CENTRE:
        return features_sum(setting.dimension)
    widest = math.isqrt(d * one)  # ‖z‖₁ in steps of 2**-12
    limit = int(parameters.clip * one) ** 2
    by_factors = widest * LARGEST_L1
    if setting.regression:
        by_norm = math.isqrt(d * limit)
    else:
        by_norm = math.isqrt(4 * d * (c - 1) * limit // c) + 1 + widest
    return ReleasedSum("sum of linear terms", d * c, parameters.clip, min(by_factors, by_norm))


def features_sum(d: int) -> ReleasedSum:
    """Σφ of d features of norm 1 at most, so ‖φ‖₁ <= √d."""
    one = 1 << PRODUCT_BITS
    return ReleasedSum("sum of features", d, 1.0, math.isqrt(d * one * one))


def products_sum(what: str, d: int) -> ReleasedSum:
    """Triangle of Σzzᵀ, z (d,) of norm 1 at most: its L1 is (‖z‖₁² + ‖z‖²)/2 <= (d + 1)/2."""
    return ReleasedSum(what, triangle_size(d), 1.0, (d + 1) << (PRODUCT_BITS - 1), "symmetric")


def wishart_event(epsilon: float) -> ClaimedEvent:
    return ClaimedEvent(
        what="covariance with Wishart noise",
        unit="record",
        claimed_epsilon=epsilon,
        source="DELM, alg. 2: pure ε, which does not hold (docs/privacy.md)",
    )


@dataclass(frozen=True)
class Budget:
    """The event of each released phase in order; TRAIN is one round's. `tainted` goes with every
    answer where the basis comes from records without noise."""

    events: Mapping[str, Event]
    participations: int
    tainted: tuple[Event, ...] = ()

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        return (self.events[exchange.phase], *self.tainted)

    def job_events(self) -> tuple[Event, ...]:
        once = [event for phase, event in self.events.items() if phase != TRAIN]
        every = (*once, *[self.events[TRAIN]] * self.participations)
        return (*every, *self.tainted * len(every))

    def grid_bits(self, phase: str) -> int:
        event = as_single(self.events[phase])
        if isinstance(event, GaussianEvent | LaplaceEvent):
            return event.grid_bits
        return PRODUCT_BITS

    def on_grid(self, phase: str, total: Int64, setting: MethodContext) -> Int64:
        """An exact sum on the grid of its phase; where it is summed cut off at the room of one."""
        moved = total << (self.grid_bits(phase) - PRODUCT_BITS)
        if not setting.summed:
            return moved
        room = self.room(phase, setting.nominal_records)
        within: Int64 = np.clip(moved, -room, room)
        return within

    def room(self, phase: str, nominal_records: int) -> int:
        """Public bound on one device's sum where it is summed, in steps: the nominal records at
        their largest. It is cut before the noise, so no two sums move further apart."""
        event = as_single(self.events[phase])
        if isinstance(event, GaussianEvent):
            return nominal_records * event.sensitivity_steps
        return nominal_records << self.grid_bits(phase) + 1

    def largest(self, phase: str, nominal_records: int) -> int:
        """Public bound on a noised value, in steps, passed with a chance below 2^-40 for 2^60
        values: 12 σ for a normal value (Mills' ratio, 2·Q(12) < 2^-107), `noise_room` for Laplace.
        """
        event, room = as_single(self.events[phase]), self.room(phase, nominal_records)
        if isinstance(event, LaplaceEvent):
            return room + noise_room(event)
        if isinstance(event, GaussianEvent):  # that on a diagonal, which is the widest
            return room + math.ceil(12 * math.sqrt(event.sigma_squared))
        return room

    def noise_variance(self, phase: str) -> float:
        """Variance of one value of a device's sum, off a matrix's diagonal, in units²."""
        event = as_single(self.events[phase])
        steps = 0.0
        if isinstance(event, GaussianEvent):
            steps = float(event.finest_sigma_squared)
        elif isinstance(event, LaplaceEvent):
            steps = 2.0 * float(scale_of(event)) ** 2
        return steps * 4.0 ** -self.grid_bits(phase)


@dataclass(frozen=True)
class _Split:
    """The covariance's share, and what is left. All Gaussian: a share of μ² (composes by Σμ²), both
    ε the job's. Two kinds: ε itself is shared and prices add up."""

    first: float
    one_kind: bool
    own_epsilon: float
    rest_epsilon: float

    def gaussian_epsilon(self, noise: str) -> float:
        return self.own_epsilon if noise == "laplace" else self.rest_epsilon


def _split(parameters: FmParameters, setting: MethodContext) -> _Split:
    projection, whole = setting.projection, setting.epsilon
    if projection is None or COVARIANCE not in phases(parameters, projection):
        one_kind = parameters.noise == "gaussian"
        return _Split(0.0, one_kind, whole, whole if one_kind else whole * HAIR)
    first = projection.share
    if parameters.noise == projection.noise == "gaussian":
        return _Split(first, True, whole, whole)
    return _Split(first, False, whole * first * HAIR, whole * (1 - first) * HAIR)


def budget(parameters: FmParameters, setting: MethodContext) -> Budget:
    """Noise for which a device's whole part is (ε, δ)-DP per record. Raises as `settled`."""
    split = _split(parameters, setting)
    gaussian_epsilon = split.gaussian_epsilon(parameters.noise)
    return settled(partial(_share_out, parameters, setting, split), setting, gaussian_epsilon)


def settled(
    made: Callable[[float], Budget], setting: MethodContext, gaussian_epsilon: float
) -> Budget:
    """The budget that `made` gives for a δ, such that it costs the setting's (ε, δ) at most.

    Part of δ is set aside for the discreteness of Gaussian noise, which depends on the noise: a few
    rounds settle it. Raises PrivacyError if the grid is too coarse for (ε, δ), or for so many
    features.
    """
    check_sizes(setting)
    reserve = 0.0
    for _ in range(8):
        if reserve < setting.delta:
            result = made(setting.delta - reserve)
            if _costs(result, setting.delta) <= setting.epsilon:
                return result
            tv = math.fsum(discreteness_tv(event) for event in _gaussians(result))
            worst = math.exp(gaussian_epsilon)
            reserve = 1.1 * (1 + worst) * tv + 1e-6 * setting.delta
    raise PrivacyError(
        f"the noise grid is too coarse for ε = {setting.epsilon:g}, δ = {setting.delta:g}",
        where="privacy.epsilon",
        fix="lower epsilon or raise delta",
    )


def _gaussians(result: Budget) -> list[GaussianEvent]:
    events = map(as_summed, result.job_events())
    return [event for event in events if isinstance(event, GaussianEvent)]


def _costs(result: Budget, delta: float) -> float:
    """ε of the whole part by basic composition of its kinds; infinite while discreteness uses up
    δ."""
    events = result.job_events()
    pure = pure_epsilon(event for event in events if isinstance(event, LaplaceEvent))
    claimed = sum(event.claimed_epsilon for event in events if isinstance(event, ClaimedEvent))
    try:
        return epsilon(_gaussians(result), delta).epsilon + float(pure) + claimed
    except PrivacyError:
        return math.inf


def _share_out(
    parameters: FmParameters, setting: MethodContext, split: _Split, delta: float
) -> Budget:
    events: dict[str, Event] = {}
    if split.first:
        events[COVARIANCE] = _covariance_event(parameters, setting, split, delta)
    times = min(setting.max_participations, parameters.rounds)
    names = phases(parameters, setting.projection)
    shares = {CENTRE: parameters.shares.centre, QUADRATIC: parameters.shares.quadratic}
    shares = {phase: share for phase, share in shares.items() if phase in names}
    shares[TRAIN] = (1.0 - sum(shares.values())) / times
    mu = 0.0
    if parameters.noise == "gaussian":
        mu = mu_for(split.rest_epsilon, delta)
        mu *= math.sqrt(1 - split.first) if split.one_kind else 1.0
    for phase, share in shares.items():
        released = released_sum(phase, parameters, setting)
        if parameters.noise == "gaussian":
            events[phase] = shared_gaussian(
                released.gaussian(mu * math.sqrt(share)), setting.honest
            )
        else:
            events[phase] = released.laplace(split.rest_epsilon * share)
    local = setting.projection is not None and setting.projection.name == "local_pca"
    return Budget(events, times, (LOCAL_BASIS,) if local else ())


def _covariance_event(
    parameters: FmParameters, setting: MethodContext, split: _Split, delta: float
) -> Event:
    if setting.projection is not None and setting.projection.noise == "wishart":
        return wishart_event(split.own_epsilon)
    mu = mu_for(split.own_epsilon, delta) * (math.sqrt(split.first) if split.one_kind else 1.0)
    return shared_gaussian(
        released_sum(COVARIANCE, parameters, setting).gaussian(mu), setting.honest
    )


def intercept_steps(
    parameters: FmParameters, setting: MethodContext, settled_budget: Budget
) -> int:
    """i, beside z for the intercept, in steps of 2**-12; 0: none. Of classes it follows from the
    noise in the mean linear sum of `setting.devices` devices, so from public numbers alone."""
    if setting.regression:
        return NUMBER_INTERCEPT
    if not parameters.intercept:
        return 0
    noise = math.sqrt(settled_budget.noise_variance(TRAIN) / setting.devices)
    noise /= setting.nominal_records
    largest = LARGEST_INTERCEPT * math.sqrt(2 / setting.classes)
    return int(largest / (1 + noise / HALVING_NOISE))
