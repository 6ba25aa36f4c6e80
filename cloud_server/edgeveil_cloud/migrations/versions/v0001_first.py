"""The first schema; older programs read only `info.version`."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table("info", sa.Column("version", sa.Integer, nullable=False))
    op.create_table(
        "jobs",
        sa.Column("number", _serial, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(96), nullable=False, unique=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("canonical", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
    )
    op.create_table(
        "exchanges",
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
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
    op.create_table(
        "states",
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("tensors", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("seq", _serial, primary_key=True, autoincrement=True),
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id")),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table("sequence", sa.Column("last", sa.BigInteger, nullable=False))
    op.create_table(
        "enrolled_keys",
        sa.Column("public_key", sa.LargeBinary, primary_key=True),
        sa.Column("added_at", sa.Float, nullable=False),
    )
    op.create_table(
        "roster",
        sa.Column("lineage", sa.String(32), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_s", sa.Float, nullable=False),
        sa.Column("refused", sa.String(64), nullable=False),
        sa.Column("refused_lineage", sa.String(32), nullable=False),
    )
    op.create_table(
        "round_keys",
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("secret", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "openings",
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("digest", sa.LargeBinary, primary_key=True),
        sa.Column("index", sa.Integer, nullable=False),
    )
    op.create_table(
        "backbones",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("graph", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "releases",
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("onnx", sa.LargeBinary, nullable=False),
        sa.Column("safetensors", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_jobs_status", "jobs", ["status"])
    op.create_index("ix_events_job", "events", ["job"])
    op.execute("INSERT INTO info (version) VALUES (2)")
