"""Signed notes that assign moved devices to cells, one JSON object per line.

    {"sealing": hex, "cell": "south", "epoch": 0, "number": 2, "signature": hex}

A note identifies a device by the sealing key of its enrolment, which the cloud sees in rosters
anyway. The root lists the signing key (`Delegated.site`); `epoch` is that key's, and `number` grows
with each move of the device.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeveil.crypto.keys import SealingKey, SigningKey, sign, verify
from edgeveil.crypto.labels import MOVE
from edgeveil.errors import CryptoError
from edgeveil.storage import json_object
from edgeveil.trust.metadata import CELL, Delegated, RoleKey, TrustError

FILE_BYTES = 64 << 20
_KEYS = {"sealing", "cell", "epoch", "number", "signature"}
_BOUND = 2**31  # of epochs and numbers
_FIX = "create it again: edgeveil site apply"


@dataclass(frozen=True)
class Move:
    """Assignment of the device enrolled with `sealing` to `cell` ("": the unnamed cell)."""

    sealing: SealingKey
    cell: str
    epoch: int
    number: int
    signature: bytes

    @classmethod
    def make(cls, key: SigningKey, epoch: int, sealing: SealingKey, cell: str, number: int) -> Move:
        """Sign with the site's key of that epoch."""
        signature = sign(key, MOVE, _signed_bytes(sealing, cell, epoch, number))
        return cls(sealing, cell, epoch, number, signature)

    @property
    def order(self) -> int:
        return self.epoch * _BOUND + self.number

    def verify(self, site: RoleKey | None) -> None:
        """Raise TrustError `no_site_key`, `old_epoch` or `forged_move` for an invalid note."""
        if site is None:
            what, fix = (
                "the root lists no key that moves devices",
                "edgeveil trust rotate DIR site site.pub",
            )
            raise TrustError("no_site_key", what, fix=fix)
        if self.epoch != site.epoch:
            raise TrustError("old_epoch", "a move is signed with a key that was replaced", fix=_FIX)
        content = _signed_bytes(self.sealing, self.cell, self.epoch, self.number)
        if not verify(site.key, MOVE, content, self.signature):
            raise TrustError("forged_move", "a move is not signed by the site", fix=_FIX)

    def to_plain(self) -> dict[str, Any]:
        return {
            "sealing": self.sealing.to_bytes().hex(),
            "cell": self.cell,
            "epoch": self.epoch,
            "number": self.number,
            "signature": self.signature.hex(),
        }

    @classmethod
    def from_plain(cls, plain: object, where: str = "") -> Move:
        """Parse a note, unverified. Raises TrustError `malformed_move`."""
        try:
            if not isinstance(plain, dict) or set(plain) != _KEYS:
                raise ValueError
            cell, epoch, number = plain["cell"], plain["epoch"], plain["number"]
            whole = all(type(one) is int and 0 <= one < _BOUND for one in (epoch, number))
            if not whole or not isinstance(cell, str) or (cell and not CELL.fullmatch(cell)):
                raise ValueError
            sealing = SealingKey(bytes.fromhex(plain["sealing"]))
            return cls(sealing, cell, epoch, number, bytes.fromhex(plain["signature"]))
        except (ValueError, TypeError, CryptoError):
            what = "is no note of a move"
            raise TrustError("malformed_move", what, where=where, fix=_FIX) from None


def moved_cells(moves: Iterable[Move], delegated: Delegated) -> dict[bytes, str]:
    """Return each moved device's cell by sealing key, from its newest valid note."""
    newest: dict[bytes, Move] = {}
    for move in moves:
        try:
            move.verify(delegated.site)
        except TrustError:
            continue
        key = move.sealing.to_bytes()
        if key not in newest or newest[key].order < move.order:
            newest[key] = move
    return {key: move.cell for key, move in newest.items()}


def write_moves(moves: Iterable[Move]) -> bytes:
    return "".join(json.dumps(move.to_plain()) + "\n" for move in moves).encode()


def read_moves(path: Path) -> list[Move]:
    """Read the notes of a file, unverified. Raises TrustError."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise TrustError("no_moves_file", what, where=str(path), fix=_FIX) from None
    if len(raw) > FILE_BYTES:
        what = f"is larger than {FILE_BYTES} bytes"
        raise TrustError("malformed_move", what, where=str(path), fix=_FIX)
    lines = enumerate(raw.splitlines(), 1)
    return [Move.from_plain(json_object(line), f"{path}:{number}") for number, line in lines]


def _signed_bytes(sealing: SealingKey, cell: str, epoch: int, number: int) -> bytes:
    numbers = epoch.to_bytes(4, "big") + number.to_bytes(4, "big")
    return sealing.to_bytes() + numbers + cell.encode()
