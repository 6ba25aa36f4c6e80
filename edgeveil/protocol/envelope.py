"""Signed headers and bodies: who says what, checked before it is believed."""

from __future__ import annotations

from typing import TypeVar

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.crypto.labels import BODY, HEADER
from edgeveil.crypto.signing import sign, verify
from edgeveil.errors import ProtocolError
from edgeveil.protocol.codec import encode_inner
from edgeveil.protocol.messages import Body, Header, Note, Offer, Signed

T = TypeVar("T", bound=Header | Body)


class Signer:
    """One party's name and signing key."""

    def __init__(self, name: str, key: SigningKey) -> None:
        self.name, self._key = name, key

    def header(self, header: Header) -> Signed:
        """The signed header of an offer."""
        payload = encode_inner(header)
        return Signed(self.name, payload, sign(self._key, HEADER, payload))

    def offer(self, header: Header, data: bytes = b"") -> Offer:
        """An offer of the blob that the header names."""
        return Offer(self.header(header), data)

    def note(self, body: Body) -> Note:
        """A signed statement."""
        payload = encode_inner(body)
        return Note(Signed(self.name, payload, sign(self._key, BODY, payload)))


def check(signed: Signed, signer: str, key: VerifyKey | None, label: bytes) -> None:
    """Raise ProtocolError `unknown_signer` or `forged` unless `signer` signed this."""
    if key is None or signed.signer != signer:
        raise ProtocolError("unknown_signer")
    if not verify(key, label, signed.payload, signed.signature):
        raise ProtocolError("forged")
