"""The ledger's hash chain, and the accounts derived from it.

Every change is a link:

    mac(n) = HMAC-SHA256(key, label, mac(n-1), n, data set, kind, job, round, body)

The *head*, number and mac of the newest link, is also kept in a file beside the database, so edits,
reordering, missing links and older copies are detected. A crash between link and head leaves the
database one link ahead, whose release was never published; the head is then moved forward.
"""

from __future__ import annotations

import hmac
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from edgeveil.crypto import labels
from edgeveil.crypto.keys import LedgerKey, read_key, write_key
from edgeveil.errors import CryptoError, PrivacyError
from edgeveil.privacy.accountant import weakest
from edgeveil.privacy.events import Event, UnprotectedEvent, event_from_dict, to_dict
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.policy import INFER, TRAIN, JobRequest, Limits, Quote, check_job, price, total
from edgeveil.storage import SqliteFile

_TABLES = {
    "links": """
        CREATE TABLE links (
          number INTEGER PRIMARY KEY, dataset TEXT NOT NULL, kind TEXT NOT NULL, job TEXT NOT NULL,
          exchange INTEGER NOT NULL, body TEXT NOT NULL, mac BLOB NOT NULL)""",
    "payloads": """
        CREATE TABLE payloads (number INTEGER PRIMARY KEY, payload BLOB NOT NULL)""",
}
_HEAD_TAG = "edgeveil-ledger-head-1"
_MAC_BYTES = 32
_TYPES = (int, str, str, str, int, str, bytes)
_FIX = (
    "with the device stopped, put back the newest copies of the ledger's files, all from one"
    " moment; without them, enrol a new device with a state_dir of its own"
)

Kind = Literal["opened", "released", "closed", "elsewhere"]


@dataclass(frozen=True)
class Change:
    """One change of a data set's account.

    `body` of `opened`: the job's request; `released`: events and tensor digest; `closed`: empty;
    `elsewhere`: the request of a job that a copy of this device answered, empty if unknown."""

    dataset: str
    kind: Kind
    job: str
    round: int = 0
    body: str = ""


@dataclass(frozen=True)
class ChainHead:
    """Number and mac of the newest link; number 0 before the first."""

    number: int
    mac: bytes

    def save(self, path: Path) -> None:
        raw = self.number.to_bytes(8, "big") + self.mac
        try:
            write_key(path, _HEAD_TAG, raw, mode=0o600, replace=True)
        except CryptoError as error:
            what = f"the ledger's head cannot be kept, {error.what}"
            raise PrivacyError(what, where=error.where, fix=error.fix) from error

    @classmethod
    def load(cls, path: Path) -> ChainHead:
        try:
            raw = read_key(path, _HEAD_TAG, 8 + _MAC_BYTES, secret=False)
        except CryptoError as error:
            raise broken(f"its head {_fault(error)}", path) from error
        return cls(int.from_bytes(raw[:8], "big"), raw[8:])


@dataclass(frozen=True)
class PricedAnswer:
    """The events of one round, and the `number` of their link."""

    number: int
    events: tuple[Event, ...]
    payload_sha256: bytes

    @staticmethod
    def body(events: Sequence[Event], payload_sha256: bytes) -> str:
        listed = [to_dict(event) for event in events]
        return json.dumps({"events": listed, "payload_sha256": payload_sha256.hex()})

    @classmethod
    def from_body(cls, number: int, body: str) -> PricedAnswer:
        plain = json.loads(body)
        events = tuple(event_from_dict(event) for event in plain["events"])
        return cls(number, events, bytes.fromhex(plain["payload_sha256"]))


@dataclass
class JobAccount:
    """A job's request, and the device's releases for it by round."""

    request: JobRequest
    is_open: bool = True
    elsewhere: bool = False  # a copy of this device answered it: the whole reservation counts
    answers: dict[int, PricedAnswer] = field(default_factory=dict)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for answer in self.answers.values() for event in answer.events)

    @property
    def counting(self) -> JobRequest:
        """The events that count against the limits: the reservation while open, then `counted`."""
        return self.request if self.is_open else self.counted

    @property
    def counted(self) -> JobRequest:
        if self.elsewhere:
            return self.request
        return replace(self.request, events=self.request.counted(self.events))

    @property
    def spent(self) -> Quote:
        return price(self.counted.events, self.request.delta)


_LOST = partial(UnprotectedEvent, what="answers of a copy, unknown", unit="record")
UNKNOWN_ANSWERS = JobRequest("", 0.0, (_LOST(purpose=TRAIN), _LOST(purpose=INFER)))
"""Placeholder for the answers of a copy of this device to unknown jobs."""

Account = dict[str, JobAccount]
"""All jobs of one data set by identifier, in order of arrival."""


def next_refusal(account: Account, limits: Limits) -> PrivacyError | None:
    """Return the limit that one more job like the newest would exceed; None if it fits."""
    own = [entry.request for entry in account.values() if not entry.elsewhere]
    held = [entry.counting for entry in account.values()]
    try:
        if own:
            check_job(replace(own[-1], job_id="like the newest"), limits, held)
    except PrivacyError as error:
        return error
    return None


def spent(
    account: Account, job_id: str | None = None, purpose: str = TRAIN, delta: float | None = None
) -> Guarantee:
    """Return the price of one job, or `total` at `delta` of all (None).

    Unproven after any unproven release."""
    chosen = [account[job] for job in account if job_id in (None, job)]
    quote = total([entry.counted for entry in chosen], delta)
    result = quote.training if purpose == TRAIN else quote.inference
    if job_id is not None:
        return result
    taint = weakest(event.status for entry in chosen for event in entry.events)
    return replace(result, status=weakest([result.status, taint]))


class LedgerChain:
    """The links of one open database, their `key`, and the `accounts` they add up to, by data set.

    Raises `PrivacyError` at the first foreign link. Only `follow` needs no transaction of `file`.
    """

    def __init__(self, file: SqliteFile, path: Path) -> None:
        self._file, self._path = file, path
        self.links = 0
        self.accounts: dict[str, Account] = {}
        self._key_path, self._head_path = path.with_suffix(".key"), path.with_suffix(".head")
        self._settled = 0  # largest link number seen in the head

    def open(self, *, create: bool) -> None:
        """Read the key and verify the whole chain; `create` initialises a new ledger."""
        self._require_tables()
        if not self._key_path.exists():
            with self._file.guard() as db:
                linked = db.execute("SELECT 1 FROM links LIMIT 1").fetchone() is not None
            if linked or not create or self._begun():
                raise broken("its key is gone", self._key_path)
            # The head first, the key last: so no crash can leave a key without a head.
            self.key = LedgerKey.generate()
            self._start().save(self._head_path)
            self.key.save(self._key_path)
        try:
            self.key = LedgerKey.load(self._key_path)
        except CryptoError as error:
            fix = error.fix if error.fix.startswith("chmod") else _FIX  # only its mode is wrong
            what = f"the ledger's key cannot be used, {error.what}"
            raise PrivacyError(what, where=error.where, fix=fix) from error
        self._before = self._last = self._start()
        self.settle(write=create)

    def account(self, dataset: str) -> Account:
        return self.accounts.setdefault(dataset, {})

    def make_tables(self) -> None:
        """Create a new ledger's tables. Raises `PrivacyError` if an existing one lacks any."""
        if self._key_path.exists() or self._begun():
            self._require_tables()
        with self._file.guard() as db:
            for name in self._missing():
                db.execute(_TABLES[name])

    def _require_tables(self) -> None:
        lost = self._missing()
        if lost:
            what = "database" if len(lost) == len(_TABLES) else f"table {lost[0]}"
            raise broken(f"its {what} is gone", self._path)

    def _missing(self) -> list[str]:
        with self._file.guard() as db:
            names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if "releases" in names:
            raise broken("it comes from an earlier version, without a chain", self._path)
        return [name for name in _TABLES if name not in names]

    def _begun(self) -> bool:
        return self._head_path.exists() and ChainHead.load(self._head_path).number > 0

    def _start(self) -> ChainHead:
        return ChainHead(0, self._mac(b"", 0, Change("", "opened", "")))

    def follow(self) -> None:
        """Verify and apply the links added since the last call."""
        with self._file.guard() as db:
            rows = db.execute(
                "SELECT number, dataset, kind, job, exchange, body, mac FROM links"
                " WHERE number >= ? ORDER BY number",
                (self._last.number,),
            ).fetchall()
        if self._last.number:  # the newest known link must still be there
            known = rows.pop(0) if rows else None
            if known is None or (known[0], known[-1]) != (self._last.number, self._last.mac):
                raise broken(f"link {self._last.number} is gone or changed", self._path)
        for row in rows:
            self._take(row)

    def settle(self, *, write: bool = True) -> None:
        """`follow`, then compare with the head; `write` moves a head that is one link behind."""
        if self._file.replaced():
            raise broken("another database was put in its place while it was open", self._path)
        self.follow()
        head = ChainHead.load(self._head_path)
        if head.number < self._settled:
            moved = f"from link {self._settled} to link {head.number}"
            raise broken(f"its head was put back {moved} while it was open", self._head_path)
        self._settled = head.number
        if head == self._last:
            return
        if head.number > self._last.number:
            what = f"an older copy ends at link {self._last.number} of {head.number}"
            raise broken(what, self._path)
        if head != self._before:
            raise broken(f"its head, link {head.number}, is not one of its links", self._head_path)
        if write:
            self._last.save(self._head_path)
            self._settled = self._last.number

    def append(self, db: sqlite3.Connection, change: Change) -> int:
        """Add a link inside a transaction, after `settle`, and return its number."""
        number = self._last.number + 1
        mac = self._mac(self._last.mac, number, change)
        db.execute(
            "INSERT INTO links VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, change.dataset, change.kind, change.job, change.round, change.body, mac),
        )
        return number

    def _take(self, row: tuple[Any, ...]) -> None:
        number = self._last.number + 1
        if tuple(map(type, row)) != _TYPES or row[0] != number:
            raise broken(f"link {number} is gone or damaged", self._path)
        change = Change(*row[1:-1])
        if not hmac.compare_digest(self._mac(self._last.mac, number, change), row[-1]):
            raise broken(f"link {number} is not as this device wrote it", self._path)
        self._apply(number, change)
        self._before, self._last = self._last, ChainHead(number, row[-1])

    def _apply(self, number: int, change: Change) -> None:
        jobs = self.account(change.dataset)
        if change.kind == "opened":
            jobs[change.job] = JobAccount(JobRequest.from_json(change.body))
        elif change.kind == "released":
            jobs[change.job].answers[change.round] = PricedAnswer.from_body(number, change.body)
        elif change.kind == "elsewhere":
            request = JobRequest.from_json(change.body) if change.body else UNKNOWN_ANSWERS
            entry = jobs.setdefault(change.job, JobAccount(request))
            entry.request, entry.is_open, entry.elsewhere = request, False, True
        else:
            jobs[change.job].is_open = False
        self.links = number

    def _mac(self, previous: bytes, number: int, change: Change) -> bytes:
        text = (change.dataset, change.kind, change.job, str(change.round), change.body)
        parts = [previous, number.to_bytes(8, "big"), *(part.encode() for part in text)]
        message = labels.context(labels.LEDGER_LINK, *parts)
        return hmac.digest(self.key.to_bytes(), message, "sha256")


def require_database(path: Path) -> None:
    """Raise `PrivacyError` if a key or head exists without a database."""
    begun = any(path.with_suffix(suffix).exists() for suffix in (".key", ".head"))
    if begun and (not path.is_file() or path.stat().st_size == 0):
        raise broken("its database is gone", path)


def _fault(error: CryptoError) -> str:
    cause = error.__cause__
    if isinstance(cause, FileNotFoundError):
        return "is gone"
    if isinstance(cause, OSError):
        return f"cannot be read ({cause.strerror})"
    return "is damaged"


def broken(what: str, where: Path) -> PrivacyError:
    """Return the error for an altered ledger: without a price there is no release."""
    text = f"the privacy ledger was altered or lost a part: {what}; no job is accepted"
    return PrivacyError(text, where=str(where), fix=_FIX)
