"""Rows of the store's models: what jobs released, and the backbones they were given."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from edgeveil_cloud import store_schema as tables
from edgeveil_cloud.store_records import StoredRelease
from edgeveil_cloud.store_rows import find_row


def find_release(db: sa.Connection, job: str) -> StoredRelease | None:
    """A job's final model; None as long as there is none."""
    table = tables.releases
    row = db.execute(sa.select(table).where(table.c.job == job)).mappings().first()
    if row is None:
        return None
    return StoredRelease(job, bytes(row["onnx"]), bytes(row["safetensors"]))


def write_release(db: sa.Connection, job: str, onnx: bytes, safetensors: bytes) -> None:
    """Keep a job's final model in place of an earlier one; UnknownJob without the job."""
    table = tables.releases
    find_row(db, job)
    db.execute(table.delete().where(table.c.job == job))
    db.execute(table.insert().values(job=job, onnx=onnx, safetensors=safetensors))


def find_backbone(db: sa.Connection, digest: str) -> bytes | None:
    """The feature extractor of a digest (hex); None if there is none."""
    table = tables.backbones
    found = db.scalar(sa.select(table.c.graph).where(table.c.digest == digest))
    return None if found is None else bytes(found)


def write_backbone(db: sa.Connection, graph: bytes) -> str:
    """Keep a feature extractor; its SHA-256 (hex)."""
    digest = hashlib.sha256(graph).hexdigest()
    if find_backbone(db, digest) is None:
        db.execute(tables.backbones.insert().values(digest=digest, graph=graph))
    return digest
