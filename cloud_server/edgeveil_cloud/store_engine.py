"""Opening the store's database: SQLite as a durable file, or any other by URL."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from edgeveil_cloud.store_records import StoreError

MEMORY = "sqlite://"
CONNECT_S = 5  # a server that does not take or keep up a connection for so long is away


def open_engine(url: str) -> sa.Engine:
    """An engine for `url`, ready for use. Raises StoreError if it cannot be opened."""
    try:
        parsed = sa.make_url(url)
        engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _server(parsed)
        with engine.connect():
            pass
    except ModuleNotFoundError as error:
        raise StoreError(
            f"the driver '{error.name}' for this database is not installed",
            where="store_url",
            fix=f"pip install '{error.name}[binary]'" if error.name == "psycopg" else "install it",
        ) from error
    except (sa.exc.SQLAlchemyError, OSError) as error:
        raise StoreError(
            f"the store cannot be opened ({cause(error)})",
            where=_shown(url),
            fix="check that the address is right, reachable and writable",
        ) from error
    return engine


def _server(url: sa.URL) -> sa.Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg":
        bounds = {"connect_timeout": str(CONNECT_S), "tcp_user_timeout": str(1000 * CONNECT_S)}
        url = url.update_query_dict({**bounds, **url.query})
    return sa.create_engine(url, pool_pre_ping=True)


def _sqlite(url: sa.URL) -> sa.Engine:
    if url.database not in (None, "", ":memory:"):
        # The file holds round keys: it must never exist with another mode, not even briefly.
        path = Path(str(url.database))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    engine = sa.create_engine(
        url, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 10}
    )

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, and only there
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "secure_delete=ON",  # a deleted round key is overwritten
            "foreign_keys=ON",
            "cache_size=-512",  # KiB; a larger one would take hundreds of rounds to fill
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def forget_old_pages(engine: sa.Engine) -> None:
    """Drop SQLite's write-ahead log: it still holds the pages from before a deletion.

    Another process that reads the file at this moment, or a full disk, puts it off to the next
    commit. On a
    database server, deleted rows stay until its own vacuum and log rotation; see there.
    """
    if engine.dialect.name == "sqlite":
        connection = engine.raw_connection()
        try:
            with suppress(sqlite3.OperationalError):
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()


def cause(error: BaseException) -> str:
    """What SQLite says, which holds no data; of another driver, whose text may, the class."""
    original = getattr(error, "orig", None)
    if original is not None and type(original).__module__ == "sqlite3":
        return str(original)
    return type(original or error).__name__


def _shown(url: str) -> str:
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return "store_url"
