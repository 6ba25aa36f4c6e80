"""Who has logged in to the device's page: random ids in a browser's cookie, kept as digests.

An id is good for SESSION_S, in this process's memory alone: a restart logs everybody out. A ticket
logs in once and within a minute: an address that holds one may be shown, and is worth nothing then.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable

SESSION_S = 12 * 3600.0
TICKET_S = 60.0
MOST = 32  # at once, of each kind; the oldest makes room


class Sessions:
    """The sessions and tickets of one page."""

    def __init__(self, cookie: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`cookie` is its name: cookies know no ports, so servers of one machine need their own."""
        self.cookie, self._clock = cookie, clock
        self._sessions = _Expiring(SESSION_S, clock)
        self._tickets = _Expiring(TICKET_S, clock)

    def begin(self) -> str:
        """A new session; the value of its `Set-Cookie` header."""
        return self._header(self._sessions.add(), SESSION_S)

    def knows(self, session: str) -> bool:
        """Whether a cookie's value is that of a session that stands."""
        return self._sessions.holds(session)

    def end(self, session: str) -> str:
        """Log out; the value of the `Set-Cookie` header that takes the cookie back."""
        self._sessions.drop(session)
        return self._header("", 0.0)

    def ticket(self) -> str:
        """A new ticket."""
        return self._tickets.add()

    def redeem(self, ticket: str) -> bool:
        """Whether a ticket is good; it is not any more afterwards."""
        found = self._tickets.holds(ticket)
        self._tickets.drop(ticket)
        return found

    def _header(self, value: str, lasts_s: float) -> str:
        return f"{self.cookie}={value}; Max-Age={lasts_s:.0f}; Path=/; HttpOnly; SameSite=Strict"


class _Expiring:
    """Secrets that are good for a while."""

    def __init__(self, lasts_s: float, clock: Callable[[], float]) -> None:
        self._lasts_s, self._clock = lasts_s, clock
        self._ends_s: dict[bytes, float] = {}  # by digest: a look-up's time tells nothing of an id

    def add(self) -> str:
        while len(self._ends_s) >= MOST:
            del self._ends_s[next(iter(self._ends_s))]
        made = secrets.token_urlsafe(32)
        self._ends_s[_digest(made)] = self._clock() + self._lasts_s
        return made

    def holds(self, secret: str) -> bool:
        ends_s = self._ends_s.get(_digest(secret))
        return ends_s is not None and self._clock() < ends_s

    def drop(self, secret: str) -> None:
        self._ends_s.pop(_digest(secret), None)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
