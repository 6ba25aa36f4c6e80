"""Identities admitted by the proxy's operator, in SQLite; read from memory.

Commands change it beside a running proxy, which polls `changed()`: one pragma if nothing did.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgeveil.crypto.keys import SealingKey, VerifyKey
from edgeveil.crypto.labels import ENROLMENT
from edgeveil.crypto.sealing import seal
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.errors import CryptoError, EdgeVeilError
from edgeveil.storage import SqliteFile

REGISTRY_FILE = "registry.sqlite"
NOTE_CHARACTERS = 200
ROSTER_VALID_S = 24 * 3600.0
_VERSION = 3

_SCHEMA = """
CREATE TABLE device (
  id TEXT PRIMARY KEY,
  identity BLOB NOT NULL UNIQUE,
  sealing BLOB NOT NULL UNIQUE,
  note TEXT NOT NULL,
  admitted_s REAL NOT NULL,
  revoked_s REAL,
  sealing_number INTEGER NOT NULL DEFAULT 0,
  move_order INTEGER NOT NULL DEFAULT -1,
  moved_away INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE roster (epoch INTEGER NOT NULL, lineage TEXT NOT NULL) STRICT;
INSERT INTO roster VALUES (0, lower(hex(randomblob(16))));
"""

# Steps from each version to the next.
_STEPS = {
    1: """
ALTER TABLE roster ADD COLUMN lineage TEXT NOT NULL DEFAULT '';
UPDATE roster SET lineage = lower(hex(randomblob(16)));
ALTER TABLE device ADD COLUMN sealing_number INTEGER NOT NULL DEFAULT 0;
""",
    2: """
ALTER TABLE device ADD COLUMN move_order INTEGER NOT NULL DEFAULT -1;
ALTER TABLE device ADD COLUMN moved_away INTEGER NOT NULL DEFAULT 0;
""",
}


class RegistryError(EdgeVeilError):
    """The registry cannot be opened or changed."""


@dataclass(frozen=True)
class _AdmittedDevice:
    """An identity, with the operator's `note`; times are seconds since 1970."""

    device_id: str
    identity: VerifyKey
    sealing: SealingKey
    note: str
    admitted_s: float
    revoked_s: float | None

    @property
    def active(self) -> bool:
        return self.revoked_s is None


@dataclass(frozen=True)
class MovedDevice:
    """A device moved to this cell (`here`) or away; `order` grows with each move."""

    enrolment: Enrolment
    note: str
    order: int
    here: bool


class Registry:
    """At most `limit` active devices, for one thread; methods may raise RegistryError."""

    def __init__(
        self, path: Path, *, limit: int = 100_000, now_s: Callable[[], float] = time.time
    ) -> None:
        self._path, self._limit, self._now_s = path, limit, now_s
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot be opened ({error.strerror})"
            raise RegistryError(what, where=str(path), fix="check state_dir") from error
        # A write-ahead log cannot be created by two processes at once, which may happen here.
        self._file = SqliteFile(
            path,
            "the registry of devices",
            _SCHEMA,
            error=RegistryError,
            rollback_journal=True,
            version=_VERSION,
            steps=_STEPS,
        )
        self._room = 0  # number of further devices, within a transaction
        self._seen_version = self._seen_epoch = self._epoch = -1
        self.lineage = ""  # 32 hexadecimal digits, new if the registry is rebuilt
        self._entries: dict[str, _AdmittedDevice] = {}
        self.changed()

    def close(self) -> None:
        self._file.close()

    def verify_key(self, device_id: str) -> VerifyKey | None:
        entry = self._entries.get(device_id)
        return entry.identity if entry and entry.active else None

    def device(self, device_id: str) -> _AdmittedDevice | None:
        return self._entries.get(device_id)

    @property
    def roster_epoch(self) -> int:
        return self._epoch

    def roster(self) -> tuple[int, bytes]:
        """Return the epoch, which grows with every change, and all active sealing keys, sorted."""
        keys = [entry.sealing.to_bytes() for entry in self._entries.values() if entry.active]
        return self._epoch, b"".join(sorted(keys))

    def roster_expires_s(self) -> float:
        return self._now_s() + ROSTER_VALID_S

    def admitted(self) -> Collection[str]:
        return [device for device, entry in self._entries.items() if entry.active]

    def changed(self) -> bool:
        """Load changes of any process; return whether there were some since the last call."""
        with self._file.guard() as db:
            version = int(db.execute("PRAGMA data_version").fetchone()[0])
            if version != self._seen_version:
                self._load()
                self._seen_version = version
        news = self._epoch != self._seen_epoch
        self._seen_epoch = self._epoch
        return news

    def devices(self, *, revoked: bool = False) -> tuple[_AdmittedDevice, ...]:
        """Return active identities (default) or all, oldest first."""
        entries = sorted(self._entries.values(), key=lambda e: (e.admitted_s, e.device_id))
        return tuple(entry for entry in entries if entry.active or revoked)

    def admit(self, enrolment: Enrolment, note: str = "", *, again: bool = False) -> bool:
        """Admit a device, a revoked one only with `again`; return whether it was inactive."""
        return self.admit_many([enrolment], note, again=again) == 1

    def admit_many(
        self,
        enrolments: Iterable[Enrolment],
        note: str = "",
        *,
        again: bool = False,
        notes: Mapping[str, str] | None = None,
    ) -> int:
        """Admit all or none; return the number admitted. Raises EnrolmentError."""
        own = notes or {}
        if any(len(text) > NOTE_CHARACTERS for text in (note, *own.values())):
            raise EnrolmentError(f"the note is over {NOTE_CHARACTERS} characters", fix="shorten it")
        devices = list(enrolments)
        for enrolment in devices:
            enrolment.verify()
        admitted = 0
        with self._change() as db:
            for enrolment in devices:
                own_note = own.get(enrolment.device_id, note)
                admitted += self._admit(db, enrolment, own_note, again=again)
        return admitted

    def _admit(
        self, db: sqlite3.Connection, enrolment: Enrolment, note: str, *, again: bool
    ) -> bool:
        device, sealing = enrolment.device_id, enrolment.sealing.to_bytes()
        rows = db.execute(
            "SELECT id, sealing, revoked_s IS NULL FROM device WHERE id = ? OR sealing = ?",
            (device, sealing),
        ).fetchall()
        for known, known_sealing, active in rows:
            if known != device:
                fix = "enrol the device again with its own keys"
                raise EnrolmentError(f"device {known} has this sealing key already", fix=fix)
            if known_sealing != sealing:
                fix = "restore the device's keys, or enrol it anew with a new state_dir"
                what = f"device {device} is enrolled with another sealing key"
                raise EnrolmentError(what, fix=fix)
            if active:
                return False
        if self._room <= 0:
            what, fix = f"{self._limit} devices are admitted already", "raise it in the site file"
            raise EnrolmentError(what, where="limits.devices", fix=fix)
        if rows and not again:
            fix = "to admit it on purpose: edgeveil proxy admit --again"
            raise EnrolmentError(f"device {device} was revoked", fix=fix)
        if rows:
            db.execute("UPDATE device SET revoked_s = NULL WHERE id = ?", (device,))
        else:
            db.execute(
                "INSERT INTO device VALUES (?, ?, ?, ?, ?, NULL, 0, -1, 0)",
                (device, enrolment.identity.to_bytes(), sealing, note, self._now_s()),
            )
        self._room -= 1
        return True

    def renew_sealing(self, device_id: str, sealing: SealingKey, number: int) -> bool:
        """Store a newer sealing key of an active device; return False if not possible."""
        try:
            seal(sealing, ENROLMENT, b"")
        except CryptoError:
            return False
        with self._file.transaction() as db:
            taken = db.execute(
                "SELECT 1 FROM device WHERE sealing = ? AND id <> ?",
                (sealing.to_bytes(), device_id),
            ).fetchone()
            changed = not taken and bool(
                db.execute(
                    "UPDATE device SET sealing = ?, sealing_number = ?"
                    " WHERE id = ? AND sealing_number < ? AND revoked_s IS NULL",
                    (sealing.to_bytes(), number, device_id, number),
                ).rowcount
            )
            if changed:
                query = "UPDATE roster SET epoch = epoch + 1 RETURNING epoch"
                epoch = int(db.execute(query).fetchone()[0])
        if changed and epoch == self._epoch + 1:  # a single renewal need not reload all devices
            self._epoch = epoch
            self._entries[device_id] = replace(self._entries[device_id], sealing=sealing)
        elif changed:
            self._load()
        return changed

    def revoke(self, device_id: str) -> bool:
        """Revoke a device; return False if it was. Raises EnrolmentError if unknown."""
        out = self.revoke_many([device_id])
        if device_id not in self._entries:
            what = f"no device '{device_id[:64]}'"
            raise EnrolmentError(what, fix="see edgeveil proxy devices")
        return bool(out)

    def revoke_many(self, device_ids: Iterable[str]) -> int:
        """Revoke devices in one transaction, ignoring unknown ones; return how many were active."""
        query = "UPDATE device SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL"
        out = [(self._now_s(), device_id) for device_id in device_ids]
        with self._change() as db:
            return max(0, db.executemany(query, out).rowcount)

    def followed_moves(self) -> dict[str, int]:
        """Return the order of each known device's last move; the default is -1."""
        with self._file.guard() as db:
            return dict(db.execute("SELECT id, move_order FROM device").fetchall())

    def follow_moves(self, moved: Iterable[MovedDevice]) -> int:
        """Apply moves, all or none; return how many changed. Raises EnrolmentError.

        Returning devices keep their newest sealing key; revoked ones stay revoked."""
        with self._change() as db:
            return sum(self._follow(db, one) for one in moved)

    def _follow(self, db: sqlite3.Connection, one: MovedDevice) -> bool:
        device = one.enrolment.device_id
        row = db.execute(
            "SELECT move_order, revoked_s IS NULL, moved_away FROM device WHERE id = ?", (device,)
        ).fetchone()
        if row is None and not one.here:
            return False
        changed = False
        if row is None:
            one.enrolment.verify()
            changed = self._admit(db, one.enrolment, one.note, again=False)
        else:
            order, active, away = row
            if order > one.order:
                what = f"an older move of device {device} than the one that was followed"
                raise EnrolmentError(what, fix="install the newest bundle of this cell's proxy")
            if order == one.order:
                return False
            if active and not one.here:
                query = "UPDATE device SET revoked_s = ?, moved_away = 1 WHERE id = ?"
                db.execute(query, (self._now_s(), device))
                self._room, changed = self._room + 1, True
            elif one.here and away:
                query = "UPDATE device SET revoked_s = NULL, moved_away = 0 WHERE id = ?"
                db.execute(query, (device,))
                self._room, changed = self._room - 1, True
        db.execute("UPDATE device SET move_order = ? WHERE id = ?", (one.order, device))
        return changed

    def _load(self) -> None:
        with self._file.transaction("BEGIN") as db:  # a consistent snapshot
            self._epoch, self.lineage = db.execute("SELECT epoch, lineage FROM roster").fetchone()
            rows = db.execute("SELECT * FROM device").fetchall()
        entries = (
            _AdmittedDevice(i, VerifyKey(v), SealingKey(s), n, a, r)
            for i, v, s, n, a, r, *_ in rows
        )
        self._entries = {entry.device_id: entry for entry in entries}

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that increments the epoch if it changes the active devices."""
        query = "SELECT id FROM device WHERE revoked_s IS NULL"
        with self._file.transaction() as db:
            before = set(db.execute(query))
            self._room = self._limit - len(before)
            yield db
            if set(db.execute(query)) != before:
                db.execute("UPDATE roster SET epoch = epoch + 1")
        self._load()
