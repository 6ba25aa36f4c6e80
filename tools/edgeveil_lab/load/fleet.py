"""A fleet of simulated devices: keys and broker passwords in one file, made in seconds."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.errors import UsageError
from edgeveil_proxy.registry import Registry

FORMAT = "edgeveil-fleet-1"
_FILE_BYTES = 1 << 30
_MAKE = "make one with edgeveil loadtest --make-fleet"


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One simulated device. All three are secret; they protect nothing but a test."""

    signing: bytes
    opening: bytes
    password: str

    def __repr__(self) -> str:
        return "Member(hidden)"

    def enrolment(self) -> Enrolment:
        """What the proxy's operator admits."""
        return Enrolment.make(SigningKey(self.signing), OpeningKey(self.opening))


class _File(msgspec.Struct, frozen=True):
    format: str
    members: list[Member]


@dataclass(frozen=True)
class Fleet:
    """Simulated devices, in order."""

    members: Sequence[Member] = field(repr=False)

    @classmethod
    def make(cls, count: int) -> Fleet:
        """`count` new devices, from the operating system's randomness."""
        return cls([Member(os.urandom(32), os.urandom(32), _password()) for _ in range(count)])

    def enrolments(self) -> Iterator[Enrolment]:
        """All of them, for the proxy's registry."""
        return (member.enrolment() for member in self.members)

    def users(self, enrolments: Sequence[Enrolment]) -> dict[str, str]:
        """Broker user (the device's id) to password; `enrolments` in the members' order."""
        pairs = zip(enrolments, self.members, strict=True)
        return {enrolment.device_id: member.password for enrolment, member in pairs}

    def to_bytes(self) -> bytes:
        """The file's content."""
        return msgspec.msgpack.encode(_File(FORMAT, list(self.members)))

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> Fleet:
        """Raises UsageError for anything else than a fleet."""
        try:
            found = msgspec.msgpack.decode(raw, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
            found = _File("", [])
        sound = all(len(m.signing) == len(m.opening) == 32 for m in found.members)
        if found.format != FORMAT or not sound:
            raise UsageError(
                "is not a fleet file",
                where=where,
                fix=_MAKE,
            )
        return cls(found.members)

    def save(self, path: Path) -> None:
        """Write the file, mode 0600. Raises UsageError if it exists or cannot be written."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UsageError(
                f"the fleet cannot be written ({error.strerror})",
                where=str(path),
                fix="name a new file in a folder that you may write to",
            ) from None
        with os.fdopen(handle, "wb") as file:
            file.write(self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> Fleet:
        """Read the file. Raises UsageError."""
        try:
            with path.open("rb") as file:
                raw = file.read(_FILE_BYTES)
        except OSError as error:
            raise UsageError(
                f"the fleet cannot be read ({error.strerror})",
                where=str(path),
                fix=_MAKE,
            ) from None
        return cls.from_bytes(raw, str(path))


def admit(registry_file: Path, enrolments: list[Enrolment], limit: int) -> None:
    """Admit all of them at once."""
    registry = Registry(registry_file, limit=limit)
    try:
        registry.admit_many(enrolments, note="load test")
    finally:
        registry.close()


def revoke(registry_file: Path, enrolments: Iterable[Enrolment], limit: int) -> None:
    """Take all of them out again."""
    registry = Registry(registry_file, limit=limit)
    try:
        registry.revoke_many(enrolment.device_id for enrolment in enrolments)
    finally:
        registry.close()


def _password() -> str:
    return secrets.token_urlsafe(24)
