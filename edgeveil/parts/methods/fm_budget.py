"""How a job's budget is shared among the releases of `fm`, and what each then costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgeveil.errors import PrivacyError
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.methods.fm_parameters import FmParameters
from edgeveil.parts.methods.fm_released import (
    CENTRE,
    COVARIANCE,
    LOCAL_BASIS,
    QUADRATIC,
    phases,
    released_sum,
    wishart_event,
)
from edgeveil.parts.methods.fm_sums import PRODUCT_BITS, check_sizes
from edgeveil.parts.setting import Setting
from edgeveil.privacy.accountant import HAIR, discreteness_tv, epsilon, mu_for, pure_epsilon
from edgeveil.privacy.events import ClaimedEvent, Event, GaussianEvent, LaplaceEvent
from edgeveil.privacy.laplace_mechanism import scale_of


@dataclass(frozen=True)
class Budget:
    """The event of each released phase, in the order of the exchanges; TRAIN is one round's.

    `tainted` goes with every answer of a job whose basis comes from records without noise.
    """

    events: Mapping[str, Event]
    participations: int
    tainted: tuple[Event, ...] = ()

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The events of one exchange."""
        return (self.events[exchange.phase], *self.tainted)

    def job_events(self) -> tuple[Event, ...]:
        """All events of one device's part in the whole job."""
        once = [event for phase, event in self.events.items() if phase != TRAIN]
        every = (*once, *[self.events[TRAIN]] * self.participations)
        return (*every, *self.tainted * len(every))

    def grid_bits(self, phase: str) -> int:
        """A phase's sum and its noise stand on the grid 2**-bits."""
        event = self.events[phase]
        if isinstance(event, GaussianEvent | LaplaceEvent):
            return event.grid_bits
        return PRODUCT_BITS

    def noise_variance(self, phase: str) -> float:
        """Of one value of a phase's sum, off the diagonal of a matrix, in units²."""
        event = self.events[phase]
        steps = 0.0
        if isinstance(event, GaussianEvent):
            steps = float(event.finest_sigma_squared)
        elif isinstance(event, LaplaceEvent):
            steps = 2.0 * float(scale_of(event)) ** 2
        return steps * 4.0 ** -self.grid_bits(phase)


@dataclass(frozen=True)
class _Split:
    """What the covariance of a PCA takes first, and what is left.

    Where all noise is Gaussian, `first` is a share of μ² and both ε are the job's: Gaussian DP
    composes by Σμ². Where two kinds meet, ε itself is shared and their prices add up.
    """

    first: float
    one_kind: bool
    own_epsilon: float
    rest_epsilon: float

    def gaussian_epsilon(self, noise: str) -> float:
        """The ε that the Gaussian events may cost together."""
        return self.own_epsilon if noise == "laplace" else self.rest_epsilon


def _split(parameters: FmParameters, setting: Setting) -> _Split:
    projection, whole = setting.projection, setting.epsilon
    if projection is None or COVARIANCE not in phases(parameters, projection):
        one_kind = parameters.noise == "gaussian"
        return _Split(0.0, one_kind, whole, whole if one_kind else whole * HAIR)
    first = projection.share
    if parameters.noise == projection.noise == "gaussian":
        return _Split(first, True, whole, whole)
    return _Split(first, False, whole * first * HAIR, whole * (1 - first) * HAIR)


def budget(parameters: FmParameters, setting: Setting) -> Budget:
    """Noise such that a device's whole part in the job is (ε, δ)-DP per record.

    Part of δ is set aside for the discreteness of Gaussian noise, which in turn depends on the
    noise: a few rounds settle it, and the accountant then prices the result. Raises
    `PrivacyError` if the grid is too coarse for (ε, δ), or for so many features.
    """
    check_sizes(setting)
    split, reserve = _split(parameters, setting), 0.0
    for _ in range(8):
        if reserve < setting.delta:
            result = _share_out(parameters, setting, split, setting.delta - reserve)
            if _costs(result, setting.delta) <= setting.epsilon:
                return result
            tv = math.fsum(discreteness_tv(event) for event in _gaussians(result))
            worst = math.exp(split.gaussian_epsilon(parameters.noise))
            reserve = 1.1 * (1 + worst) * tv + 1e-6 * setting.delta
    raise PrivacyError(
        f"the noise grid is too coarse for ε = {setting.epsilon:g}, δ = {setting.delta:g}",
        where="privacy.epsilon",
        fix="lower epsilon or raise delta",
    )


def _gaussians(result: Budget) -> list[GaussianEvent]:
    return [event for event in result.job_events() if isinstance(event, GaussianEvent)]


def _costs(result: Budget, delta: float) -> float:
    """ε of the whole part by basic composition of its kinds, the price that is always valid.

    Infinite while the discreteness of the noise uses up δ alone.
    """
    events = result.job_events()
    pure = pure_epsilon(event for event in events if isinstance(event, LaplaceEvent))
    claimed = sum(event.claimed_epsilon for event in events if isinstance(event, ClaimedEvent))
    try:
        return epsilon(_gaussians(result), delta).epsilon + float(pure) + claimed
    except PrivacyError:
        return math.inf


def _share_out(parameters: FmParameters, setting: Setting, split: _Split, delta: float) -> Budget:
    """Each phase's event at its share of what the covariance leaves: of μ², or of ε."""
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
            events[phase] = released.gaussian(mu * math.sqrt(share))
        else:
            events[phase] = released.laplace(split.rest_epsilon * share)
    local = setting.projection is not None and setting.projection.name == "local_pca"
    return Budget(events, times, (LOCAL_BASIS,) if local else ())


def _covariance_event(
    parameters: FmParameters, setting: Setting, split: _Split, delta: float
) -> Event:
    if setting.projection is not None and setting.projection.noise == "wishart":
        return wishart_event(split.own_epsilon)
    mu = mu_for(split.own_epsilon, delta) * (math.sqrt(split.first) if split.one_kind else 1.0)
    return released_sum(COVARIANCE, parameters, setting).gaussian(mu)
