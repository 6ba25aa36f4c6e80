"""What the cloud's store holds: its tables, the records it takes and gives, the life of a job.

One schema for SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa

from edgeveil.errors import EdgeVeilError
from edgeveil.jobs.job import Priority

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
        super().__init__(f"there is no job '{job}'", fix="see edgeveil job show")


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
    """One committed round, as reports show it. `number` is the training round (0 in a
    preparatory phase), `attempt` counts from 1, `bytes` maps a hop to its bytes, `scores` is a
    ClusterScores, a MeanSoftmax or `federated_figures` as a mapping, or None, `loss` in nats."""

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
    seq: int
    job: str | None
    time: float
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class JobGlimpse:
    """A job for a list: its newest round, accuracy, loss and scores of the newest tested one,
    and, unless it runs, the newest event of its life (`job_completed`, `job_waiting`, …)."""

    entry: JobEntry
    newest: RoundRecord | None
    accuracy: float | None
    loss: float | None
    scores: Mapping[str, Any] | None
    life: StoredEvent | None


@dataclass(frozen=True)
class CellDevices:
    """A cell's enrolled devices, and what its roster says; `expires_s` 0: it does not end."""

    cell: str
    enrolled: int
    expires_s: float


@dataclass(frozen=True)
class LastCommit:
    """Where a job resumes: the newest committed round and the method's state after it."""

    record: RoundRecord
    state: bytes = field(repr=False)  # safetensors
    accepted: tuple[bytes, ...] = field(repr=False)  # SHA-256 of each ciphertext counted

    @property
    def index(self) -> int:
        return self.record.index


@dataclass(frozen=True)
class BatchOpening:
    """`secret` opens the round's batch (None: gone with a commit); not `first` where another
    batch of the attempt was opened."""

    secret: bytes | None = field(repr=False)
    first: bool


@dataclass(frozen=True)
class StoredRelease:
    job: str
    onnx: bytes = field(repr=False)
    safetensors: bytes = field(repr=False)


# --- tables ---

VERSION = 6

metadata = sa.MetaData()
_serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _table(name: str, *columns: sa.Column[Any], **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *columns, **options)


def _must(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def _key(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _job_key() -> sa.Column[Any]:
    return sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True)


def _attempt_keys() -> tuple[sa.Column[Any], ...]:
    return (
        _job_key(),
        _key("exchange", sa.Integer),
        _key("attempt", sa.Integer),
        _key("cell", sa.String(32)),
    )


info = _table("info", _must("version", sa.Integer))

jobs = _table(
    "jobs",
    sa.Column("number", _serial, primary_key=True, autoincrement=True),
    _must("id", sa.String(96), unique=True),
    _must("name", sa.String(64)),
    _must("canonical", sa.LargeBinary),
    _must("digest", sa.LargeBinary),
    _must("status", sa.String(16), index=True),
    _must("reason", sa.Text),
    _must("submitted_at", sa.Float),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    _must("priority", sa.String(8), server_default="normal"),
)

rounds = _table(
    "exchanges",
    _job_key(),
    _key("index", sa.Integer),
    _must("phase", sa.String(64)),
    _must("number", sa.Integer),
    _must("attempt", sa.Integer),
    _must("uploads", sa.Integer),
    sa.Column("accuracy", sa.Float),
    sa.Column("loss", sa.Float),
    sa.Column("scores", sa.JSON(none_as_null=True)),
    _must("seconds", sa.Float),
    _must("bytes", sa.JSON),
    _must("committed_at", sa.Float),
    _must("accepted", sa.LargeBinary),
)

states = _table("states", _job_key(), _must("index", sa.Integer), _must("tensors", sa.LargeBinary))

events = _table(
    "events",
    sa.Column("seq", _serial, primary_key=True, autoincrement=True),
    sa.Column("job", sa.ForeignKey("jobs.id"), index=True),
    _must("time", sa.Float),
    _must("type", sa.String(64)),
    _must("data", sa.JSON),
    sqlite_autoincrement=True,
)

sequence = _table("sequence", _must("last", sa.BigInteger))

enrolled_keys = _table(
    "enrolled_keys",
    _key("public_key", sa.LargeBinary),
    _must("added_at", sa.Float),
    _must("cell", sa.String(32), server_default=""),
)

# One row a cell: the roster taken last, and why a later one was refused ("": none was).
roster = _table(
    "roster",
    _must("lineage", sa.String(32)),
    _must("epoch", sa.BigInteger),
    _must("expires_s", sa.Float),
    _must("refused", sa.String(64)),
    _must("refused_lineage", sa.String(32)),
    _must("cell", sa.String(32), server_default=""),
)

round_keys = _table("round_keys", *_attempt_keys(), _must("secret", sa.LargeBinary))

openings = _table("openings", *_attempt_keys(), _must("digest", sa.LargeBinary))

# A round whose masks were asked for: what was added up, and the question; until its commit.
unmaskings = _table(
    "unmaskings",
    *(_job_key(), _key("exchange", sa.Integer)),
    *(_must("attempt", sa.Integer), _must("sums", sa.LargeBinary)),
)

batches = _table("batches", _job_key(), _key("digest", sa.LargeBinary), _must("index", sa.Integer))

backbones = _table("backbones", _key("digest", sa.String(64)), _must("graph", sa.LargeBinary))

releases = _table(
    "releases", _job_key(), _must("onnx", sa.LargeBinary), _must("safetensors", sa.LargeBinary)
)

# A release on its way: `canary` are the keys that get it first, 32 bytes each.
rollouts = _table(
    "rollouts",
    _job_key(),
    _must("data_set", sa.String(64)),
    _must("stage", sa.String(16)),
    _must("reason", sa.Text),
    _must("canary", sa.LargeBinary),
    _must("started_at", sa.Float),
    _must("expires_s", sa.Float),
)

# Each time it was sealed; `secret` opens the reports that came of it.
release_broadcasts = _table(
    "release_broadcasts",
    _key("sequence", sa.BigInteger),
    _must("job", sa.ForeignKey("jobs.id"), index=True),
    _must("stage", sa.String(16)),
    _must("selected", sa.Integer),
    _must("secret", sa.LargeBinary),
    _must("sent_at", sa.Float),
    _must("held", sa.Boolean),
    _must("cells", sa.JSON, server_default="[]"),
)

release_reports = _table(
    "release_reports",
    *(_key("sequence", sa.BigInteger), _key("digest", sa.LargeBinary)),
    _must("job", sa.ForeignKey("jobs.id"), index=True),
    *(_must("stage", sa.String(16)), _must("outcome", sa.String(32))),
)
