"""Enrolments: a device's two public keys, signed by itself, for the proxy's operator.

JSON, at most 4 KiB, with exactly these keys; a file for many devices has one object per line:

    {"format": "edgeveil-enrolment-1", "identity": 32 bytes, "sealing": 32 bytes,
     "signature": 64 bytes}      # lower-case hexadecimal

`signature` is the identity key's over identity ‖ sealing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey, VerifyKey, sign, verify
from edgeveil.crypto.labels import ENROLMENT
from edgeveil.crypto.sealing import seal
from edgeveil.errors import CryptoError, EdgeVeilError

FORMAT = "edgeveil-enrolment-1"
FILE_BYTES = 4096
_DIGITS = {"identity": 64, "sealing": 64, "signature": 128}
_FIX = "create the file again on the device with `edgeveil keys`"


class EnrolmentError(EdgeVeilError):
    """An enrolment is unreadable, or its keys do not match its signature."""

    exit_code = 2


@dataclass(frozen=True)
class Enrolment:
    """A device's public keys and the identity key's signature over both."""

    identity: VerifyKey
    sealing: SealingKey
    signature: bytes

    @classmethod
    def make(cls, identity: SigningKey, opening: OpeningKey) -> Enrolment:
        public, sealing = identity.public(), opening.public()
        return cls(public, sealing, sign(identity, ENROLMENT, _payload(public, sealing)))

    @property
    def device_id(self) -> str:
        """16 hexadecimal digits: the fingerprint of the identity key."""
        return self.identity.fingerprint()

    def verify(self) -> None:
        """Raise EnrolmentError unless the identity signed both keys and both are usable."""
        payload = _payload(self.identity, self.sealing)
        if not verify(self.identity, ENROLMENT, payload, self.signature):
            raise EnrolmentError("the identity key did not sign these keys", fix=_FIX)
        try:
            # A key of low order would make every later broadcast fail for all devices.
            seal(self.sealing, ENROLMENT, b"")
        except CryptoError as error:
            raise EnrolmentError(error.what, fix=_FIX) from error

    def to_json(self) -> str:
        return json.dumps(json.loads(self.to_line()), indent=2)

    def to_line(self) -> str:
        plain = {
            "format": FORMAT,
            "identity": self.identity.to_bytes().hex(),
            "sealing": self.sealing.to_bytes().hex(),
            "signature": self.signature.hex(),
        }
        return json.dumps(plain) + "\n"

    @classmethod
    def from_json(cls, raw: bytes, where: str = "enrolment") -> Enrolment:
        """Parse a file without verifying the signature. Raises EnrolmentError."""
        if len(raw) > FILE_BYTES:
            raise EnrolmentError(f"is larger than {FILE_BYTES} bytes", where=where, fix=_FIX)
        try:
            found = json.loads(raw.decode("ascii"), object_pairs_hook=_once)
        except (ValueError, RecursionError):
            raise EnrolmentError("is not an enrolment file", where=where, fix=_FIX) from None
        if not isinstance(found, dict) or set(found) != {"format", *_DIGITS}:
            raise EnrolmentError("is not an enrolment file", where=where, fix=_FIX)
        if found["format"] != FORMAT:
            raise EnrolmentError(f"its format is not '{FORMAT}'", where=where, fix=_FIX)
        for key, digits in _DIGITS.items():
            value = found[key]
            if not isinstance(value, str) or not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
                what = f"'{key}' must be {digits} hexadecimal digits"
                raise EnrolmentError(what, where=where, fix=_FIX)
        keys = {key: bytes.fromhex(found[key]) for key in _DIGITS}
        return cls(VerifyKey(keys["identity"]), SealingKey(keys["sealing"]), keys["signature"])

    @classmethod
    def load(cls, path: Path) -> Enrolment:
        try:
            with path.open("rb") as file:
                raw = file.read(FILE_BYTES + 1)
        except OSError as error:
            what, fix = f"cannot be read ({error.strerror})", "check the path"
            raise EnrolmentError(what, where=str(path), fix=fix) from error
        return cls.from_json(raw, str(path))

    @classmethod
    def load_all(cls, path: Path) -> list[Enrolment]:
        """Read a file of one enrolment, or of one per line. Raises EnrolmentError."""
        found: list[Enrolment] = []
        try:
            with path.open("rb") as file:
                while line := file.readline(FILE_BYTES + 1):
                    if found or line.rstrip().endswith(b"}"):
                        found.append(cls.from_json(line, f"{path}:{len(found) + 1}"))
                    else:
                        return [cls.load(path)]
        except OSError:
            return [cls.load(path)]  # raises the error
        return found or [cls.load(path)]


def _payload(identity: VerifyKey, sealing: SealingKey) -> bytes:
    return identity.to_bytes() + sealing.to_bytes()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found
