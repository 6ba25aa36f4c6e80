"""The secrets that the cloud's HTTP control asks for: one file a scope, for its owner's eyes only.

A file of its own: clients read them too, which need no web server.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path

from edgeveil import tokens
from edgeveil.errors import UsageError
from edgeveil.storage import file_mark

PROOF_PATH = "/v1/hello"
NONCE = re.compile(r"[0-9a-f]{64}")
_PROOF_LABEL = b"edgeveil/http-control-proof/1\0"


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
            mark = file_mark(path)
            if mark and mark == self._marks.get(scope):
                continue
            self._tokens.pop(scope, None)
            try:
                self._tokens[scope] = tokens.read_token(path)
            except (UsageError, OSError):
                self._marks.pop(scope, None)
            else:
                self._marks[scope] = mark
        return self._tokens


def load_or_make_token(state_dir: Path, scope: Scope = Scope.ADMIN) -> str:
    """The token of a scope's file; see `edgeveil.tokens`."""
    return tokens.load_or_make_token(state_dir / TOKEN_FILES[scope])


def rotate_token(state_dir: Path, scope: Scope) -> Path:
    """Put a new token in place of a scope's; returns its file. A running cloud takes it at once."""
    path = state_dir / TOKEN_FILES[scope]
    tokens.rotate_token(path)
    return path


def scope_of(authorization: str, known: Mapping[Scope, str]) -> Scope | None:
    """What an `Authorization` header allows; None where its token is none of these.

    Compares with each of them, in a time that tells nothing of what is in common.
    """
    given = authorization.encode("utf-8", "surrogateescape")
    found = [
        scope
        for scope, token in known.items()
        if hmac.compare_digest(given, f"Bearer {token}".encode())
    ]
    return max(found, default=None)


def proof(token: str, nonce: str) -> str:
    """Shows to whoever knows `token` that the one who answers `nonce` knows it too (hex)."""
    return hmac.new(token.encode(), _PROOF_LABEL + nonce.encode(), hashlib.sha256).hexdigest()
