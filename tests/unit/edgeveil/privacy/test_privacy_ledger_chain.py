"""Whatever is done to a ledger's files, it is found when they are opened, read or written."""

import shutil
import sqlite3

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


def refused(path, place):
    """Refused by the device and by the reader, with the same place and a fix."""
    for read in (lambda: Ledger(path, "digits"), lambda: read_ledger(path)):
        with pytest.raises(PrivacyError, match=place) as caught:
            read()
        assert str(path.parent) in caught.value.where and caught.value.fix


def links(number, statement):
    return lambda path: change(path, statement), f"link {number} "


def removed(suffix):
    return lambda path: path.with_suffix(suffix).unlink(), f"{suffix[1:]} is gone"


def damaged(suffix, text):
    return lambda path: path.with_suffix(suffix).write_text(text), f"{suffix[1:]} .*(used|damaged)"


def with_another_key(path):
    other = path.parent / "other" / "ledger.sqlite"
    other.parent.mkdir()
    Ledger(other, "digits").close()
    restore(path, other, ".key")


def with_a_head_of_before(path):
    older = copy(path, path.parent / "backup")
    ledger = Ledger(path, "digits")
    ledger.commit("j2", 2, [LINEAR], b"four")
    ledger.close_job("j2")
    ledger.close()
    restore(path, older, ".head")


MAC = "(SELECT mac FROM links WHERE number = 1)"
SWAP = "UPDATE links SET number = CASE number WHEN 3 THEN -4 ELSE -3 END WHERE number IN (3, 4)"
DAMAGE = {
    "cheaper events": links(
        4, "UPDATE links SET body = replace(body, '16777216', '16') WHERE number = 4"
    ),
    "another data set": links(1, "UPDATE links SET dataset = 'other' WHERE job = 'j1'"),
    "another round": links(3, "UPDATE links SET exchange = 9 WHERE number = 3"),
    "another job": links(6, "UPDATE links SET job = 'j1', exchange = 7 WHERE number = 6"),
    "closed in place of released": links(6, "UPDATE links SET kind = 'closed' WHERE number = 6"),
    "another mac": links(2, f"UPDATE links SET mac = {MAC} WHERE number = 2"),
    "a mac of another type": links(2, "UPDATE links SET mac = 'x' WHERE number = 2"),
    "a body as bytes": links(5, "UPDATE links SET body = CAST(body AS BLOB) WHERE number = 5"),
    "one gone from the middle": links(3, "DELETE FROM links WHERE number = 3"),
    "one put in": links(
        7,
        f"INSERT INTO links SELECT 7, dataset, kind, job, 3, body, {MAC} "
        "FROM links WHERE number = 6",
    ),
    "another order": (
        lambda path: change(path, SWAP, "UPDATE links SET number = -number WHERE number < 0"),
        "link 3 ",
    ),
    **{
        f"cut behind {kept}": (
            lambda path, kept=kept: change(path, f"DELETE FROM links WHERE number > {kept}"),
            f"ends at link {kept} of 6",
        )
        for kept in (0, 3, 5)
    },
    "no links": (lambda path: change(path, "DROP TABLE links"), "table links"),
    "no payloads": (lambda path: change(path, "DROP TABLE payloads"), "table payloads"),
    "no database": (lambda path: path.unlink(), "database is gone"),
    "no key": removed(".key"),
    "no head": removed(".head"),
    "another key": (with_another_key, "link 1 "),
    "an old head": (with_a_head_of_before, "head, link 6"),
    "a key cut off": damaged(".key", "edgeveil-ledger-key-1 0"),
    "an empty head": damaged(".head", ""),
    "a key open to all": (lambda path: path.with_suffix(".key").chmod(0o644), "other users"),
}


@pytest.mark.parametrize(("damage", "place"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_by_device_and_reader_and_not_mended(path, damage, place):
    damage(path)
    refused(path, place)
    refused(path, place)  # the first refusal made nothing anew


@pytest.mark.parametrize("left", [".key", ".head"])
def test_a_reader_of_a_key_or_head_alone_makes_no_database(path, left):
    path.write_bytes(b"")
    path.with_suffix(".head" if left == ".key" else ".key").unlink()
    with pytest.raises(PrivacyError, match="database is gone"):
        read_ledger(path)
    assert path.read_bytes() == b""


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


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE payloads SET payload = 'forged'",
        "UPDATE payloads SET payload = 7",
        "DELETE FROM payloads",
    ],
)
def test_tensors_that_are_forged_or_gone_are_found_and_not_drawn_again(path, forgery):
    change(path, f"{forgery} WHERE number = 6")
    with pytest.raises(PrivacyError, match="tensors of link 6"):
        read_ledger(path)
    with pytest.raises(PrivacyError, match=r"forgotten|tensors of link 6"):
        Ledger(path, "digits").recall("j2", 1)


def test_the_tables_are_durable_before_the_key(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(LedgerChain, "settle", lambda *_, **__: 1 // 0)  # right behind the key
        Ledger(path, "digits")
    assert path.with_suffix(".key").exists()
    Ledger(path, "digits").close()
    assert read_ledger(path).links == 0


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


STEPS = {
    "admit": ("j2", [LINEAR]),
    "check": (JobRequest("j3", 1e-5, (LINEAR,)), WIDE),
    "commit": ("j2", 2, [LINEAR], b"four"),
    "recall": ("j2", 1),
    "close_job": ("j2",),
    "spent": (),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_device_at_work_notices_that_its_newest_link_is_gone(path, step):
    ledger = Ledger(path, "digits")
    change(path, "DELETE FROM links WHERE number = 6")
    with pytest.raises(PrivacyError, match="link 6 is gone"):
        getattr(ledger, step)(*STEPS[step])


@pytest.mark.parametrize("step", ["commit", "recall", "close_job"])
def test_a_head_put_back_by_one_link_is_no_crash_to_the_process_that_moved_it(path, tmp_path, step):
    older = copy(path, tmp_path / "backup")
    ledger = Ledger(path, "digits")
    ledger.commit("j2", 2, [LINEAR], b"four")
    newest = path.with_suffix(".head").read_bytes()
    restore(path, older, ".head")
    with pytest.raises(PrivacyError, match="put back from link 7 to link 6") as caught:
        getattr(ledger, step)(*STEPS[step])
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
