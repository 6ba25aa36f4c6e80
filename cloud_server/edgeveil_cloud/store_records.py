"""What the store takes and gives: frozen records, and the life of a job as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgeveil.errors import EdgeVeilError

Status = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]

# Status -> what may follow. `running` may follow itself: a job taken up after a crash. A paused
# job that is resumed waits for its turn again.
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "queued": frozenset({"running", "failed", "cancelled"}),
    "running": frozenset({"running", "paused", "completed", "failed", "cancelled"}),
    "paused": frozenset({"queued", "cancelled"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
ENDED: frozenset[Status] = frozenset(s for s, after in TRANSITIONS.items() if not after)


class StoreError(EdgeVeilError):
    """The store cannot be opened, or was asked for a change that its rules forbid."""


class StoreAway(StoreError):  # noqa: N818 - what the reader sees
    """The database, or its disk, cannot be used now; asking again later may help."""


class UnknownJob(StoreError):  # noqa: N818 - what the reader sees
    """No job has this id."""

    exit_code = 2

    def __init__(self, job: str) -> None:
        super().__init__(f"there is no job '{job}'", fix="see edgeveil job list")


@dataclass(frozen=True)
class JobEntry:
    """One submitted job. `canonical` is the job's canonical bytes, `digest` their SHA-256."""

    id: str
    name: str
    canonical: bytes = field(repr=False)
    digest: bytes
    status: Status
    reason: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def ended(self) -> bool:
        """True once nothing can change any more."""
        return self.status in ENDED


@dataclass(frozen=True)
class Counts:
    """What the store holds, in numbers."""

    enrolled: int
    jobs: Mapping[Status, int]


@dataclass(frozen=True)
class ExchangeRecord:
    """One committed exchange, as reports show it.

    `number` is the training round (0 in a preparatory phase), `attempt` counts from 1, `bytes`
    maps a hop to its bytes, `scores` is a ClusterScores as a mapping or None, `loss` in nats.
    """

    index: int
    phase: str
    number: int
    attempt: int
    uploads: int
    accuracy: float | None = None
    scores: Mapping[str, Any] | None = None
    seconds: float = 0.0
    bytes: Mapping[str, int] = field(default_factory=dict)
    loss: float | None = None
    committed_at: float | None = None  # set by the store


@dataclass(frozen=True)
class StoredEvent:
    """One event; `seq` grows with every event of the store."""

    seq: int
    job: str | None
    time: float
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class LastCommit:
    """Where a job resumes: the newest committed exchange and the method's state after it."""

    record: ExchangeRecord
    state: bytes = field(repr=False)  # safetensors
    accepted: tuple[bytes, ...] = field(repr=False)  # SHA-256 of each ciphertext counted

    @property
    def index(self) -> int:
        """Index of the committed exchange."""
        return self.record.index


@dataclass(frozen=True)
class StoredRelease:
    """A job's final model."""

    job: str
    onnx: bytes = field(repr=False)
    safetensors: bytes = field(repr=False)
