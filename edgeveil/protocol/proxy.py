"""The proxy's machine: serve identical bytes to all, take one upload each, shuffle, hand over.

It sees ciphertext only. Towards the cloud it says counts, never who or when. Broadcasts are the
business of `proxy_broadcasts.py` and `proxy_serving.py`, uploads of `proxy_uploads.py`, batches of
`proxy_rounds.py`.
"""

from __future__ import annotations

from edgeveil.crypto.keys import VerifyKey
from edgeveil.crypto.labels import BODY
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.blob import describe
from edgeveil.protocol.codec import decode_body
from edgeveil.protocol.envelope import Signer, check
from edgeveil.protocol.messages import (
    Ack,
    Bye,
    Close,
    Decline,
    Exchanged,
    Hello,
    Here,
    Need,
    Note,
    Offer,
    Part,
    Roster,
    Signed,
    Want,
)
from edgeveil.protocol.proxy_broadcasts import Broadcasts
from edgeveil.protocol.proxy_greeting import Greeting
from edgeveil.protocol.proxy_rounds import Rounds
from edgeveil.protocol.proxy_serving import Serving
from edgeveil.protocol.proxy_tasks import (
    KeepBroadcast,
    ProxyMemory,
    ProxyParts,
    ProxySettings,
    Registry,
    ShuffleRound,
)
from edgeveil.protocol.proxy_uploads import Uploads
from edgeveil.protocol.transfer import answer_need, part_bytes, sends


class ProxyMachine:
    """One proxy between the devices' broker and the cloud's."""

    def __init__(
        self,
        signer: Signer,
        cloud_key: VerifyKey,
        registry: Registry,
        memory: ProxyMemory | None = None,
        settings: ProxySettings | None = None,
    ) -> None:
        self.signer, self.cloud_key, self.registry = signer, cloud_key, registry
        self.memory, self.settings = memory or ProxyMemory(), settings or ProxySettings()
        parts = ProxyParts(signer, cloud_key, registry, self.memory, self.settings)
        self.rounds = Rounds(parts)
        self.uploads = Uploads(parts, self.rounds)
        self.serving = Serving(parts)
        self.broadcasts = Broadcasts(parts, self.rounds, self.serving)
        self.online = parts.online
        self._greeting = Greeting(parts)
        self._roster: tuple[Signed, Roster, bytes] | None = None

    @property
    def at(self) -> Exchanged | None:
        """The round that was opened last."""
        newest = next(reversed(self.rounds.by_key), None)
        return Exchanged(*newest) if newest else None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        try:
            return self._handle(event, now_s)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]

    def _handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Connected(peer=fx.Cloud()):
                return self._send_roster() + self.rounds.report_all()
            case fx.Connected(peer=fx.AllDevices()):
                return self._greeting.here()
            case fx.Command(what="started"):
                return self.rounds.resume()
            case fx.Command(what="roster_changed"):
                return self._roster_changed()
            case fx.Done(task=ShuffleRound() as task, result=result):
                return self.rounds.shuffled(task, result)
            case fx.Done(task=KeepBroadcast() as task, result=result):
                return self.broadcasts.kept(task, result)
            case fx.Received(sender=fx.Cloud(), message=message):
                return self._cloud_message(message)
            case fx.Received(sender=fx.Device(id=device), message=message):
                return self._device_message(device, message, now_s)
            case fx.Timer(name=name):
                return self._timer(name, now_s)
        return []

    def _timer(self, name: str, now_s: float) -> list[fx.Effect]:
        if name == "credit":
            return self.rounds.arrivals.tick(now_s)
        if name == "hellos":
            return self._greeting.spread_over(now_s) or self.rounds.all_came()
        if name == "roster":
            return self._offer_roster(push=False)
        return self.broadcasts.repair() if name == "repair" else self.rounds.timer(name)

    # --- how things stand, for metrics and logs ---

    @property
    def spool_bytes(self) -> int:
        """Disk taken by uploads and batches, or promised to uploads under way."""
        return self.rounds.spooled_bytes

    @property
    def cache_bytes(self) -> int:
        """Disk taken by broadcasts, or promised to those under way."""
        return self.broadcasts.cached_bytes

    @property
    def credit_bytes(self) -> int:
        """Bytes that devices were asked for and that have not come yet."""
        return self.rounds.arrivals.credit.granted_bytes

    def asks(self, device: str) -> bool:
        """Whether parts that this device was asked for have not come yet."""
        return self.rounds.arrivals.credit.expects(device)

    @property
    def open_rounds(self) -> int:
        """Rounds that take uploads."""
        return len(self.rounds.open)

    # --- the roster ---

    def _roster_changed(self) -> list[fx.Effect]:
        known = self.registry.verify_key
        self.online -= {device for device in self.online if known(device) is None}
        return self._send_roster()

    def _send_roster(self) -> list[fx.Effect]:
        epoch, keys = self.registry.roster()
        blob = describe(keys, part_bytes(self.settings.packet_bytes))
        header = Roster(epoch, blob)
        self._roster = (self.signer.header(header), header, keys)
        return self._offer_roster(push=True)

    def _offer_roster(self, *, push: bool) -> list[fx.Effect]:
        if self._roster is None:
            return []
        signed, header, keys = self._roster
        limit = self.settings.packet_bytes
        packets = sends(fx.Cloud(), signed, header.blob, keys, limit, push=push)
        return [*packets, fx.SetTimer("roster", self.settings.resend_s)]

    # --- from the cloud ---

    def _cloud_message(self, message: object) -> list[fx.Effect]:
        match message:
            case Offer() as offer:
                return self.broadcasts.offer(offer)
            case Part() as part:
                return self.broadcasts.part(part)
            case Need() as need:
                return self._cloud_need(need)
            case Note(body=signed) as note:
                check(signed, "cloud", self.cloud_key, BODY)
                body = decode_body(signed)
                if isinstance(body, Ack):
                    return self._cloud_ack(body)
                if isinstance(body, Close):
                    return self.broadcasts.close(body, note)
                if isinstance(body, Here):
                    return self._send_roster() + self.rounds.report_short()
        raise ProtocolError("unexpected_body")

    def _cloud_need(self, need: Need) -> list[fx.Effect]:
        if self._roster and self._roster[1].blob.digest == need.blob:
            return list(answer_need(fx.Cloud(), need, self._roster[1].blob, self._roster[2]))
        return self.rounds.need(need)

    def _cloud_ack(self, ack: Ack) -> list[fx.Effect]:
        if self._roster and self._roster[1].blob.digest == ack.blob:
            self._roster = None
            return [fx.CancelTimer("roster")]
        return self.rounds.delivered(ack)

    # --- from devices ---

    def _device_message(self, device: str, message: object, now_s: float) -> list[fx.Effect]:
        match message:
            case Offer() as offer:
                return self.uploads.offer(device, offer, now_s)
            case Part() as part:
                return self.uploads.part(device, part, now_s)
            case Need() as need:
                return self.serving.need(device, need, now_s)
            case Note(body=signed):
                return self._device_note(device, signed, now_s)
        raise ProtocolError("unexpected_body")

    def _device_note(self, device: str, signed: Signed, now_s: float) -> list[fx.Effect]:
        body = decode_body(signed)
        if isinstance(body, Hello) and not self._greeting.rate.free(now_s):
            return self._greeting.later(device, now_s)  # its signature is checked when it is heard
        check(signed, device, self.registry.verify_key(device), BODY)
        match body:
            case Hello(device=said) if said == device:
                return self._came(device, signed, now_s)
            case Bye(device=said) if said == device:
                self.online.discard(device)
                return [*self.uploads.left(device), self._presence()]
            case Want(job_id=job_id):
                return self.serving.want(device, job_id, now_s)
            case Decline(at=at):
                return self.uploads.decline(device, at, now_s)
        raise ProtocolError("unexpected_body")

    def _came(self, device: str, hello: Signed, now_s: float) -> list[fx.Effect]:
        heard = self._greeting.heard(device, hello, now_s)
        self.online.add(device)
        coming = self.uploads.came(device, now_s)
        return [*heard, *self.serving.welcome(device, self.rounds.open), *coming, self._presence()]

    def _presence(self) -> fx.Effect:
        return fx.Report("devices_online", {"count": len(self.online)})
