"""Versioned labels, one per use of a key; a change of the content requires a new version."""

from __future__ import annotations

from edgeveil.errors import CryptoError

VERSION = "v1"

# Signatures: headers, bodies, enrolments, administrators' actions and others.
HEADER = b"edgeveil/v1/header"
BODY = b"edgeveil/v1/body"
ENROLMENT = b"edgeveil/v1/enrolment"
ADMIN_ACTION = b"edgeveil/v1/admin-action"
BUNDLE = b"edgeveil/v1/bundle"
CLAIM = b"edgeveil/v1/claim"
CLAIM_ANSWER = b"edgeveil/v1/claim-answer"
MOVE = b"edgeveil/v1/move"
PROXY_RUNS = b"edgeveil/v1/proxy-runs"
RELEASE_AHEAD = b"edgeveil/v1/release-ahead"

# Sealing contexts (HPKE `info`) and the chunked ciphertext.
CONTENT_KEY = b"edgeveil/v1/content-key"
BUCKET = b"edgeveil/v1/bucket"
SEGMENT = b"edgeveil/v1/segment"
MEMBERSHIP = b"edgeveil/v1/membership"
MODEL_STREAM = b"edgeveil/v1/model-stream"
MASK_SEED = b"edgeveil/v1/mask-seed"
CORRELATED_SEED = b"edgeveil/v1/mask-seed-of-correlated-noise"

# Derivations inside this package.
DATA_SET = b"edgeveil/v1/data-set"
STREAM_KEY = b"edgeveil/v1/stream-key"
STANZA_TAG = b"edgeveil/v1/stanza-tag"
SEGMENT_MARK = b"edgeveil/v1/segment-mark"
COMMITMENT = b"edgeveil/v1/commitment"
NOISE_KEY = b"edgeveil/v1/noise-key"
DEPOSIT_KEY = b"edgeveil/v1/deposit-key"
MASK = b"edgeveil/v1/mask"
MASK_CHECK = b"edgeveil/v1/mask-check"
CHECK_KEY = b"edgeveil/v1/check-key"
CHECK_COMMITMENT = b"edgeveil/v1/check-commitment"

# Keyed hashes: a link of the privacy ledger, an evaluation record's slot, a record's rank; and a
# device's noise: the key of one noise context, its secret samples, the noise on one exact sum.
LEDGER_LINK = b"edgeveil/v1/ledger-link"
EVALUATION_SLOT = b"edgeveil/v1/evaluation-slot"
RECORD_RANK = b"edgeveil/v1/record-rank"
NOISE_QUESTION = b"edgeveil/v1/noise-question"
NOISE_SAMPLES = b"edgeveil/v1/noise-samples"
NOISE_SUM = b"edgeveil/v1/noise-sum"

# Keyed hashes of records under a key derived from a public seed: withheld for the cloud's test,
# assigned to a device, perturbed.
PUBLIC_SEED = b"edgeveil/v1/public-seed"
RECORD_HELD = b"edgeveil/v1/record-held"
RECORD_DEALT = b"edgeveil/v1/record-dealt"
RECORD_DISTURBED = b"edgeveil/v1/record-disturbed"

# Unkeyed hash of a stored record: a row's cells or a file's bytes.
RECORD_STORED = b"edgeveil/v1/record-stored"

# Unkeyed hash of the public key with which a box requests a certificate, used in a topic.
CLAIM_KEY = b"edgeveil/v1/claim-key"


def context(label: bytes, *parts: bytes) -> bytes:
    """Return the label, NUL, then each part after its 4-byte big-endian length."""
    return separated(label) + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def separated(label: bytes) -> bytes:
    """Return the label and a NUL. Raises CryptoError if the label is empty or holds a NUL."""
    if not label or b"\0" in label:
        raise CryptoError("a label must be non-empty and free of NUL")
    return label + b"\0"
