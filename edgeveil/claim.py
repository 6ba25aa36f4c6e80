"""One-time claims, by which an unprepared box becomes a device over the edge broker.

A claim is a signing key that works once, for one name, until it expires. The box signs its own new
public keys with it; the proxy admits them and answers with a signed certificate. The claim itself
is never sent. Messages are JSON, at most 8 KiB.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from edgeveil.crypto.keys import SigningKey, VerifyKey, sign, verify
from edgeveil.crypto.labels import CLAIM, CLAIM_ANSWER, CLAIM_KEY, context
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.errors import CryptoError, EdgeVeilError
from edgeveil.storage import json_object

USER = "claim"  # broker user of every box without a certificate of its own
MESSAGE_BYTES = 8192
_PREFIX = "evclaim1-"
_FORMAT = "edgeveil-claim-1"
_POINT_BYTES = 65  # an uncompressed P-256 public key, SEC 1
_FIX = "get a claim from the proxy's operator: edgeveil proxy admit --claim"

# The start of a request in every version, read before parsing.
_HEAD = re.compile(rb'\{"format": "edgeveil-claim-1", "claim": "([0-9a-f]{64})"')

Verdict = Literal["admitted", "waiting", "refused"]


def key_id(key: VerifyKey) -> str:
    """Return the 32 hexadecimal digits that name a request's signing key in a topic."""
    return _id_of(key.to_bytes())


def claimed_key_id(raw: bytes) -> str:
    """Return the unverified `key_id` in a request; "" if none."""
    head = _HEAD.match(raw)
    return _id_of(bytes.fromhex(head[1].decode())) if head else ""


def _id_of(key: bytes) -> str:
    return hashlib.sha256(context(CLAIM_KEY, key)).hexdigest()[:32]


class ClaimError(EdgeVeilError):
    """A claim is malformed or was refused."""

    exit_code = 2


def claim_text(claim: SigningKey) -> str:
    """Return the secret text handed to a box: `evclaim1-` and 43 characters."""
    return _PREFIX + base64.urlsafe_b64encode(claim.to_bytes()).decode().rstrip("=")


def claim_key(text: str) -> SigningKey:
    """Return the key of a claim's text. Raises ClaimError, which shows none of it."""
    bare = text.strip()
    try:
        if not bare.startswith(_PREFIX):
            raise ValueError
        return SigningKey(base64.urlsafe_b64decode(bare.removeprefix(_PREFIX) + "="))
    except (ValueError, binascii.Error, CryptoError):
        raise ClaimError("is no claim", fix=_FIX) from None


@dataclass(frozen=True)
class ClaimRequest:
    """A request to be admitted; `tls_key` is P-256, 65 bytes."""

    claim: VerifyKey
    enrolment: Enrolment
    tls_key: bytes
    signature: bytes

    @classmethod
    def make(cls, claim: SigningKey, enrolment: Enrolment, tls_key: bytes) -> ClaimRequest:
        signature = sign(claim, CLAIM, _asked(enrolment, tls_key))
        return cls(claim.public(), enrolment, tls_key, signature)

    def verify(self) -> None:
        """Raise ClaimError or EnrolmentError unless claim and identity signed the keys."""
        if not verify(self.claim, CLAIM, _asked(self.enrolment, self.tls_key), self.signature):
            raise ClaimError("the claim did not sign these keys", fix=_FIX)
        self.enrolment.verify()

    @property
    def is_renewal(self) -> bool:
        """Whether an admitted device asks, signed with its identity in place of a claim."""
        return self.claim == self.enrolment.identity

    def to_bytes(self) -> bytes:
        fields = {
            "format": _FORMAT,
            "claim": self.claim.to_bytes().hex(),
            "enrolment": json.loads(self.enrolment.to_line()),
            "tls_key": self.tls_key.hex(),
            "signature": self.signature.hex(),
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> ClaimRequest:
        """Parse a request without verifying it. Raises ClaimError."""
        fields = _object(raw, {"format", "claim", "enrolment", "tls_key", "signature"})
        try:
            enrolment = Enrolment.from_json(json.dumps(fields["enrolment"]).encode(), "claim")
            claim = VerifyKey(bytes.fromhex(fields["claim"]))
            tls_key, signature = (bytes.fromhex(fields[key]) for key in ("tls_key", "signature"))
        except (ValueError, TypeError, CryptoError, EnrolmentError):
            raise ClaimError("is no request with a claim") from None
        if len(tls_key) != _POINT_BYTES:
            raise ClaimError("holds no P-256 public key")
        return cls(claim, enrolment, tls_key, signature)


@dataclass(frozen=True)
class ClaimAnswer:
    """The proxy's answer: `certificate` (PEM) if the device is admitted, else `why`."""

    device_id: str
    verdict: Verdict
    why: str = ""
    certificate: str = ""

    def to_bytes(self, proxy: SigningKey) -> bytes:
        fields = {"format": _FORMAT, **vars(self)}
        signature = sign(proxy, CLAIM_ANSWER, json.dumps(fields, sort_keys=True).encode())
        return json.dumps({**fields, "signature": signature.hex()}).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, proxy: VerifyKey) -> ClaimAnswer:
        """Parse and verify an answer. Raises ClaimError unless the proxy signed it."""
        keys = {"format", "device_id", "verdict", "why", "certificate", "signature"}
        fields = _object(raw, keys)
        try:
            signature = bytes.fromhex(fields.pop("signature"))
        except (ValueError, TypeError):
            signature = b""
        signed = json.dumps(fields, sort_keys=True).encode()
        if not verify(proxy, CLAIM_ANSWER, signed, signature):
            raise ClaimError("is not signed by the proxy")
        fields.pop("format")
        return cls(**fields)


def _asked(enrolment: Enrolment, tls_key: bytes) -> bytes:
    return enrolment.identity.to_bytes() + enrolment.sealing.to_bytes() + tls_key


def _object(raw: bytes, keys: set[str]) -> dict[str, Any]:
    if len(raw) > MESSAGE_BYTES:
        raise ClaimError(f"is over {MESSAGE_BYTES} bytes")
    found = json_object(raw)
    if found is None or set(found) != keys or found["format"] != _FORMAT:
        raise ClaimError("is no message about a claim")
    return found
