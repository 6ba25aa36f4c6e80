"""Devices of a process decode a frame once and verify a signature once, if bytes are equal."""

import os

import pytest

from edgeveil.crypto.keys import SigningKey, sign, verify
from edgeveil.crypto.labels import HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import Commit, RoundId, Signer, encode
from edgeveil.protocol.transfer import describe, parts, sends
from edgeveil_lab.load.device import SharedVerifyKey, SharedWork

AT = RoundId(b"j" * 16, 1, 1)


@pytest.fixture
def shared():
    return SharedWork(65536, 4096)


def test_the_same_frame_is_decoded_once(shared):
    data = os.urandom(5000)
    frame = encode(next(iter(parts(describe(data, 4000), data))))
    assert shared.message(bytes(frame)) is shared.message(frame[:-1] + frame[-1:])


def test_a_frame_that_only_begins_alike_is_another(shared):
    data = os.urandom(5000)
    frame = encode(next(iter(parts(describe(data, 4000), data))))
    other = frame[:-1] + bytes((frame[-1] ^ 1,))
    first, second = shared.message(frame), shared.message(other)
    assert first.data[:-1] == second.data[:-1]
    assert first.data != second.data


def test_a_broken_frame_is_refused_each_time(shared):
    for _ in range(2):
        with pytest.raises(ProtocolError, match="malformed"):
            shared.message(b"\x01\x94garbage")


def test_a_signature_counts_for_its_own_bytes_alone():
    key = SigningKey.generate()
    pinned = SharedVerifyKey(key.public().to_bytes())
    signature = sign(key, HEADER, b"payload")
    for _ in range(2):
        assert verify(pinned, HEADER, b"payload", signature)
        assert not verify(pinned, HEADER, b"payloae", signature)
        assert not verify(pinned, HEADER, b"payload", signature[::-1])
        assert not verify(pinned, b"edgeveil/v1/body", b"payload", signature)


@pytest.mark.parametrize("accepted", [3, 3000])
def test_a_commit_record_is_read_once_whoever_gets_it(shared, accepted):
    hashes = b"".join(os.urandom(32) for _ in range(accepted))
    mine = hashes[:32]
    shared.counters.offer(AT, mine, (mine,), 10.0)
    commit = Commit(AT, accepted, describe(hashes, 65000))
    signed = Signer("cloud", SigningKey.generate()).header(commit)
    frames = [encode(send.message) for send in sends(None, signed, commit.blob, hashes, 65536)]
    for frame in [*frames, *frames]:
        shared.message(frame)
    assert shared.counters.counted == 1
    assert shared.counters.repeated == 0


def test_noise_is_finite_and_not_the_same_twice(shared):
    import numpy as np

    one, other = shared.noise(4096), shared.noise(4096)
    assert len(one) == 4096
    assert one != other
    assert np.isfinite(np.frombuffer(one, "<f4")).all()
