"""One round of a job, derived once from the plan and shared by all parties."""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.jobs import Job
from edgeveil.jobs.job import Round
from edgeveil.jobs.plan import Plan
from edgeveil.parts.round import PlannedRound, SegmentSpec
from edgeveil.privacy.events import Event
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, CorrelatedNoise, Group, MaskedGroup


@dataclass(frozen=True)
class RoundContext:
    """One round as cloud and device see it, with `groups` and `masked` as in the manifest."""

    plan: Plan
    round: PlannedRound
    segments: tuple[SegmentSpec, ...]
    groups: tuple[Group, ...]
    recalled: tuple[PlannedRound, ...]
    masked: tuple[MaskedGroup, ...] = ()
    correlated: CorrelatedNoise | None = None

    @classmethod
    def of(cls, plan: Plan, index: int) -> RoundContext:
        """Return the round with this index, from 1. Raises ProtocolError `unknown_round`."""
        round = plan.round(index)
        segments, groups = plan.segments(round), plan.groups(round)
        recalled, masked = plan.recalled(round), plan.masked(round)
        return cls(plan, round, segments, groups, recalled, masked, plan.correlated(round))

    @property
    def job(self) -> Job:
        return self.plan.job

    @property
    def sets(self) -> int:
        return self.plan.sets if self.masked and not self.round.evaluates else 1

    @property
    def closing(self) -> Round:
        """The round's closing rules; an evaluation is never buffered."""
        rules = self.job.round
        return rules.model_copy(update={"mode": "sync"}) if self.round.evaluates else rules

    @property
    def segment_bytes(self) -> tuple[int, ...]:
        return tuple(group.padded_bytes + SEAL_OVERHEAD_BYTES for group in self.groups)

    @property
    def upload_bytes(self) -> int:
        return sum(self.segment_bytes)

    @property
    def min_batch(self) -> int:
        return self.job.round.min_batch

    @property
    def shuffled(self) -> bool:
        return self.job.proxy.shuffle != "none"

    def price(self, *, trains: bool) -> tuple[Event, ...]:
        return self.plan.price(self.round, trains=trains)
