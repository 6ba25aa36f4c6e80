"""What each release of `fm` costs: sensitivities in integer steps, and shares of the budget.

A part's bound holds for every record and every broadcast; the proofs are in `docs/privacy.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fl_core.algorithms.base import TRAIN, Exchange
from fl_core.algorithms.fm_parameters import FmParameters
from fl_core.algorithms.fm_sums import LARGEST_L1, PRODUCT_BITS
from fl_core.algorithms.setting import Setting
from fl_core.algorithms.triangle import triangle_size
from fl_core.errors import PrivacyError
from fl_core.features.pca import PcaParameters
from fl_core.privacy.accountant import discreteness_tv, epsilon, mu_for, pure_epsilon
from fl_core.privacy.events import ClaimedEvent, Event, GaussianEvent, LaplaceEvent
from fl_core.privacy.mechanisms import Layout, gaussian_event, laplace_event, scale_of

COVARIANCE, CENTRE, QUADRATIC = "covariance", "centre", "quadratic"
# Gaussian sums are moved to the grid 2**-28, so that the noise has 2**20 steps and more; Laplace
# noise is exactly priced on any grid and stays on that of the products.
GAUSSIAN_BITS, LAPLACE_BITS = 28, PRODUCT_BITS
HAIR = 1.0 - 2.0**-40  # room for the rounding of a sum of shares of ε
WISHART_SOURCE = "DELM, alg. 2: pure ε, which does not hold (docs/privacy.md)"
LOCAL_BASIS = ClaimedEvent(
    what="basis of the device's own PCA, without noise",
    unit="record",
    claimed_epsilon=0.0,
    source="DELM, section 6: projecting by it is taken to cost nothing",
)


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


def phases(parameters: FmParameters, projection: PcaParameters | None) -> tuple[str, ...]:
    """The preparatory exchanges, in order; each is released once."""
    wanted = (
        (COVARIANCE, projection is not None and projection.name != "local_pca"),
        (CENTRE, parameters.centre),
        (QUADRATIC, parameters.quadratic == "once"),
    )
    return tuple(phase for phase, asked in wanted if asked)


def budget(parameters: FmParameters, setting: Setting) -> Budget:
    """Noise such that a device's whole part in the job is (ε, δ)-DP per record.

    Part of δ is set aside for the discreteness of Gaussian noise, which in turn depends on the
    noise: a few rounds settle it, and the accountant then prices the result. Raises
    `PrivacyError` if the grid is too coarse for (ε, δ).
    """
    reserve = 0.0
    for _ in range(8):
        if reserve < setting.delta:
            result = _share_out(parameters, setting, setting.delta - reserve)
            if _costs(result, setting.delta) <= setting.epsilon:
                return result
            tv = math.fsum(discreteness_tv(event) for event in _gaussians(result))
            worst = math.exp(_gaussian_part(parameters, setting))
            reserve = 1.1 * (1 + worst) * tv + 1e-6 * setting.delta
    raise PrivacyError(
        f"the noise grid is too coarse for ε = {setting.epsilon:g}, δ = {setting.delta:g}",
        where="privacy.epsilon",
        fix="lower epsilon or raise delta",
    )


def _first_share(parameters: FmParameters, setting: Setting) -> float:
    """The share of the covariance; 0 where none is released."""
    projection = setting.projection
    if projection is None or COVARIANCE not in phases(parameters, projection):
        return 0.0
    return projection.share


def _one_kind(parameters: FmParameters, setting: Setting) -> bool:
    """Whether all noise is Gaussian, so that shares are of μ²; else they are of ε."""
    released = _first_share(parameters, setting) > 0
    return parameters.noise == "gaussian" and not (released and _wishart(setting.projection))


def _gaussian_part(parameters: FmParameters, setting: Setting) -> float:
    """The ε that the Gaussian events may cost together."""
    if _one_kind(parameters, setting):
        return setting.epsilon
    first = _first_share(parameters, setting)
    return setting.epsilon * (first if parameters.noise == "laplace" else 1 - first)


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


def _share_out(parameters: FmParameters, setting: Setting, delta: float) -> Budget:
    """Each phase's event at its share: of μ² (Gaussian DP composes by Σμ²), or of ε."""
    times = min(setting.max_participations, parameters.rounds)
    names, projection = phases(parameters, setting.projection), setting.projection
    first, one_kind = _first_share(parameters, setting), _one_kind(parameters, setting)
    own, rest = setting.epsilon, setting.epsilon
    if not one_kind:  # two kinds of noise share ε itself, and their prices add up
        own, rest = own * first * HAIR, rest * (1 - first) * HAIR
    mu_rest = mu_for(rest, delta) if parameters.noise == "gaussian" else 0.0
    events: dict[str, Event] = {}
    if first and _wishart(projection):
        events[COVARIANCE] = ClaimedEvent(
            what="covariance with Wishart noise",
            unit="record",
            claimed_epsilon=own,
            source=WISHART_SOURCE,
        )
    elif first:
        mu_own = mu_rest * math.sqrt(first) if one_kind else mu_for(own, delta)
        size = triangle_size(setting.feature_dimension)
        events[COVARIANCE] = gaussian_event(
            COVARIANCE,
            1 << GAUSSIAN_BITS,
            mu_own,
            size,
            grid_bits=GAUSSIAN_BITS,
            layout="symmetric",
        )
    if one_kind:
        mu_rest *= math.sqrt(1 - first)
    shares = {CENTRE: parameters.shares.centre, QUADRATIC: parameters.shares.quadratic}
    shares = {phase: share for phase, share in shares.items() if phase in names}
    shares[TRAIN] = (1.0 - sum(shares.values())) / times
    for phase, share in shares.items():
        released = released_sum(phase, parameters, setting)
        if parameters.noise == "gaussian":
            events[phase] = released.gaussian(mu_rest * math.sqrt(share))
        else:
            events[phase] = released.laplace(rest * share)
    local = projection is not None and projection.name == "local_pca"
    return Budget(events, times, (LOCAL_BASIS,) if local else ())


def _wishart(projection: PcaParameters | None) -> bool:
    return projection is not None and projection.noise == "wishart"


@dataclass(frozen=True)
class ReleasedSum:
    """A sum over records before noise: its size, and how far one record moves it.

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

    def laplace(self, epsilon_: float) -> LaplaceEvent:
        """Its event at pure ε."""
        steps = self.l1_steps
        return laplace_event(self.what, steps, steps, epsilon_, self.size, LAPLACE_BITS)


def released_sum(phase: str, parameters: FmParameters, setting: Setting) -> ReleasedSum:
    """The centre, quadratic or linear sum.

    L1 norms: of φ at most √d. Of the triangle of zzᵀ (‖z‖₁² + ‖z‖²)/2 <= (d + 1)/2. Of z·rᵀ,
    r = p - y clipped, ‖z‖₁·‖r‖₁: at most 2√d, and at most 2√(d(c - 1)/c)·clip, since r's entry at
    the label weighs as much as all the others (up to one step of 2**-12, for rounding).
    """
    d, c = setting.dimension, setting.classes
    one = 1 << PRODUCT_BITS
    if phase == CENTRE:
        return ReleasedSum("sum of features", d, 1.0, math.isqrt(d * one * one))
    if phase == QUADRATIC:
        size, l1 = triangle_size(d), (d + 1) * one // 2
        return ReleasedSum("sum of quadratic terms", size, 1.0, l1, "symmetric")
    widest = math.isqrt(d * one)  # ‖z‖₁ in steps of 2**-12
    limit = int(parameters.clip * one) ** 2
    by_factors = widest * LARGEST_L1
    by_norm = math.isqrt(4 * d * (c - 1) * limit // c) + 1 + widest
    return ReleasedSum("sum of linear terms", d * c, parameters.clip, min(by_factors, by_norm))
