"""The broadcast's envelope and the segments: whom they open for, and what they are bound to."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from edgeveil.crypto.keys import OpeningKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import sealed as sl
from edgeveil.protocol.messages import ExchangeId, Group, Manifest

SELECTED = [OpeningKey.generate() for _ in range(3)]
CLOUD = OpeningKey.generate()
GROUP = Group("head.weight", 128)
PACKAGE = b"the global model" * 50
TERMS = sl.Terms(
    kind="round",
    at=ExchangeId(b"J" * 16, 4, 2),
    sequence=9,
    job_digest=b"d" * 32,
    phase="train",
    min_batch=2,
    groups=(GROUP,),
    cloud_key=CLOUD.public().to_bytes(),
)
MANIFEST, BLOB, TAG = sl.seal_broadcast(TERMS, PACKAGE, [key.public() for key in SELECTED], 1024)


def reason(manifest: Manifest, blob: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        sl.open_broadcast(SELECTED[0], manifest, blob)
    return caught.value.reason


def changed(**fields: Any) -> Manifest:
    return msgspec.structs.replace(MANIFEST, **fields)


def test_every_selected_key_opens_the_same_and_nobody_else_anything() -> None:
    assert [sl.open_broadcast(key, MANIFEST, BLOB) for key in SELECTED] == [(PACKAGE, TAG)] * 3
    assert sl.open_broadcast(OpeningKey.generate(), MANIFEST, BLOB) is None
    assert sl.open_broadcast(CLOUD, MANIFEST, BLOB) is None
    assert PACKAGE[:16] not in BLOB


def test_the_manifest_tells_the_terms_and_the_measures() -> None:
    assert (MANIFEST.at, MANIFEST.groups, MANIFEST.selected) == (TERMS.at, TERMS.groups, 3)
    assert MANIFEST.package_digest == hashlib.sha256(PACKAGE).digest()
    assert MANIFEST.package_bytes == len(PACKAGE)
    assert MANIFEST.blob.digest == hashlib.sha256(BLOB).digest()
    assert MANIFEST.stanza_bytes == 32 + 16 * 88  # the smallest bucket, dummies included


BOUND: list[dict[str, Any]] = [
    {"kind": "release"},
    {"at": ExchangeId(b"K" * 16, 4, 2)},
    {"at": ExchangeId(b"J" * 16, 5, 2)},
    {"at": ExchangeId(b"J" * 16, 4, 3)},
    {"sequence": 10},
    {"job_digest": b"e" * 32},
    {"phase": "centre"},
    {"cloud_key": bytes(32)},
    {"package_digest": b"p" * 32},
]


def test_a_selected_device_that_knows_the_key_cannot_fork_the_commitment() -> None:
    assert reason(changed(commitment=bytes(32)), BLOB) == "wrong_commitment"


def test_no_byte_of_the_blob_can_be_altered_unseen() -> None:
    stream = MANIFEST.stanza_bytes
    for place in (*range(0, stream, 40), *range(stream, len(BLOB), 7), len(BLOB) - 1):
        blob = bytearray(BLOB)
        blob[place] ^= 1
        if place < stream:  # of the stanzas one at most is this device's
            opened = sl.open_broadcast(SELECTED[0], MANIFEST, bytes(blob))
            assert opened in (None, (PACKAGE, TAG))
        else:
            assert reason(MANIFEST, bytes(blob)) == "broken_stream"
    every_stanza = bytearray(BLOB)
    inside = slice(32 + 40, stream, 88)  # past each stanza's tag
    every_stanza[inside] = bytes(b ^ 1 for b in BLOB[inside])
    assert sl.open_broadcast(SELECTED[0], MANIFEST, bytes(every_stanza)) is None


@pytest.mark.parametrize("blob", [BLOB[:-1], BLOB + b"\0", BLOB[: MANIFEST.stanza_bytes]])
def test_a_cut_or_longer_stream_is_refused(blob: bytes) -> None:
    assert reason(MANIFEST, blob) == "broken_stream"


@pytest.mark.parametrize("stanza_bytes", [0, 31, 32, 119, 1 << 40])
def test_a_false_measure_of_the_stanzas_opens_nothing(stanza_bytes: int) -> None:
    assert sl.open_broadcast(SELECTED[0], changed(stanza_bytes=stanza_bytes), BLOB) is None


def test_parts_of_two_broadcasts_do_not_fit_together() -> None:
    other, blob, _ = sl.seal_broadcast(
        replace(TERMS, sequence=10), PACKAGE, [key.public() for key in SELECTED], 1024
    )
    cut = MANIFEST.stanza_bytes
    assert reason(MANIFEST, BLOB[:cut] + blob[cut:]) == "broken_stream"
    assert sl.open_broadcast(SELECTED[0], MANIFEST, blob[:cut] + BLOB[cut:]) is None
    assert sl.open_broadcast(SELECTED[0], other, BLOB) is None


# --- segments ------------------------------------------------------------------------------

TENSOR = bytes(range(100))
SEALED = sl.seal_segment(MANIFEST, GROUP, TAG, TENSOR)


def opened(**other: Any) -> bytes | None:
    values: dict[str, Any] = {
        "key": CLOUD,
        "at": MANIFEST.at,
        "job_digest": MANIFEST.job_digest,
        "group": GROUP,
        "membership": TAG,
        "sealed": SEALED,
    }
    return sl.open_segment(**(values | other))


@pytest.mark.parametrize(("count", "public"), [(0, 0), (1, 64), (64, 64), (65, 128), (4000, 4032)])
def test_public_sizes_are_multiples_of_64_bytes(count: int, public: int) -> None:
    assert sl.padded(count) == public


ELSEWHERE: list[dict[str, Any]] = [
    {"key": SELECTED[0]},
    {"at": ExchangeId(b"K" * 16, 4, 2)},
    {"at": ExchangeId(b"J" * 16, 3, 2)},
    {"at": ExchangeId(b"J" * 16, 4, 1)},
    {"job_digest": b"e" * 32},
    {"group": Group("softmax", 128)},
    {"membership": bytes(32)},
    {"sealed": SEALED[:-1]},
    {"sealed": SEALED + b"\0"},
    {"sealed": b""},
]


def test_no_byte_of_a_segment_can_be_altered_unseen() -> None:
    for place in range(len(SEALED)):
        sealed = bytearray(SEALED)
        sealed[place] ^= 0x10
        assert opened(sealed=bytes(sealed)) is None


def test_a_tensor_above_its_public_size_is_not_cut() -> None:
    with pytest.raises(ProtocolError) as caught:
        sl.seal_segment(MANIFEST, GROUP, TAG, bytes(129))
    assert caught.value.reason == "wrong_size"
    assert opened(sealed=sl.seal_segment(MANIFEST, GROUP, TAG, b"x" * 128)) == b"x" * 128


def test_the_segment_is_bound_to_the_membership_of_this_very_broadcast() -> None:
    """A device that was not selected knows the manifest but not the tag."""
    _, _, other = sl.seal_broadcast(TERMS, PACKAGE, [key.public() for key in SELECTED], 1024)
    assert opened(sealed=sl.seal_segment(MANIFEST, GROUP, other, TENSOR)) is None
    assert opened(sealed=sl.seal_segment(MANIFEST, GROUP, MANIFEST.commitment, TENSOR)) is None


def test_a_mark_is_found_by_those_who_hold_membership_and_ciphertext() -> None:
    mark = sl.segment_mark(TAG, SEALED)
    assert len(mark) == 32
    _, _, other = sl.seal_broadcast(TERMS, PACKAGE, [key.public() for key in SELECTED], 1024)
    public = (b"", bytes(32), MANIFEST.commitment, MANIFEST.package_digest, other)
    assert mark not in {sl.segment_mark(guess, SEALED) for guess in public}
    assert mark != hashlib.sha256(SEALED).digest()
    assert mark != sl.segment_mark(TAG, sl.seal_segment(MANIFEST, GROUP, TAG, TENSOR))


def test_a_package_of_another_size_than_the_manifest_says_is_refused() -> None:
    larger = changed(package_bytes=MANIFEST.package_bytes + 1)
    assert reason(larger, BLOB) == "wrong_package"
