"""Log of administrators' actions, one per line, chained and signed.

    {"number": 1, "time": "2026-01-31T12:00:00Z", "action": "rotate", "what": {…},
     "before": SHA-256 of the line before (hex), "key": 64 hex digits, "signature": 128 hex digits}

The public keys reveal a changed, missing or misplaced line, the newest number lines cut off at the
end. A process's log (`OwnAuditLog`) is signed with its current key; the first line of a new key
names the key before.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from edgeveil.crypto.keys import SigningKey, VerifyKey, sign, verify
from edgeveil.crypto.labels import ADMIN_ACTION
from edgeveil.errors import CryptoError, EdgeVeilError
from edgeveil.storage import json_object

AUDIT_FILE = "audit.jsonl"
NEW_KEY = "new_key"
_FIRST = hashlib.sha256(b"").hexdigest()
_LINE_BYTES = 1 << 16


class AuditLogError(EdgeVeilError):
    """The log is damaged or was altered."""

    exit_code = 2


class AuditLog:
    """The log at `path`, signed with `key`; `succeeds`: a new key may follow the last line's."""

    def __init__(self, path: Path, key: SigningKey, *, succeeds: bool = False) -> None:
        self._path, self._key, self._succeeds = path, key, succeeds

    def append(self, action: str, what: Mapping[str, Any]) -> None:
        """Add a line durably. Raises OSError, and AuditLogError if the last line is damaged."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = _last_line(file)
            end = file.tell()
            entry = _entry(last, str(self._path)) if last else None
            own, key_change = self._key.public().to_bytes().hex(), b""
            if self._succeeds and entry is not None and entry["key"] != own:
                last = self._line(last, entry, NEW_KEY, {"before": entry["key"]})
                key_change = last + b"\n"
                entry = _entry(last, str(self._path))
            line = self._line(last, entry, action, what)
            if len(line) > _LINE_BYTES:
                raise AuditLogError("a line would be too long", where=str(self._path))
            try:
                remaining = key_change + line + b"\n"
                while remaining:
                    remaining = remaining[file.write(remaining) :]
                os.fsync(descriptor)
            except OSError:  # half a line would block every later one
                os.ftruncate(descriptor, end)
                raise

    def _line(
        self, last: bytes, before: Mapping[str, Any] | None, action: str, what: Mapping[str, Any]
    ) -> bytes:
        entry = {
            "number": before["number"] + 1 if before else 1,
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "action": action,
            "what": dict(what),
            "before": hashlib.sha256(last).hexdigest(),
            "key": self._key.public().to_bytes().hex(),
        }
        entry["signature"] = sign(self._key, ADMIN_ACTION, _payload(entry)).hex()
        return json.dumps(entry, ensure_ascii=True).encode()


def read_audit(path: Path, keys: frozenset[VerifyKey] | None = None) -> list[Mapping[str, Any]]:
    """Return all lines, verified, of `keys` only if given. Raises AuditLogError."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    found: list[Mapping[str, Any]] = []
    before = _FIRST
    for number, line in enumerate(raw.splitlines(), 1):
        where = f"{path}:{number}"
        entry = _entry(line, where)
        if entry["number"] != number or entry["before"] != before:
            raise AuditLogError("does not follow the line before", where=where)
        try:
            key = VerifyKey(bytes.fromhex(entry["key"]))
            right = verify(key, ADMIN_ACTION, _payload(entry), bytes.fromhex(entry["signature"]))
        except (CryptoError, ValueError):
            right = False
        if not right:
            raise AuditLogError("its signature is not right", where=where)
        if keys is not None and key not in keys:
            raise AuditLogError(f"is signed by an unknown key, {key.fingerprint()}", where=where)
        found.append(entry)
        before = hashlib.sha256(line).hexdigest()
    return found


class OwnAuditLog:
    """A process's log, `audit.jsonl` in its state folder, signed by the key that `key` returns."""

    def __init__(self, state_dir: Path, key: Callable[[], SigningKey]) -> None:
        self._path, self._key = state_dir / AUDIT_FILE, key

    def append(self, action: str, what: Mapping[str, Any]) -> None:
        """Add a line durably before its action. Raises AuditLogError: then do not act."""
        try:
            AuditLog(self._path, self._key(), succeeds=True).append(action, what)
        except OSError as error:
            text = f"cannot be written ({error.strerror}), and nothing is done unlogged"
            fix = "free some space and check the folder's permissions"
            raise AuditLogError(text, where=str(self._path), fix=fix) from error

    def read(self) -> list[Mapping[str, Any]]:
        """Return all lines, signed by the current key or predecessors. Raises AuditLogError."""
        found = read_audit(self._path)
        known = {self._key().public().to_bytes().hex()}
        for entry in reversed(found):
            if entry["key"] not in known:
                where = f"{self._path}:{entry['number']}"
                raise AuditLogError("is signed by an unknown key", where=where)
            if entry["action"] == NEW_KEY:
                known.add(str(entry["what"].get("before", "")))
        return found


def _last_line(file: FileIO) -> bytes:
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - 2 * _LINE_BYTES - 2)
    file.seek(start)
    raw = file.read()
    whole = raw[: raw.rfind(b"\n") + 1]
    if start and not whole:
        return raw  # longer than any line
    if len(whole) < len(raw):
        file.truncate(start + len(whole))
        file.seek(0, os.SEEK_END)
    lines = whole.splitlines()
    return lines[-1] if lines else b""


def _payload(entry: Mapping[str, Any]) -> bytes:
    signed = {key: value for key, value in entry.items() if key != "signature"}
    return json.dumps(signed, sort_keys=True).encode()


def _entry(line: bytes, where: str) -> dict[str, Any]:
    kinds: dict[str, type] = {"number": int, "what": dict}
    kinds |= dict.fromkeys(("time", "action", "before", "key", "signature"), str)
    found = json_object(line) if len(line) <= _LINE_BYTES else None
    if (
        found is None
        or set(found) != set(kinds)
        or any(type(found[key]) is not kind for key, kind in kinds.items())
    ):
        fix = "move it elsewhere as evidence; a new log is started"
        raise AuditLogError("holds a line that is damaged", where=where, fix=fix)
    return found
