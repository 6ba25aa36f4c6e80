"""A device's keys: made once and for their owner alone; a sealing key is renewed."""

import json
import stat
from hashlib import sha256

import pytest
from edge_kit import CENTRE, PLAN, Device, Round

from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey, sign
from edgeveil.crypto.labels import ENROLMENT
from edgeveil.enrolment import FILE_BYTES, Enrolment, EnrolmentError
from edgeveil.errors import CryptoError, UsageError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine, SealingKeyAcknowledged
from edgeveil.protocol.device_round import OpenPackage
from edgeveil.protocol.messages import Ack, NewSealingKey, PeerKeys, Signer, decode_body
from edgeveil_edge.identity import (
    BEFORE_FILE,
    IDENTITY_FILE,
    OPENING_FILE,
    DeviceIdentity,
    renew_opening,
)
from edgeveil_proxy.registry import Registry


def test_keys_are_made_once_and_only_for_their_owner(tmp_path):
    state = tmp_path / "state"
    first, again = (DeviceIdentity.load_or_create(state) for _ in range(2))
    assert again == first and len(first.split_key) == 32
    assert {path.name for path in state.iterdir()} == {IDENTITY_FILE, OPENING_FILE, "split.key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()} == {0o600}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    public = json.loads(first.enrolment().to_json())
    assert set(public) == {"format", "identity", "sealing", "signature"}


@pytest.mark.parametrize("name", [OPENING_FILE, "split.key"])
def test_a_lost_key_is_never_replaced_in_silence_nor_one_used_that_everybody_can_read(
    tmp_path, name
):
    DeviceIdentity.load_or_create(tmp_path)
    (tmp_path / IDENTITY_FILE).chmod(0o644)
    with pytest.raises(CryptoError, match="chmod 600"):
        DeviceIdentity.load_or_create(tmp_path)
    (tmp_path / IDENTITY_FILE).chmod(0o600)
    (tmp_path / name).unlink()
    with pytest.raises(UsageError):
        DeviceIdentity.load_or_create(tmp_path)
    assert not (tmp_path / name).exists()


def enrolment():
    return Enrolment.make(SigningKey.generate(), OpeningKey.generate())


def test_a_sealing_key_of_low_order_is_refused():
    identity = SigningKey.generate()
    zero = SealingKey(bytes(32))
    signed = sign(identity, ENROLMENT, identity.public().to_bytes() + bytes(32))
    with pytest.raises(EnrolmentError, match="nothing can be sealed"):
        Enrolment(identity.public(), zero, signed).verify()


def test_what_is_no_enrolment_is_refused():
    text = enrolment().to_json()
    for changes in (
        *({"format": "edgeveil-enrolment-2"}, {"identity": "00"}, {"identity": 7}),
        *({"sealing": "AB" * 32}, {"signature": "zz" * 64}, {"name": "kitchen-box"}),
    ):
        with pytest.raises(EnrolmentError):
            Enrolment.from_json(json.dumps({**json.loads(text), **changes}).encode())
    twice = text.replace("{", '{"format": "edgeveil-enrolment-1",', 1).encode()
    for raw in (b"", b"\xff\xfe", b"[]", b"null", b"[" * 4000, b" " * (FILE_BYTES + 1), twice):
        with pytest.raises(EnrolmentError):
            Enrolment.from_json(raw)


PROXY = SigningKey.generate()


def test_what_is_sealed_to_the_key_before_opens_until_the_new_one_did(tmp_path):
    device = Device(tmp_path).knows(PLAN)
    name, before = device.identity.device_id, device.keys()
    old = Round(PLAN, CENTRE, before)
    renew_opening(tmp_path)
    again = device.restarted()
    assert again.identity.device_id == name and again.key != before[0]
    assert again.host.perform(OpenPackage(old.manifest, old.blob)).package is not None
    new = Round(PLAN, CENTRE, again.keys(), attempt=2)
    assert again.host.perform(OpenPackage(new.manifest, new.blob)).package is not None
    assert not (tmp_path / BEFORE_FILE).exists()
    assert again.host.perform(OpenPackage(old.manifest, old.blob)).package is None


def test_a_lost_key_is_made_anew_and_nothing_else_is(tmp_path):
    device = Device(tmp_path).knows(PLAN)
    device.seals(PLAN, CENTRE)
    spent = device.ledger.spent()
    (tmp_path / OPENING_FILE).unlink()
    with pytest.raises(UsageError):
        device.restarted()
    renew_opening(tmp_path)
    again = device.restarted()
    assert again.identity.device_id == device.identity.device_id
    assert again.ledger.spent() == spent
    with pytest.raises(UsageError):
        renew_opening(tmp_path / "nobody")


def test_the_proxy_is_told_until_it_has_heard(tmp_path):
    device = Device(tmp_path)
    name = device.identity.device_id
    device.store.queue_sealing_key(name, device.key, 1000.0)
    keys = PeerKeys.pinned(proxy=PROXY.public())
    machine = DeviceMachine(Signer(name, device.identity.signing), keys, device.store.load())
    for event in (fx.PeerConnected(fx.ProxyAddress()), fx.Timer("hello"), fx.Timer("key")):
        note = machine.handle(event, 0.0)[0].message
        assert decode_body(note.body) == NewSealingKey(name, device.key, 1000)
    ack = Signer("proxy", PROXY).note(Ack(sha256(note.body.payload).digest(), "held"))
    heard = machine.handle(fx.MessageReceived(fx.ProxyAddress(), ack), 0.0)
    assert heard == [fx.Persist(SealingKeyAcknowledged())]
    device.store.store(heard[0].item)
    assert device.store.load().new_sealing is None and machine.handle(fx.Timer("key"), 0.0) == []
    device.store.queue_sealing_key(name, device.key, 10.0)
    assert device.store.load().new_sealing.number == 1001, "also where the clock stepped back"


def test_the_proxy_of_another_cell_is_told_of_a_renewed_key(tmp_path):
    device = Device(tmp_path)
    store, name = device.store, device.identity.device_id
    store.enter_cell("north", name, device.key, 900.0)
    assert store.load().new_sealing is None, "it enrolled with this key"
    store.queue_sealing_key(name, device.key, 1000.0)
    store.store(SealingKeyAcknowledged())
    store.enter_cell("north", name, device.key, 1100.0)
    assert store.load().new_sealing is None, "this proxy has heard of it"
    store.enter_cell("south", name, device.key, 1200.0)
    assert store.load().new_sealing == NewSealingKey(name, device.key, 1200)


def test_the_registry_takes_newer_keys_alone(tmp_path):
    first, second = Device(tmp_path / "a"), Device(tmp_path / "b")
    registry = Registry(tmp_path / "registry.sqlite")
    for device in (first, second):
        registry.admit(device.identity.enrolment())
    name, epoch = first.identity.device_id, registry.roster()[0]
    new = renew_opening(tmp_path / "a").public()
    assert registry.renew_sealing(name, new, 5)
    assert registry.roster()[0] == epoch + 1 and new.to_bytes() in registry.roster()[1]
    assert first.key not in registry.roster()[1]
    for sealing, number in (
        (SealingKey(first.key), 5),
        (SealingKey(first.key), 4),
        (SealingKey(second.key), 6),
        (SealingKey(bytes(32)), 6),
    ):
        assert not registry.renew_sealing(name, sealing, number)
    registry.revoke(name)
    assert not registry.renew_sealing(name, SealingKey(first.key), 9)
