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
class ExchangeRecord:
    """One committed exchange, as reports show it.

    `number` is the training round (0 in a preparatory phase), `attempt` counts from 1, `bytes`
    maps a hop to its bytes, `scores` is a ClusterScores, a MeanSoftmax or `federated_figures` as a
    mapping, or None, `loss` in nats.
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
    seq: int
    job: str | None
    time: float
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class JobGlimpse:
    """A job for a list: its newest exchange, accuracy, loss and scores of the newest tested one,
    and, unless it runs, the newest event of its life (`job_completed`, `job_waiting`, …)."""

    entry: JobEntry
    newest: ExchangeRecord | None
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
    """Where a job resumes: the newest committed exchange and the method's state after it."""

    record: ExchangeRecord
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

info = sa.Table("info", metadata, sa.Column("version", sa.Integer, nullable=False))

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("number", _serial, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(96), nullable=False, unique=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("canonical", sa.LargeBinary, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("status", sa.String(16), nullable=False, index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("priority", sa.String(8), nullable=False, server_default="normal"),
)

exchanges = sa.Table(
    "exchanges",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("phase", sa.String(64), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("uploads", sa.Integer, nullable=False),
    sa.Column("accuracy", sa.Float),
    sa.Column("loss", sa.Float),
    sa.Column("scores", sa.JSON(none_as_null=True)),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("bytes", sa.JSON, nullable=False),
    sa.Column("committed_at", sa.Float, nullable=False),
    sa.Column("accepted", sa.LargeBinary, nullable=False),
)

states = sa.Table(
    "states",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("index", sa.Integer, nullable=False),
    sa.Column("tensors", sa.LargeBinary, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", _serial, primary_key=True, autoincrement=True),
    sa.Column("job", sa.ForeignKey("jobs.id"), index=True),
    sa.Column("time", sa.Float, nullable=False),
    sa.Column("type", sa.String(64), nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)

sequence = sa.Table(
    "sequence",
    metadata,
    sa.Column("last", sa.BigInteger, nullable=False),
)

enrolled_keys = sa.Table(
    "enrolled_keys",
    metadata,
    sa.Column("public_key", sa.LargeBinary, primary_key=True),
    sa.Column("added_at", sa.Float, nullable=False),
    sa.Column("cell", sa.String(32), nullable=False, server_default=""),
)

# One row a cell: the roster taken last, and why a later one was refused ("": none was).
roster = sa.Table(
    "roster",
    metadata,
    sa.Column("lineage", sa.String(32), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires_s", sa.Float, nullable=False),
    sa.Column("refused", sa.String(64), nullable=False),
    sa.Column("refused_lineage", sa.String(32), nullable=False),
    sa.Column("cell", sa.String(32), nullable=False, server_default=""),
)

round_keys = sa.Table(
    "round_keys",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("cell", sa.String(32), primary_key=True),
    sa.Column("secret", sa.LargeBinary, nullable=False),
)

openings = sa.Table(
    "openings",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("cell", sa.String(32), primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
)

# An exchange whose masks were asked for: what was added up, and the question; until its commit.
unmaskings = sa.Table(
    "unmaskings",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("sums", sa.LargeBinary, nullable=False),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("index", sa.Integer, nullable=False),
)

backbones = sa.Table(
    "backbones",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("graph", sa.LargeBinary, nullable=False),
)

releases = sa.Table(
    "releases",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("onnx", sa.LargeBinary, nullable=False),
    sa.Column("safetensors", sa.LargeBinary, nullable=False),
)

# A release on its way: `canary` are the keys that get it first, 32 bytes each.
rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("data_set", sa.String(64), nullable=False),
    sa.Column("stage", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("canary", sa.LargeBinary, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("expires_s", sa.Float, nullable=False),
)

# Each time it was sealed; `secret` opens the reports that came of it.
release_broadcasts = sa.Table(
    "release_broadcasts",
    metadata,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("job", sa.ForeignKey("jobs.id"), nullable=False, index=True),
    sa.Column("stage", sa.String(16), nullable=False),
    sa.Column("selected", sa.Integer, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("sent_at", sa.Float, nullable=False),
    sa.Column("held", sa.Boolean, nullable=False),
    sa.Column("cells", sa.JSON, nullable=False, server_default="[]"),
)

release_reports = sa.Table(
    "release_reports",
    metadata,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("job", sa.ForeignKey("jobs.id"), nullable=False, index=True),
    sa.Column("stage", sa.String(16), nullable=False),
    sa.Column("outcome", sa.String(32), nullable=False),
)
