"""The device's durable record of what each data set has released, and what may still be.

Publishing takes a `Receipt`, and only a ledger makes one: in one durable transaction `commit`
stores the events and the noised tensors, so a retry returns the same tensors and costs nothing.
A ledger belongs to a data set's configured *name*; adding records resets nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fl_core.errors import PrivacyError
from fl_core.privacy.accountant import Guarantee, weakest
from fl_core.privacy.events import Event, event_from_dict, to_dict
from fl_core.privacy.policy import (
    TRAIN,
    JobRequest,
    Limits,
    Quote,
    check_job,
    countable_quote,
    price,
    total,
)
from fl_core.sqlite_file import SqliteFile

_MADE_BY_LEDGER = object()

# `chain` is reserved for a keyed hash over the row and the one before it.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  dataset TEXT NOT NULL, job TEXT NOT NULL, request TEXT NOT NULL, open INTEGER NOT NULL,
  PRIMARY KEY (dataset, job));
CREATE TABLE IF NOT EXISTS releases (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  dataset TEXT NOT NULL, job TEXT NOT NULL, exchange INTEGER NOT NULL,
  events TEXT NOT NULL, payload BLOB, payload_sha256 BLOB NOT NULL, chain BLOB,
  UNIQUE (dataset, job, exchange));
"""


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

    Writes survive a power cut (`synchronous=FULL`) before they return. A file that cannot be
    used raises `PrivacyError`: without its history there is no price, so nothing may go out.
    """

    def __init__(self, path: Path | str, dataset: str) -> None:
        self.dataset = dataset
        self._file = SqliteFile(
            path,
            "the privacy ledger",
            _SCHEMA,
            error=PrivacyError,
            damaged_fix="restore it from a backup; a new file would forget what was spent",
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def check(self, request: JobRequest, limits: Limits) -> Quote:
        """The quote of the *whole* job, or `PrivacyError` if it does not fit what is left.

        Reads no record and changes nothing. Other jobs count with what they released and, while
        open, with all they reserved. A job's request may not change once it is open.
        """
        jobs = self._jobs()
        known = jobs.pop(request.job_id, None)
        if known is not None and not known.same_as(request):
            raise PrivacyError(
                f"job {request.job_id} refused: its privacy request differs from the accepted one"
            )
        return check_job(request, limits, [countable_quote(other) for other in jobs.values()])

    def open_job(self, request: JobRequest, limits: Limits) -> Quote:
        """`check`, and reserve the whole price durably, so that the job need not stop midway.

        Raises `PrivacyError` for a job that was closed.
        """
        with self._file.transaction() as db:
            if self._state(request.job_id) is False:
                raise PrivacyError(f"job {request.job_id} was closed on this device")
            quote = self.check(request, limits)
            db.execute(
                "INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, 1)",
                (self.dataset, request.job_id, request.to_json()),
            )
            return quote

    def admit(self, job_id: str, events: Sequence[Event]) -> None:
        """Raise `PrivacyError` unless the open job still has room for these events.

        For the moment before data is read; `commit` checks again.
        """
        if self._state(job_id) is not True:
            raise PrivacyError(f"job {job_id} is not open for '{self.dataset}'")
        self._jobs()[job_id].admit(self._events(job_id), events)

    def commit(
        self, job_id: str, exchange: int, events: Sequence[Event], payload: bytes
    ) -> Receipt:
        """Record events and noised tensors together, durably, and return the receipt.

        A second commit for the same job and exchange changes nothing and returns the first
        receipt, which does not cover another payload: publish what `recall` gives. Raises
        `PrivacyError` if the job is not open or the events go past what it reserved.
        """
        with self._file.transaction() as db:
            earlier = self._row(job_id, exchange)
            if earlier is None:
                self.admit(job_id, events)
                db.execute(
                    "INSERT INTO releases (dataset, job, exchange, events, payload,"
                    " payload_sha256) VALUES (?, ?, ?, ?, ?, ?)",
                    (self.dataset, job_id, exchange, _dump(events), payload, _digest(payload)),
                )
                earlier = _dump(events), payload, _digest(payload)
        return self._receipt(job_id, exchange, earlier)

    def recall(self, job_id: str, exchange: int) -> tuple[Receipt, bytes] | None:
        """The receipt and the stored payload of an earlier commit, or None.

        Raises `PrivacyError` if the payload was forgotten: it must not be drawn anew.
        """
        row = self._row(job_id, exchange)
        if row is None:
            return None
        if row[1] is None:
            raise PrivacyError(f"job {job_id}, exchange {exchange}: released and forgotten")
        return self._receipt(job_id, exchange, row), row[1]

    def close_job(self, job_id: str) -> None:
        """End a job: what it reserved and did not release is free again; what it released stays."""
        with self._file.transaction() as db:
            self.forget_payloads(job_id)
            db.execute(
                "UPDATE jobs SET open = 0 WHERE dataset = ? AND job = ?", (self.dataset, job_id)
            )

    def forget_payloads(self, job_id: str) -> None:
        """Drop a finished job's stored tensors; events and digests stay."""
        with self._file.guard("written") as db:
            db.execute(
                "UPDATE releases SET payload = NULL WHERE dataset = ? AND job = ?",
                (self.dataset, job_id),
            )

    def spent(self, job_id: str | None = None, purpose: str = TRAIN) -> Guarantee:
        """What was released: by one job, or (None) over the data set's life.

        `purpose` is `train` or `infer`. Over several jobs ε and δ add up, each job priced at its
        own δ. After any claimed or unprotected release, lifetime totals are not proven.
        """
        deltas = {job: request.delta for job, request in self._requests().items()}
        chosen = [job for job in deltas if job_id in (None, job)]
        quotes = [price(self._events(job), deltas[job]) for job in chosen]
        result = total([q.training if purpose == TRAIN else q.inference for q in quotes])
        if job_id is not None:
            return result
        taint = weakest(event.status for event in self._events())
        status = weakest([result.status, taint])
        return Guarantee(result.epsilon, result.delta, result.unit, status)

    def _jobs(self) -> dict[str, JobRequest]:
        """Per job, what it counts for: all it reserved if open, else what it released."""
        result = self._requests()
        for job, request in result.items():
            if self._state(job) is False:
                result[job] = JobRequest(job, request.delta, self._events(job))
        return result

    def _requests(self) -> dict[str, JobRequest]:
        with self._file.guard() as db:
            rows = db.execute(
                "SELECT job, request FROM jobs WHERE dataset = ?", (self.dataset,)
            ).fetchall()
        return {job: JobRequest.from_json(text) for job, text in rows}

    def _state(self, job_id: str) -> bool | None:
        """True: open, False: closed, None: unknown."""
        with self._file.guard() as db:
            row = db.execute(
                "SELECT open FROM jobs WHERE dataset = ? AND job = ?", (self.dataset, job_id)
            ).fetchone()
        return None if row is None else bool(row[0])

    def _events(self, job_id: str | None = None) -> tuple[Event, ...]:
        with self._file.guard() as db:
            rows = db.execute(
                "SELECT events FROM releases WHERE dataset = ? AND (? IS NULL OR job = ?)",
                (self.dataset, job_id, job_id),
            ).fetchall()
        return tuple(event for (text,) in rows for event in _load(text))

    def _row(self, job_id: str, exchange: int) -> tuple[str, bytes | None, bytes] | None:
        with self._file.guard() as db:
            row: tuple[str, bytes | None, bytes] | None = db.execute(
                "SELECT events, payload, payload_sha256 FROM releases"
                " WHERE dataset = ? AND job = ? AND exchange = ?",
                (self.dataset, job_id, exchange),
            ).fetchone()
        return row

    def _receipt(self, job_id: str, exchange: int, row: tuple[str, bytes | None, bytes]) -> Receipt:
        return Receipt(self.dataset, job_id, exchange, _load(row[0]), row[2], _MADE_BY_LEDGER)


def _dump(events: Sequence[Event]) -> str:
    return json.dumps([to_dict(event) for event in events])


def _load(text: str) -> tuple[Event, ...]:
    return tuple(event_from_dict(plain) for plain in json.loads(text))


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
