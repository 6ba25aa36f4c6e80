"""Every durable file, through the same laws: a fault is an error for people, never SQLite's own."""

import sqlite3
import stat
from collections.abc import Callable
from typing import NamedTuple

import pytest

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.errors import EdgeVeilError, PrivacyError
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.proxy_rounds import HeldUpload, UploadKept
from edgeveil_edge.store import DeviceStore
from edgeveil_proxy.registry import Registry, RegistryError
from edgeveil_proxy.spool import Spool

pytestmark = pytest.mark.slow

BIG = 200_000
LIMITS = Limits(20, 50, 1e-4, 100)


class Case(NamedTuple):
    """How to open a durable file, how to write much into it, how to read, and its error."""

    open: Callable
    write: Callable
    read: Callable
    error: type


def spool_upload(spool):
    held = HeldUpload(tuple(range(BIG)), b"d" * 32, 0)
    spool.store(UploadKept(RoundId(b"J" * 16, 1, 1), "0" * 16, held))


def admit_many(registry):
    for _ in range(60):
        registry.admit(Enrolment.make(SigningKey.generate(), OpeningKey.generate()), "x" * 200)


def opened_ledger(path):
    ledger = Ledger(path, "digits")
    ledger.open_job(JobRequest("job", 1e-5, (EVENT,)), LIMITS)
    return ledger


EVENT = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
CASES = {
    "device store": Case(
        DeviceStore, lambda s: s.put_job(b"j", b"", bytes(BIG)), DeviceStore.load, EdgeVeilError
    ),
    "spool": Case(Spool, spool_upload, Spool.load, EdgeVeilError),
    "ledger": Case(
        opened_ledger,
        lambda ledger: ledger.commit("job", 1, [EVENT], bytes(BIG)),
        Ledger.spent,
        PrivacyError,
    ),
    "registry": Case(Registry, admit_many, lambda r: Registry(r._file._path), RegistryError),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.sqlite"


def database(opened):
    return opened._file.db


def test_a_full_disk_is_named_and_nothing_is_half_written(case, path):
    opened = case.open(path)
    before = database(opened).execute("PRAGMA page_count").fetchone()[0]
    database(opened).execute(f"PRAGMA max_page_count={before + 1}")
    with pytest.raises(case.error, match="full") as caught:
        case.write(opened)
    assert str(path) in str(caught.value)
    assert caught.value.fix
    assert not database(opened).in_transaction
    database(opened).execute("PRAGMA max_page_count=1000000")
    case.write(opened)
    for file in path.parent.rglob("*"):  # its owner's alone
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600)
    opened.close()


def test_what_another_process_holds_is_named(case, path):
    opened = case.open(path)
    database(opened).execute("PRAGMA busy_timeout=0")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(case.error, match="locked"):
            case.write(opened)
        other.execute("ROLLBACK")
    case.write(opened)
    opened.close()


def test_a_file_that_is_no_database_is_named(case, path):
    path.write_bytes(b"no database, whatever its name says" * 100)
    with pytest.raises(case.error) as caught:
        case.open(path)
    assert caught.value.where == str(path)
    assert "backup" in caught.value.fix


def test_a_table_that_is_gone_is_named_when_read(case, path):
    opened = case.open(path)
    tables = database(opened).execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    )
    for (name,) in tables.fetchall():
        database(opened).execute(f"DROP TABLE {name}")
    with pytest.raises(case.error, match="no such table"):
        case.read(opened)
    opened.close()
