"""Proxy machine: serve identical bytes to all, take one upload each, shuffle, hand over.

The proxy sees only ciphertext; the cloud gets counts, never identities or times. This file
dispatches events to `proxy_broadcasts.py`, `proxy_uploads.py` and `proxy_rounds.py`, and handles
the roster (sent to the cloud on every change), the root's metadata and presence. Hellos are rate
limited: one beyond the limit is deferred before its signature is verified."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from edgeveil.crypto.keys import STATE_BYTES
from edgeveil.crypto.labels import BODY
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.proxy_broadcasts import Broadcasts, KeepBroadcast, ProxyReleases, Serving
from edgeveil.protocol.proxy_uploads import ProxyUploads, TakePut


@dataclass(frozen=True)
class FindAnswered:
    """Work: find up to `most` jobs answered after answer `since`. Returns `Answered`."""

    device: str
    hello: bytes
    since: int
    known: int
    most: int


@dataclass(frozen=True)
class Answered:
    """Jobs in order of their answers, up to answer `number`; `whole`: there are no others."""

    number: int
    jobs: tuple[m.EncryptedJobState, ...]
    whole: bool


@dataclass(frozen=True)
class AnswersFrom:
    device: str
    number: int


@dataclass(frozen=True)
class DeviceKnows:
    """Capability of a device of an earlier version, from its hello."""

    device: str
    knows: int


@dataclass(frozen=True)
class SealingKeyChanged:
    """New sealing key of an admitted device; a `number` below the known one is ignored."""

    device: str
    sealing: bytes
    number: int


@dataclass(frozen=True)
class SetAside:
    """A `Command`: messages of this device are dropped for a while, so do not wait for it."""

    device: str


_LATEST_S = 600.0


class _HelloRate:
    """Rate limit of hellos; each one beyond it is assigned the next free time."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(1.0, per_s)
        self._room = self._most  # hellos accepted now: at most one second's worth
        self._seen_s = self._next_s = 0.0

    def free(self, now_s: float) -> bool:
        self._room = min(self._most, self._room + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        return self._room >= 1

    def take(self) -> None:
        self._room -= 1

    def delay_s(self, now_s: float) -> float:
        self._next_s = max(self._next_s, now_s + 1) + 1 / self._per_s
        return min(self._next_s - now_s, _LATEST_S)

    def deferred_s(self, now_s: float) -> float:
        """Return how long deferred hellos may still arrive; 0 or less if none."""
        return min(self._next_s - now_s, _LATEST_S)


_MESSAGE_BYTES = 1024  # of a packet, without the documents in it
_DELAY_STEP_S = 0.1  # delays are rounded, so that one signed note serves many devices
_MOST_JOBS = 64  # in one `Behind`
_EACH_HELLOS, _EACH_S = 5, 10.0  # limit of one device: an honest one needs few


class ProxyMachine:
    """One proxy between the devices' broker and the cloud's."""

    def __init__(
        self,
        signer: m.Signer,
        keys: m.PeerKeys,
        registry: pr.DeviceRegistry,
        memory: pr.ProxyMemory | None = None,
        settings: pr.ProxySettings | None = None,
        trust: Callable[[int, int], tuple[tuple[bytes, ...], bytes]] | None = None,
    ) -> None:
        """`trust` returns the roots above a version and the delegations (empty if not newer)."""
        self.signer, self.registry, self._trust = signer, registry, trust
        self.memory, self.settings = memory or pr.ProxyMemory(), settings or pr.ProxySettings()
        context = pr.ProxyContext(signer, keys, registry, self.memory, self.settings)
        self._context, self.online = context, context.online
        self.rounds = pr.ProxyRounds(context)
        self.uploads = ProxyUploads(context, self.rounds)
        self.serving = Serving(context)
        self.releases = ProxyReleases(context)
        self.masks = pr.ProxyMasks(context, self.rounds)
        self.broadcasts = Broadcasts(context, self.rounds, self.serving, self.releases, self.masks)
        self._roster: tuple[m.Envelope, m.Roster, bytes] | None = None
        self._edge_up = True  # the link to the devices' broker
        self.hello_rate = _HelloRate(self.settings.hellos_per_s)
        self._later: dict[int, m.Note] = {}
        # Of admitted devices: start of the counting period and number of hellos in it.
        self._hellos: dict[str, tuple[float, int]] = {}
        # Of admitted devices: digest of the last new key, and earliest time of the next.
        self._new_sealing: dict[str, tuple[bytes, float]] = {}

    @property
    def at(self) -> m.RoundId | None:
        return next(reversed(self.rounds.collections), None)

    def handle(self, event: fx.Event, now_s: float) -> fx.Effects:
        try:
            return self._handle(event, now_s)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]

    def _handle(self, event: fx.Event, now_s: float) -> fx.Effects:
        match event:
            case fx.PeerConnected(peer=fx.CloudAddress()):
                return [*self._send_roster(), self._link_state(), *self.rounds.report_all()]
            case fx.PeerConnected(peer=fx.AllDevices()) | fx.PeerSilent(peer=fx.AllDevices()):
                link = [] if self._edge_up else [self._link_state(up=True)]
                return [*link, *self._here()]
            case fx.PeerLost(peer=fx.AllDevices()):
                return [self._link_state(up=False)] if self._edge_up else []
            case fx.PeerSilent(peer=fx.CloudAddress()):
                return self._send_roster()
            case fx.Command(request="started"):
                return self.rounds.resume()
            case fx.Command(request="roster_changed"):
                known = self.registry.verify_key
                gone = {device for device in self.online if known(device) is None}
                self.online -= gone
                self.rounds.attendance.keep(self.registry.admitted())
                return [*self._send_roster(), *([self._presence()] if gone else [])]
            case fx.Command(request=m.PeerKeys() as keys):
                return self._believe(keys)
            case fx.Command(request=SetAside(device=device)):
                return self.rounds.set_aside(device)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result, now_s)
            case fx.MessageReceived(sender=fx.CloudAddress(), message=message):
                return self._cloud_message(message)
            case fx.MessageReceived(sender=fx.DeviceAddress(id=device), message=message):
                return self._device_message(device, message, now_s)
            case fx.Timer(name=name):
                return self._timer(name, now_s)
        return []

    def _done(self, task: object, result: object, now_s: float) -> fx.Effects:
        match task:
            case fx.TakeTrust():
                self._context.reading_trust -= 1
                if isinstance(result, m.PeerKeys):
                    return [*self._believe(result), *self._send_roster()]
                return [fx.Refuse(result.reason)] if isinstance(result, fx.WorkFailed) else []
            case pr.ShuffleRound():
                return self.rounds.shuffled(task, result)
            case pr.StreamUploads():
                return self.rounds.streamed(task, result)
            case tr.ShowBlob():
                return self.serving.shown.done(task, result, now_s)
            case tr.FetchOutOfBand():
                return self.broadcasts.end_fetch(task, result)
            case tr.PutOutOfBand():
                return self.rounds.end_put(task, result)
            case tr.GrantPut():
                return self.uploads.grants.granted(task, result)
            case TakePut():
                return self.uploads.taken(task, result)
            case pr.SumMasks():
                return self.masks.summed(task, result)
            case KeepBroadcast():
                return self.broadcasts.kept(task, result)
            case FindAnswered() if isinstance(result, Answered):
                # The device sends another hello once it has counted them.
                behind = m.Behind(task.hello, result.number, result.jobs, result.whole)
                return [fx.Send(fx.DeviceAddress(task.device), self.signer.note(behind))]
        return []

    def _timer(self, name: str, now_s: float) -> fx.Effects:
        match name:
            case "credit":
                return self.uploads.tick(now_s)
            case "hellos":
                left_s = self.hello_rate.deferred_s(now_s)
                if left_s > 0:
                    return [fx.SetTimer("hellos", left_s + self.settings.resend_s)]
                self._context.presence_known = True
                return self.rounds.on_presence_known()
            case "roster":
                return self._offer_roster(push=False)
            case "reports":
                return self.releases.resend()
            case "roster_again":
                return self._send_roster()
            case "repair":
                return self.broadcasts.repair()
        return self.rounds.timer(name)

    @property
    def offline(self) -> set[str] | None:
        return self._context.offline

    def _presence(self) -> fx.Effect:
        return fx.Report("devices_online", {"count": len(self.online)})

    def _link_state(self, *, up: bool | None = None) -> fx.Effect:
        """Report the link to the devices' broker to the cloud, changed to `up` if given."""
        self._edge_up = self._edge_up if up is None else up
        return fx.Send(fx.CloudAddress(), self.signer.note(m.LinkState(self._edge_up)))

    def _send_roster(self) -> fx.Effects:
        registry = self.registry
        epoch, keys = registry.roster()
        blob = tr.describe(keys, tr.part_bytes(self.settings.packet_bytes))
        expires_s = registry.roster_expires_s()
        header = m.Roster(epoch, blob, registry.lineage, expires_s, self._all_know)
        self._roster = (self.signer.header(header), header, keys)
        again = fx.SetTimer("roster_again", self.settings.roster_again_s)
        return [*self._offer_roster(push=True), again]

    @property
    def _all_know(self) -> int:
        admitted = set(self.registry.admitted())
        earlier = (knows for one, knows in self.memory.earlier.items() if one in admitted)
        least = min(earlier, default=m.KNOWS_CHECKS)
        return 0 if least < m.KNOWS_BUCKETS else max(least, m.KNOWS_RECORDS)

    def _offer_roster(self, *, push: bool) -> fx.Effects:
        if self._roster is None:
            return []
        signed, header, keys = self._roster
        limit = self.settings.packet_bytes
        packets = tr.sends(fx.CloudAddress(), signed, header.blob, keys, limit, push=push)
        return [*packets, fx.SetTimer("roster", self.settings.resend_s)]

    def _believe(self, keys: m.PeerKeys) -> fx.Effects:
        """Replace keys; devices get the metadata before any newly signed message."""
        root_version, before = self._context.keys.versions
        self._context.keys = keys
        report = fx.Report("trust_changed", {"version": keys.versions[1]})
        return [*self._send_trust(fx.AllDevices(), root_version, before), report]

    def _send_trust(self, to: fx.Address, root_version: int, version: int) -> fx.Effects:
        if self._trust is None or not root_version:
            return []
        roots, delegations = self._trust(root_version, version)
        most_bytes = self.settings.packet_bytes - _MESSAGE_BYTES
        fitting = [sum(map(len, roots[: n + 1])) <= most_bytes for n in range(len(roots))]
        sent = roots[: sum(fitting)]
        whole = len(sent) == len(roots) and sum(map(len, roots)) + len(delegations) <= most_bytes
        if not sent and not (whole and delegations):
            return []
        return [fx.Send(to, m.TrustMetadata(sent, delegations if whole else b""))]

    def _cloud_message(self, message: object) -> fx.Effects:
        match message:
            case m.TrustMetadata() as metadata if self._trust is not None:
                self._context.reading_trust += 1
                return [fx.Work(fx.TakeTrust(metadata))]
            case m.Offer() as offer:
                return self.broadcasts.offer(offer)
            case m.BlobPart() as part:
                return self.broadcasts.part(part)
            case m.Need() as need:
                if self._roster and self._roster[1].blob.digest == need.blob:
                    _, header, keys = self._roster
                    return tr.answer_need(fx.CloudAddress(), need, header.blob, keys)
                summed = self.masks.need(need)
                return self.rounds.need(need) if summed is None else summed
            case m.Note(body=signed) as note:
                match self._context.keys.cloud_body(signed):
                    case m.ReleaseStatement() as statement:
                        return self.releases.set_statement(statement, note)
                    case m.Ack() as ack:
                        return self._cloud_ack(ack)
                    case m.BlobAt() as at:
                        begin = self.rounds.begin_put if at.put else self.broadcasts.begin_fetch
                        return begin(at)
                    case (m.Unmask() | m.CheckMasks()) as request:
                        return self.masks.asked(request, signed)
                    case m.Misfits() as report:
                        return self.masks.misfits(report)
                    case m.Close() as close:
                        return self.broadcasts.close(close, note)
                    case m.Here():
                        out = self._send_roster() + self.rounds.report_short()
                        return [*out, self._link_state()]
        raise ProtocolError("unexpected_body")

    def _cloud_ack(self, ack: m.Ack) -> fx.Effects:
        if self._roster and self._roster[1].blob.digest == ack.blob:
            self._roster = None
            return [fx.CancelTimer("roster")]
        if self.masks.acknowledged(ack):
            return []
        reported = self.releases.acknowledged(ack)
        return self.rounds.delivered(ack) if reported is None else reported

    def _device_message(self, device: str, message: object, now_s: float) -> fx.Effects:
        match message:
            case m.Offer() as offer:
                out = self.uploads.offer(device, offer, now_s)
                if device in self.online or not self._context.presence_known:
                    return out
                # An answer from an offline device: a copy of it sent a bye. Request a hello.
                return [*out, fx.Send(fx.DeviceAddress(device), self.signer.note(m.Here(0.0)))]
            case m.BlobPart() as part:
                return self.uploads.part(device, part, now_s)
            case m.Need() as need:
                return self.serving.need(device, need, now_s)
            case m.Note() as note:
                return self._device_note(device, note, now_s)
        raise ProtocolError("unexpected_body")

    def _device_note(self, device: str, note: m.Note, now_s: float) -> fx.Effects:
        signed = note.body
        body = m.decode_body(signed)
        if isinstance(body, m.Hello) and not self.hello_rate.free(now_s):
            return self._defer(device, now_s)  # verified when repeated
        m.check_signature(signed, device, self.registry.verify_key(device), BODY)
        match body:
            case m.Hello(device=named) as hello if named == device:
                return self._hello(hello, hashlib.sha256(signed.payload).digest(), now_s)
            case m.Bye(device=named) if named == device:
                self.online.discard(device)
                return [*self.uploads.disconnected(device), self._presence()]
            case m.NewSealingKey(device=named) as new if named == device:
                return self._new_sealing_key(new, signed, now_s)
            case m.Want(job_id=job_id):
                return self.serving.want(device, job_id, now_s)
            case m.Decline() as decline:
                return self.uploads.decline(device, decline, now_s)
            case m.BlobPut() as put:
                return self.uploads.is_put(device, put)
            case m.ReleaseReport() as report:
                return self.releases.report(device, report, note)
        raise ProtocolError("unexpected_body")

    def _here(self) -> fx.Effects:
        """Request a hello from every device, spread to match the rate limit."""
        settings = self.settings
        enrolled = len(self.registry.roster()[1]) // 32
        spread_s = max(settings.hello_spread_s, min(enrolled / settings.hellos_per_s, _LATEST_S))
        here = fx.Send(fx.AllDevices(), self.signer.note(m.Here(spread_s)))
        self._context.presence_known = False
        out = [*self._context.cover(fx.AllDevices()), here]
        return [*out, fx.SetTimer("hellos", spread_s + settings.resend_s)]

    def _defer(self, device: str, now_s: float) -> fx.Effects:
        """Defer a hello. Raises ProtocolError `unknown_signer` or `hello_too_often`."""
        if self.registry.verify_key(device) is None:
            raise ProtocolError("unknown_signer")
        self._count_hello(device, now_s)
        steps = round(self.hello_rate.delay_s(now_s) / _DELAY_STEP_S)
        if steps not in self._later:
            self._later[steps] = self.signer.note(m.Later(steps * _DELAY_STEP_S))
        # Rounds are offered to all: the device may answer one before its hello is accepted.
        to = fx.DeviceAddress(device)
        return [*self._context.cover(to), fx.Send(to, self._later[steps])]

    def _count_hello(self, device: str, now_s: float) -> None:
        """Raise ProtocolError `hello_too_often` for a device that crowds out others."""
        since_s, count = self._hellos.get(device, (now_s, 0))
        if now_s - since_s >= _EACH_S:
            since_s, count = now_s, 0
        if count >= _EACH_HELLOS:
            raise ProtocolError("hello_too_often")
        self._hellos[device] = since_s, count + 1

    def _hello(self, hello: m.Hello, digest: bytes, now_s: float) -> fx.Effects:
        """Welcome a device unless it counts fewer answers than the proxy knows."""
        device, to, answered = hello.device, fx.DeviceAddress(hello.device), self.memory.answered
        newer = self._send_trust(to, hello.root_version, hello.trust_version)
        known = answered.get(device)
        self._count_hello(device, now_s)
        self.hello_rate.take()
        if known is not None and 0 <= hello.answered < known:
            most = min(max(1, self.settings.packet_bytes // (2 * STATE_BYTES)), _MOST_JOBS)
            find = FindAnswered(device, digest, hello.answered, known, most)
            return [*newer, fx.Refuse("behind"), fx.Work(find)]
        acked = [*self._answers(hello), self._context.ack(to, digest, "held")]
        self.online.add(device)
        uploads = self.uploads.connected(device, now_s)
        # The statement goes before releases, so that an old copy of a withdrawn one is refused.
        kept = [*self.releases.welcome(device), *self.serving.welcome(device, self.rounds.open)]
        knows = self._knows(hello, again=known is not None)
        cover = self._context.cover(to)
        return [*newer, *acked, *cover, *knows, *kept, *uploads, self._presence()]

    def _answers(self, hello: m.Hello) -> fx.Effects:
        """Store permanently that a device counts its answers or checks masks."""
        if hello.answered < 0 and hello.knows < m.KNOWS_CHECKS:
            return []
        answered, counted = self.memory.answered, max(0, hello.answered)
        known = answered.get(hello.device)
        answered[hello.device] = max(known or 0, counted)
        return [] if known is not None else [fx.Persist(AnswersFrom(hello.device, counted))]

    def _knows(self, hello: m.Hello, *, again: bool) -> fx.Effects:
        """Record a device's capability; the cloud uses the lowest one of all devices."""
        earlier, knows = self.memory.earlier, min(hello.knows, m.KNOWS_CHECKS)
        out: fx.Effects = []
        if knows < m.KNOWS_CHECKS:
            out.append(fx.Refuse("earlier_version", fx.DeviceAddress(hello.device)))
        known = earlier.get(hello.device, m.KNOWS_CHECKS)
        if knows == known or (again and knows < known):  # a known device cannot lower it
            return out
        before = self._all_know
        earlier[hello.device] = knows
        if knows == m.KNOWS_CHECKS:
            del earlier[hello.device]
        roster = self._send_roster() if before != self._all_know else []
        return [*out, fx.Persist(DeviceKnows(hello.device, knows)), *roster]

    def _new_sealing_key(
        self, new: m.NewSealingKey, signed: m.Envelope, now_s: float
    ) -> fx.Effects:
        """Store a new sealing key once. Raises ProtocolError `new_key_too_often`."""
        digest = hashlib.sha256(signed.payload).digest()
        ack = self._context.ack(fx.DeviceAddress(new.device), digest, "held")
        known, next_s = self._new_sealing.get(new.device, (b"", now_s))
        if known == digest:
            return [ack]
        if now_s < next_s:
            raise ProtocolError("new_key_too_often")
        self._new_sealing[new.device] = digest, now_s + m.NEW_KEY_EVERY_S
        return [fx.Persist(SealingKeyChanged(new.device, new.sealing, new.number)), ack]
