"""The store's tables, records and job transitions; one schema for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa

from edgeveil.errors import EdgeVeilError
from edgeveil.jobs.job import Priority

Status = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]

# Status -> allowed next ones. A job resumed after a crash goes from `running` to `running`.
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
    """The store cannot be opened, or its rules forbid a change."""


class StoreAway(StoreError):  # noqa: N818 - shown to users
    """The database or its disk is unusable now; a retry may succeed."""


class UnknownJob(StoreError):  # noqa: N818 - shown to users
    exit_code = 2

    def __init__(self, job: str) -> None:
        super().__init__(f"no job '{job}'", fix="see edgeveil job show")


@dataclass(frozen=True)
class JobEntry:
    """One submitted job; `digest` is the SHA-256 of its `canonical` bytes."""

    id: str
    name: str
    canonical: bytes = field(repr=False)
    digest: bytes
    status: Status
    reason: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    priority: Priority = "normal"

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True)
class StoreCounts:
    enrolled: int
    jobs: Mapping[Status, int]


@dataclass(frozen=True)
class RoundRecord:
    """One committed round; `number` is the training round, or 0 in preparation.

    `bytes` maps hops to bytes, `scores` comes from ClusterScores, MeanSoftmax or
    `federated_figures`."""

    index: int
    phase: str
    number: int
    attempt: int
    uploads: int
    accuracy: float | None = None
    scores: Mapping[str, Any] | None = None
    seconds: float = 0.0
    bytes: Mapping[str, int] = field(default_factory=dict)
    loss: float | None = None  # in nats
    committed_at: float | None = None  # set by the store


@dataclass(frozen=True)
class JobEvent:
    seq: int
    job: str | None
    time: float
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class JobGlimpse:
    """A job with its newest round, newest tested round, and newest status event if not running."""

    entry: JobEntry
    newest: RoundRecord | None
    tested: RoundRecord | None
    life: JobEvent | None


@dataclass(frozen=True)
class CellDevices:
    """A cell's enrolled devices and its roster's expiry (0: none)."""

    cell: str
    enrolled: int
    expires_s: float


@dataclass(frozen=True)
class LastCommit:
    record: RoundRecord
    state: bytes = field(repr=False)  # safetensors
    accepted: tuple[bytes, ...] = field(repr=False)  # SHA-256 of each ciphertext counted

    @property
    def index(self) -> int:
        return self.record.index


@dataclass(frozen=True)
class BatchOpening:
    """A round's `secret` (None: deleted by a commit); not `first` after another batch's opening."""

    secret: bytes | None = field(repr=False)
    first: bool


@dataclass(frozen=True)
class StoredRelease:
    job: str
    onnx: bytes = field(repr=False)
    safetensors: bytes = field(repr=False)


VERSION = 6

_JSON = sa.JSON(none_as_null=True)


def _table(name: str, columns: str, **typed: Any) -> sa.TableClause:
    return sa.table(name, *(sa.column(one, typed.get(one)) for one in columns.split()))


info = _table("info", "version")
jobs = _table(
    "jobs",
    "number id name canonical digest status reason submitted_at started_at ended_at priority",
)
rounds = _table(
    "exchanges",
    "job index phase number attempt uploads accuracy loss scores seconds bytes committed_at"
    " accepted",
    scores=_JSON,
    bytes=_JSON,
)
states = _table("states", "job index tensors")
events = _table("events", "seq job time type data", type=sa.String, data=_JSON)
sequence = _table("sequence", "last")
enrolled_keys = _table("enrolled_keys", "public_key added_at cell")
# One row per cell: the roster taken last, and why a later one was refused ("": none was).
roster = _table("roster", "lineage epoch expires_s refused refused_lineage cell")
round_keys = _table("round_keys", "job exchange attempt cell secret")
openings = _table("openings", "job exchange attempt cell digest")
# Sums and mask requests of masked rounds, until their commit.
unmaskings = _table("unmaskings", "job exchange attempt sums")
batches = _table("batches", "job digest index")
backbones = _table("backbones", "digest graph")
releases = _table("releases", "job onnx safetensors")
# `canary`: keys of 32 bytes each.
rollouts = _table("rollouts", "job data_set stage reason canary started_at expires_s")
# Each sealing of a release; `secret` opens its reports.
release_broadcasts = _table(
    "release_broadcasts",
    "sequence job stage selected secret sent_at held cells",
    held=sa.Boolean,
    cells=_JSON,
)
release_reports = _table("release_reports", "sequence digest job stage outcome")
