"""Known answers. The vector file only grows: bytes that were once written must stay readable."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgeveil.claim import key_id
from edgeveil.crypto import labels
from edgeveil.crypto.chunked import commit, open_chunked
from edgeveil.crypto.keys import (
    CheckKey,
    ContentKey,
    LedgerKey,
    MaskSeed,
    OpeningKey,
    SealingKey,
    SigningKey,
    VerifyKey,
    sign,
    verify,
)
from edgeveil.crypto.masking import (
    Factors,
    Vector,
    add_mask,
    check_of,
    masked,
    pack,
    sum_of_masks,
    unmasked,
    unpack,
)
from edgeveil.crypto.ring import Ring
from edgeveil.crypto.sealing import open_sealed, open_stanzas
from edgeveil.privacy.derived import DerivedRandom, NoiseContext, noise_context_key
from edgeveil.privacy.ledger import decrypted_state

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "crypto.json").read_text())


def unhex(case, name):
    return bytes.fromhex(case[name])


def test_labels_are_the_published_ones():
    published = {name: text.encode() for name, text in VECTORS["labels"].items()}
    assert {name: getattr(labels, name) for name in published} == published
    used = [value for value in vars(labels).values() if isinstance(value, bytes)]
    assert set(used) == set(published.values())
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("case", VECTORS["context"])
def test_context(case):
    parts = [bytes.fromhex(part) for part in case["parts"]]
    assert labels.context(case["label"].encode(), *parts) == unhex(case, "bytes")


@pytest.mark.parametrize("case", VECTORS["claim_key"])
def test_claim_key(case):
    assert key_id(VerifyKey.from_bytes(unhex(case, "verify_key"))) == case["id"]


@pytest.mark.parametrize("case", VECTORS["commitment"])
def test_commitment(case):
    key = ContentKey.from_bytes(unhex(case, "content_key"))
    assert commit(key, unhex(case, "context")) == unhex(case, "commitment")


@pytest.mark.parametrize("case", VECTORS["signature"])
def test_signature(case):
    key = SigningKey.from_bytes(unhex(case, "signing_key"))
    label, payload = case["label"].encode(), unhex(case, "payload")
    assert key.public() == VerifyKey.from_bytes(unhex(case, "verify_key"))
    assert key.public().fingerprint() == case["fingerprint"]
    assert sign(key, label, payload) == unhex(case, "signature")
    assert verify(key.public(), label, payload, unhex(case, "signature"))


@pytest.mark.parametrize("case", VECTORS["sealed"])
def test_sealed(case):
    key = OpeningKey.from_bytes(unhex(case, "opening_key"))
    assert key.public() == SealingKey.from_bytes(unhex(case, "sealing_key"))
    expected = None if case["plaintext"] is None else unhex(case, "plaintext")
    assert open_sealed(key, unhex(case, "info"), unhex(case, "sealed")) == expected


@pytest.mark.parametrize("case", VECTORS["stream"])
def test_stream(case):
    key = ContentKey.from_bytes(unhex(case, "content_key"))
    opened = open_chunked(key, unhex(case, "context"), unhex(case, "stream"))
    assert opened == unhex(case, "plaintext")


@pytest.mark.parametrize("case", VECTORS["stanzas"])
def test_stanzas(case):
    key = OpeningKey.from_bytes(unhex(case, "opening_key"))
    expected = case["content_key"] and ContentKey.from_bytes(unhex(case, "content_key"))
    assert open_stanzas(key, unhex(case, "info"), unhex(case, "area")) == expected


@pytest.mark.parametrize("case", VECTORS["deposit"])
def test_deposits(case):
    key = LedgerKey.from_bytes(unhex(case, "ledger_key")).state_key()
    assert key.to_bytes() == unhex(case, "deposit_key")
    request = decrypted_state(key, unhex(case, "deposit"))
    assert (request and request.to_json()) == case["request"]


@pytest.mark.parametrize("case", VECTORS["noise"])
def test_derived_noise(case):
    key = LedgerKey.from_bytes(unhex(case, "ledger_key")).noise_key()
    assert key.to_bytes() == unhex(case, "noise_key")
    asked = (case["dataset"], case["job_id"], case["exchange"], unhex(case, "package_digest"))
    question = noise_context_key(key, NoiseContext(*asked))
    assert question == unhex(case, "question_key")
    stream, total = DerivedRandom(question), np.array(case["total"], np.int64)
    first, second = stream.bound(case["law"], total), stream.bound(case["law"], total)
    assert stream(80) == unhex(case, "samples")
    assert first(80) == unhex(case, "first_draw")
    assert second(80) == unhex(case, "second_draw")


@pytest.mark.parametrize("case", VECTORS["packed"])
def test_packed_numbers(case):
    numbers = np.array(case["numbers"], np.uint64)
    ring = Ring(len(numbers), case["bits"])
    assert pack(ring, numbers) == unhex(case, "bytes")
    assert unpack(ring, unhex(case, "bytes")).tolist() == case["numbers"]


@pytest.mark.parametrize("case", VECTORS["mask"])
def test_masks(case):
    vector = Vector.zeros(Ring(case["count"], case["bits"]))
    add_mask(vector, MaskSeed.from_bytes(unhex(case, "seed")), unhex(case, "use"))
    assert vector.to_bytes() == unhex(case, "mask")


@pytest.mark.parametrize("case", VECTORS["masked"])
def test_masked_numbers_and_their_check(case):
    seed, key = MaskSeed(unhex(case, "seed")), CheckKey(unhex(case, "check_key"))
    numbers, use = np.array(case["numbers"], np.int64), unhex(case, "use")
    ring = Ring(len(numbers), case["bits"])
    assert check_of(numbers, key, use) == int(case["check"], 16)
    assert masked(numbers, seed, key, use, ring).to_bytes() == unhex(case, "masked")
    total = Vector.from_bytes(ring, unhex(case, "masked"))
    removed = unmasked(total, sum_of_masks([seed], use, ring), key, use)
    assert removed is not None
    assert removed.tolist() == case["numbers"]


@pytest.mark.parametrize("case", VECTORS["checked"])
def test_checks_of_single_masks(case):
    at, seed, use = unhex(case, "at"), MaskSeed(unhex(case, "seed")), unhex(case, "use")
    key = CheckKey.disclosable(unhex(case, "membership"), at)
    assert key.to_bytes() == unhex(case, "check_key")
    assert key.commitment(at) == unhex(case, "commitment")
    ring = Ring(len(case["numbers"]), case["bits"])
    vector = masked(np.array(case["numbers"], np.int64), seed, key, use, ring)
    assert vector.to_bytes() == unhex(case, "masked")
    factors, expected = Factors(key, use, ring), int(case["check_of_mask"], 16)
    assert factors.check_of_mask(seed) == factors.check_of_masked(vector) == expected
