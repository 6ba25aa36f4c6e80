"""Secrets that admit an owner's programs and browsers: token files and browser sessions."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from edgeveil.errors import UsageError
from edgeveil.storage import write_durably

T = TypeVar("T")
_FORM = re.compile(r"[A-Za-z0-9_-]{32,128}")


def load_or_make_token(path: Path) -> str:
    """Return the token of a file, created with mode 0600 if missing. Raises UsageError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w") as stream:
        stream.write(token + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    return token


def rotate_token(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, secrets.token_urlsafe(32).encode() + b"\n", mode=0o600)


def read_token(path: Path) -> str:
    """Return the token of an existing file. Raises UsageError if its mode or form is wrong."""
    if path.stat().st_mode & 0o077:
        raise UsageError("can be read by others", where=str(path), fix=f"chmod 600 {path}")
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if not _FORM.fullmatch(token):
        what, fix = "holds no token", "remove it: a new one is created at the next start"
        raise UsageError(what, where=str(path), fix=fix)
    return token


class ExpiringSecrets(Generic[T]):
    """Random secrets in memory that expire, at most `most`, stored as digests."""

    def __init__(
        self, lasts_s: float, most: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._lasts_s, self._most, self._now_s = lasts_s, most, now_s
        self._held: dict[bytes, tuple[T, float]] = {}

    def add(self, value: T) -> str:
        while len(self._held) >= self._most:
            del self._held[next(iter(self._held))]
        made = secrets.token_urlsafe(32)
        self._held[secret_digest(made)] = value, self._now_s() + self._lasts_s
        return made

    def get(self, secret: str) -> T | None:
        """Return the secret's value; None if expired or unknown."""
        value, ends_s = self._held.get(secret_digest(secret), (None, 0.0))
        return value if self._now_s() < ends_s else None

    def drop(self, secret: str) -> None:
        self._held.pop(secret_digest(secret), None)


def secret_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
