"""What a fleet's plan says of its devices reaches the registry, and only ever adds."""

import json

import pytest

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.trust.metadata import RoleKey, TrustError
from edgeveil.trust.moves import Move
from edgeveil_proxy.devices_file import DeviceEntry, DevicesFile
from edgeveil_proxy.registry import Registry


def device():
    return Enrolment.make(SigningKey.generate(), OpeningKey.generate())


@pytest.fixture
def registry(tmp_path):
    found = Registry(tmp_path / "registry.sqlite")
    yield found
    found.close()


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


def test_who_was_revoked_here_is_not_admitted_by_the_file(registry, write):
    one = device()
    path = write((one, "a", False))
    DevicesFile(path, registry).look()
    registry.revoke(one.device_id)
    assert DevicesFile(path, registry).look()
    assert active(registry) == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda said: said | {"more": 1}, "must have the keys"),
        (lambda said: said | {"note": "n" * 201}, "unusable note"),
        (lambda said: said | {"enrolment": 3}, "not an enrolment"),
    ],
)
def test_a_line_that_is_none_is_refused_and_nothing_is_changed(registry, write, change, told):
    path = write((device(), "a", False), (device(), "b", False))
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(change(json.loads(second)))}\n")
    with pytest.raises(EnrolmentError, match=told) as caught:
        DevicesFile(path, registry).look()
    assert f"{path}:2" in str(caught.value)
    assert active(registry) == {}


SITE = SigningKey(bytes([9]) * 32)
WHERE = RoleKey(SITE.public())


def moved(enrolment, cell, number, *, key=SITE, epoch=0, revoked=False):
    return (enrolment, "a", revoked, Move.make(key, epoch, enrolment.sealing, cell, number))


@pytest.fixture
def north(registry, tmp_path):
    return DevicesFile(tmp_path / "devices.jsonl", registry, "north", lambda: WHERE)


def test_who_moves_away_is_dropped_and_who_comes_is_admitted(registry, write, north):
    one, two = device(), device()
    write((one, "a", False), (two, "b", False))
    north.look()
    write(moved(one, "south", 1), (two, "b", False))
    north.look()
    assert active(registry) == {two.device_id: "b"}
    epoch, _ = registry.roster()
    write(moved(one, "south", 1), (two, "b", False), moved(device(), "south", 1))
    assert north.look() and registry.roster()[0] == epoch, "nothing changed"
    other = device()
    write(moved(one, "north", 2), (two, "b", False), moved(other, "north", 1))
    north.look()
    assert set(active(registry)) == {one.device_id, two.device_id, other.device_id}


def test_who_comes_back_has_its_newest_sealing_key(registry, write, north):
    one, newer = device(), OpeningKey.generate().public()
    write((one, "a", False))
    north.look()
    registry.renew_sealing(one.device_id, newer, 1)
    write(moved(one, "south", 1))
    north.look()
    assert registry.roster()[1] == b""
    write(moved(one, "north", 2))
    north.look()
    assert registry.roster()[1] == newer.to_bytes()


def test_an_older_move_is_refused_and_changes_nothing(registry, write, north):
    one, two = device(), device()
    write((one, "a", False))
    north.look()
    old = moved(one, "south", 1)
    write(moved(one, "north", 2))
    north.look()
    write(moved(two, "north", 1), old)
    with pytest.raises(EnrolmentError, match="an older move"):
        north.look()
    assert set(active(registry)) == {one.device_id}


def test_a_file_from_before_the_move_brings_nobody_back(registry, write, north):
    one = device()
    write((one, "a", False))
    north.look()
    write(moved(one, "south", 1))
    north.look()
    write((one, "a", False))
    assert north.look() and active(registry) == {}


def test_who_was_revoked_here_comes_back_by_no_move(registry, write, north):
    one = device()
    write((one, "a", False))
    north.look()
    registry.revoke(one.device_id)
    for number, cell in enumerate(("south", "north", "south", "north"), 1):
        write(moved(one, cell, number))
        assert north.look() and active(registry) == {}
    write(moved(one, "north", 9, revoked=True))
    assert north.look() and active(registry) == {}


def test_a_move_that_the_site_did_not_sign_is_refused(registry, write, north, tmp_path):
    one = device()
    for bad, reason in (
        (moved(one, "north", 1, key=SigningKey.generate()), "forged_move"),
        (moved(one, "north", 1, epoch=1), "old_epoch"),
    ):
        write(bad)
        with pytest.raises(TrustError) as caught:
            north.look()
        assert caught.value.reason == reason and active(registry) == {}
    write(moved(one, "north", 1))
    with pytest.raises(TrustError, match="lists no key that moves devices"):
        DevicesFile(tmp_path / "devices.jsonl", registry, "north").look()


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
