"""The store's schema and its Alembic revisions: they agree, older ones go up, later ones stay."""

import hashlib
import shutil
import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa

from edgeveil_cloud import store_tables
from edgeveil_cloud.database import REVISIONS, migrate, open_engine
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import VERSION, StoreError

DIGEST = b"d" * 32
ADDED = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "0006", "0005"
def upgrade():
    op.add_column("jobs", sa.Column("colour", sa.Text, server_default="blue"))
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cloud.sqlite"


def store_at(path):
    return Store(f"sqlite:///{path}")


def later_revisions(folder, script):
    """The revisions of a later program, in a folder of their own."""
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
    store_at(path).close()
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
    again = store_at(path)
    assert [entry.id for entry in again.jobs()] == ["a"]
    again.close()
    assert rows(path, "SELECT version_num FROM alembic_version") == [("0005",)]
    assert rows(path, "SELECT version FROM info") == [(VERSION,)]
    assert schema(path) == SCHEMAS[VERSION]
    assert rows(tmp_path / "cloud.sqlite.before-0005", "SELECT version FROM info") == [(version,)]


def test_before_an_upgrade_the_store_is_copied(path, tmp_path):
    store = store_at(path)
    job = store.submit_job("digits", b"job", DIGEST).id
    store.close()
    upgrade_with(path, later_revisions(tmp_path / "later", ADDED))
    assert rows(path, "SELECT id, colour FROM jobs") == [(job, "blue")]
    copy = tmp_path / "cloud.sqlite.before-0006"
    assert copy.stat().st_mode & 0o777 == 0o600
    kept = store_at(copy)  # the copy is a whole store of this program
    assert [entry.id for entry in kept.jobs()] == [job]
    kept.close()


def test_a_later_store_is_refused_by_name_and_left_alone(path, tmp_path):
    store_at(path).close()
    upgrade_with(path, later_revisions(tmp_path / "later", ADDED))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"version 0006, this program knows 0005.*install"):
        store_at(path)
    assert path.read_bytes() == before


def test_a_revision_that_breaks_midway_changes_nothing(path, tmp_path):
    store = store_at(path)
    store.submit_job("digits", b"job", DIGEST)
    store.close()
    broken = ADDED + '    op.execute("SELECT nothing FROM nowhere")\n'
    with pytest.raises(sa.exc.OperationalError):
        upgrade_with(path, later_revisions(tmp_path / "later", broken))
    again = store_at(path)
    assert len(again.jobs()) == 1
    again.close()
    assert "colour" not in str(rows(path, "SELECT sql FROM sqlite_master"))
