"""The device's durable record of what each data set has released, and what may still be.

Publishing takes a `Receipt`, and only a ledger makes one: in one durable transaction `commit`
stores the events and the noised tensors, so a retry returns the same tensors and costs nothing.
A ledger belongs to a data set's configured *name*; adding records resets nothing. Every change
is a link of a keyed chain (`ledger_chain.py`), checked whole when the ledger is opened; a `Book` is
what the links add up to: per data set, each job with what it released.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeveil.crypto.keys import NoiseKey
from edgeveil.errors import PrivacyError, UsageError
from edgeveil.privacy.accountant import weakest
from edgeveil.privacy.deposit import opened_deposit, sealed_deposit
from edgeveil.privacy.events import Event, UnprotectedEvent, event_from_dict, to_dict
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.ledger_chain import Change, LedgerChain, broken, require_database
from edgeveil.privacy.policy import (
    INFER,
    TRAIN,
    JobRequest,
    Limits,
    Quote,
    check_job,
    countable_quote,
    price,
    total,
)
from edgeveil.storage import SqliteFile

LEDGER_FILE = "ledger.sqlite"
_VERSION = 0  # of the tables; the links have their own label
_KEPT = """CREATE TABLE IF NOT EXISTS kept (
  dataset TEXT, job TEXT, kept BLOB NOT NULL, PRIMARY KEY (dataset, job))"""
_MADE_BY_LEDGER = object()


@dataclass(frozen=True)
class Release:
    """The events of one exchange, and which link (counted from 1) holds them."""

    number: int
    events: tuple[Event, ...]
    payload_sha256: bytes

    @staticmethod
    def body(events: Sequence[Event], payload_sha256: bytes) -> str:
        """The text of a link of kind `released`."""
        listed = [to_dict(event) for event in events]
        return json.dumps({"events": listed, "payload_sha256": payload_sha256.hex()})

    @classmethod
    def from_body(cls, number: int, body: str) -> Release:
        """The release of a link."""
        plain = json.loads(body)
        events = tuple(event_from_dict(event) for event in plain["events"])
        return cls(number, events, bytes.fromhex(plain["payload_sha256"]))


@dataclass
class JobAccount:
    """A job as this device knows it: what it reserved, and by exchange what it released."""

    request: JobRequest
    is_open: bool = True
    elsewhere: bool = False  # a copy of this device answered it: all that was reserved counts
    releases: dict[int, Release] = field(default_factory=dict)

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything released so far."""
        return tuple(event for release in self.releases.values() for event in release.events)

    @property
    def counting(self) -> JobRequest:
        """What the job holds against the limits: all it reserved while open, then `counted`."""
        if self.is_open:
            return self.request
        return JobRequest(self.request.job_id, self.request.delta, self.counted)

    @property
    def counted(self) -> tuple[Event, ...]:
        """What was spent for good: see `JobRequest.counted`."""
        return self.request.events if self.elsewhere else self.request.counted(self.events)

    @property
    def spent(self) -> Quote:
        """The two guarantees of what was spent."""
        return price(self.counted, self.request.delta)


# What stands for answers of a copy of which nobody knows the jobs.
_UNTOLD = JobRequest(
    "",
    0.0,
    tuple(
        UnprotectedEvent(what="answers of a copy, unknown", unit="record", purpose=purpose)
        for purpose in (TRAIN, INFER)
    ),
)


@dataclass
class Account:
    """All jobs of one data set, in the order in which they came."""

    jobs: dict[str, JobAccount] = field(default_factory=dict)

    @property
    def open_jobs(self) -> tuple[str, ...]:
        """The jobs that the data set takes part in now."""
        return tuple(job for job, entry in self.jobs.items() if entry.is_open)

    @property
    def untold(self) -> bool:
        """Whether a copy of the device answered nobody knows what."""
        return _UNTOLD.job_id in self.jobs

    def next_refusal(self, limits: Limits) -> PrivacyError | None:
        """The limit that one more job like the newest would pass; None where it fits."""
        own = [entry.request for entry in self.jobs.values() if not entry.elsewhere]
        if not own:
            return None
        held = [countable_quote(entry.counting) for entry in self.jobs.values()]
        try:
            check_job(replace(own[-1], job_id="like the newest"), limits, held)
        except PrivacyError as error:
            return error
        return None

    def spent(self, job_id: str | None = None, purpose: str = TRAIN) -> Guarantee:
        """What was spent: by one job, or (None) over the data set's life.

        A job counts its whole reserved price from its first release that is not pure ε on
        (`JobRequest.counted`). `purpose` is `train` or `infer`. Over several jobs ε and δ add up,
        each job priced at its own δ. After any claimed or unprotected release, lifetime totals
        are not proven.
        """
        chosen = [self.jobs[job] for job in self.jobs if job_id in (None, job)]
        quotes = [entry.spent for entry in chosen]
        result = total([q.training if purpose == TRAIN else q.inference for q in quotes])
        if job_id is not None:
            return result
        taint = weakest(event.status for entry in chosen for event in entry.events)
        status = weakest([result.status, taint])
        return replace(result, status=status)


class Book:
    """The accounts of all data sets in one file, from so many `links`."""

    def __init__(self) -> None:
        self.links = 0
        self.accounts: dict[str, Account] = {}

    def account(self, dataset: str) -> Account:
        """The account of a data set, empty if it has released nothing."""
        return self.accounts.setdefault(dataset, Account())

    def apply(self, number: int, change: Change) -> None:
        """Take in link `number`, whose origin has been checked."""
        jobs = self.account(change.dataset).jobs
        if change.kind == "opened":
            jobs[change.job] = JobAccount(JobRequest.from_json(change.body))
        elif change.kind == "released":
            jobs[change.job].releases[change.exchange] = Release.from_body(number, change.body)
        elif change.kind == "elsewhere":
            request = JobRequest.from_json(change.body) if change.body else _UNTOLD
            entry = jobs.setdefault(change.job, JobAccount(request))
            entry.request, entry.is_open, entry.elsewhere = request, False, True
        else:
            jobs[change.job].is_open = False
        self.links = number


@dataclass(frozen=True)
class Receipt:
    """Proof that a release was priced and stored. Only a ledger can make one."""

    dataset: str
    job_id: str
    exchange: int
    events: tuple[Event, ...]
    payload_sha256: bytes = field(repr=False)
    token: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not _MADE_BY_LEDGER:
            raise PrivacyError("a receipt can only be made by the ledger")

    def covers(self, payload: bytes) -> bool:
        """Whether `payload` is exactly what was stored under this receipt."""
        return hashlib.sha256(payload).digest() == self.payload_sha256


class Ledger:
    """All releases of one data set on one device; one SQLite file may hold several data sets.

    Beside `path` stand the chain's key and head (`.key`, `.head`), made with a new ledger. Writes
    survive a power cut (`synchronous=FULL`) before they return. Files that cannot be used, or are
    not as this device wrote them, raise `PrivacyError`: without its history there is no price, so
    nothing may go out. Several ledgers may be open on one file, in one process or more, and threads
    may share one: of jobs that ask at once each sees what those before it reserved.
    """

    def __init__(self, path: Path | str, dataset: str) -> None:
        self.dataset, self._path = dataset, Path(path)
        self._file = _open(self._path)
        self._book = Book()
        self._chain = LedgerChain(self._file, self._path, self._book.apply)
        try:
            with self._file.transaction() as db:
                self._chain.make_tables()
                db.execute(_KEPT)
            with self._file.transaction():
                self._chain.open(create=True)
        except PrivacyError:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def noise_key(self) -> NoiseKey:
        """The key of this device's noise, which follows from the chain's alone."""
        return self._chain.noise_key()

    def check(self, request: JobRequest, limits: Limits) -> Quote:
        """The quote of the *whole* job, or `PrivacyError` if it does not fit what is left.

        Reads no record and changes nothing. Other jobs count with all they reserved while open,
        then with what they spent. A job's request may not change once it is open.
        """
        with self._file.guard():
            return self._checked(request, limits)

    def _checked(self, request: JobRequest, limits: Limits) -> Quote:
        if self._account().untold:
            raise PrivacyError(
                f"what a copy of this device answered of '{self.dataset}' is not known, so nothing"
                " is left to spend",
                where=str(self._path),
                fix="put back the newest state that there is, or enrol a new device with a"
                " state_dir of its own",
            )
        jobs = {job: entry.counting for job, entry in self._account().jobs.items()}
        known = jobs.pop(request.job_id, None)
        if known is not None and not known.same_as(request):
            raise PrivacyError(
                f"job {request.job_id} refused: its privacy request differs from the accepted one"
            )
        return check_job(request, limits, [countable_quote(other) for other in jobs.values()])

    def open_job(self, request: JobRequest, limits: Limits) -> Quote:
        """`check`, and reserve the whole price durably, so that the job need not stop midway.

        Raises `PrivacyError` for a job that was closed, and for a new one while
        `limits.max_jobs` are open.
        """
        with self._written() as db:
            known = self._account().jobs.get(request.job_id)
            if known is not None and not known.is_open:
                raise PrivacyError(f"job {request.job_id} was closed on this device")
            if known is None:
                _require_place(self._account(), limits)
            quote = self._checked(request, limits)
            if known is None:
                opened = Change(self.dataset, "opened", request.job_id, body=request.to_json())
                self._chain.append(db, opened)
            return quote

    def admit(self, job_id: str, events: Sequence[Event]) -> None:
        """Raise `PrivacyError` unless the open job still has room for these events.

        For the moment before data is read; `commit` checks again.
        """
        with self._file.guard():
            entry = self._account().jobs.get(job_id)
            if entry is None or not entry.is_open:
                raise PrivacyError(f"job {job_id} is not open for '{self.dataset}'")
            entry.request.admit(entry.events, events)

    def commit(
        self,
        job_id: str,
        exchange: int,
        events: Sequence[Event],
        payload: bytes,
        kept: bytes | None = b"",
    ) -> Receipt:
        """Record events and noised tensors together, durably, and return the receipt.

        `kept` is what the device keeps to itself until its next release of this job; None: what
        it kept before. A second
        commit for the same job and exchange changes nothing and returns the first receipt, which
        does not cover another payload: publish what `recall` gives. Raises `PrivacyError` if the
        job is not open or the events go past what it reserved.
        """
        with self._written() as db:
            if self._release(job_id, exchange) is None:
                self.admit(job_id, events)
                body = Release.body(events, _digest(payload))
                released = Change(self.dataset, "released", job_id, exchange, body)
                number = self._chain.append(db, released)
                db.execute("INSERT INTO payloads VALUES (?, ?)", (number, payload))
                if kept is not None:
                    self._keep(db, job_id, kept)
        return self._receipt(job_id, exchange)

    def kept(self, job_id: str) -> bytes:
        """What the device's newest release of a job left for its next one; b"": nothing."""
        with self._file.guard() as db:
            row = db.execute(
                "SELECT CAST(kept AS BLOB) FROM kept WHERE dataset = ? AND job = ?",
                (self.dataset, job_id),
            ).fetchone()
        return bytes(row[0]) if row else b""

    def _keep(self, db: sqlite3.Connection, job_id: str, kept: bytes) -> None:
        db.execute("DELETE FROM kept WHERE dataset = ? AND job = ?", (self.dataset, job_id))
        if kept:
            db.execute("INSERT INTO kept VALUES (?, ?, ?)", (self.dataset, job_id, kept))

    def recall(self, job_id: str, exchange: int) -> tuple[Receipt, bytes] | None:
        """The receipt and the stored payload of an earlier commit, or None.

        Raises `PrivacyError` if the payload was forgotten or changed: it must not be drawn anew.
        """
        with self._file.transaction() as db:
            self._chain.settle()  # what a crash left out of the head must be in it before it goes
            release = self._release(job_id, exchange)
            if release is None:
                return None
            row = db.execute(
                "SELECT CAST(coalesce(payload, '') AS BLOB) FROM payloads WHERE number = ?",
                (release.number,),
            ).fetchone()
        if row is None:
            raise PrivacyError(f"job {job_id}, exchange {exchange}: released and forgotten")
        receipt = self._receipt(job_id, exchange)
        if not receipt.covers(row[0]):
            raise _other_tensors(release, self._path)
        return receipt, row[0]

    def close_job(self, job_id: str) -> None:
        """End a job: what it reserved and did not spend (`Account.spent`) is free again.

        Its stored tensors and what was kept are forgotten; events and digests stay. An unknown
        job changes nothing.
        """
        with self._written() as db:
            entry = self._account().jobs.get(job_id)
            if entry is None or not entry.is_open:
                return
            self._chain.append(db, Change(self.dataset, "closed", job_id))
            self._forget(db, job_id, entry)

    def _forget(self, db: sqlite3.Connection, job_id: str, entry: JobAccount) -> None:
        numbers = [(release.number,) for release in entry.releases.values()]
        db.executemany("DELETE FROM payloads WHERE number = ?", numbers)
        self._keep(db, job_id, b"")

    def deposit(self, job_id: str = "") -> bytes:
        """An open job's request, for this device's own eyes: `DEPOSIT_BYTES` that look the same
        whatever they hold, or none."""
        with self._file.guard():
            entry = self._account().jobs.get(job_id)
            return sealed_deposit(self._chain.deposit_key(), entry.request if entry else None)

    def count_elsewhere(self, job_id: str, deposit: bytes) -> None:
        """A copy of this device answered this job: all that its `deposit` reserved counts here.

        Nothing more is answered in it. A deposit that holds nothing was a dummy's; where it cannot
        be read, nobody knows what was spent, and nothing is left.
        """
        try:
            request = opened_deposit(self._chain.deposit_key(), deposit)
        except PrivacyError:
            self.count_untold()
            return
        if request is None:
            return
        with self._written() as db:
            known = self._account().jobs.get(job_id)
            if known is not None and known.elsewhere:
                return
            body = request.to_json()
            self._chain.append(db, Change(self.dataset, "elsewhere", job_id, body=body))
            if known is not None:
                self._forget(db, job_id, known)

    def count_untold(self) -> None:
        """A copy of this device answered, nobody knows what: nothing is left to spend."""
        with self._written() as db:
            if not self._account().untold:
                self._chain.append(db, Change(self.dataset, "elsewhere", _UNTOLD.job_id))

    def answered(self, job_id: str) -> bool:
        """Whether anything was released in this job."""
        with self._file.guard():
            entry = self._account().jobs.get(job_id)
            return entry is not None and bool(entry.releases)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that something was released of."""
        with self._file.guard():
            accounts = self._book.accounts.items()
            return tuple(
                name for name, of in accounts if any(job.releases for job in of.jobs.values())
            )

    def next_refusal(self, limits: Limits) -> PrivacyError | None:
        """See `Account.next_refusal`."""
        with self._file.guard():
            return self._account().next_refusal(limits)

    def spent(self, job_id: str | None = None, purpose: str = TRAIN) -> Guarantee:
        """What was spent: see `Account.spent`."""
        with self._file.guard():
            return self._account().spent(job_id, purpose)

    @contextmanager
    def _written(self) -> Iterator[sqlite3.Connection]:
        """A durable transaction, and the head moved to the link it may have added."""
        with self._file.guard("written"):
            with self._file.transaction() as db:
                self._chain.settle()
                yield db
            # A transaction of its own: another process may be at the same step.
            with self._file.transaction():
                self._chain.settle()

    def _account(self) -> Account:
        self._chain.follow()
        return self._book.account(self.dataset)

    def _release(self, job_id: str, exchange: int) -> Release | None:
        entry = self._account().jobs.get(job_id)
        return None if entry is None else entry.releases.get(exchange)

    def _receipt(self, job_id: str, exchange: int) -> Receipt:
        release = self._book.account(self.dataset).jobs[job_id].releases[exchange]
        return Receipt(
            self.dataset,
            job_id,
            exchange,
            release.events,
            release.payload_sha256,
            _MADE_BY_LEDGER,
        )


def _require_place(account: Account, limits: Limits) -> None:
    taken = len(account.open_jobs)
    if limits.max_jobs is not None and taken >= limits.max_jobs:
        raise PrivacyError(
            f"the device takes part in {taken} jobs already, the owner allows {limits.max_jobs} at"
            " once",
            where="policy.max_jobs",
            fix="it is taken up when one of them has ended; or raise it",
        )


def read_ledger(path: Path) -> Book:
    """Check a ledger as it stands, whole, and return what it holds; changes nothing.

    May be called while a device runs. Raises `UsageError` if there is no ledger, `PrivacyError`
    at the first thing that is not as this device wrote it.
    """
    require_database(path)
    if not path.is_file() or path.stat().st_size == 0:
        raise UsageError(
            "there is no ledger", where=str(path), fix="a device makes it at its first start"
        )
    file, book = _open(path), Book()
    try:
        with file.transaction() as db:
            LedgerChain(file, path, book.apply).open(create=False)
            rows = db.execute("SELECT number, CAST(coalesce(payload, '') AS BLOB) FROM payloads")
            held = {number: _digest(payload) for number, payload in rows}
    finally:
        file.close()
    for account in book.accounts.values():
        for entry in account.jobs.values():
            for release in entry.releases.values():
                if entry.is_open and held.get(release.number) != release.payload_sha256:
                    raise _other_tensors(release, path)
    return book


def _open(path: Path) -> SqliteFile:
    return SqliteFile(
        path,
        "the privacy ledger",
        error=PrivacyError,
        version=_VERSION,
        secure_delete=True,  # what a device keeps to itself holds no noise
        keep_statements=False,  # what is released may be large
        damaged_fix="restore it from a backup; a new file would forget what was spent",
    )


def _other_tensors(release: Release, path: Path) -> PrivacyError:
    return broken(f"the tensors of link {release.number} are not those that were stored", path)


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
