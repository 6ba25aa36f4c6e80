"""One-time claims: their book, the desk that judges requests, and its link.

A claim is stored as its public key. Before it expires it admits the first identity it signs for,
which may repeat the request, and later requests certificates in its own name. Requests are
rate-limited by sender before parsing: the topic's device, authenticated by the broker, or the key
named in the topic of a box without a certificate. Known senders have a rate each, unknown ones
share one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from edgeveil.claim import (
    MESSAGE_BYTES,
    ClaimAnswer,
    ClaimError,
    ClaimRequest,
    claimed_key_id,
    key_id,
)
from edgeveil.config.proxy import ClaimDeskSettings, ProxySite
from edgeveil.crypto.authorities import RENEWALS, Authority, certificate_pem
from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.enrolment import EnrolmentError
from edgeveil.errors import BrokerError, EdgeVeilError
from edgeveil.protocol.effects import DeviceAddress
from edgeveil.storage import SqliteFile
from edgeveil.transport.link import Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings
from edgeveil_proxy.registry import NOTE_CHARACTERS, REGISTRY_FILE, Registry

CLAIMS_FILE = "claims.sqlite"
SHOWN = 100  # senders on a status page
EACH_BURST = 6  # requests of one known sender at once, then one per:
EACH_S = 5.0  # the shortest interval of a box
CLAIMS_LOOK_S = 1.0
_MINUTE_S = 60.0
_SAME_S = 3600.0  # less than a third of the shortest certificate life, when it is renewed
_ANSWERS = 1024
_SCHEMA = """CREATE TABLE IF NOT EXISTS claim (
    key BLOB PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    expires_s REAL NOT NULL,
    device TEXT,
    issued INTEGER NOT NULL DEFAULT 0,
    approved INTEGER NOT NULL DEFAULT 0
) STRICT"""


class ClaimBookError(EdgeVeilError):
    exit_code = 2


class _HeldClaim(NamedTuple):
    """A claim bound to `device`; `issued` counts certificates, `approved` is the operator's."""

    key: bytes
    name: str
    expires_s: float
    device: str | None
    issued: int
    approved: int


class ClaimBook:
    """The claims in `path`, for several processes; methods may raise ClaimBookError."""

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
        self._file.close()

    def add(self, names: Iterable[str], valid_s: float) -> list[tuple[str, SigningKey]]:
        """Make a claim per name, all or none; raises ClaimBookError for a used claim's name."""
        made = [(name, SigningKey.generate()) for name in names]
        expires_s = self._now_s() + valid_s
        with self._file.transaction() as db:
            for name, key in made:
                if not name or len(name) > NOTE_CHARACTERS:
                    fix = f"use 1 to {NOTE_CHARACTERS} characters"
                    raise ClaimBookError("is no name", where=name[:64], fix=fix)
                row = db.execute("SELECT device FROM claim WHERE name = ?", (name,)).fetchone()
                if row is not None and row[0] is not None:
                    what = f"{name} is device {row[0]} already"
                    raise ClaimBookError(what, fix="give a new box a new name")
                db.execute("DELETE FROM claim WHERE name = ?", (name,))  # replaces an unused claim
                db.execute(
                    "INSERT INTO claim (key, name, expires_s) VALUES (?, ?, ?)",
                    (key.public().to_bytes(), name, expires_s),
                )
        return made

    def all(self) -> list[_HeldClaim]:
        with self._file.guard() as db:
            rows = db.execute("SELECT * FROM claim ORDER BY name").fetchall()
        return [_HeldClaim(*row) for row in rows]

    def withdraw(self, name: str) -> None:
        self._change("DELETE FROM claim WHERE name = ? AND device IS NULL", name, "unused claim")

    def approve(self, name: str) -> None:
        self._change("UPDATE claim SET approved = 1 WHERE name = ?", name, "claim")

    def _change(self, query: str, name: str, which: str) -> None:
        with self._file.transaction() as db:
            done = db.execute(query, (name,))
        if not done.rowcount:
            fix = "see edgeveil proxy devices; revoke a device by its id"
            raise ClaimBookError(f"there is no {which} of '{name[:64]}'", fix=fix)

    def disapprove(self, device: str) -> None:
        """Withdraw approval from a removed device's claims, so that none admits it again."""
        with self._file.transaction() as db:
            db.execute("UPDATE claim SET approved = 0 WHERE device = ?", (device,))

    def use(self, key: bytes, device: str) -> _HeldClaim:
        """Bind a claim to a device; raises ClaimError if unknown, expired or another device's."""
        with self._file.transaction() as db:
            row = db.execute("SELECT * FROM claim WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise ClaimError("the claim is unknown")
            found = _HeldClaim(*row)
            if found.device is None and found.expires_s <= self._now_s():
                raise ClaimError("the claim has expired")
            if found.device not in (None, device):
                raise ClaimError("the claim was used by another device")
            db.execute("UPDATE claim SET device = ? WHERE key = ?", (device, key))
        return found

    def version(self) -> tuple[int, int]:
        with self._file.guard() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0]), db.total_changes

    def of_device(self, device: str) -> _HeldClaim:
        """Return the device's newest claim; raises ClaimError without any."""
        query = "SELECT * FROM claim WHERE device = ? ORDER BY expires_s DESC"
        with self._file.guard() as db:
            for row in db.execute(query, (device,)):
                return _HeldClaim(*row)
        raise ClaimError("the device has used no claim")

    def next_issue(self, key: bytes, device: str) -> int:
        with self._file.transaction() as db:
            query = "SELECT sum(issued) FROM claim WHERE device = ?"
            (issued,) = db.execute(query, (device,)).fetchone()
            db.execute("UPDATE claim SET issued = issued + 1 WHERE key = ?", (key,))
        return int(issued) % RENEWALS


class ClaimDesk:
    """Judges requests, `per_minute` of unknown senders; `look` and `answer` are for one thread."""

    def __init__(
        self,
        book: ClaimBook,
        registry: Registry,
        authority: Authority,
        signer: Callable[[], SigningKey],
        *,
        certificate_days: int,
        approved_by_operator: bool,
        per_minute: int = 600,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book, self._registry, self._authority = book, registry, authority
        self._signer, self._days, self._clock = signer, certificate_days, clock
        self._waits = approved_by_operator
        self._known: Mapping[str, str] = {}  # sender -> name for the operator
        self._known_at: tuple[int, ...] = ()
        self._each: dict[str, _Rate] = {}
        self._strangers = _Rate(per_minute, _MINUTE_S / per_minute)
        self._same: dict[str, tuple[bytes, float, str]] = {}  # by device
        self._dropped: Counter[str] = Counter()
        self.admitted = self.refused = self.dropped = 0
        self.look()

    def look(self) -> None:
        self._registry.changed()
        at = *self._book.version(), self._registry.roster_epoch
        if at == self._known_at:
            return
        known = {}
        for held in self._book.all():
            known[key_id(VerifyKey(held.key))] = held.name
            if held.device is not None:
                known[held.device] = held.device
        for one in self._registry.devices():
            known[one.device_id] = known[key_id(one.identity)] = one.device_id
        self._known, self._known_at = known, at
        self._each = {one: rate for one, rate in self._each.items() if one in known}
        names = "", *known.values()
        self._dropped = Counter({name: self._dropped[name] for name in names})

    def takes(self, sender: str, raw: bytes) -> bool:
        """Return whether a request is within its sender's rate, counting it."""
        name, now_s = self._known.get(sender), self._clock()
        rate = self._strangers
        if name is not None:
            rate = self._each.setdefault(sender, _Rate(EACH_BURST, EACH_S))
        if rate.take(now_s) and len(raw) <= MESSAGE_BYTES:
            return True
        self.dropped += 1
        self._dropped[name or ""] += 1
        return False

    def dropped_by_sender(self) -> list[dict[str, Any]]:
        """Return dropped requests by sender, most first; "" stands for all unknown senders."""
        most = (+self._dropped).most_common(SHOWN)
        return [{"sender": name, "dropped": count} for name, count in most]

    def answer(self, sender: str, raw: bytes) -> bytes | None:
        """Return the signed answer, or None for an unusable request."""
        try:
            request = ClaimRequest.from_bytes(raw)
            request.verify()
        except (ClaimError, EnrolmentError):
            self.refused += 1
            return None
        device = request.enrolment.device_id
        if sender not in (device if request.is_renewal else "", key_id(request.claim)):
            self.refused += 1
            return None
        try:
            answer = self._judge(request, device, hashlib.sha256(raw).digest())
        except (ClaimError, EnrolmentError) as error:
            self.refused += 1
            answer = ClaimAnswer(device, "refused", error.what)
        return answer.to_bytes(self._signer())

    def _judge(self, request: ClaimRequest, device: str, asked: bytes) -> ClaimAnswer:
        try:
            point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), request.tls_key)
        except ValueError:
            raise ClaimError("holds no P-256 public key") from None
        self._registry.changed()  # an operator may have revoked it meanwhile
        known = self._registry.device(device)
        if request.is_renewal:
            held = self._book.of_device(device)
        else:
            held = self._book.use(request.claim.to_bytes(), device)
        # A used claim of an unknown device needs the operator: the registry was lost, and
        # revocations with it.
        waits = self._waits or (held.issued > 0 and known is None)
        if waits and not held.approved:
            return ClaimAnswer(device, "waiting", "the proxy's operator has to admit it")
        if known is None:
            self._registry.admit(request.enrolment, note=held.name)
            self.admitted += 1
            self.look()
        elif not known.active:
            raise ClaimError("the device was revoked")
        same, until_s, certificate = self._same.get(device, (b"", 0.0, ""))
        if same != asked or self._clock() >= until_s:
            issue = self._book.next_issue(held.key, device)
            shown = self._authority.client(device, point, issue=issue, days=self._days)
            certificate = certificate_pem(shown).decode()
            self._same.pop(device, None)
            while len(self._same) >= _ANSWERS:
                del self._same[next(iter(self._same))]
            self._same[device] = asked, self._clock() + _SAME_S, certificate
        return ClaimAnswer(device, "admitted", certificate=certificate)


class _Rate:
    def __init__(self, burst: int, each_s: float) -> None:
        self._burst_s, self._each_s = burst * each_s, each_s
        self._spent_until_s = 0.0

    def take(self, now_s: float) -> bool:
        until_s = max(now_s, self._spent_until_s) + self._each_s
        if until_s - now_s > self._burst_s + 1e-6:
            return False
        self._spent_until_s = until_s
        return True


class ClaimLink:
    """The desk on its own connection and registry, so that it delays no round."""

    def __init__(
        self,
        site: ProxySite,
        settings: ClaimDeskSettings,
        signer: Callable[[], SigningKey],
        refused: Callable[[DeviceAddress, str], None],
    ) -> None:
        self._book = ClaimBook(site.state_dir / CLAIMS_FILE)
        self._registry = Registry(site.state_dir / REGISTRY_FILE, limit=site.limits.devices)
        self._desk = ClaimDesk(
            self._book,
            self._registry,
            Authority.load(settings.authority_cert_file, settings.authority_key_file),
            signer,
            certificate_days=settings.certificate_days,
            approved_by_operator=settings.admit == "operator",
        )
        self._refused, self._turn = refused, asyncio.Lock()
        self._topics = topics = Topics(site.cell)
        link = link_settings(
            site.edge_broker, f"{topics.proxy_id}-claims", site.limits.packet_bytes
        )
        # Access lists of the previous version lack topics with a sender.
        named = frozenset((topics.any_renewal, topics.any_claim))
        self._link = MqttLink(replace(link, optional_topics=named), on_message=self._answer)
        self._link.takes = self._takes

    def _takes(self, topic: str, payload: bytes) -> bool:
        sender = self._topics.claimant_of(topic)
        if self._desk.takes(sender or claimed_key_id(payload), payload):
            return True
        if topic == self._topics.renewal(sender):
            self._refused(DeviceAddress(sender), "rate")
        return False

    async def _answer(self, topic: str, payload: bytes) -> None:
        sender = self._topics.claimant_of(topic) or claimed_key_id(payload)
        async with self._turn:
            answer = await asyncio.to_thread(self._desk.answer, sender, payload)
        if answer is not None:
            with suppress(BrokerError):  # the box repeats its request
                await self._link.publish(self._topics.claims_down, answer)

    async def run(self) -> None:
        topics = self._topics
        self._link.subscribe([topics.any_renewal, topics.any_claim, topics.claims_of_before])
        await asyncio.gather(self._link.run_forever(), self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(CLAIMS_LOOK_S)
            async with self._turn:
                await asyncio.to_thread(self._desk.look)

    async def close(self) -> None:
        await self._link.close()
        self._book.close()
        self._registry.close()

    def counts(self) -> dict[str, int]:
        desk = self._desk
        return {"admitted": desk.admitted, "refused": desk.refused, "dropped": desk.dropped}

    def dropped(self) -> list[dict[str, Any]]:
        return self._desk.dropped_by_sender()
