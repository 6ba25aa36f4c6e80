"""One round of a job as all who have a part in it see it: made once from the plan, handed on."""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.jobs import Job
from edgeveil.jobs.job import Round
from edgeveil.jobs.plan import Plan
from edgeveil.parts.round import PlannedRound, SegmentSpec
from edgeveil.privacy.events import Event
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Group, MaskedGroup


@dataclass(frozen=True)
class RoundContext:
    """One round as cloud and device see it. `segments` may be uploaded, the softmax last;
    `groups` and `masked` are as the manifest states them; `recalled` are earlier rounds it
    builds on."""

    plan: Plan
    round: PlannedRound
    segments: tuple[SegmentSpec, ...]
    groups: tuple[Group, ...]
    recalled: tuple[PlannedRound, ...]
    masked: tuple[MaskedGroup, ...] = ()

    @classmethod
    def of(cls, plan: Plan, index: int) -> RoundContext:
        """Of the round with this index, from 1. Raises ProtocolError `unknown_round`."""
        round = plan.round(index)
        segments, groups = plan.segments(round), plan.groups(round)
        recalled, masked = plan.recalled(round), plan.masked(round)
        return cls(plan, round, segments, groups, recalled, masked)

    @property
    def job(self) -> Job:
        return self.plan.job

    @property
    def sets(self) -> int:
        """Into how many sets uploads are dealt, each summed by itself."""
        return self.plan.sets if self.masked and not self.round.evaluates else 1

    @property
    def closing(self) -> Round:
        """How the round closes; an evaluation has no late uploads that another could count."""
        said = self.job.round
        if not self.round.evaluates:
            return said
        return said.model_copy(update={"mode": "sync"})

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
