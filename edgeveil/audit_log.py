"""What administrators did, a line each, chained and signed.

    {"number": 1, "time": "2026-01-31T12:00:00Z", "action": "rotate", "what": {…},
     "before": SHA-256 of the line before (hex), "key": 64 hex digits, "signature": 128 hex digits}

A line that is changed, taken out of the middle or put elsewhere is found by anybody who has the
public keys; lines cut off at the end by whoever remembers the newest number.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgeveil.crypto.keys import SigningKey, VerifyKey, sign, verify
from edgeveil.crypto.labels import ADMIN_ACTION
from edgeveil.errors import CryptoError, EdgeVeilError

AUDIT_FILE = "audit.jsonl"
_FIRST = hashlib.sha256(b"").hexdigest()
_LINE_BYTES = 1 << 16


class AuditLogError(EdgeVeilError):
    """The log is not as its administrators wrote it."""

    exit_code = 2


class AuditLog:
    """The file `path`; lines are signed with `key`."""

    def __init__(
        self, path: Path, key: SigningKey, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._path, self._key, self._now = path, key, now

    def append(self, action: str, what: Mapping[str, Any]) -> None:
        """Add a line, durably. Raises OSError, and AuditLogError where the last line is damaged."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = _last_line(file.read())
            number = _entry(last, self._path)["number"] + 1 if last else 1
            entry = {
                "number": number,
                "time": f"{self._now():%Y-%m-%dT%H:%M:%SZ}",
                "action": action,
                "what": dict(what),
                "before": hashlib.sha256(last).hexdigest(),
                "key": self._key.public().to_bytes().hex(),
            }
            entry["signature"] = sign(self._key, ADMIN_ACTION, _payload(entry)).hex()
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(entry, ensure_ascii=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_audit(path: Path, keys: frozenset[VerifyKey] | None = None) -> list[Mapping[str, Any]]:
    """All lines, the oldest first, each checked; by one of `keys`, where they are given.

    Raises AuditLogError at the first that is not in order.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    found: list[Mapping[str, Any]] = []
    before = _FIRST
    for number, line in enumerate(raw.splitlines(), 1):
        entry = _entry(line, path)
        where = f"{path}:{number}"
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


def _last_line(raw: bytes) -> bytes:
    lines = raw.splitlines()
    return lines[-1] if lines else b""


def _payload(entry: Mapping[str, Any]) -> bytes:
    said = {key: value for key, value in entry.items() if key != "signature"}
    return json.dumps(said, sort_keys=True).encode()


def _entry(line: bytes, path: Path) -> dict[str, Any]:
    kinds = {
        "number": int,
        "time": str,
        "action": str,
        "what": dict,
        "before": str,
        "key": str,
        "signature": str,
    }
    try:
        found = json.loads(line) if len(line) <= _LINE_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if (
        not isinstance(found, dict)
        or set(found) != set(kinds)
        or any(type(found[key]) is not kind for key, kind in kinds.items())
    ):
        raise AuditLogError("holds a line that is damaged", where=str(path))
    return found
