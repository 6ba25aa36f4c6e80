"""Who has logged in with a browser: a token is shown once, a cookie stands for it from then on.

The cookie holds a random number that means nothing elsewhere. What it stands for is in this
process's memory alone: it ends with the process, after `KEEP_S`, at log-out, and when its token is
rotated. The browser hides it from scripts (HttpOnly) and sends it with no other site's requests
(SameSite=Strict); what a request by cookie may change is guarded once more, see `http_guard`.
"""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Callable

from edgeveil.tokens import ExpiringSecrets, secret_digest
from edgeveil_cloud.http_token import Scope, Tokens, scope_of

KEEP_S = 12 * 3600.0
MOST_SESSIONS = 256  # the oldest gives way
TRIES = 10  # wrong tokens from one address
TRIES_S = 60.0  # in so long
_ADDRESSES = 1024  # that are told apart; beyond, all others count as one


class BrowserSessions:
    """All who are logged in; used on one event loop."""

    def __init__(self, tokens: Tokens, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        # What a cookie stands for: the scope, and the digest of the token that was shown.
        self._held = ExpiringSecrets[tuple[Scope, bytes]](KEEP_S, MOST_SESSIONS, now_s)

    def begin(self, token: str) -> tuple[str, Scope] | None:
        """What the cookie is to hold, and what it may; None for a token that is not good."""
        scope = scope_of(f"Bearer {token}", self._tokens())
        if scope is None:
            return None
        return self._held.add((scope, secret_digest(token))), scope

    def scope(self, name: str) -> Scope | None:
        """What the bearer of this cookie may do now."""
        found = self._held.get(name)
        if found is None:
            return None
        scope, shown = found
        if hmac.compare_digest(secret_digest(self._tokens().get(scope, "")), shown):
            return scope
        self.end(name)
        return None

    def end(self, name: str) -> None:
        """Log out."""
        self._held.drop(name)


class FailedTries:
    """Counts wrong tokens by the address they came from."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._tries: dict[str, deque[float]] = {}

    def wait_s(self, address: str) -> float:
        """Seconds until this address may try again; 0: now."""
        self._forget()
        tries = self._tries.get(self._known(address), deque())
        return tries[0] + TRIES_S - self._now_s() if len(tries) >= TRIES else 0.0

    def failed(self, address: str) -> None:
        """It tried a wrong one."""
        self._tries.setdefault(self._known(address), deque(maxlen=TRIES)).append(self._now_s())

    def _known(self, address: str) -> str:
        return address if address in self._tries or len(self._tries) < _ADDRESSES else ""

    def _forget(self) -> None:
        old_s = self._now_s() - TRIES_S
        for address, tries in list(self._tries.items()):
            while tries and tries[0] <= old_s:
                tries.popleft()
            if not tries:
                del self._tries[address]
