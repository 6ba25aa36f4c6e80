"""Devices of a process decode a frame once and verify a signature once, if bytes are equal."""

import os

import numpy as np
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


def test_a_frame_is_decoded_once_and_no_other_is_taken_for_it(shared):
    data = os.urandom(5000)
    frame = encode(next(iter(parts(describe(data, 4000), data))))
    other = frame[:-1] + bytes((frame[-1] ^ 1,))
    first = shared.message(frame)
    assert shared.message(frame[:-1] + frame[-1:]) is first
    second = shared.message(other)
    assert first.data[:-1] == second.data[:-1] and first.data != second.data
    for _ in range(2):
        with pytest.raises(ProtocolError):
            shared.message(b"\x01\x94garbage")
    one, other = (np.frombuffer(shared.noise(4096), "<f4") for _ in range(2))
    assert np.isfinite(one).all() and not np.array_equal(one, other)


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
