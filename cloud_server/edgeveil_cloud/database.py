"""The store's database, SQLite or any other by URL, and its transactions."""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.pool import StaticPool

from edgeveil.storage import copy_database, lacks_room
from edgeveil_cloud import store_tables as tables
from edgeveil_cloud.store_tables import StoreAway, StoreError

LOG = logging.getLogger("edgeveil.cloud")
MEMORY = "sqlite://"
CONNECT_S = 5  # timeout of connecting to and talking with a server
AWAY_S = 30.0  # how long a transaction is retried while the database does not answer
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0

P = ParamSpec("P")
T = TypeVar("T")


def open_engine(url: str) -> sa.Engine:
    """Return a usable engine for `url`; raises StoreError if it cannot be opened."""
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
        original = getattr(error, "orig", None)
        if original is not None and lacks_room(original, _file(url)):
            raise _full(url) from error
        what = f"the store cannot be opened ({cause(error)})"
        fix = "check that the address is right, reachable and writable"
        raise StoreError(what, where=_shown(url), fix=fix) from error
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
        # The file holds round keys, so it must never exist with another mode, even briefly.
        path = Path(str(url.database))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    # Cached statements would keep their last values in memory: models and secrets.
    options = {"check_same_thread": False, "timeout": 10, "cached_statements": 0}
    engine = sa.create_engine(url, poolclass=StaticPool, connect_args=options)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # only `begin` below starts transactions
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "secure_delete=ON",  # a deleted round key is overwritten
            "foreign_keys=ON",
            "cache_size=-512",  # in KiB; a larger cache would grow for hundreds of rounds
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def forget_old_pages(engine: sa.Engine) -> None:
    """Truncate SQLite's write-ahead log, which still holds deleted pages.

    A concurrent reader or a full disk delays this to the next commit. On database servers deleted
    rows remain until vacuum and log rotation."""
    if engine.dialect.name == "sqlite":
        connection = engine.raw_connection()
        try:
            with suppress(sqlite3.OperationalError):
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()


def cause(error: BaseException) -> str:
    """Return SQLite's error text; of other drivers, whose text may quote data, the class."""
    original = getattr(error, "orig", None)
    if original is not None and type(original).__module__ == "sqlite3":
        return str(original)
    return type(original or error).__name__


def _file(url: sa.URL | str) -> Path:
    return Path(sa.make_url(url).database or "")


def _full(url: sa.URL | str) -> StoreAway:
    fix = "free some space there; the cloud then continues"
    return StoreAway("the disk of the store is full", where=str(_file(url)), fix=fix)


def _shown(url: str) -> str:
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return "store_url"


class Database:
    """A database for the threads of one process; calls `committed` after each commit."""

    def __init__(self, url: str, committed: Callable[[], None]) -> None:
        self.engine, self.lock = open_engine(url), threading.RLock()
        self.committed, self.away = committed, False

    def note(self, error: sa.exc.SQLAlchemyError | None) -> None:
        away = error is not None and _away(error)
        if error is not None and away and not self.away:
            LOG.warning("store_away", extra={"error": cause(error)})
        elif self.away and not away:
            LOG.info("store_back")
        self.away = away


def transaction(
    method: Callable[Concatenate[Any, sa.Connection, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """Run a method in a transaction, retried for `AWAY_S` if the connection breaks."""

    @functools.wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        on, end_s, wait_s = self._database, time.monotonic() + AWAY_S, _FIRST_WAIT_S
        while True:
            with on.lock:
                try:
                    with on.engine.begin() as db:
                        result = method(self, db, *args, **kwargs)
                    on.committed()
                except sa.exc.SQLAlchemyError as error:
                    on.note(error)
                    if not on.away or time.monotonic() + wait_s > end_s:
                        on.away = False  # no transaction is waiting any more
                        raise _store_away(error, on.engine.url) from error
                else:
                    on.note(None)
                    return result
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    return run


def _away(error: sa.exc.SQLAlchemyError) -> bool:
    """Return whether the error means that the database server is unreachable."""
    if not isinstance(error, sa.exc.DBAPIError) or type(error.orig).__module__ == "sqlite3":
        return False
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)


def _store_away(error: sa.exc.SQLAlchemyError, url: sa.URL) -> StoreAway:
    if _away(error):
        return StoreAway(
            f"the database did not answer for {AWAY_S:.0f} s ({cause(error)})",
            where="store_url",
            fix="restore it, then start the cloud again: jobs continue where they stopped",
        )
    if lacks_room(getattr(error, "orig", None), _file(url)):
        return _full(url)
    return StoreAway(
        f"the store failed ({cause(error)})", fix="check its disk and its database server"
    )


# The schema: Alembic, in one transaction.
REVISIONS = Path(__file__).parent / "migrations"
FIRST = "0001"
_ALONE = threading.Lock()  # Alembic keeps its state in a module
_EARLIER = {"0001": 2, "0002": 3, "0003": 4, "0004": 5}  # `info.version` of earlier programs


def migrate(db: sa.Connection, folder: Path = REVISIONS) -> None:
    """Upgrade the schema within the caller's transaction, by the revisions in `folder`.

    SQLite files are copied first; servers are backed up by their operators. Raises StoreError for a
    database of a later program, or if the copy fails."""
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["connection"] = db
    with _ALONE:
        scripts = ScriptDirectory.from_config(config)
        head, known = scripts.get_current_head(), {one.revision for one in scripts.walk_revisions()}
        heads = MigrationContext.configure(db).get_current_heads()
        if len(heads) > 1 or not known.issuperset(heads):
            raise _other(", ".join(heads), str(head))
        found = heads[0] if heads else None
        if sa.inspect(db).has_table(tables.info.name):
            version = db.scalar(sa.select(tables.info.c.version))
            if version != _EARLIER.get(found or FIRST, tables.VERSION):
                raise _other(str(version), str(tables.VERSION))
            if found is None:  # older than revisions: it has the first one's tables
                command.stamp(config, FIRST)
                found = FIRST
            if found != head:
                _copy(db, str(head))
        if found != head:
            command.upgrade(config, "head")


def _other(found: str, known: str) -> StoreError:
    what = f"the store has version {found}, this program supports {known}"
    fix = "install the version of edgeveil that wrote it, or choose another store_url"
    return StoreError(what, where="the cloud's database", fix=fix)


def _copy(db: sa.Connection, head: str) -> None:
    name = db.engine.url.database
    if db.dialect.name != "sqlite" or name in (None, "", ":memory:"):
        return
    copy = Path(f"{name}.before-{head}")
    try:
        # The copy holds committed data only, without this connection's transaction.
        copy_database(Path(str(name)), copy)
    except OSError as error:
        what = f"the store cannot be copied before its upgrade: {error.strerror}"
        fix = "free some space on its disk, and check its folder's rights"
        raise StoreError(what, where=str(copy), fix=fix) from error
