"""The broadcast's envelope and the segments: whom they open for, and what they are bound to."""

import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from protocol_kit import at, manifest, member

from edgeveil.crypto.keys import CheckKey, MaskSeed, OpeningKey
from edgeveil.errors import CryptoError, ProtocolError
from edgeveil.protocol import sealed as sl
from edgeveil.protocol import tensors as tn
from edgeveil.protocol.messages import SEALED_SEED_BYTES, Group, MaskedGroup, RoundId

SELECTED = [OpeningKey.generate() for _ in range(3)]
CLOUD = OpeningKey.generate()
GROUP = Group("head.weight", 128)
PACKAGE = b"the global model" * 50
TERMS = sl.Terms(
    kind="round",
    at=RoundId(b"J" * 16, 4, 2),
    sequence=9,
    job_digest=b"d" * 32,
    phase="train",
    min_batch=2,
    groups=(GROUP,),
    cloud_key=CLOUD.public().to_bytes(),
)


def sealed_broadcast(terms=TERMS):
    return sl.seal_broadcast(terms, PACKAGE, [key.public() for key in SELECTED], 1024)


MANIFEST, BLOB, TAG = sealed_broadcast()


def reason(manifest, blob):
    with pytest.raises(ProtocolError) as caught:
        sl.open_broadcast(SELECTED[0], manifest, blob)
    return caught.value.reason


def changed(**fields):
    return msgspec.structs.replace(MANIFEST, **fields)


def test_every_selected_key_opens_the_same_and_nobody_else_anything():
    assert [sl.open_broadcast(key, MANIFEST, BLOB) for key in SELECTED] == [(PACKAGE, TAG)] * 3
    assert sl.open_broadcast(OpeningKey.generate(), MANIFEST, BLOB) is None
    assert sl.open_broadcast(CLOUD, MANIFEST, BLOB) is None
    assert PACKAGE[:16] not in BLOB


def test_another_commitment_size_or_length_is_refused():
    assert reason(changed(commitment=bytes(32)), BLOB) == "wrong_commitment"
    larger = changed(package_bytes=MANIFEST.package_bytes + 1)
    assert reason(larger, BLOB) == "wrong_package"
    for blob in (BLOB[:-1], BLOB + b"\0", BLOB[: MANIFEST.stanza_bytes]):
        assert reason(MANIFEST, blob) == "broken_stream"
    other_round = changed(sequence=10)
    for header in (other_round, *(changed(stanza_bytes=size) for size in (0, 32, 119, 1 << 40))):
        assert sl.open_broadcast(SELECTED[0], header, BLOB) is None


def test_no_byte_of_the_blob_can_be_altered_unseen():
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


TENSOR = bytes(range(100))
SEALED = sl.seal_segment(MANIFEST, GROUP, TAG, TENSOR)


def opened(sealed):
    return sl.open_segment(CLOUD, MANIFEST.at, MANIFEST.job_digest, GROUP, TAG, sealed)


def test_a_tensor_above_its_public_size_is_not_cut():
    with pytest.raises(ProtocolError, match="wrong_size"):
        sl.seal_segment(MANIFEST, GROUP, TAG, bytes(129))
    assert opened(sl.seal_segment(MANIFEST, GROUP, TAG, b"x" * 128)) == b"x" * 128


def test_segment_and_mark_are_bound_to_the_membership_of_this_very_broadcast():
    """A device that was not selected knows the manifest but not the tag."""
    _, _, other = sealed_broadcast()
    assert opened(SEALED)[: len(TENSOR)] == TENSOR
    for guess in (other, MANIFEST.commitment):
        assert opened(sl.seal_segment(MANIFEST, GROUP, guess, TENSOR)) is None
    mark = sl.segment_mark(TAG, SEALED)
    public = (b"", bytes(32), MANIFEST.commitment, MANIFEST.package_digest, other)
    assert mark not in {sl.segment_mark(guess, SEALED) for guess in public}
    assert len(mark) == 32 and mark != hashlib.sha256(SEALED).digest()
    assert mark != sl.segment_mark(TAG, sl.seal_segment(MANIFEST, GROUP, TAG, TENSOR))


GROUPS = (Group("layer0", 64), Group("layer1", 128), Group("softmax", 64))
MASKED = (MaskedGroup(0, 7, 40), MaskedGroup(1, 20, 33))
VECTORS = sl.masked_vectors(at(), GROUPS, MASKED)
MEMBERSHIP = bytes(range(32))
CHECK = sl.RoundCheck.of(at(), MEMBERSHIP, disclosed=False)
KEY = OpeningKey.from_bytes(hashlib.sha256(b"the proxy's key of a round").digest())
ROUND = manifest(b"model", groups=GROUPS, masked=MASKED)
ME, OTHER = member(0).id, member(1).id


def seed(number):
    return MaskSeed(hashlib.sha256(b"seed %d" % number).digest())


@pytest.mark.parametrize(
    "said",
    [
        (MaskedGroup(3, 7, 40),),
        (MaskedGroup(0, 7, 40), MaskedGroup(0, 7, 40)),
        (MaskedGroup(1, 20, 33), MaskedGroup(0, 7, 40)),
        (MaskedGroup(0, 12, 40),),
        (MaskedGroup(2, 2**31, 56),),
    ],
    ids=["not there", "twice", "out of order", "too large by 4 bytes", "far too large"],
)
def test_malformed_groups_are_refused(said):
    with pytest.raises(ProtocolError, match="malformed_masks"):
        sl.masked_vectors(at(), GROUPS, said)


def sealed_seed(manifest=ROUND, device=ME, key=KEY):
    return sl.seal_seed(seed(1), manifest, device, key.public().to_bytes())


def test_a_seed_of_another_round_device_key_or_length_does_not_open():
    fields = [{"at": at(2)}, {"at": at(1, 2)}, {"at": at(job=b"K" * 16)}, {"job_digest": b"e" * 32}]
    wrong = [sealed_seed(structs.replace(ROUND, **one)) for one in fields]
    wrong += [sealed_seed(device=OTHER), sealed_seed(key=OpeningKey.generate())]
    for sealed in (*wrong, sealed_seed()[:-1], b"", bytes(SEALED_SEED_BYTES)):
        with pytest.raises(ProtocolError, match="bad_seed"):
            sl.open_seed(KEY, ROUND, ME, sealed)


def test_a_key_that_nothing_can_be_sealed_to_is_refused():
    for key in (b"", bytes(31), bytes(32)):  # all zeros is a point of low order
        with pytest.raises(CryptoError):
            sl.seal_seed(seed(1), ROUND, ME, key)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_a_choice_comes_back(drawn):
    uploads, chosen = drawn
    said = sl.choice(chosen, uploads)
    assert len(said) == -(-uploads // 8)
    assert sl.chosen_of(said, uploads) == sorted(chosen)


def packed(number, plain, check=CHECK):
    """A device's vectors, as the cloud opens them."""
    pairs = zip(VECTORS, plain, strict=True)
    return [tn.masked_segment(of, numbers, seed(number), check) for of, numbers in pairs]


def plains(count=4):
    rng = np.random.default_rng(3)
    return [
        [rng.integers(-(2**30), 2**30, one.ring.count).reshape(-1, 1) for one in VECTORS]
        for _ in range(count)
    ]


def added_up(uploads):
    first, *others = [list(map(tn.opened_vector, VECTORS, upload)) for upload in uploads]
    for total, *more in zip(first, *others, strict=True):
        for one in more:
            total.add(one)
    return first


def test_sums_with_other_masks_are_refused():
    summed = added_up(packed(number, plain) for number, plain in enumerate(plains()))
    good = tn.mask_sums(VECTORS, [seed(number) for number in range(4)])
    others = ([0, 1], [1, 2, 3], [0, 1, 2, 3, 3])
    wrong = [tn.mask_sums(VECTORS, list(map(seed, chosen))) for chosen in others]
    wrong += [bytes((good[0] ^ 1,)) + good[1:], good[:-1], good + b"\0", b""]
    other_key = sl.RoundCheck(CheckKey(bytes(32)), disclosed=False)
    for masks, check in [*((masks, CHECK) for masks in wrong), (good, other_key)]:
        with pytest.raises(ProtocolError, match="wrong_mask_sums"):
            tn.exact_sums(VECTORS, summed, masks, check)
    with pytest.raises(ProtocolError, match="bad_padding"):
        tn.opened_vector(VECTORS[0], packed(0, plains()[0])[0] + b"\x01")


def test_masks_of_two_attempts_of_one_seed_have_nothing_in_common():
    """A device draws a seed for each attempt; even one that did not would not show its numbers."""
    again = sl.masked_vectors(at(1, 2), GROUPS, MASKED)
    numbers = np.zeros(VECTORS[0].ring.count, np.int64)
    first, second = (tn.masked_segment(one[0], numbers, seed(0), CHECK) for one in (VECTORS, again))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 5


DISCLOSED = sl.RoundCheck.of(at(), MEMBERSHIP, disclosed=True)


def fits(sealed_seed, vectors):
    """Whether cloud and proxy come to the same checks, the proxy by the seed that was sealed."""
    checks = tn.mask_checks(VECTORS, [seed(sealed_seed)], DISCLOSED)
    return tn.MaskChecks(VECTORS, DISCLOSED).of_masked(vectors) == checks


def test_an_honest_upload_fits_and_wrong_seeds_checks_factors_and_rings_do_not():
    """The cloud computes its checks by itself: the proxy's answer tells the cloud nothing."""
    for number, honest in enumerate(plains()):
        assert fits(number, packed(number, honest, DISCLOSED))
    plain, other = plains(1)[0], sl.RoundCheck(CheckKey(bytes(32)), disclosed=True)
    good = packed(0, plain, DISCLOSED)
    assert not fits(1, good)
    assert not fits(0, packed(0, plain, other))
    for change in range(len(good)):
        for bit in (0, len(good[change]) - 1):
            damaged = [bytearray(one) for one in good]
            damaged[change][bit] ^= 1
            assert not fits(0, list(map(bytes, damaged)))
    assert not fits(0, [bytes(len(one)) for one in good])


@given(st.integers(0, 2**32), st.integers(0, 2**64 - 1))
def test_what_fits_is_some_vector_with_its_own_check_whatever_its_sender_did(number, check):
    """So a sum of uploads that fit has the check of its sum, with certainty."""
    rng = np.random.default_rng(number)
    made = [rng.bytes(one.ring.packed_bytes) for one in VECTORS]
    asked = tn.mask_checks(VECTORS, [seed(0)], DISCLOSED)
    forged = [raw + check.to_bytes(8) for raw in made]
    found = tn.MaskChecks(VECTORS, DISCLOSED).of_masked(forged)
    fitting = []
    for at_, raw in enumerate(made):
        of = slice(8 * at_, 8 * at_ + 8)
        short = int.from_bytes(found[of]) - int.from_bytes(asked[of])
        fitting.append(raw + ((check + short) % 2**64).to_bytes(8))
    assert fits(0, fitting)
    vectors = added_up([fitting, *(packed(1, honest, DISCLOSED) for honest in plains(3))])
    masks = tn.mask_sums(VECTORS, [seed(0), seed(1), seed(1), seed(1)])
    assert tn.exact_sums(VECTORS, vectors, masks, DISCLOSED)


def test_no_bit_beyond_the_ring_leaves_the_proxy():
    """Those would tell which of a device's numbers wrapped around under its mask."""
    for number in range(50):
        checks = tn.mask_checks(VECTORS, [seed(number)], DISCLOSED)
        for at_, one in enumerate(VECTORS):
            assert int.from_bytes(checks[8 * at_ : 8 * at_ + 8]) < 2**one.ring.bits


def test_a_seed_is_sealed_for_one_key_of_checks():
    """What a device made for some factors opens for no others, and for none where it made none."""
    said = sl.committed(ROUND, MEMBERSHIP)
    forked = sl.committed(ROUND, bytes(32))
    sealed = sl.seal_seed(seed(1), said, ME, KEY.public().to_bytes())
    assert sl.open_seed(KEY, said, ME, sealed).to_bytes() == seed(1).to_bytes()
    for other in (forked, ROUND):
        with pytest.raises(ProtocolError, match="bad_seed"):
            sl.open_seed(KEY, other, ME, sealed)
