"""Bring the cloud's database to the schema of this program: Alembic, in one transaction.

A database without a revision is empty, or older than revisions: its tables are those of the
first one. A SQLite file is copied beside it before it is changed; of a server its operator makes
the copy.
"""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from edgeveil.storage import copy_database
from edgeveil_cloud import store_tables as tables
from edgeveil_cloud.store_tables import StoreError

REVISIONS = Path(__file__).parent / "migrations"
FIRST = "0001"
_ALONE = threading.Lock()  # Alembic keeps what it works on in its module
_EARLIER = {"0001": 2, "0002": 3, "0003": 4, "0004": 5}  # `info.version` of earlier programs


def migrate(db: sa.Connection, folder: Path = REVISIONS) -> None:
    """Upgrade within the caller's transaction; `folder` holds the revisions.

    Raises StoreError for a database of a later program, and where the copy cannot be made.
    """
    with _ALONE:
        _migrate(db, folder)


def _migrate(db: sa.Connection, folder: Path) -> None:
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["connection"] = db
    scripts = ScriptDirectory.from_config(config)
    head, found = scripts.get_current_head(), _revision(db)
    known = {one.revision for one in scripts.walk_revisions()}
    if found is not None and found not in known:
        raise _other(found, str(head))
    kept = sa.inspect(db).has_table(tables.info.name)
    if kept:
        _require_version(db, _EARLIER.get(found or FIRST, tables.VERSION))
    if found == head:
        return
    if kept and found is None:
        command.stamp(config, FIRST)
        found = FIRST
    if kept and found != head:
        _copy(db, str(head))
    command.upgrade(config, "head")


def _revision(db: sa.Connection) -> str | None:
    heads = MigrationContext.configure(db).get_current_heads()
    if len(heads) > 1:
        raise _other(", ".join(heads), "one revision at a time")
    return heads[0] if heads else None


def _require_version(db: sa.Connection, wanted: int) -> None:
    version = db.scalar(sa.select(tables.info.c.version))
    if version != wanted:
        raise _other(str(version), str(tables.VERSION))


def _other(found: str, known: str) -> StoreError:
    return StoreError(
        f"the store has version {found}, this program knows {known}",
        where="the cloud's database",
        fix="install the version of edgeveil that wrote it, or choose another store_url",
    )


def _copy(db: sa.Connection, head: str) -> None:
    name = db.engine.url.database
    if db.dialect.name != "sqlite" or name in (None, "", ":memory:"):
        return
    copy = Path(f"{name}.before-{head}")
    try:
        # Of what was committed: the connection's own transaction is not seen from outside.
        copy_database(Path(str(name)), copy)
    except OSError as error:
        raise StoreError(
            f"the store cannot be copied before its upgrade: {error.strerror}",
            where=str(copy),
            fix="free some space on its disk, and check its folder's rights",
        ) from error
