"""Key types: they hide, differ, refuse to travel, and their files are checked."""

import copy
import os
import pickle
import stat

import pytest

from edgeveil.crypto.keys import ContentKey, OpeningKey, SealingKey, SigningKey, VerifyKey
from edgeveil.errors import CryptoError

SECRETS = [SigningKey, OpeningKey, ContentKey]
PUBLICS = [VerifyKey, SealingKey]


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_hides_itself_and_is_not_copied_hashed_or_changed(kind):
    key = kind.generate()
    shown = f"{key!r} {key} {[key]} { ({'k': key}) }"
    assert key.to_bytes().hex() not in shown and repr(key.to_bytes()) not in shown
    assert not hasattr(key, "fingerprint")
    for use in (pickle.dumps, copy.copy, copy.deepcopy, hash):
        with pytest.raises(TypeError):
            use(key)
    with pytest.raises(AttributeError):
        key._raw = bytes(32)


@pytest.mark.parametrize("kind", SECRETS + PUBLICS)
def test_equality_is_by_type_and_bytes(kind):
    raw = os.urandom(32)
    assert kind.from_bytes(raw) == kind.from_bytes(raw)
    assert kind.from_bytes(raw) != kind.from_bytes(bytes(32))
    others = [other for other in SECRETS + PUBLICS if other is not kind]
    assert all(kind.from_bytes(raw) != other.from_bytes(raw) for other in others)


@pytest.mark.parametrize("kind", SECRETS + PUBLICS)
def test_another_length_is_refused(kind):
    for size in (0, 31, 33, 64):
        with pytest.raises(CryptoError, match=str(size)):
            kind.from_bytes(bytes(size))


@pytest.mark.parametrize("kind", SECRETS + PUBLICS)
def test_a_key_file_reads_back_with_its_mode(kind, tmp_path):
    key, path = kind.from_bytes(os.urandom(32)), tmp_path / "key"
    old = os.umask(0)
    try:
        key.save(path)
    finally:
        os.umask(old)
    assert kind.load(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == (0o600 if kind in SECRETS else 0o644)
    assert [found.name for found in tmp_path.iterdir()] == ["key"]


def test_saving_never_overwrites_unasked(tmp_path):
    path = tmp_path / "key"
    first, second = SigningKey.generate(), SigningKey.generate()
    first.save(path)
    with pytest.raises(CryptoError, match="there already"):
        second.save(path)
    assert SigningKey.load(path) == first
    second.save(path, overwrite=True)
    assert SigningKey.load(path) == second


def test_a_key_of_another_type_is_named(tmp_path):
    SigningKey.generate().public().save(tmp_path / "k")
    with pytest.raises(CryptoError, match="edgeveil-verify-key-1") as caught:
        SigningKey.load(tmp_path / "k")
    assert caught.value.where == str(tmp_path / "k")
    assert "edgeveil-signing-key-1" in caught.value.fix


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_a_secret_open_to_others_is_refused(tmp_path, mode):
    SigningKey.generate().save(tmp_path / "k")
    (tmp_path / "k").chmod(mode)
    with pytest.raises(CryptoError, match="other users") as caught:
        SigningKey.load(tmp_path / "k")
    assert "chmod 600" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a key file"),
        (b"\xff\xfe\0", "not a key file"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n", "not a key file"),
        (b"edgeveil-verify-key-1 " + b"zz" * 32, "damaged"),
        (b"edgeveil-verify-key-1 " + b"ab" * 31, "must be 32 bytes"),
        (b"edgeveil-verify-key-1 " + b"ab" * 4000, "not a key file"),
    ],
)
def test_a_broken_key_file_is_told(tmp_path, text, said):
    (tmp_path / "k").write_bytes(text)
    with pytest.raises(CryptoError, match=said):
        VerifyKey.load(tmp_path / "k")
