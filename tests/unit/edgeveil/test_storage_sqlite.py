"""The durable file: all or nothing, its mode, and SQLite's faults named to people."""

import sqlite3
import stat

import pytest

from edgeveil.errors import EdgeVeilError
from edgeveil.storage import SqliteFile, StorageError

SCHEMA = "CREATE TABLE IF NOT EXISTS t (x BLOB UNIQUE);"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.sqlite"


def rows(path):
    with sqlite3.connect(path) as db:
        return [x for (x,) in db.execute("SELECT x FROM t ORDER BY rowid")]


@pytest.mark.parametrize("rollback", [False, True])
def test_what_is_written_is_durable_at_once_and_for_this_user_alone(path, rollback):
    file = SqliteFile(path, "the file", SCHEMA, rollback_journal=rollback)
    insert(file, b"a")
    assert rows(path) == [b"a"]
    assert file.db.execute("PRAGMA synchronous").fetchone() == (2,)
    for name in path.parent.iterdir():
        assert stat.S_IMODE(name.stat().st_mode) == 0o600
        assert name == path or not rollback  # whose journal is no other file
    file.close()
    again = SqliteFile(path, "the file", SCHEMA)
    with again.guard() as db:
        assert db.execute("SELECT x FROM t").fetchall() == [(b"a",)]
    again.close()


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), EdgeVeilError("x")])
def test_an_error_inside_undoes_all_and_is_raised_as_it_is(path, error):
    file = SqliteFile(path, "the file", SCHEMA)
    with pytest.raises(type(error)) as caught, file.transaction() as db:
        db.execute("INSERT INTO t VALUES (?)", (b"a",))
        raise error
    assert caught.value is error
    assert rows(path) == []
    insert(file, b"b")
    assert rows(path) == [b"b"]
    file.close()


def insert(file, value):
    with file.transaction() as db:
        db.execute("INSERT INTO t VALUES (?)", (value,))


# --- versions ---

STEPS = {
    1: "ALTER TABLE t ADD COLUMN y TEXT DEFAULT 'one; two'; CREATE TABLE u (z INTEGER);",
    2: "INSERT INTO u VALUES (7);",
}


def versioned(path, version, steps=None):
    return SqliteFile(path, "the file", "CREATE TABLE t (x INTEGER);", version=version, steps=steps)


def filled(path):
    file = versioned(path, 1)
    with file.transaction() as db:
        db.execute("INSERT INTO t VALUES (5)")
    file.close()


def test_steps_lead_from_version_to_version_and_a_copy_stays(path):
    filled(path)
    file = versioned(path, 3, STEPS)
    with file.guard() as db:
        assert db.execute("SELECT x, y, z FROM t, u").fetchall() == [(5, "one; two", 7)]
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
    file.close()
    copy = path.with_name(f"{path.name}.before-3")
    assert copy.stat().st_mode & 0o777 == 0o600
    before = versioned(copy, 1)
    with before.guard() as db:
        assert db.execute("SELECT * FROM t").fetchall() == [(5,)]
    before.close()


def test_a_step_that_fails_leaves_all_as_it_was(path):
    filled(path)
    with pytest.raises(StorageError, match="no such table"):
        versioned(path, 3, {**STEPS, 2: "INSERT INTO v VALUES (7);"})
    file = versioned(path, 1)
    with file.guard() as db:
        assert db.execute("SELECT * FROM t").fetchall() == [(5,)]
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
    file.close()


@pytest.mark.parametrize(("version", "steps"), [(1, {}), (3, {2: STEPS[2]}), (4, STEPS)])
def test_what_no_step_leads_to_is_refused_unread(path, version, steps):
    """An older program, and newer ones that lack the first step or the last."""
    filled(path)
    if version == 1:
        versioned(path, 3, STEPS).close()
    content = path.read_bytes()
    with pytest.raises(StorageError, match=rf"has version \d, this program supports {version}"):
        versioned(path, version, steps)
    assert path.read_bytes() == content
