"""`devices.jsonl`: devices that the fleet file admits or revokes, one JSON object per line.

    {"enrolment": {…}, "note": "box-1", "revoked": false}

Devices not in it are unchanged, and devices revoked here stay revoked. `move` is the site's signed
note (`edgeveil.trust.moves`): admits the device in the cell it names, drops it elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.storage import file_stamp, json_object
from edgeveil.trust.metadata import RoleKey
from edgeveil.trust.moves import Move
from edgeveil_proxy.registry import NOTE_CHARACTERS, MovedDevice, Registry

FILE_BYTES = 256 << 20
_FIX = "create it again: edgeveil site apply"
_KEYS = {"enrolment", "note", "revoked"}


@dataclass(frozen=True)
class DeviceEntry:
    enrolment: Enrolment
    note: str
    revoked: bool
    move: Move | None = None

    def to_line(self) -> str:
        entry = {
            "enrolment": json.loads(self.enrolment.to_line()),
            "note": self.note,
            "revoked": self.revoked,
            **({"move": self.move.to_plain()} if self.move else {}),
        }
        return json.dumps(entry) + "\n"


def read_devices(path: Path) -> list[DeviceEntry]:
    """Return all entries, with unverified signatures; raises EnrolmentError."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise EnrolmentError(what, where=str(path), fix="check devices_file") from error
    if len(raw) > FILE_BYTES:
        raise EnrolmentError(f"is larger than {FILE_BYTES} bytes", where=str(path), fix=_FIX)
    return [_line(line, f"{path}:{n}") for n, line in enumerate(raw.splitlines(), 1)]


def _line(line: bytes, where: str) -> DeviceEntry:
    entry = json_object(line)
    if entry is None:
        raise EnrolmentError("is no JSON object", where=where, fix=_FIX)
    if set(entry) - {"move"} != _KEYS:
        wanted = ", ".join(sorted(_KEYS))
        raise EnrolmentError(f"must have the keys {wanted}", where=where, fix=_FIX)
    note, revoked = entry["note"], entry["revoked"]
    if not isinstance(note, str) or len(note) > NOTE_CHARACTERS or not isinstance(revoked, bool):
        raise EnrolmentError("has an unusable note or revoked", where=where, fix=_FIX)
    enrolment = Enrolment.from_json(json.dumps(entry["enrolment"]).encode(), where)
    move = Move.from_plain(entry["move"], where) if "move" in entry else None
    if move is not None and move.sealing != enrolment.sealing:
        raise EnrolmentError("has another device's move", where=where, fix=_FIX)
    return DeviceEntry(enrolment, note, revoked, move)


class DevicesFile:
    """Applies the file to a cell's registry; `site` returns the key that signs moves."""

    def __init__(
        self,
        path: Path,
        registry: Registry,
        cell: str = "",
        site: Callable[[], RoleKey | None] = lambda: None,
    ) -> None:
        self._path, self._registry, self._cell, self._site = path, registry, cell, site
        self._taken = (0, 0)

    def look(self) -> bool:
        """Apply a changed file; return whether it was. Raises EnrolmentError or TrustError."""
        stamp = file_stamp(self._path)
        if stamp == self._taken and stamp != (0, 0):
            return False
        planned = read_devices(self._path)
        moved = self._moved(planned)
        self._taken = stamp
        known = {device.device_id for device in self._registry.devices(revoked=True)}
        there = [one for one in planned if not one.revoked and one.move is None]
        new = [one for one in there if one.enrolment.device_id not in known]
        notes = {one.enrolment.device_id: one.note for one in new}
        if new:
            self._registry.admit_many([one.enrolment for one in new], notes=notes)
        if moved:
            self._registry.follow_moves(moved)
        out = [one.enrolment.device_id for one in planned if one.revoked]
        self._registry.revoke_many(out)
        return True

    def _moved(self, planned: list[DeviceEntry]) -> list[MovedDevice]:
        moved = [one for one in planned if one.move is not None and not one.revoked]
        followed, found = self._registry.followed_moves() if moved else {}, []
        for one in moved:
            move, device = one.move, one.enrolment.device_id
            if move is None or followed.get(device) == move.order:
                continue
            here = move.cell == self._cell
            if here or device in followed:
                move.verify(self._site())
                found.append(MovedDevice(one.enrolment, one.note, move.order, here))
        return found
