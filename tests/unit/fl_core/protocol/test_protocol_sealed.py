"""Broadcasts and segments open for those they are for, in the round they are for, and whole."""

from __future__ import annotations

import msgspec
import pytest
from protocol_kit import PART_BYTES, at

from fl_core.crypto.keys import OpeningKey
from fl_core.errors import ProtocolError
from fl_core.protocol.messages import Exchanged, Group
from fl_core.protocol.sealed import (
    Terms,
    open_broadcast,
    open_segment,
    padded,
    seal_broadcast,
    seal_segment,
)

SELECTED, OTHER, CLOUD_ROUND = (OpeningKey.generate() for _ in range(3))
GROUPS = (Group("layer0", 128), Group("layer1", 64))
TERMS = Terms(
    kind="round",
    at=at(3, 2),
    sequence=9,
    job_digest=b"d" * 32,
    phase="train",
    groups=GROUPS,
    cloud_key=CLOUD_ROUND.public().to_bytes(),
)
PACKAGE = b"the model " * 50
MANIFEST, DATA, MEMBERSHIP = seal_broadcast(TERMS, PACKAGE, [SELECTED.public()], PART_BYTES)
change = msgspec.structs.replace


def test_a_selected_device_opens_and_shares_the_membership_tag():
    assert open_broadcast(SELECTED, MANIFEST, DATA) == (PACKAGE, MEMBERSHIP)


def test_nobody_else_opens():
    assert open_broadcast(OTHER, MANIFEST, DATA) is None


def test_the_package_is_not_in_the_blob():
    assert b"the model" not in DATA and MANIFEST.package_bytes == len(PACKAGE)
    assert MANIFEST.stanza_bytes == 16 * 80


@pytest.mark.parametrize(
    "changes",
    [
        {"at": at(3, 3)},
        {"at": at(4, 2)},
        {"at": Exchanged(b"K" * 16, 3, 2)},
        {"kind": "release"},
        {"sequence": 10},
        {"job_digest": b"e" * 32},
        {"phase": "centre"},
        {"cloud_key": OTHER.public().to_bytes()},
        {"package_digest": b"z" * 32},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_blob_opens_under_no_other_manifest(changes):
    assert open_broadcast(SELECTED, change(MANIFEST, **changes), DATA) is None


def test_another_commitment_is_seen():
    with pytest.raises(ProtocolError, match="wrong_commitment"):
        open_broadcast(SELECTED, change(MANIFEST, commitment=b"z" * 32), DATA)


@pytest.mark.parametrize("position", [16 * 80, 16 * 80 + 40, -1])
def test_a_changed_stream_is_seen(position):
    broken = bytearray(DATA)
    broken[position] ^= 1
    with pytest.raises(ProtocolError, match="broken_stream"):
        open_broadcast(SELECTED, MANIFEST, bytes(broken))


@pytest.mark.parametrize("broken", [DATA[:-1], DATA + b"\0", DATA[: 16 * 80]])
def test_a_cut_or_extended_stream_is_seen(broken):
    with pytest.raises(ProtocolError, match="broken_stream"):
        open_broadcast(SELECTED, MANIFEST, broken)


# --- segments -----------------------------------------------------------------------------

TENSOR = bytes(range(100))


def sealed(group=GROUPS[0], membership=MEMBERSHIP, manifest=MANIFEST):
    return seal_segment(manifest, group, membership, TENSOR[: group.padded_bytes])


def opened(ciphertext, where=MANIFEST.at, digest=TERMS.job_digest, group=GROUPS[0], key=None):
    return open_segment(key or CLOUD_ROUND, where, digest, group, MEMBERSHIP, ciphertext)


def test_a_segment_opens_padded_to_its_public_size():
    assert opened(sealed()) == TENSOR + bytes(28)
    assert len(sealed()) == 128 + 48


def test_two_segments_of_one_tensor_are_different():
    assert sealed() != sealed()


@pytest.mark.parametrize(
    "expected",
    [
        {"where": at(3, 3)},
        {"where": at(4, 2)},
        {"digest": b"e" * 32},
        {"group": Group("layer1", 128)},
        {"group": Group("layer0", 64)},
        {"key": OTHER},
    ],
    ids=lambda e: repr(e)[:40],
)
def test_a_segment_opens_only_for_its_own_round_job_and_group(expected):
    assert opened(sealed(), **expected) is None


@pytest.mark.parametrize("guess", [b"", bytes(32), MEMBERSHIP[:-1] + b"?"])
def test_who_did_not_open_the_round_cannot_make_a_segment(guess):
    assert opened(sealed(membership=guess)) is None


def test_a_changed_segment_does_not_open():
    ciphertext = bytearray(sealed())
    ciphertext[60] ^= 1
    assert opened(bytes(ciphertext)) is None


def test_a_tensor_above_the_public_size_is_refused():
    with pytest.raises(ProtocolError, match="wrong_size"):
        seal_segment(MANIFEST, GROUPS[1], MEMBERSHIP, bytes(65))


@pytest.mark.parametrize(("size", "public"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_public_sizes_are_multiples_of_64(size, public):
    assert padded(size) == public
