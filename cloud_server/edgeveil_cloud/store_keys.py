"""Rows of the store's keys: the rounds' secrets, and the devices' public ones."""

from __future__ import annotations

import secrets
from collections.abc import Collection

import sqlalchemy as sa

from edgeveil_cloud import store_schema as tables
from edgeveil_cloud.store_records import StoreError


def round_key(db: sa.Connection, job: str, exchange: int, attempt: int) -> bytes | None:
    """A round's secret key; None after its commit."""
    table = tables.round_keys
    query = sa.select(table.c.secret).where(
        table.c.job == job, table.c.exchange == exchange, table.c.attempt == attempt
    )
    found = db.scalar(query)
    return None if found is None else bytes(found)


def last_attempt(db: sa.Connection, job: str, exchange: int) -> int:
    """The newest attempt at an exchange that has a key; 0 before the first."""
    table = tables.round_keys
    query = sa.select(sa.func.max(table.c.attempt))
    query = query.where(table.c.job == job, table.c.exchange == exchange)
    return int(db.scalar(query) or 0)


def write_round_key(
    db: sa.Connection, job: str, exchange: int, attempt: int, secret: bytes
) -> None:
    """Keep a round's secret; StoreError if another one is kept."""
    kept = round_key(db, job, exchange, attempt)
    if kept is None:
        row = {"job": job, "exchange": exchange, "attempt": attempt, "secret": secret}
        db.execute(tables.round_keys.insert().values(row))
    elif not secrets.compare_digest(kept, secret):
        raise StoreError(f"exchange {exchange}, attempt {attempt} has another round key")


def read_enrolled(db: sa.Connection) -> tuple[bytes, ...]:
    """All enrolled public keys, in the order of their bytes."""
    keys = db.scalars(sa.select(tables.enrolled_keys.c.public_key))
    return tuple(sorted(bytes(key) for key in keys))


def write_enrolled(db: sa.Connection, keys: Collection[bytes], now_s: float) -> None:
    """Make exactly these the enrolled ones."""
    table = tables.enrolled_keys
    new, old = set(keys), set(read_enrolled(db))
    for key in old - new:
        db.execute(table.delete().where(table.c.public_key == key))
    added = [{"public_key": key, "added_at": now_s} for key in sorted(new - old)]
    if added:
        db.execute(table.insert(), added)
