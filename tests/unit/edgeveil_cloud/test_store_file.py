"""The store as a file: it survives, is private, forgets keys; its schema goes up by revisions."""

import hashlib
import os
import shutil
import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa

from edgeveil_cloud import store_tables
from edgeveil_cloud.database import REVISIONS, migrate, open_engine
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import VERSION, RoundRecord, StoreError

SECRET = b"\xa5SECRET-ROUND-KEY-0123456789ABCDE"


def url(tmp_path):
    return f"sqlite:///{tmp_path}/state/cloud.db"


def on_disk(tmp_path):
    return any(SECRET in path.read_bytes() for path in (tmp_path / "state").iterdir())


def test_a_round_key_is_on_disk_until_the_round_or_the_job_ends_and_nowhere_after(tmp_path):
    store = Store(url(tmp_path))
    job = store.submit_job("a", b"", bytes(32)).id
    store.set_status(job, "running")
    for number in (1, 2):
        store.put_round_key(job, number, 1, SECRET)
        assert on_disk(tmp_path)
        if number == 1:
            store.commit_round(job, RoundRecord(1, "train", 1, 1, 5), b"")
        else:
            store.set_status(job, "failed")
        assert not on_disk(tmp_path)
    store.close()
    assert not on_disk(tmp_path)


def test_the_files_are_the_owners_alone_and_commits_wait_for_the_disk(tmp_path):
    before = os.umask(0)
    try:
        store = Store(url(tmp_path))
        store.append_event(None, "x", {})
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
        with store._database.engine.connect() as db:
            names = ("synchronous", "journal_mode", "secure_delete")
            set_to = [db.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]
        store.close()
    finally:
        os.umask(before)
    assert (modes, set_to) == ({0o600}, [2, "wal", 1])


def test_a_file_that_is_no_store_is_refused_and_a_bad_url_never_repeats_its_password(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cloud.db").write_bytes(b"this is no database at all" * 100)
    postgres = "postgresql://me:hunter2@127.0.0.1:1/x"
    for bad in (url(tmp_path), postgres, "nonsense://me:hunter2@h/x", "::hunter2"):
        with pytest.raises(StoreError) as caught:
            Store(bad)
        assert "hunter2" not in str(caught.value)


ADDED = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "0006", "0005"
def upgrade():
    op.add_column("jobs", sa.Column("colour", sa.Text, server_default="blue"))
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "cloud.db"


def jobs_of(path):
    store = Store(f"sqlite:///{path}")
    try:
        return [entry.id for entry in store.jobs()]
    finally:
        store.close()


def later_revisions(folder, script):
    shutil.copytree(REVISIONS, folder)
    (folder / "versions" / "v0006_later.py").write_text(script)
    return folder


def upgrade_with(path, folder):
    engine = open_engine(f"sqlite:///{path}")
    try:
        with engine.begin() as db:
            migrate(db, folder)
    finally:
        engine.dispose()


def rows(path, query):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def schema(path):
    made = rows(path, "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    texts = sorted(" ".join(sql.split()) for (sql,) in made if "alembic_version" not in sql)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


# Types, keys and indexes by `info.version`: revisions do not change once they were released.
SCHEMAS = {
    2: "4f1dc8a2a705850e",
    3: "57f2d8266d235d7f",
    4: "b01aa47438ea2335",
    5: "ec1cdad438509890",
    6: "90449e0dcd4b0b64",
}


def test_the_revisions_lead_to_the_tables_that_statements_name(path):
    jobs_of(path)
    made = sa.MetaData()
    made.reflect(sa.create_engine(f"sqlite:///{path}"))
    named = [one for one in vars(store_tables).values() if isinstance(one, sa.TableClause)]
    found = {name: set(table.c.keys()) for name, table in made.tables.items()}
    assert found.pop("alembic_version")
    assert found == {one.name: set(one.c.keys()) for one in named}
    assert rows(path, "SELECT version FROM info") == [(VERSION,)]
    assert schema(path) == SCHEMAS[VERSION]


LATER = ["v0002_rollouts.py", "v0003_unmaskings.py", "v0004_priorities.py", "v0005_cells.py"]


@pytest.mark.parametrize(
    ("version", "numbered"), [(2, True), (2, False), (3, True), (4, True), (5, True)]
)
def test_an_earlier_store_is_taken_up_with_its_jobs(path, tmp_path, version, numbered):
    earlier = tmp_path / "earlier"
    shutil.copytree(REVISIONS, earlier)
    for later in LATER[version - 2 :]:
        (earlier / "versions" / later).unlink()
    upgrade_with(path, earlier)
    assert schema(path) == SCHEMAS[version]
    with closing(sqlite3.connect(path)) as db:
        columns = "id, name, canonical, digest, status, reason, submitted_at"
        job = "'a', 'digits', x'00', x'00', 'queued', '', 1.0"
        db.execute(f"INSERT INTO jobs ({columns}) VALUES ({job})")
        if not numbered:
            db.execute("DROP TABLE alembic_version")
        db.commit()
    assert rows(path, "SELECT version FROM info") == [(version,)]
    assert jobs_of(path) == ["a"]
    assert rows(path, "SELECT version_num FROM alembic_version") == [("0005",)]
    assert rows(path, "SELECT version FROM info") == [(VERSION,)]
    assert schema(path) == SCHEMAS[VERSION]
    copy = path.with_name("cloud.db.before-0005")
    assert rows(copy, "SELECT version FROM info") == [(version,)]


@pytest.fixture
def job(path):
    store = Store(f"sqlite:///{path}")
    entry = store.submit_job("digits", b"job", bytes(32)).id
    store.close()
    return entry


def test_before_an_upgrade_the_store_is_copied_and_a_later_one_is_left_alone(path, tmp_path, job):
    upgrade_with(path, later_revisions(tmp_path / "later", ADDED))
    assert rows(path, "SELECT id, colour FROM jobs") == [(job, "blue")]
    copy = path.with_name("cloud.db.before-0006")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert jobs_of(copy) == [job]  # a whole store of this program
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"version 0006, this program supports 0005"):
        jobs_of(path)
    assert path.read_bytes() == before


def test_a_revision_that_breaks_midway_changes_nothing(path, tmp_path, job):
    broken = ADDED + '    op.execute("SELECT nothing FROM nowhere")\n'
    with pytest.raises(sa.exc.OperationalError):
        upgrade_with(path, later_revisions(tmp_path / "later", broken))
    assert jobs_of(path) == [job]
    assert "colour" not in str(rows(path, "SELECT sql FROM sqlite_master"))
