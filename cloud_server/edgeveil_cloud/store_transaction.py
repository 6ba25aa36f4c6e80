"""One method of the store, one transaction; a database that went away is waited for."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa

from edgeveil_cloud.store_engine import cause
from edgeveil_cloud.store_records import StoreAway

P = ParamSpec("P")
T = TypeVar("T")
AWAY_S = 30.0  # how long a transaction is tried again while the database does not answer
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class Database(Protocol):
    """What a transaction runs on."""

    _engine: sa.Engine
    _lock: threading.RLock
    away: bool

    def _committed(self) -> None:
        """A transaction has been committed."""


S = TypeVar("S", bound=Database)


def transaction(
    method: Callable[Concatenate[S, sa.Connection, P], T],
) -> Callable[Concatenate[S, P], T]:
    """Give the method a connection in a transaction, committed when it returns.

    Where the connection breaks, all of it is done anew, for `AWAY_S` at most. Raises StoreError.
    """

    @functools.wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        end_s, wait_s = time.monotonic() + AWAY_S, _FIRST_WAIT_S
        try:
            while True:
                try:
                    with self._lock:
                        with self._engine.begin() as db:
                            result = method(self, db, *args, **kwargs)
                        self._committed()
                        return result
                except sa.exc.SQLAlchemyError as error:
                    self.away = _away(error)
                    if not self.away or time.monotonic() + wait_s > end_s:
                        raise _told(error) from error
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        finally:
            self.away = False

    return run


def _away(error: sa.exc.SQLAlchemyError) -> bool:
    """Whether the database server is not there (any more), or not yet."""
    if not isinstance(error, sa.exc.DBAPIError) or type(error.orig).__module__ == "sqlite3":
        return False
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)


def _told(error: sa.exc.SQLAlchemyError) -> StoreAway:
    if _away(error):
        return StoreAway(
            f"the database did not answer for {AWAY_S:.0f} s ({cause(error)})",
            where="store_url",
            fix="bring it back, then start the cloud again: jobs go on where they stood",
        )
    return StoreAway(
        f"the store failed ({cause(error)})", fix="check its disk and its database server"
    )
