"""The proxy's shuffle as privacy amplification, only where the clone bound's conditions hold.

Conditions: every release is local DP of a device's whole data, pure or all Gaussian, with no state
kept between uploads; no groups of masks, no buffered rounds. Printed assumptions: a batch has
`round.min_batch` uploads of honest devices, without cover traffic; the cloud gets one batch per
round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.privacy.accountant import epsilon as epsilon_of
from edgeveil.privacy.accountant import epsilon_on_any_grid, pure_epsilon
from edgeveil.privacy.amplification import approximate_epsilon, shuffled_epsilon
from edgeveil.privacy.events import Event, GaussianEvent, LaplaceEvent, TwoValueEvent
from edgeveil.privacy.guarantee import up, worth
from edgeveil.privacy.policy import INFER, TRAIN

LEAST_GAIN = 0.99  # smaller gains are not reported


@dataclass(frozen=True)
class ShuffleCredit:
    """(ε, δ) per device against a curious cloud; `claimed_epsilon` is a paper's unproven figure."""

    purpose: str
    epsilon: float
    delta: float
    uploads: int
    rounds: int
    local_epsilon: float
    segments: int
    claimed_epsilon: float

    def __str__(self) -> str:
        kind = "training" if self.purpose == TRAIN else "inference"
        claimed = f"; {self.segments}-fold as papers claim it, unproven: {up(self.claimed_epsilon)}"
        return (
            f"{kind}: ε = {up(self.epsilon)}, δ = {up(self.delta)} per device against a curious "
            f"cloud alone{worth(self.epsilon)}, {self.uploads} honest uploads a batch or more "
            f"(clone bound); without the shuffle ε = {up(self.local_epsilon)}"
            + (claimed if self.segments > 1 else "")
        )


def shuffled(plan: Plan) -> tuple[ShuffleCredit, ...]:
    """Return the amplification of a job's training and inference; () if there is none."""
    job = plan.job
    if job.proxy.shuffle == "none" or plan.sets > 1 or job.round.mode == "buffered":
        return ()
    if job.statistics is not None:
        return ()  # they read the same records as training, with noise of another kind
    prices = [(e, plan.device.price(e)) for e in plan.of_method]
    trained = [price for e, price in prices if e.number <= job.max_participations]
    if any(stage.remembers for stage in plan.context.stages):
        trained = []
    inferred: list[tuple[Event, ...]]
    inferred = [(plan.softmax_event(),) for e in plan.all_rounds if e.infer]
    # Evaluations read the same records with noise of another kind: no amplification together.
    inferred += [plan.price(e, trains=False) for e in plan.all_rounds if e.evaluates]
    layers = sum(s.name != SOFTMAX for s in plan.segments(prices[-1][0]))
    training = _credit(plan, TRAIN, trained[: job.max_participations], layers)
    return tuple(filter(None, (training, _credit(plan, INFER, inferred, 1))))


def _credit(
    plan: Plan, purpose: str, releases: Sequence[tuple[Event, ...]], segments: int
) -> ShuffleCredit | None:
    events = [event for price in releases for event in price]
    if not events or any(event.unit != "device" for event in events):
        return None
    delta, uploads, times = plan.job.privacy.delta, plan.job.round.min_batch, len(releases)
    if all(isinstance(event, TwoValueEvent | LaplaceEvent) for event in events):
        each = float(max(pure_epsilon(price) for price in releases))
        local = float(sum(map(pure_epsilon, releases)))
        epsilon = shuffled_epsilon(each, uploads, times, delta)
    elif all(isinstance(event, GaussianEvent) for event in events):
        local = epsilon_of(events, delta).epsilon
        epsilon = approximate_epsilon(_in_place(releases), uploads, times, delta)
    else:
        return None
    if not 0 < epsilon < LEAST_GAIN * local:
        return None
    claimed = local / max(1, segments)
    return ShuffleCredit(purpose, epsilon, delta, uploads, times, local, segments, claimed)


def _in_place(releases: Sequence[tuple[Event, ...]]) -> Callable[[float], float]:
    """Return the ε by δ of the dearest release if a device's data is another's.

    An event's neighbour has none of it, so the distance is twice its sensitivity."""
    twice = [
        [
            replace(
                event,
                sensitivity_steps=2 * event.sensitivity_steps,
                record_sensitivity_steps=2 * event.record_sensitivity_steps,
            )
            for event in price
            if isinstance(event, GaussianEvent)
        ]
        for price in dict.fromkeys(releases)
    ]
    return lambda delta: max(epsilon_on_any_grid(tuple(price), delta) for price in twice)
