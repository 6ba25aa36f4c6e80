"""Signed notes of which cell a moved device belongs to, one JSON object a line.

    {"sealing": hex, "cell": "south", "epoch": 0, "number": 2, "signature": hex}

A note names a device only by the sealing key that it enrolled with, which the cloud sees in rosters
anyway. The root names the key that signs (`Delegated.site`); `epoch` is that key's, and `number`
grows with each move of the device.
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
from edgeveil.trust.metadata import CELL, Delegated, RoleKey, TrustError

FILE_BYTES = 64 << 20
_KEYS = {"sealing", "cell", "epoch", "number", "signature"}
_BOUND = 2**31  # of epochs and numbers
_FIX = "make it again: edgeveil site apply"


@dataclass(frozen=True)
class Move:
    """`cell` is where the device that enrolled with `sealing` belongs; empty: the unnamed cell."""

    sealing: SealingKey
    cell: str
    epoch: int
    number: int
    signature: bytes

    @classmethod
    def make(cls, key: SigningKey, epoch: int, sealing: SealingKey, cell: str, number: int) -> Move:
        """Sign with the site's key of that epoch."""
        signature = sign(key, MOVE, _said(sealing, cell, epoch, number))
        return cls(sealing, cell, epoch, number, signature)

    @property
    def order(self) -> int:
        """Grows from each note of a device to the next one."""
        return self.epoch * _BOUND + self.number

    def verify(self, site: RoleKey | None) -> None:
        """Raises TrustError `no_site_key`, `old_epoch` or `forged_move`."""
        if site is None:
            what, fix = (
                "the root names nobody who moves devices",
                "edgeveil trust rotate DIR site site.pub",
            )
            raise TrustError("no_site_key", what, fix=fix)
        if self.epoch != site.epoch:
            raise TrustError("old_epoch", "a move is signed with a key that was replaced", fix=_FIX)
        said = _said(self.sealing, self.cell, self.epoch, self.number)
        if not verify(site.key, MOVE, said, self.signature):
            raise TrustError("forged_move", "a move is not signed by the site", fix=_FIX)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "sealing": self.sealing.to_bytes().hex(),
            "cell": self.cell,
            "epoch": self.epoch,
            "number": self.number,
            "signature": self.signature.hex(),
        }

    @classmethod
    def from_plain(cls, said: object, where: str = "") -> Move:
        """By its form alone. Raises TrustError `malformed_move`."""
        try:
            if not isinstance(said, dict) or set(said) != _KEYS:
                raise ValueError
            cell, epoch, number = said["cell"], said["epoch"], said["number"]
            whole = all(type(one) is int and 0 <= one < _BOUND for one in (epoch, number))
            if not whole or not isinstance(cell, str) or (cell and not CELL.fullmatch(cell)):
                raise ValueError
            sealing = SealingKey(bytes.fromhex(said["sealing"]))
            return cls(sealing, cell, epoch, number, bytes.fromhex(said["signature"]))
        except (ValueError, TypeError, CryptoError):
            what = "is no note of a move"
            raise TrustError("malformed_move", what, where=where, fix=_FIX) from None


def moved_cells(moves: Iterable[Move], said: Delegated) -> dict[bytes, str]:
    """The cell of each moved device by its sealing key (32 bytes), by its newest valid note."""
    newest: dict[bytes, Move] = {}
    for move in moves:
        try:
            move.verify(said.site)
        except TrustError:
            continue
        key = move.sealing.to_bytes()
        if key not in newest or newest[key].order < move.order:
            newest[key] = move
    return {key: move.cell for key, move in newest.items()}


def write_moves(moves: Iterable[Move]) -> bytes:
    """As the file has them."""
    return "".join(json.dumps(move.to_plain()) + "\n" for move in moves).encode()


def read_moves(path: Path) -> list[Move]:
    """All notes of a file; signatures are not checked. Raises TrustError."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise TrustError("no_moves_file", what, where=str(path), fix=_FIX) from None
    if len(raw) > FILE_BYTES:
        what = f"is larger than {FILE_BYTES} bytes"
        raise TrustError("malformed_move", what, where=str(path), fix=_FIX)
    found = []
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        found.append(Move.from_plain(said, f"{path}:{number}"))
    return found


def _said(sealing: SealingKey, cell: str, epoch: int, number: int) -> bytes:
    numbers = epoch.to_bytes(4, "big") + number.to_bytes(4, "big")
    return sealing.to_bytes() + numbers + cell.encode()
