"""Whatever is done to a ledger's files, it is found when they are opened, read or written."""

import shutil
import sqlite3
import subprocess
import sys

import pytest

from edgeveil.errors import PrivacyError
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.ledger import Ledger, read_ledger
from edgeveil.privacy.ledger_chain import LedgerChain
from edgeveil.privacy.policy import JobRequest, Limits

LINEAR = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
WIDE = Limits(200, 500, 1e-2, 100)


@pytest.fixture
def path(tmp_path):
    """A ledger of six links: two jobs, the first with two releases and closed, the second open."""
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path, "digits")
    for job in ("j1", "j2"):
        ledger.open_job(JobRequest(job, 1e-5, (LINEAR,) * 2), WIDE)
    ledger.commit("j1", 1, [LINEAR], b"one")
    ledger.commit("j1", 2, [LINEAR], b"two")
    ledger.close_job("j1")
    ledger.commit("j2", 1, [LINEAR], b"three")
    ledger.close()
    return path


def change(path, *statements):
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def copy(path, to):
    """The three files as they stand."""
    to.mkdir(exist_ok=True)
    for suffix in (".sqlite", ".key", ".head"):
        shutil.copy(path.with_suffix(suffix), to)
    return to / path.name


def restore(path, frm, *suffixes):
    for suffix in suffixes:
        shutil.copy(frm.with_suffix(suffix), path.with_suffix(suffix))


def refused(path, match):
    """Refused by the device and by the reader, for the same reason, with a fix."""
    with pytest.raises(PrivacyError, match=match) as caught:
        Ledger(path, "digits")
    assert caught.value.fix
    assert str(path.parent) in caught.value.where
    with pytest.raises(PrivacyError, match=match):
        read_ledger(path)
    return caught.value.fix


MAC = "(SELECT mac FROM links WHERE number = 1)"
EDITS = {
    "cheaper events": (4, "UPDATE links SET body = replace(body, '16777216', '16') WHERE number=4"),
    "another data set": (1, "UPDATE links SET dataset = 'other' WHERE job = 'j1'"),
    "another round": (3, "UPDATE links SET exchange = 9 WHERE number = 3"),
    "another job": (6, "UPDATE links SET job = 'j1', exchange = 7 WHERE number = 6"),
    "closed in place of released": (6, "UPDATE links SET kind = 'closed' WHERE number = 6"),
    "opened again": (5, "UPDATE links SET kind = 'opened' WHERE number = 5"),
    "another mac": (2, f"UPDATE links SET mac = {MAC} WHERE number = 2"),
    "a mac of another type": (2, "UPDATE links SET mac = 'x' WHERE number = 2"),
    "a body of another type": (5, "UPDATE links SET body = CAST(body AS BLOB) WHERE number = 5"),
    "the first gone": (1, "DELETE FROM links WHERE number = 1"),
    "one gone from the middle": (3, "DELETE FROM links WHERE number = 3"),
    "a job gone": (1, "DELETE FROM links WHERE job = 'j1'"),
    "one put in": (7, f"INSERT INTO links SELECT 7, dataset, kind, job, 3, body, {MAC} "
                      "FROM links WHERE number = 6"),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITS.values(), ids=EDITS)
def test_an_edit_is_found_at_the_link_it_was_made_in(path, case):
    number, statement = case
    change(path, statement)
    refused(path, f"link {number} ")


def test_another_order_is_found(path):
    swap = "UPDATE links SET number = {} WHERE number = {}"
    change(path, swap.format(99, 3), swap.format(3, 4), swap.format(4, 99))
    refused(path, "link 3 ")


@pytest.mark.parametrize("kept", [0, 3, 5])
def test_links_cut_from_the_end_are_found(path, kept):
    change(path, f"DELETE FROM links WHERE number > {kept}")
    refused(path, f"ends at link {kept} of 6")


def test_a_database_that_is_gone_does_not_begin_anew(path):
    path.unlink()
    with pytest.raises(PrivacyError, match="database is gone"):
        read_ledger(path)
    assert not path.exists()
    refused(path, "database is gone")  # the device has left an empty one there


@pytest.mark.parametrize("beside", [".key", ".head"])
def test_a_key_or_head_alone_tells_of_a_database(path, beside):
    path.write_bytes(b"")
    path.with_suffix(".head" if beside == ".key" else ".key").unlink()
    with pytest.raises(PrivacyError, match="database is gone"):
        read_ledger(path)
    assert path.read_bytes() == b""


def test_the_tables_are_durable_before_the_key(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(LedgerChain, "settle", lambda *_, **__: 1 // 0)  # right behind the key
        Ledger(path, "digits")
    assert path.with_suffix(".key").exists()
    Ledger(path, "digits").close()
    assert read_ledger(path).links == 0


@pytest.mark.parametrize("table", ["links", "payloads"])
def test_a_table_that_is_gone_is_not_made_anew(path, table):
    change(path, f"DROP TABLE {table}")
    refused(path, f"table {table} is gone")
    refused(path, f"table {table} is gone")


def test_a_head_without_key_and_links_begins_anew_only_before_the_first_link(path, tmp_path):
    new = tmp_path / "new" / "ledger.sqlite"
    new.parent.mkdir()
    Ledger(new, "digits").close()
    new.with_suffix(".key").unlink()  # as a crash leaves it: the key is made last
    ledger = Ledger(new, "digits")
    ledger.open_job(JobRequest("j1", 1e-5, (LINEAR,)), WIDE)
    ledger.close()
    assert read_ledger(new).links == 1
    for suffix in (".sqlite", ".key"):
        path.with_suffix(suffix).unlink()
    with pytest.raises(PrivacyError, match="database is gone"):
        Ledger(path, "digits")


def test_an_older_head_than_a_crash_can_leave_is_found(path, tmp_path):
    older = copy(path, tmp_path / "backup")
    ledger = Ledger(path, "digits")
    ledger.commit("j2", 2, [LINEAR], b"four")
    ledger.close_job("j2")
    ledger.close()
    restore(path, older, ".head")
    refused(path, "head, link 6, is not")


def test_a_head_one_link_behind_is_moved_forward_by_the_device_alone(path, tmp_path):
    older = copy(path, tmp_path / "backup")
    ledger = Ledger(path, "digits")
    ledger.commit("j2", 2, [LINEAR], b"four")
    ledger.close()
    newest = path.with_suffix(".head").read_bytes()
    restore(path, older, ".head")
    assert read_ledger(path).links == 7
    assert path.with_suffix(".head").read_bytes() != newest
    Ledger(path, "digits")
    assert path.with_suffix(".head").read_bytes() == newest


@pytest.mark.parametrize("suffix", [".key", ".head"])
def test_a_key_or_head_that_is_gone_is_not_made_anew(path, suffix):
    path.with_suffix(suffix).unlink()
    refused(path, f"its {suffix[1:]} is gone")
    assert not path.with_suffix(suffix).exists()


def test_the_key_and_head_of_another_device_are_refused(path, tmp_path):
    other = tmp_path / "other" / "ledger.sqlite"
    other.parent.mkdir()
    Ledger(other, "digits").close()
    restore(path, other, ".key")
    refused(path, "link 1 is not as this device wrote it")


def test_a_damaged_key_or_head_is_named(path):
    for suffix, match in ((".key", "key cannot be used"), (".head", "head is damaged")):
        kept = path.with_suffix(suffix).read_text()
        for damaged in (kept[:-20] + "\n", "", "garbage"):
            path.with_suffix(suffix).write_text(damaged)
            assert "put back the newest copies" in refused(path, match)
        path.with_suffix(suffix).write_text(kept)


def test_a_key_that_everybody_may_read_is_refused(path):
    path.with_suffix(".key").chmod(0o644)
    refused(path, "other users of this machine")


@pytest.mark.parametrize("forged", ["'forged'", "7", "NULL"])
def test_other_tensors_than_those_stored_are_found(path, forged):
    if forged == "NULL":  # the table's own rule is taken out by hand, as a damaged file may lack it
        change(
            path,
            "PRAGMA writable_schema=ON",
            "UPDATE sqlite_master SET sql = replace(sql, 'BLOB NOT NULL', 'BLOB')"
            " WHERE name = 'payloads'",
            "PRAGMA schema_version=99",
        )
    change(path, f"UPDATE payloads SET payload = {forged} WHERE number = 6")
    with pytest.raises(PrivacyError, match="tensors of link 6"):
        read_ledger(path)
    with pytest.raises(PrivacyError, match="tensors of link 6"):
        Ledger(path, "digits").recall("j2", 1)


def test_tensors_that_are_gone_are_found_and_not_drawn_again(path):
    change(path, "DELETE FROM payloads")
    with pytest.raises(PrivacyError, match="tensors of link 6"):
        read_ledger(path)
    with pytest.raises(PrivacyError, match="forgotten"):
        Ledger(path, "digits").recall("j2", 1)


def test_a_ledger_without_a_chain_is_refused(tmp_path):
    path = tmp_path / "ledger.sqlite"
    change(path, "CREATE TABLE jobs (dataset)", "CREATE TABLE releases (dataset)")
    with pytest.raises(PrivacyError, match="earlier version"):
        Ledger(path, "digits")


@pytest.mark.parametrize("step", ["admit", "check", "commit", "recall", "close_job", "spent"])
def test_a_device_at_work_notices_that_its_newest_link_is_gone(path, step):
    ledger = Ledger(path, "digits")
    change(path, "DELETE FROM links WHERE number = 6")
    arguments = {
        "admit": ("j2", [LINEAR]),
        "check": (JobRequest("j3", 1e-5, (LINEAR,)), WIDE),
        "commit": ("j2", 2, [LINEAR], b"four"),
        "recall": ("j2", 1),
        "close_job": ("j2",),
        "spent": (),
    }
    with pytest.raises(PrivacyError, match="link 6 is gone"):
        getattr(ledger, step)(*arguments[step])


WRITER = """
import sys
from test_privacy_ledger_chain import LINEAR, WIDE, Ledger, JobRequest
ledger = Ledger(sys.argv[1], "digits")
ledger.open_job(JobRequest(sys.argv[2], 1e-5, (LINEAR,) * 20), WIDE)
for round in range(20):
    ledger.commit(sys.argv[2], round, [LINEAR], sys.argv[2].encode())
"""


def test_two_processes_write_one_chain(tmp_path):
    path = tmp_path / "ledger.sqlite"
    folder = __file__.rpartition("/")[0]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), job], cwd=folder, stderr=subprocess.PIPE
        )
        for job in ("a", "b")
    ]
    assert [(p.communicate()[1], p.returncode) for p in both] == [(b"", 0), (b"", 0)]
    book = read_ledger(path)
    assert book.links == 42
    assert [len(entry.answers) for entry in book.account("digits").values()] == [20, 20]


@pytest.mark.parametrize("step", ["commit", "recall", "close_job"])
def test_a_head_put_back_by_one_link_is_no_crash_to_the_process_that_moved_it(path, tmp_path, step):
    older = copy(path, tmp_path / "backup")
    ledger = Ledger(path, "digits")
    ledger.commit("j2", 2, [LINEAR], b"four")
    newest = path.with_suffix(".head").read_bytes()
    restore(path, older, ".head")
    acts = {"commit": ("j2", 1, [LINEAR], b"x"), "recall": ("j2", 1), "close_job": ("j2",)}
    with pytest.raises(PrivacyError, match="put back from link 7 to link 6") as caught:
        getattr(ledger, step)(*acts[step])
    assert "with the device stopped" in caught.value.fix
    path.with_suffix(".head").write_bytes(newest)
    assert ledger.recall("j2", 2)[1] == b"four"


@pytest.mark.parametrize("gone", [False, True])
def test_a_database_exchanged_under_an_open_ledger_is_not_written_past(path, tmp_path, gone):
    older = copy(path, tmp_path / "backup")
    ledger = Ledger(path, "digits")
    path.rename(tmp_path / "aside")
    if not gone:
        restore(path, older, ".sqlite")
    with pytest.raises(PrivacyError, match="another database was put in its place"):
        ledger.commit("j2", 2, [LINEAR], b"four")
    (tmp_path / "aside").replace(path)
    assert read_ledger(path).links == 6
    ledger.commit("j2", 2, [LINEAR], b"four")
    assert read_ledger(path).links == 7
