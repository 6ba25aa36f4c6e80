"""The job that the cloud runs: its round and attempt, and the retries it has left."""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import Absorb, SealJob, SealRelease, SealRound, Start
from edgeveil.protocol.messages import Exchanged, Manifest


@dataclass
class Job:
    """One job from its start to its end."""

    start: Start
    round: int
    attempt: int
    retries_left: int
    selected: int = 0  # by the newest broadcast
    patience_s: float = 0.0  # with the proxy, from each sign that the broadcast moves on

    @classmethod
    def begin(cls, start: Start) -> Job:
        """Where the command says."""
        return cls(start, start.round, start.attempt, start.retries)

    @property
    def at(self) -> Exchanged:
        """The attempt under way."""
        return Exchanged(self.start.job_id, self.round, self.attempt)

    def awaits(self, task: object) -> bool:
        """Whether the outcome of this task still matters: it belongs to the attempt under way."""
        match task:
            case SealJob(job_id=job_id) | SealRelease(job_id=job_id):
                return job_id == self.start.job_id
            case SealRound():
                return task == SealRound(self.start.job_id, self.round, self.attempt)
            case Absorb(batch=batch):
                return batch.at == self.at
        return False

    def seal(self) -> fx.Effect:
        """Ask for this attempt's model to be sealed."""
        return fx.Work(SealRound(self.start.job_id, self.round, self.attempt))

    def broadcasts(self, manifest: Manifest, margin_s: float) -> None:
        """Its broadcast goes out; `margin_s` is what the proxy gets beyond the round's own time."""
        self.selected = manifest.selected
        self.patience_s = manifest.deadline_s + manifest.grace_s + margin_s
