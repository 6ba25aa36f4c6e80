"""The secrets that the cloud's HTTP control asks for: one file a scope, for its owner's eyes only.

A file of its own: clients read them too, which need no web server.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil.storage import sync_folder

PROOF_PATH = "/v1/hello"
NONCE = re.compile(r"[0-9a-f]{64}")
_PROOF_LABEL = b"edgeveil/http-control-proof/1\0"
_FORM = re.compile(r"[A-Za-z0-9_-]{32,128}")


class Scope(IntEnum):
    """What the bearer of a token may do; each scope includes those below."""

    READ = 1
    SUBMIT = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """As it stands on the command line and in answers."""
        return self.name.lower()


TOKEN_FILES: Mapping[Scope, str] = {
    Scope.READ: "http-read.token",
    Scope.SUBMIT: "http-submit.token",
    Scope.ADMIN: "http.token",
}
Tokens = Callable[[], Mapping[Scope, str]]
"""The tokens that are good now."""


class TokenFolder:
    """The tokens of a state folder, read again when their files change.

    A file that has become unfit or is gone lets nobody in. Raises UsageError when made, if others
    can read a file or it holds no token.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        for scope in Scope:
            load_or_make_token(state_dir, scope)
        self._marks: dict[Scope, tuple[int, ...]] = {}
        self._tokens: dict[Scope, str] = {}

    def __call__(self) -> Mapping[Scope, str]:
        """The tokens that are good now."""
        for scope in Scope:
            path = self._state_dir / TOKEN_FILES[scope]
            mark = _mark(path)
            if mark and mark == self._marks.get(scope):
                continue
            self._tokens.pop(scope, None)
            try:
                self._tokens[scope] = read_token(path)
            except (UsageError, OSError):
                self._marks.pop(scope, None)
            else:
                self._marks[scope] = mark
        return self._tokens


def _mark(path: Path) -> tuple[int, ...]:
    """Differs when a file was changed or replaced; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def load_or_make_token(state_dir: Path, scope: Scope = Scope.ADMIN) -> str:
    """The token of a scope's file, made with mode 0600 at the first start.

    Raises UsageError if others can read the file or it holds no token.
    """
    path = state_dir / TOKEN_FILES[scope]
    state_dir.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    return _fill(handle)


def rotate_token(state_dir: Path, scope: Scope) -> Path:
    """Put a new token in place of a scope's; returns its file. A running cloud takes it at once."""
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir / TOKEN_FILES[scope]
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    _fill(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    fresh.replace(path)  # in one step: nobody ever reads half a token
    sync_folder(state_dir)
    return path


def _fill(handle: int) -> str:
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


def scope_of(authorization: str, tokens: Mapping[Scope, str]) -> Scope | None:
    """What an `Authorization` header allows; None where its token is none of these.

    Compares with each of them, in a time that tells nothing of what is in common.
    """
    given = authorization.encode("utf-8", "surrogateescape")
    found = [
        scope
        for scope, token in tokens.items()
        if hmac.compare_digest(given, f"Bearer {token}".encode())
    ]
    return max(found, default=None)


def proof(token: str, nonce: str) -> str:
    """Shows to whoever knows `token` that the one who answers `nonce` knows it too (hex)."""
    return hmac.new(token.encode(), _PROOF_LABEL + nonce.encode(), hashlib.sha256).hexdigest()
