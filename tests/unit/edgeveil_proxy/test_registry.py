import sqlite3

import pytest

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil_proxy.registry import Registry


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "registry.sqlite"


def device():
    return Enrolment.make(SigningKey.generate(), OpeningKey.generate())


def test_the_roster_is_sorted_by_key_so_that_it_says_nothing(path):
    registry, devices = Registry(path), [device() for _ in range(8)]
    for one in devices:
        registry.admit(one)
    epoch, keys = registry.roster()
    assert epoch == 8
    assert keys == b"".join(sorted(one.sealing.to_bytes() for one in devices))


def test_no_second_key_or_identity_and_no_forged_enrolment_is_admitted(path):
    registry, identity, opening = Registry(path), SigningKey.generate(), OpeningKey.generate()
    one, other = Enrolment.make(identity, opening), device()
    registry.admit(one)
    before = registry.roster()
    for enrolment, told in (
        (Enrolment.make(identity, OpeningKey.generate()), "another sealing key"),
        (Enrolment.make(SigningKey.generate(), opening), "has this sealing key"),
        (Enrolment(other.identity, device().sealing, other.signature), "did not sign"),
    ):
        with pytest.raises(EnrolmentError, match=told):
            registry.admit(enrolment)
    assert registry.roster() == before and len(registry.devices()) == 1


def test_a_revoked_device_is_out_until_it_is_admitted_again(path):
    registry, one = Registry(path), device()
    registry.admit(one)
    assert registry.revoke(one.device_id)
    assert not registry.revoke(one.device_id)
    assert registry.verify_key(one.device_id) is None
    assert registry.roster() == (2, b"")
    assert registry.devices() == ()
    assert [entry.active for entry in registry.devices(revoked=True)] == [False]
    with pytest.raises(EnrolmentError, match="was revoked"):
        registry.admit(one)
    assert registry.verify_key(one.device_id) is None
    assert registry.admit(one, again=True)
    assert registry.verify_key(one.device_id) == one.identity
    assert registry.roster() == (3, one.sealing.to_bytes())


def test_a_running_proxy_sees_what_another_process_does(path):
    running, one = Registry(path), device()
    assert not running.changed()
    Registry(path).admit(one)
    assert running.verify_key(one.device_id) is None
    assert running.changed()
    assert not running.changed()
    assert running.verify_key(one.device_id) == one.identity
    Registry(path).revoke(one.device_id)
    assert running.changed()
    assert running.verify_key(one.device_id) is None


def test_there_is_a_limit(path):
    registry, one = Registry(path, limit=1), device()
    registry.admit(one)
    with pytest.raises(EnrolmentError, match=r"limits\.devices"):
        registry.admit(device())
    registry.revoke(one.device_id)
    assert registry.admit(device())


def test_many_are_admitted_as_one_change(path):
    registry, devices = Registry(path), [device() for _ in range(50)]
    registry.admit(devices[0])
    assert registry.admit_many([*devices, devices[1]], note="line 4") == 49
    epoch, keys = registry.roster()
    assert epoch == 2 and len(keys) == 50 * 32
    assert all(registry.verify_key(one.device_id) == one.identity for one in devices)
    assert registry.admit_many(devices) == 0 and registry.roster()[0] == 2
    assert len(Registry(path).devices()) == 50


def test_of_many_all_are_admitted_or_none(path):
    registry, devices = Registry(path, limit=3), [device() for _ in range(4)]
    with pytest.raises(EnrolmentError, match=r"limits\.devices"):
        registry.admit_many(devices)
    forged = Enrolment(devices[0].identity, devices[1].sealing, devices[0].signature)
    with pytest.raises(EnrolmentError, match="did not sign"):
        registry.admit_many([devices[2], forged])
    assert registry.devices() == () and registry.roster() == (0, b"")


_FIRST_VERSION = """
CREATE TABLE device (
  id TEXT PRIMARY KEY, identity BLOB NOT NULL UNIQUE, sealing BLOB NOT NULL UNIQUE,
  note TEXT NOT NULL, admitted_s REAL NOT NULL, revoked_s REAL) STRICT;
CREATE TABLE roster (epoch INTEGER NOT NULL) STRICT;
INSERT INTO roster VALUES (3);
PRAGMA user_version = 1;
"""


def test_a_registry_of_the_first_version_goes_on_and_is_copied_before(path):
    active, out = device(), device()
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.executescript(_FIRST_VERSION)
        for one, revoked_s in ((active, None), (out, 9.0)):
            keys = (one.identity.to_bytes(), one.sealing.to_bytes())
            row = (one.device_id, *keys, "ward 3", 8.0, revoked_s)
            db.execute("INSERT INTO device VALUES (?, ?, ?, ?, ?, ?)", row)
    db.close()
    registry = Registry(path)
    assert registry.roster() == (3, active.sealing.to_bytes())
    assert [one.active for one in registry.devices(revoked=True)].count(False) == 1
    lineage = registry.lineage
    assert len(lineage) == 32
    registry.close()
    assert Registry(path).lineage == lineage
    with sqlite3.connect(path.with_name(f"{path.name}.before-3")) as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (1,)
        assert copy.execute("SELECT count(*) FROM device").fetchone() == (2,)
    copy.close()
