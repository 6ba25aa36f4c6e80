"""Who has logged in to the device's page: random ids in a browser's cookie, kept as digests.

An id is good for SESSION_S, in this process's memory alone: a restart logs everybody out. A ticket
logs in once and within a minute: an address that holds one may be shown, and is worth nothing then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeveil.tokens import ExpiringSecrets

SESSION_S = 12 * 3600.0
TICKET_S = 60.0
MOST = 32  # at once, of each kind; the oldest makes room


class OwnerSessions:
    """The sessions and tickets of one page."""

    def __init__(self, cookie: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`cookie` is its name: cookies know no ports, so servers of one machine need their own."""
        self.cookie, self._clock = cookie, clock
        self._sessions = ExpiringSecrets[bool](SESSION_S, MOST, clock)
        self._tickets = ExpiringSecrets[bool](TICKET_S, MOST, clock)

    def begin(self) -> str:
        """A new session; the value of its `Set-Cookie` header."""
        return self._header(self._sessions.add(True), SESSION_S)

    def knows(self, session: str) -> bool:
        """Whether a cookie's value is that of a session that stands."""
        return self._sessions.get(session) is not None

    def end(self, session: str) -> str:
        """Log out; the value of the `Set-Cookie` header that takes the cookie back."""
        self._sessions.drop(session)
        return self._header("", 0.0)

    def end_all(self) -> None:
        """Log everybody out."""
        self._sessions = ExpiringSecrets[bool](SESSION_S, MOST, self._clock)

    def ticket(self) -> str:
        """A new ticket."""
        return self._tickets.add(True)

    def redeem(self, ticket: str) -> bool:
        """Whether a ticket is good; it is not any more afterwards."""
        found = self._tickets.get(ticket) is not None
        self._tickets.drop(ticket)
        return found

    def _header(self, value: str, lasts_s: float) -> str:
        return f"{self.cookie}={value}; Max-Age={lasts_s:.0f}; Path=/; HttpOnly; SameSite=Strict"
