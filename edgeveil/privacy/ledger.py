"""A device's durable record of what each data set has released and may still release.

Publishing takes a `Receipt`, which only `commit` makes: one durable transaction stores events and
noised tensors, so a retry returns the same tensors and costs nothing. A ledger is kept under a data
set's *name*. Every change is a link of a keyed chain (`ledger_chain.py`).

*Encrypted state* (on the wire a deposit) is a job's request that the device encrypts for itself and
stores at the proxy. A device with lost, copied or restored state fetches the requests of the jobs
answered since. A dummy has the same size and no request.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from edgeveil.crypto.keys import STATE_BYTES, NoiseKey, StateKey
from edgeveil.crypto.labels import DEPOSIT_KEY, separated
from edgeveil.errors import PrivacyError, UsageError
from edgeveil.privacy.events import Event
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.ledger_chain import (
    UNKNOWN_ANSWERS,
    Account,
    Change,
    JobAccount,
    LedgerChain,
    PricedAnswer,
    broken,
    next_refusal,
    require_database,
    spent,
)
from edgeveil.privacy.policy import TRAIN, JobRequest, Limits, Quote, check_job
from edgeveil.storage import SqliteFile

_NONCE_BYTES, _TAG_BYTES, _SIZE_BYTES = 12, 16, 2
_ROOM_BYTES = STATE_BYTES - _NONCE_BYTES - _TAG_BYTES - _SIZE_BYTES
_TEXT_BYTES = 1 << 16  # most bytes after decompression


def encrypted_state(key: StateKey, request: JobRequest | None) -> bytes:
    """Encrypt `request`, or none, to a fixed size; unreadable random bytes if too large."""
    text = zlib.compress(request.to_json().encode(), 9) if request else b""
    nonce = os.urandom(_NONCE_BYTES)
    if len(text) > _ROOM_BYTES:
        return os.urandom(STATE_BYTES)
    plain = len(text).to_bytes(_SIZE_BYTES, "big") + text.ljust(_ROOM_BYTES, b"\0")
    aead = ChaCha20Poly1305(key.to_bytes())
    return nonce + aead.encrypt(nonce, plain, separated(DEPOSIT_KEY))


def decrypted_state(key: StateKey, encrypted: bytes) -> JobRequest | None:
    """Decrypt a request; return None for a dummy. Raises PrivacyError if unreadable."""
    nonce, sealed = encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:]
    try:
        aead = ChaCha20Poly1305(key.to_bytes())
        plain = aead.decrypt(nonce, sealed, separated(DEPOSIT_KEY))
    except (InvalidTag, ValueError):
        raise PrivacyError("encrypted state cannot be read") from None
    size_bytes = int.from_bytes(plain[:_SIZE_BYTES], "big")
    if not size_bytes:
        return None
    text = zlib.decompressobj().decompress(plain[_SIZE_BYTES:][:size_bytes], _TEXT_BYTES)
    return JobRequest.from_json(text.decode())


LEDGER_FILE = "ledger.sqlite"
_VERSION = 0  # of the tables; the links have their own label
_KEPT = """CREATE TABLE IF NOT EXISTS kept (
  dataset TEXT, job TEXT, kept BLOB NOT NULL, PRIMARY KEY (dataset, job))"""
_MADE_BY_LEDGER = object()


@dataclass(frozen=True)
class Receipt:
    """Proof that a release was priced and stored; only a ledger can create one."""

    dataset: str
    job_id: str
    round: int
    events: tuple[Event, ...]
    payload_sha256: bytes = field(repr=False)
    token: object = field(repr=False, compare=False)
    hashed: bytes | None = field(default=None, repr=False, compare=False)  # what has that digest

    def __post_init__(self) -> None:
        if self.token is not _MADE_BY_LEDGER:
            raise PrivacyError("only the ledger makes receipts")

    def covers(self, payload: bytes) -> bool:
        """Return whether `payload` is exactly the one stored under this receipt."""
        same = payload is self.hashed and type(payload) is bytes  # immutable: hashed once
        return same or _digest(payload) == self.payload_sha256


class Ledger:
    """All releases of one data set on one device; one SQLite file may hold several data sets.

    The chain's key and head are files beside `path`. Writes are durable on return. Raises
    `PrivacyError` for unusable or altered files. Threads and processes may share a file."""

    def __init__(self, path: Path | str, dataset: str) -> None:
        self.dataset, self._path = dataset, Path(path)
        self._file = _open(self._path)
        self._chain = LedgerChain(self._file, self._path)
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
        self._file.close()

    def noise_key(self) -> NoiseKey:
        return self._chain.key.noise_key()

    def check(self, request: JobRequest, limits: Limits) -> Quote:
        """Return the *whole* job's quote.

        Raises PrivacyError if it exceeds the budget or differs from the job's open request.
        """
        with self._file.guard():
            return self._checked(request, limits)

    def _checked(self, request: JobRequest, limits: Limits) -> Quote:
        if UNKNOWN_ANSWERS.job_id in self._account():
            what = f"the answers of a copy of this device on '{self.dataset}' are unknown, so"
            fix = "put back the newest state, or enrol a new device with a state_dir of its own"
            raise PrivacyError(f"{what} nothing is left to spend", where=str(self._path), fix=fix)
        jobs = {job: entry.counting for job, entry in self._account().items()}
        known = jobs.pop(request.job_id, None)
        if known is not None and not known.same_as(request):
            what = "its privacy request differs from the accepted one"
            raise PrivacyError(f"job {request.job_id} refused: {what}")
        return check_job(request, limits, jobs.values())

    def open_job(self, request: JobRequest, limits: Limits) -> Quote:
        """Reserve a job's price durably; raise as `check`, also if closed or past `max_jobs`."""
        with self._written() as db:
            known = self._account().get(request.job_id)
            if known is not None and not known.is_open:
                raise PrivacyError(f"job {request.job_id} was closed on this device")
            taken = sum(entry.is_open for entry in self._account().values())
            if known is None and limits.max_jobs is not None and taken >= limits.max_jobs:
                what = f"the device already takes part in {taken} jobs, the owner allows"
                fix = "it starts when one of them has ended; or raise it"
                what = f"{what} {limits.max_jobs} at once"
                raise PrivacyError(what, where="policy.max_jobs", fix=fix)
            quote = self._checked(request, limits)
            if known is None:
                opened = Change(self.dataset, "opened", request.job_id, body=request.to_json())
                self._chain.append(db, opened)
            return quote

    def admit(self, job_id: str, events: Sequence[Event]) -> None:
        """Raise `PrivacyError` unless the open job's reservation covers these events."""
        with self._file.guard():
            entry = self._account().get(job_id)
            if entry is None or not entry.is_open:
                raise PrivacyError(f"job {job_id} is not open for '{self.dataset}'")
            entry.request.admit(entry.events, events)

    def commit(
        self,
        job_id: str,
        round: int,
        events: Sequence[Event],
        payload: bytes,
        kept: bytes | None = b"",
    ) -> Receipt:
        """Store events and noised tensors in one durable transaction and return the receipt.

        `kept` replaces the state for the job's next release; None keeps it. A second commit of a
        round returns the first receipt: publish what `recall` returns. Raises `PrivacyError` past
        the reservation."""
        stored = None
        with self._written() as db:
            if self._answer(job_id, round) is None:
                self.admit(job_id, events)
                body = PricedAnswer.body(events, _digest(payload))
                released = Change(self.dataset, "released", job_id, round, body)
                number = self._chain.append(db, released)
                db.execute("INSERT INTO payloads VALUES (?, ?)", (number, payload))
                if kept is not None:
                    self._keep(db, job_id, kept)
                stored = payload
        return self._receipt(job_id, round, stored)

    def kept(self, job_id: str) -> bytes:
        """Return the state that a job's newest release kept for the next one; default empty."""
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

    def recall(self, job_id: str, round: int) -> tuple[Receipt, bytes] | None:
        """Return (receipt, payload) of an earlier commit, or None. Raises `PrivacyError`."""
        with self._file.transaction() as db:
            self._chain.settle()  # a crash may have left the head behind: catch up before release
            answer = self._answer(job_id, round)
            if answer is None:
                return None
            row = db.execute(
                "SELECT CAST(coalesce(payload, '') AS BLOB) FROM payloads WHERE number = ?",
                (answer.number,),
            ).fetchone()
        if row is None:
            raise PrivacyError(f"job {job_id}, round {round}: released and forgotten")
        if not self._receipt(job_id, round).covers(row[0]):
            raise _other_tensors(answer, self._path)
        return self._receipt(job_id, round, row[0]), row[0]

    def released(self, job_id: str, rounds: Collection[int]) -> bool:
        """Return whether any of these rounds was answered."""
        with self._file.guard():
            return any(self._answer(job_id, round) is not None for round in rounds)

    def close_job(self, job_id: str) -> None:
        """Close a job: free its unspent reservation and delete its tensors."""
        with self._written() as db:
            entry = self._account().get(job_id)
            if entry is None or not entry.is_open:
                return
            self._chain.append(db, Change(self.dataset, "closed", job_id))
            self._forget(db, job_id, entry)

    def _forget(self, db: sqlite3.Connection, job_id: str, entry: JobAccount) -> None:
        numbers = [(answer.number,) for answer in entry.answers.values()]
        db.executemany("DELETE FROM payloads WHERE number = ?", numbers)
        self._keep(db, job_id, b"")

    def encrypted_state(self, job_id: str = "") -> bytes:
        """Return an open job's request, or a dummy, encrypted for this device."""
        with self._file.guard():
            entry = self._account().get(job_id)
            return encrypted_state(self._chain.key.state_key(), entry.request if entry else None)

    def count_answer_of_copy(self, job_id: str, encrypted: bytes) -> None:
        """Count a copy's whole reservation; an unreadable state leaves no budget."""
        try:
            request = decrypted_state(self._chain.key.state_key(), encrypted)
        except PrivacyError:
            self.count_unknown_answers()
            return
        if request is None:
            return
        with self._written() as db:
            known = self._account().get(job_id)
            if known is not None and known.elsewhere:
                return
            body = request.to_json()
            self._chain.append(db, Change(self.dataset, "elsewhere", job_id, body=body))
            if known is not None:
                self._forget(db, job_id, known)

    def count_unknown_answers(self) -> None:
        """Leave no budget, as it is unknown which jobs a copy of this device answered."""
        with self._written() as db:
            if UNKNOWN_ANSWERS.job_id not in self._account():
                self._chain.append(db, Change(self.dataset, "elsewhere", UNKNOWN_ANSWERS.job_id))

    def answered(self, job_id: str) -> bool:
        with self._file.guard():
            entry = self._account().get(job_id)
            return entry is not None and bool(entry.answers)

    @property
    def datasets(self) -> tuple[str, ...]:
        with self._file.guard():
            accounts = self._chain.accounts.items()
            return tuple(name for name, of in accounts if any(job.answers for job in of.values()))

    def next_refusal(self, limits: Limits) -> PrivacyError | None:
        with self._file.guard():
            return next_refusal(self._account(), limits)

    def spent(
        self, job_id: str | None = None, purpose: str = TRAIN, delta: float | None = None
    ) -> Guarantee:
        with self._file.guard():
            return spent(self._account(), job_id, purpose, delta)

    @contextmanager
    def _written(self) -> Iterator[sqlite3.Connection]:
        with self._file.guard("written"):
            with self._file.transaction() as db:
                self._chain.settle()
                yield db
            # A separate transaction, as another process may move the head at the same time.
            with self._file.transaction():
                self._chain.settle()

    def _account(self) -> Account:
        self._chain.follow()
        return self._chain.account(self.dataset)

    def _answer(self, job_id: str, round: int) -> PricedAnswer | None:
        entry = self._account().get(job_id)
        return None if entry is None else entry.answers.get(round)

    def _receipt(self, job_id: str, round: int, hashed: bytes | None = None) -> Receipt:
        found = self._chain.account(self.dataset)[job_id].answers[round]
        key, digest = (self.dataset, job_id, round), found.payload_sha256
        return Receipt(*key, found.events, digest, _MADE_BY_LEDGER, hashed)


def read_ledger(path: Path) -> LedgerChain:
    """Check a whole ledger read-only and return its chain. Raises `UsageError` if there is none."""
    require_database(path)
    if not path.is_file() or path.stat().st_size == 0:
        fix = "a device creates it at its first start"
        raise UsageError("there is no ledger", where=str(path), fix=fix)
    file = _open(path)
    chain = LedgerChain(file, path)
    try:
        with file.transaction() as db:
            chain.open(create=False)
            rows = db.execute("SELECT number, CAST(coalesce(payload, '') AS BLOB) FROM payloads")
            held = {number: _digest(payload) for number, payload in rows}
    finally:
        file.close()
    entries = (entry for account in chain.accounts.values() for entry in account.values())
    for answer in (one for entry in entries if entry.is_open for one in entry.answers.values()):
        if held.get(answer.number) != answer.payload_sha256:
            raise _other_tensors(answer, path)
    return chain


def _open(path: Path) -> SqliteFile:
    return SqliteFile(
        path,
        "the privacy ledger",
        error=PrivacyError,
        version=_VERSION,
        secure_delete=True,  # a device's kept state has no noise
        keep_statements=False,  # payloads may be large
        damaged_fix="restore it from a backup; a new file would lose the spent budget",
    )


def _other_tensors(answer: PricedAnswer, path: Path) -> PrivacyError:
    return broken(f"the tensors of link {answer.number} are not those that were stored", path)


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
