"""The secret that the cloud's HTTP control asks for: one file that only its owner can read.

A file of its own: clients read it too, which need no web server.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from edgeveil.errors import UsageError

TOKEN_FILE = "http.token"  # noqa: S105 - a name, no secret
_FORM = re.compile(r"[A-Za-z0-9_-]{32,128}")


def load_or_make_token(state_dir: Path) -> str:
    """The token of `state_dir/http.token`, made with mode 0600 at the first start.

    Raises UsageError if others can read the file or it holds no token.
    """
    path = state_dir / TOKEN_FILE
    state_dir.mkdir(parents=True, exist_ok=True)
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


def read_token(path: Path) -> str:
    """The token of a file that exists; UsageError if it is unfit."""
    if path.stat().st_mode & 0o077:
        raise UsageError("can be read by others", where=str(path), fix=f"chmod 600 {path}")
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if not _FORM.fullmatch(token):
        raise UsageError(
            "holds no token", where=str(path), fix="remove it: the cloud makes a new one at start"
        )
    return token
