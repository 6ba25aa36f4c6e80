"""What the proxy's shuffle earns a job, where the clone bound's conditions hold, and only there.

They are: the proxy shuffles; every release of the kind is pure local DP of a device's whole data
(any two data sets), with noise of its own: what a device keeps of an upload would lead from one
round's batch to its next upload; a batch has at least `round.min_batch` uploads of devices that
keep to the protocol and tell nobody, so there is no cover traffic, whose dummies count in a batch;
under masks the cloud sees one sum of them, which has no order, and not those of several groups,
which are dealt by places in a stream that is shuffled lot by lot; the cloud keeps to the protocol,
does not collude with the proxy or with devices, and never gets two batches of one round, whose
difference would name uploads. Nor are rounds buffered: an update that is late is weighed, and does
not hide among those that are not. The first four and the last follow from the job, the others are
said beside the figure. Each device's own noise holds without any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.privacy.accountant import pure_epsilon
from edgeveil.privacy.amplification import shuffled_epsilon
from edgeveil.privacy.events import Event, LaplaceEvent, TwoValueEvent
from edgeveil.privacy.guarantee import up, worth
from edgeveil.privacy.policy import INFER, TRAIN

LEAST_GAIN = 0.99  # what is less of a gain is not worth a line


@dataclass(frozen=True)
class ShuffleCredit:
    """(ε, δ) per device against a curious cloud alone.

    Of `rounds` rounds, each with at least `uploads` uploads. `local_epsilon` is the same without
    the shuffle, against everybody; `claimed_epsilon` what a text's m-fold amplification would make
    of it for m `segments`, which is not proven.
    """

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
        claimed = f"; {self.segments}-fold as texts claim it, unproven: {up(self.claimed_epsilon)}"
        return (
            f"{kind}: ε = {up(self.epsilon)}, δ = {up(self.delta)} per device against a curious "
            f"cloud alone{worth(self.epsilon)}, {self.uploads} honest uploads a batch or more "
            f"(clone bound); without the shuffle ε = {up(self.local_epsilon)}"
            + (claimed if self.segments > 1 else "")
        )


def shuffled(plan: Plan) -> tuple[ShuffleCredit, ...]:
    """What a job's shuffle earns its training and its inference; () where it earns nothing."""
    job = plan.job
    if job.proxy.shuffle == "none" or plan.sets > 1 or job.round.mode == "buffered":
        return ()
    prices = [(e, plan.device.price(e)) for e in plan.of_method]
    trained = [price for e, price in prices if e.number <= job.max_participations]
    if any(stage.remembers for stage in plan.setting.stages):
        trained = []
    inferred: list[tuple[Event, ...]]
    inferred = [(plan.softmax_event(),) for e in plan.exchanges if e.infer]
    # They read the same records, and their noise is not of such a kind: together nothing is earned.
    inferred += [plan.price(e, trains=False) for e in plan.exchanges if e.evaluates]
    layers = sum(s.name != SOFTMAX for s in plan.segments(prices[-1][0]))
    found = (
        _credit(plan, TRAIN, trained[: job.max_participations], layers),
        _credit(plan, INFER, inferred, 1),
    )
    return tuple(credit for credit in found if credit is not None)


def _credit(
    plan: Plan, purpose: str, releases: Sequence[tuple[Event, ...]], segments: int
) -> ShuffleCredit | None:
    if not releases or not all(_counts(event) for price in releases for event in price):
        return None
    each = max(pure_epsilon(price) for price in releases)
    local, delta = float(sum(map(pure_epsilon, releases))), plan.job.privacy.delta
    uploads, times = plan.job.round.min_batch, len(releases)
    epsilon = shuffled_epsilon(float(each), uploads, times, delta)
    if not 0 < epsilon < LEAST_GAIN * local:
        return None
    return ShuffleCredit(
        purpose, epsilon, delta, uploads, times, local, segments, local / max(1, segments)
    )


def _counts(event: Event) -> bool:
    """Whether any two data sets of the device are this close: the event of such a mechanism."""
    return isinstance(event, TwoValueEvent | LaplaceEvent) and event.unit == "device"
