"""Tables of the cloud's store. One schema for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

VERSION = 2

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
)

round_keys = sa.Table(
    "round_keys",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
)

openings = sa.Table(
    "openings",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
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
