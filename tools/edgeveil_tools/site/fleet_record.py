"""What a site knows of its fleet: public facts of every party, and what was last applied.

No secret is in it: a party's keys are its own, and what is kept of a password is its hash.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509

from edgeveil.errors import UsageError
from edgeveil.storage import write_durably

FORMAT = 1


@dataclass(frozen=True)
class Party:
    """What is known of one party: nothing secret.

    `certificates` by broker domain (PEM), `issues` how many of each there were; `word` is its
    password's hash; `files` and `text` are what its last bundle held, digests and site file, and
    `believes` a digest of what the root told it. A device is in `cell` and was in those of `left`
    before; `move` is its newest note, as JSON has it.
    """

    name: str
    kind: str  # cloud, proxy, broker, edge
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

    @classmethod
    def load(cls, path: Path) -> FleetRecord:
        if not path.exists():
            return cls()
        try:
            said = json.loads(path.read_bytes())
            if said.pop("format") != FORMAT:
                fix = "use the edgeveil that wrote it, or a newer one"
                raise UsageError("is of another version", where=str(path), fix=fix)
            parties = {name: Party(name=name, **one) for name, one in said.pop("parties").items()}
            return cls(parties=parties, **said)
        except (ValueError, TypeError, KeyError):
            fix = "restore it from a backup"
            raise UsageError("is damaged", where=str(path), fix=fix) from None

    def save(self, path: Path) -> None:
        parties = {}
        for name, party in self.parties.items():
            plain = asdict(party)
            plain.pop("name")
            parties[name] = plain
        said = {"format": FORMAT, **{k: v for k, v in vars(self).items() if k != "parties"}}
        raw = json.dumps({**said, "parties": parties}, indent=1) + "\n"
        write_durably(path, raw.encode(), mode=0o600)
