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
    shown = f"{key!r} {key} {[key]}"
    assert key.to_bytes().hex() not in shown and repr(key.to_bytes()) not in shown
    for use in (pickle.dumps, copy.copy, copy.deepcopy, hash):
        with pytest.raises(TypeError):
            use(key)
    with pytest.raises(AttributeError):
        key._raw = bytes(32)


@pytest.mark.parametrize("kind", SECRETS + PUBLICS)
def test_equality_is_by_type_and_bytes_of_one_length(kind):
    raw = os.urandom(32)
    assert kind.from_bytes(raw) == kind.from_bytes(raw) != kind.from_bytes(bytes(32))
    others = [other for other in SECRETS + PUBLICS if other is not kind]
    assert all(kind.from_bytes(raw) != other.from_bytes(raw) for other in others)
    for size in (0, 31, 33):
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
    with pytest.raises(CryptoError, match="already exists"):
        second.save(path)
    assert SigningKey.load(path) == first
    second.save(path, overwrite=True)
    assert SigningKey.load(path) == second


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_open_to_others_is_refused(tmp_path, mode):
    SigningKey.generate().save(tmp_path / "k")
    (tmp_path / "k").chmod(mode)
    with pytest.raises(CryptoError, match="other users"):
        SigningKey.load(tmp_path / "k")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff\xfe\0", "not a key file"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n", "not a key file"),
        (b"edgeveil-signing-key-1 " + b"ab" * 32, "edgeveil-signing-key-1"),
        (b"edgeveil-verify-key-1 " + b"zz" * 32, "damaged"),
        (b"edgeveil-verify-key-1 " + b"ab" * 31, "damaged"),
        (b"edgeveil-verify-key-1 " + b"ab" * 4000, "not a key file"),
    ],
    ids=range(6),
)
def test_a_file_that_is_no_such_key_is_refused(tmp_path, text, reason):
    (tmp_path / "k").write_bytes(text)
    with pytest.raises(CryptoError, match=reason) as caught:
        VerifyKey.load(tmp_path / "k")
    assert caught.value.where == str(tmp_path / "k") and caught.value.fix
