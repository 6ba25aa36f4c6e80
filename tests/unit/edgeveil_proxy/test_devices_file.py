"""What a fleet's plan says of its devices reaches the registry, and only ever adds."""

import json

import pytest

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil_proxy.devices_file import DevicesFile, PlannedDevice, read_devices
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
        path.write_text("".join(PlannedDevice(*line).to_line() for line in lines))
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


def test_a_forged_enrolment_admits_nobody(registry, write):
    one, two = device(), device()
    forged = Enrolment(one.identity, two.sealing, one.signature)
    path = write((two, "b", False), (forged, "a", False))
    with pytest.raises(EnrolmentError, match="did not sign"):
        DevicesFile(path, registry).look()
    assert active(registry) == {}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(EnrolmentError, match="cannot be read"):
        read_devices(tmp_path / "none.jsonl")
