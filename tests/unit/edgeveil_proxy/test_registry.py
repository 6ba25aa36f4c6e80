"""The proxy's registry: who is admitted, by hand and by the file of a fleet's plan."""

import json
import sqlite3
from contextlib import closing

import pytest

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.trust.metadata import RoleKey, TrustError
from edgeveil.trust.moves import Move
from edgeveil_proxy.devices_file import DeviceEntry, DevicesFile
from edgeveil_proxy.registry import Registry


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
    for enrolment in (
        Enrolment.make(identity, OpeningKey.generate()),
        Enrolment.make(SigningKey.generate(), opening),
        Enrolment(other.identity, device().sealing, other.signature),
    ):
        with pytest.raises(EnrolmentError):
            registry.admit(enrolment)
    assert registry.roster() == before and len(registry.devices()) == 1


def test_a_revoked_device_is_out_until_it_is_admitted_again_also_for_a_running_proxy(path):
    registry, running, one = Registry(path), Registry(path), device()
    assert not running.changed()
    registry.admit(one)
    assert running.verify_key(one.device_id) is None
    assert running.changed() and not running.changed()
    assert running.verify_key(one.device_id) == one.identity
    assert registry.revoke(one.device_id) and not registry.revoke(one.device_id)
    assert running.changed() and running.verify_key(one.device_id) is None
    assert registry.roster() == (2, b"") and registry.devices() == ()
    assert [entry.active for entry in registry.devices(revoked=True)] == [False]
    with pytest.raises(EnrolmentError, match="was revoked"):
        registry.admit(one)
    assert registry.verify_key(one.device_id) is None
    assert registry.admit(one, again=True)
    assert registry.verify_key(one.device_id) == one.identity
    assert registry.roster() == (3, one.sealing.to_bytes())


def test_there_is_a_limit_and_of_many_all_are_admitted_as_one_change_or_none(path):
    registry, devices = Registry(path, limit=50), [device() for _ in range(51)]
    with pytest.raises(EnrolmentError, match=r"limits\.devices"):
        registry.admit_many(devices)
    forged = Enrolment(devices[0].identity, devices[1].sealing, devices[0].signature)
    with pytest.raises(EnrolmentError):
        registry.admit_many([devices[2], forged])
    assert registry.devices() == () and registry.roster() == (0, b"")
    extra = devices.pop()
    registry.admit(devices[0])
    assert registry.admit_many([*devices, devices[1]], note="line 4") == 49
    epoch, keys = registry.roster()
    assert epoch == 2 and len(keys) == 50 * 32
    assert all(registry.verify_key(one.device_id) == one.identity for one in devices)
    assert registry.admit_many(devices) == 0 and registry.roster()[0] == 2
    assert len(Registry(path).devices()) == 50
    with pytest.raises(EnrolmentError, match=r"limits\.devices"):
        registry.admit(extra)
    registry.revoke(devices[0].device_id)
    assert registry.admit(extra)


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
    assert len(registry.lineage) == 32 and Registry(path).lineage == registry.lineage
    registry.close()
    with closing(sqlite3.connect(path.with_name(f"{path.name}.before-3"))) as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (1,)
        assert copy.execute("SELECT count(*) FROM device").fetchone() == (2,)


@pytest.fixture
def write(tmp_path):
    def written(*lines):
        path = tmp_path / "devices.jsonl"
        path.write_text("".join(DeviceEntry(*line).to_line() for line in lines))
        return path

    return written


def active(registry):
    return {entry.device_id: entry.note for entry in registry.devices()}


def test_it_admits_and_revokes_and_is_read_again_when_it_changes(registry, write):
    one, two, three = device(), device(), device()
    path = write((one, "a", False), (two, "b", False))
    planned = DevicesFile(path, registry)
    assert planned.look()
    assert active(registry) == {one.device_id: "a", two.device_id: "b"}
    assert not planned.look()
    write((one, "a", True), (three, "c", False))
    assert planned.look()
    assert active(registry) == {two.device_id: "b", three.device_id: "c"}
    registry.revoke(two.device_id)  # whom it does not admit again
    assert DevicesFile(path, registry).look()
    assert active(registry) == {three.device_id: "c"}


@pytest.mark.parametrize("change", [{"more": 1}, {"note": "n" * 201}, {"enrolment": 3}], ids=str)
def test_a_line_that_is_none_is_refused_and_nothing_is_changed(registry, write, change):
    path = write((device(), "a", False), (device(), "b", False))
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(json.loads(second) | change)}\n")
    with pytest.raises(EnrolmentError, match=f"{path}:2"):
        DevicesFile(path, registry).look()
    assert active(registry) == {}


SITE = SigningKey(bytes([9]) * 32)
WHERE = RoleKey(SITE.public())


def moved(enrolment, cell, number, *, key=SITE, epoch=0, revoked=False):
    return (enrolment, "a", revoked, Move.make(key, epoch, enrolment.sealing, cell, number))


@pytest.fixture
def north(registry, tmp_path):
    return DevicesFile(tmp_path / "devices.jsonl", registry, "north", lambda: WHERE)


@pytest.fixture
def follow(write, north):
    def followed(*lines):
        write(*lines)
        north.look()
        return set(active(north._registry))

    return followed


def test_who_moves_away_is_dropped_and_who_comes_is_admitted(registry, follow, write, north):
    one, two, other = device(), device(), device()
    stays = (two, "b", False)
    follow((one, "a", False), stays)
    assert follow(moved(one, "south", 1), stays) == {two.device_id}
    epoch, _ = registry.roster()
    write(moved(one, "south", 1), stays, moved(device(), "south", 1))
    assert north.look() and registry.roster()[0] == epoch, "nothing changed"
    newer = OpeningKey.generate().public()
    back = follow(moved(one, "north", 2), stays, moved(other, "north", 1))
    assert back == {one.device_id, two.device_id, other.device_id}
    registry.renew_sealing(one.device_id, newer, 1)
    assert one.device_id not in follow(moved(one, "south", 3), stays)
    assert one.device_id in follow(moved(one, "north", 4), stays)
    assert newer.to_bytes() in registry.roster()[1]


def test_an_older_move_or_a_file_from_before_it_brings_nobody_back(registry, follow, north):
    one, two = device(), device()
    before = (one, "a", False)
    follow(before)
    old = moved(one, "south", 1)
    assert follow(moved(one, "north", 2)) == {one.device_id}
    with pytest.raises(EnrolmentError, match="an older move"):
        follow(moved(two, "north", 1), old)
    assert set(active(registry)) == {one.device_id}
    assert not follow(moved(one, "south", 3))
    assert not follow(before)


def test_who_was_revoked_here_comes_back_by_no_move(registry, follow):
    one = device()
    follow((one, "a", False))
    registry.revoke(one.device_id)
    for number, cell in enumerate(("south", "north", "south", "north"), 1):
        assert not follow(moved(one, cell, number))
    assert not follow(moved(one, "north", 9, revoked=True))


def test_a_move_that_the_site_did_not_sign_is_refused(registry, write, follow):
    one = device()
    for bad, reason in (
        (moved(one, "north", 1, key=SigningKey.generate()), "forged_move"),
        (moved(one, "north", 1, epoch=1), "old_epoch"),
    ):
        with pytest.raises(TrustError) as caught:
            follow(bad)
        assert caught.value.reason == reason and active(registry) == {}
    path = write(moved(one, "north", 1))
    with pytest.raises(TrustError):  # where nobody may move devices
        DevicesFile(path, registry, "north").look()


def test_what_was_followed_stays_while_the_sites_key_is_replaced(registry, write, tmp_path):
    gone, came, never = device(), device(), device()
    path = write((gone, "a", False))
    DevicesFile(path, registry, "north", lambda: WHERE).look()
    lines = [moved(gone, "south", 1), moved(came, "north", 1), moved(never, "south", 1)]
    write(*lines)
    DevicesFile(path, registry, "north", lambda: WHERE).look()
    replaced = RoleKey(SigningKey.generate().public(), 1)
    again = DevicesFile(path, registry, "north", lambda: replaced)
    assert again.look() and set(active(registry)) == {came.device_id}
    write(*lines, moved(device(), "north", 1))
    with pytest.raises(TrustError, match="a key that was replaced"):
        again.look()
