import json
import stat

import pytest

from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey, sign
from edgeveil.crypto.labels import ENROLMENT
from edgeveil.enrolment import FILE_BYTES, Enrolment, EnrolmentError
from edgeveil.errors import CryptoError, UsageError
from edgeveil_edge.identity import IDENTITY_FILE, OPENING_FILE, DeviceIdentity


def test_keys_are_made_once_and_only_for_their_owner(tmp_path):
    first = DeviceIdentity.load_or_create(tmp_path / "state")
    again = DeviceIdentity.load_or_create(tmp_path / "state")
    assert again.signing == first.signing
    assert again.opening == first.opening
    assert again.split_key == first.split_key
    assert len(first.split_key) == 32
    names = {path.name for path in (tmp_path / "state").iterdir()}
    assert names == {IDENTITY_FILE, OPENING_FILE, "split.key"}
    for path in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize("gone", [OPENING_FILE, "split.key"])
def test_a_lost_key_is_never_replaced_in_silence(tmp_path, gone):
    DeviceIdentity.load_or_create(tmp_path)
    (tmp_path / gone).unlink()
    with pytest.raises(UsageError, match=gone):
        DeviceIdentity.load_or_create(tmp_path)
    assert not (tmp_path / gone).exists()


def test_a_key_that_everybody_can_read_is_refused(tmp_path):
    DeviceIdentity.load_or_create(tmp_path)
    (tmp_path / IDENTITY_FILE).chmod(0o644)
    with pytest.raises(CryptoError, match="chmod 600"):
        DeviceIdentity.load_or_create(tmp_path)


def enrolment():
    return Enrolment.make(SigningKey.generate(), OpeningKey.generate())


def test_a_sealing_key_of_low_order_is_refused():
    identity = SigningKey.generate()
    zero = SealingKey(bytes(32))
    signed = sign(identity, ENROLMENT, identity.public().to_bytes() + bytes(32))
    with pytest.raises(EnrolmentError, match="nothing can be sealed"):
        Enrolment(identity.public(), zero, signed).verify()


def _with(**changes):
    return json.dumps({**json.loads(enrolment().to_json()), **changes}).encode()


def _twice():
    text = enrolment().to_json()
    return text.replace("{", '{"format": "edgeveil-enrolment-1",', 1).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 4000,
        b" " * (FILE_BYTES + 1),
        _with(format="edgeveil-enrolment-2"),
        _with(identity="00"),
        _with(identity=7),
        _with(sealing="AB" * 32),
        _with(signature="zz" * 64),
        _with(name="kitchen-box"),
        _twice(),
    ],
)
def test_anything_else_is_refused_with_text(raw):
    with pytest.raises(EnrolmentError):
        Enrolment.from_json(raw)


def test_secrets_are_not_shown(tmp_path):
    identity = DeviceIdentity.load_or_create(tmp_path)
    assert identity.split_key.hex() not in repr(identity)
    assert repr(identity.split_key) not in repr(identity)


def test_the_file_holds_public_keys_and_nothing_else(tmp_path):
    found = json.loads(DeviceIdentity.load_or_create(tmp_path).enrolment().to_json())
    assert set(found) == {"format", "identity", "sealing", "signature"}
