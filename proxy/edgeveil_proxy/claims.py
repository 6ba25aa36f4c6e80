"""One-time claims: who made them, what became of them, and the desk that takes them.

A claim is kept as its public key. It admits the first identity that it signs for, before it
expires; the same identity may ask again, as answers get lost. Once admitted it asks in its own name
for its next certificate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from edgeveil.claim import ClaimAnswer, ClaimError, ClaimRequest
from edgeveil.crypto.authorities import RENEWALS, Authority, certificate_pem
from edgeveil.crypto.keys import SigningKey
from edgeveil.enrolment import EnrolmentError
from edgeveil.errors import EdgeVeilError
from edgeveil.storage import SqliteFile
from edgeveil_proxy.registry import NOTE_CHARACTERS, Registry

CLAIMS_FILE = "claims.sqlite"
_MINUTE_S = 60.0
_READ_TIMES = 10
_SCHEMA = """CREATE TABLE IF NOT EXISTS claim (
    key BLOB PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    expires_s REAL NOT NULL,
    device TEXT,
    issued INTEGER NOT NULL DEFAULT 0,
    approved INTEGER NOT NULL DEFAULT 0
) STRICT"""


class ClaimBookError(EdgeVeilError):
    """The book of claims cannot be used so."""

    exit_code = 2


@dataclass(frozen=True)
class HeldClaim:
    """`device` is the id that used it; `issued` counts its certificates, `approved` says whether
    the operator has admitted it."""

    key: bytes
    name: str
    expires_s: float
    device: str | None
    issued: int
    approved: bool


def _held(row: tuple[bytes, str, float, str | None, int, int]) -> HeldClaim:
    key, name, expires_s, device, issued, approved = row
    return HeldClaim(key, name, expires_s, device, issued, bool(approved))


class ClaimBook:
    """The claims in `path`; several processes may open it. Methods may raise ClaimBookError."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._file = SqliteFile(
            path,
            "the book of claims",
            error=ClaimBookError,
            rollback_journal=True,
            schema=_SCHEMA,
            version=1,
        )

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def add(self, names: Iterable[str], valid_s: float) -> list[tuple[str, SigningKey]]:
        """A new claim for each name, all or none. One that was used keeps its name for ever."""
        made = [(name, SigningKey.generate()) for name in names]
        expires_s = self._now_s() + valid_s
        with self._file.transaction() as db:
            for name, key in made:
                if not name or len(name) > NOTE_CHARACTERS:
                    fix = f"use 1 to {NOTE_CHARACTERS} characters"
                    raise ClaimBookError("is no name", where=name[:64], fix=fix)
                row = db.execute("SELECT device FROM claim WHERE name = ?", (name,)).fetchone()
                if row is not None and row[0] is not None:
                    raise ClaimBookError(
                        f"{name} is device {row[0]} already", fix="give a new box a new name"
                    )
                db.execute("DELETE FROM claim WHERE name = ?", (name,))  # the one before ends
                db.execute(
                    "INSERT INTO claim (key, name, expires_s) VALUES (?, ?, ?)",
                    (key.public().to_bytes(), name, expires_s),
                )
        return made

    def all(self) -> list[HeldClaim]:
        """Every claim, by name."""
        with self._file.guard() as db:
            rows = db.execute("SELECT * FROM claim ORDER BY name").fetchall()
        return [_held(row) for row in rows]

    def withdraw(self, name: str) -> None:
        """An unused claim works no more."""
        with self._file.transaction() as db:
            done = db.execute("DELETE FROM claim WHERE name = ? AND device IS NULL", (name,))
        if not done.rowcount:
            fix = "see edgeveil proxy claims list; a device is taken out with proxy revoke"
            raise ClaimBookError(f"there is no unused claim of '{name[:64]}'", fix=fix)

    def approve(self, name: str) -> None:
        """The operator admits whoever used this claim."""
        with self._file.transaction() as db:
            done = db.execute("UPDATE claim SET approved = 1 WHERE name = ?", (name,))
        if not done.rowcount:
            fix = "see edgeveil proxy claims list"
            raise ClaimBookError(f"there is no claim of '{name[:64]}'", fix=fix)

    def disapprove(self, device: str) -> None:
        """The operator takes out whoever used these claims: none of them admits it again."""
        with self._file.transaction() as db:
            db.execute("UPDATE claim SET approved = 0 WHERE device = ?", (device,))

    def use(self, key: bytes, device: str) -> HeldClaim:
        """Bind the claim to this device. ClaimError: unknown, expired, or another's by now."""
        with self._file.transaction() as db:
            row = db.execute("SELECT * FROM claim WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise ClaimError("the claim is unknown")
            found = _held(row)
            if found.device is None and found.expires_s <= self._now_s():
                raise ClaimError("the claim has expired")
            if found.device not in (None, device):
                raise ClaimError("the claim was used by another device")
            db.execute("UPDATE claim SET device = ? WHERE key = ?", (device, key))
        return found

    def knows(self, request: ClaimRequest) -> bool:
        """Whether there is such a claim, or one that the device has used."""
        device = request.enrolment.device_id if request.is_renewal else None
        query = "SELECT count(*) FROM claim WHERE key = ? OR device = ?"
        with self._file.guard() as db:
            (count,) = db.execute(query, (request.claim.to_bytes(), device)).fetchone()
        return bool(count)

    def of_device(self, device: str) -> HeldClaim:
        """The claim that it used last. ClaimError: none."""
        with self._file.guard() as db:
            query = "SELECT * FROM claim WHERE device = ? ORDER BY expires_s DESC"
            row = db.execute(query, (device,)).fetchone()
        if row is None:
            raise ClaimError("the device has used no claim")
        return _held(row)

    def next_issue(self, key: bytes, device: str) -> int:
        """The number of the device's next certificate, over all its claims; then it is taken.

        Numbers come again after `RENEWALS`, all of which are revoked together: at one a week, those
        before have ended by then.
        """
        with self._file.transaction() as db:
            query = "SELECT sum(issued) FROM claim WHERE device = ?"
            (issued,) = db.execute(query, (device,)).fetchone()
            db.execute("UPDATE claim SET issued = issued + 1 WHERE key = ?", (key,))
        return int(issued) % RENEWALS


class ClaimDesk:
    """Judges requests: admits a device, and signs its certificate and the answer.

    At most `per_minute` requests with a claim that is known are answered, by `clock` (seconds,
    monotonic), and ten times as many read: junk does not take the place of boxes with claims.
    """

    def __init__(
        self,
        book: ClaimBook,
        registry: Registry,
        authority: Authority,
        signer: Callable[[], SigningKey],
        *,
        certificate_days: int,
        approved_by_operator: bool,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book, self._registry, self._authority = book, registry, authority
        self._signer, self._days = signer, certificate_days
        self._waits = approved_by_operator
        self._read = _Allowance(_READ_TIMES * per_minute, clock)
        self._answered = _Allowance(per_minute, clock)
        self.admitted = self.refused = self.dropped = 0

    def answer(self, raw: bytes) -> bytes | None:
        """The signed answer; None for what nobody could use an answer to."""
        if not self._read.take():
            self.dropped += 1
            return None
        try:
            request = ClaimRequest.from_bytes(raw)
            request.verify()
        except (ClaimError, EnrolmentError):
            self.refused += 1
            return None
        if self._book.knows(request) and not self._answered.take():
            self.dropped += 1
            return None
        device = request.enrolment.device_id
        try:
            answer = self._judge(request, device)
        except (ClaimError, EnrolmentError) as error:
            self.refused += 1
            answer = ClaimAnswer(device, "refused", error.what)
        return answer.to_bytes(self._signer())

    def _judge(self, request: ClaimRequest, device: str) -> ClaimAnswer:
        try:
            point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), request.tls_key)
        except ValueError:
            raise ClaimError("holds no P-256 public key") from None
        self._registry.changed()  # an operator may have revoked it meanwhile
        known = {one.device_id: one for one in self._registry.devices(revoked=True)}
        if request.is_renewal:
            held = self._book.of_device(device)
        else:
            held = self._book.use(request.claim.to_bytes(), device)
        # A claim that was used admits nobody anew by itself: the registry was lost, and with it
        # who was revoked.
        waits = self._waits or (held.issued > 0 and device not in known)
        if waits and not held.approved:
            return ClaimAnswer(device, "waiting", "the proxy's operator has to admit it")
        if device not in known:
            self._registry.admit(request.enrolment, note=held.name)
            self.admitted += 1
        elif not known[device].active:
            raise ClaimError("the device was revoked")
        issue = self._book.next_issue(held.key, device)
        shown = self._authority.client(device, point, issue=issue, days=self._days)
        return ClaimAnswer(device, "admitted", certificate=certificate_pem(shown).decode())


class _Allowance:
    """So many in each minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._left, self._since_s = per_minute, clock()

    def take(self) -> bool:
        """Whether there is one more."""
        now_s = self._clock()
        if now_s - self._since_s >= _MINUTE_S:
            self._left, self._since_s = self._per_minute, now_s
        self._left -= 1
        return self._left >= 0
