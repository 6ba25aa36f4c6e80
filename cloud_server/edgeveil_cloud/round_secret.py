"""What opens the answers to one round, or the reports on one release."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeveil.crypto.keys import OpeningKey


@dataclass(frozen=True)
class RoundSecret:
    """What opens one round's segments; deleted when the round commits (forward secrecy).

    `recipients` are the public keys that were asked: every attempt at a round asks the same ones,
    since a device sends the same tensors again, and the tensors that come back from differing
    selections would tell who sent which. `checked`: the manifest commits to the factors by which
    the masks of single uploads are checked.
    """

    opening: OpeningKey
    membership: bytes = field(repr=False)
    recipients: tuple[bytes, ...] = field(default=(), repr=False)
    checked: bool = False

    def to_bytes(self) -> bytes:
        """Key (32), membership tag (32), recipients (32 each); one byte more if `checked`."""
        recipients = b"".join(self.recipients)
        return self.opening.to_bytes() + self.membership + recipients + b"\1" * self.checked

    @classmethod
    def from_bytes(cls, raw: bytes) -> RoundSecret:
        """From the store."""
        checked = len(raw) % 32 == 1
        keys = tuple(raw[i : i + 32] for i in range(64, len(raw) - checked, 32))
        return cls(OpeningKey(raw[:32]), raw[32:64], keys, checked)
