"""`record.json`: public facts of every party as last applied; of passwords only hashes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509

from edgeveil.errors import UsageError
from edgeveil.storage import write_durably

FORMAT = 1


@dataclass(frozen=True)
class Party:
    """One party.

    By broker domain: `certificates` (PEM), `issues` (how many there were), `words` (password
    hashes). `files` (digests), `text` (site file) and `believes` (digest of the root's metadata)
    are of its last bundle. A device is in `cell` and was in those of `left`; `move` is its note.
    """

    name: str = ""
    kind: str = ""  # cloud, proxy, broker, edge
    device_id: str | None = None
    enrolment: str | None = None
    certificates: Mapping[str, str] = field(default_factory=dict)
    issues: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    revoked: str | None = None
    sequence: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    believes: str = ""
    cell: str = ""
    left: tuple[str, ...] = ()
    move: Mapping[str, Any] | None = None

    @property
    def active(self) -> bool:
        """Whether it may take part."""
        return self.revoked is None

    def ends(self) -> datetime.datetime | None:
        """When the first of its certificates ends."""
        pems = self.certificates.values()
        found = [x509.load_pem_x509_certificate(pem.encode()) for pem in pems]
        return min((one.not_valid_after_utc for one in found), default=None)


@dataclass(frozen=True)
class PartyChange:
    """What an apply does to one party: `new`, `moved`, `changed`, `renewed`, `revoked`,
    `unplanned`."""

    name: str
    what: str
    difference: str = ""


@dataclass
class FleetRecord:
    """`record.json`."""

    fleet: str = ""
    sequence: int = 0
    parties: dict[str, Party] = field(default_factory=dict)
    revocations: dict[str, str] = field(default_factory=dict)
    authorities: dict[str, list[str]] = field(default_factory=dict)  # PEM, the newest first
    format: int = FORMAT

    @classmethod
    def load(cls, path: Path) -> FleetRecord:
        if not path.exists():
            return cls()
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError:
            fix = "restore it from a backup"
            raise UsageError("is damaged", where=str(path), fix=fix) from None
        if found.format != FORMAT:
            fix = "use the edgeveil that wrote it, or a newer one"
            raise UsageError("is of another version", where=str(path), fix=fix)
        return replace(found, parties={n: replace(one, name=n) for n, one in found.parties.items()})

    def save(self, path: Path) -> None:
        plain = msgspec.to_builtins(self)
        for party in plain["parties"].values():
            del party["name"]
        raw = msgspec.json.format(msgspec.json.encode(plain), indent=1)
        write_durably(path, raw + b"\n", mode=0o600)
