"""Secrets that let an owner's programs and browsers in: one a file, for its owner's eyes only."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil.storage import sync_folder

_FORM = re.compile(r"[A-Za-z0-9_-]{32,128}")


def load_or_make_token(path: Path) -> str:
    """The token of a file, made with mode 0600 where there is none.

    Raises UsageError if others can read the file or it holds no token.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    return _fill(handle)


def rotate_token(path: Path) -> None:
    """Put a new token in place of a file's, in one step: nobody ever reads half a token."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    _fill(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    fresh.replace(path)
    sync_folder(path.parent)


def read_token(path: Path) -> str:
    """The token of a file that exists; UsageError if it is unfit."""
    if path.stat().st_mode & 0o077:
        raise UsageError("can be read by others", where=str(path), fix=f"chmod 600 {path}")
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if not _FORM.fullmatch(token):
        what, fix = "holds no token", "remove it: a new one is made at the next start"
        raise UsageError(what, where=str(path), fix=fix)
    return token


def _fill(handle: int) -> str:
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w") as stream:
        stream.write(token + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    return token
