"""One simulated device: the real machine on a bare connection, with memory for its only store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from edgeveil.crypto.keys import OpeningKey, SigningKey, VerifyKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.device_tasks import DeviceMemory, DeviceSettings, OpenPackage, OutboxPut
from edgeveil.protocol.messages import (
    Ack,
    Bye,
    ExchangeId,
    Note,
    Offer,
    Part,
    Signer,
    decode_body,
    encode,
)
from edgeveil.transport.link import ALL_DOWN, device_down, device_up
from edgeveil.transport.mqtt_packets import Login, encoded_topic
from edgeveil_lab.load.fleet import Member
from edgeveil_lab.load.mqtt import Client
from edgeveil_lab.load.shared import Shared
from edgeveil_lab.load.work import Worker

KEEPALIVE_S = 60
BACKOFF_BASE_S, BACKOFF_CAP_S = 1.0, 60.0  # as the real link's
_ANSWER_S = 2 * DeviceSettings.resend_s  # within it an upload is offered again
_STEADY_S = 5.0


@dataclass(frozen=True)
class _Upload:
    """The newest real one. `offered_s` is the leader's time."""

    at: ExchangeId
    blob: bytes
    offered_s: float


Dial = Callable[["LoadDevice"], None]
Queue = Callable[["LoadDevice", object], None]


@dataclass(frozen=True)
class Setup:
    """What all devices of a process share beside `Shared`. `dial` and `queue` are its loop's."""

    cloud_key: VerifyKey
    proxy_key: VerifyKey
    protocol: int
    qos: int
    packet_bytes: int
    user: str | None
    password: str | None
    dial: Dial
    queue: Queue


class LoadDevice:
    """A machine, its connection, its timers. `online` while it wants to be connected."""

    def __init__(
        self, setup: Setup, shared: Shared, member: Member, slow_bytes_per_s: int = 0
    ) -> None:
        signing = SigningKey(member.signing)
        self.id = signing.public().fingerprint()
        self._setup, self._shared, self._slow_bytes_per_s = setup, shared, slow_bytes_per_s
        self._signer = Signer(self.id, signing)
        self.machine = DeviceMachine(
            self._signer,
            setup.cloud_key,
            setup.proxy_key,
            DeviceMemory(),
            DeviceSettings(packet_bytes=setup.packet_bytes, blob_bytes=1 << 40),
        )
        self._worker = Worker(shared, OpeningKey(member.opening))
        self._password = member.password
        self._topic = encoded_topic(device_up(self.id))
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._client: Client | None = None
        self._failures, self._up_since_s, self._dialled_s = 0, 0.0, 0.0
        self._upload: _Upload | None = None
        self._held_before_s: float | None = None
        self._counted_before_s: float | None = None
        self.online = False
        self.answered = asyncio.Event()  # by the broker, or the connection is gone

    # --- the connection ---

    def client(self) -> Client:
        """A fresh connection, to be dialled now."""
        setup, will = self._setup, encode(self._signer.note(Bye(self.id)))
        login = Login(
            client_id=f"{self.id}-load",
            username=setup.user or self.id,
            password=setup.password if setup.user else self._password,
            will=(device_up(self.id), will),
            keepalive_s=KEEPALIVE_S,
            packet_bytes=setup.packet_bytes,
        )
        self.answered.clear()
        self._dialled_s, tally = self._loop.time(), self._shared.tally
        tally.first_dial_s = tally.first_dial_s or self._shared.now_s()
        topics = (ALL_DOWN, device_down(self.id))
        self._client = Client(
            self, login, setup.protocol, topics, self._topic, self._slow_bytes_per_s
        )
        return self._client

    @property
    def connected(self) -> bool:
        """Whether there is a connection, dialled or up."""
        return self._client is not None

    def connect(self) -> None:
        """Come, and stay until `leave`."""
        self.online = True
        self._setup.dial(self)

    def on_up(self) -> None:
        """The broker took us."""
        self.answered.set()
        now_s, tally = self._loop.time(), self._shared.tally
        tally.connected += 1
        tally.connects += 1
        tally.connect_s.add(now_s - self._dialled_s)
        tally.last_up_s = self._shared.now_s()
        self._up_since_s = now_s
        if self._upload is not None:
            self._loop.call_later(_ANSWER_S, self._owed, self._client, self._upload)
        self._take(fx.PeerConnected(fx.ProxyAddress()))

    def _owed(self, client: Client | None, upload: _Upload) -> None:
        """Back for long enough to have offered once more: from now on an answer is missed."""
        if self._client is client and self._upload is upload:
            self._shared.tally.back(upload.at, upload.blob)

    def on_down(self, reason: str) -> None:
        """The connection is gone: come again after a random wait, longer after each failure."""
        self.answered.set()
        tally, client = self._shared.tally, self._client
        was_up = self._up_since_s > 0
        if client is not None:
            self.add_bytes()
            self._client = None
        if was_up:
            tally.connected -= 1
            if self._loop.time() - self._up_since_s >= _STEADY_S:
                self._failures = 0
            self._up_since_s = 0.0
        if not self.online:
            return
        if self._upload is not None:
            tally.away(self._upload.at, self._upload.blob)
        if was_up:
            tally.reconnects += 1
        else:
            self.failed(reason)
        self._failures += 1
        longest_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** min(self._failures, 30))
        self._loop.call_later(self._shared.chance.uniform(0, longest_s), self._again)

    def failed(self, reason: str) -> None:
        """A connection could not be had."""
        self._shared.tally.failed += 1
        self._shared.tally.refused[f"connect: {reason}"] += 1

    def _again(self) -> None:
        if self.online and self._client is None:
            self._setup.dial(self)

    def cut(self) -> None:
        """Lose the connection."""
        if self._client is not None:
            self._client.cut()

    def leave(self) -> None:
        """Go away for good, in good order."""
        if self.online:
            self._take(fx.Command("stop"))
        self.online = False
        for timer in self._timers.values():
            timer.cancel()
        if self._client is not None:
            self._client.finish()

    def tick(self, now_s: float) -> None:
        """Now and then: keep the connection alive, add up its bytes."""
        if self._client is not None:
            self._client.tick(now_s)
            self.add_bytes()

    def add_bytes(self) -> None:
        """Move the connection's byte counts into the tally."""
        if self._client is None:
            return
        self._shared.tally.bytes_up += self._client.bytes_out
        self._shared.tally.bytes_down += self._client.bytes_in
        self._client.bytes_in = self._client.bytes_out = 0

    # --- the machine ---

    def on_frame(self, payload: bytes) -> None:
        """A frame from the proxy, or from the cloud through it."""
        try:
            message = self._shared.message(payload)
            if isinstance(message, Note) and message.body.signer == "proxy":
                self._note_ack(message)
        except ProtocolError as error:
            self._shared.tally.refused[error.reason] += 1
            return
        self._take(fx.MessageReceived(fx.ProxyAddress(), message))

    def perform(self, task: object) -> Callable[[], None]:
        """Do a task that `queue` was given; the machine gets the outcome by what is returned."""
        done = fx.WorkDone(task, self._worker.perform(task))
        return lambda: self._take(done)

    def _take(self, event: fx.Event) -> None:
        for effect in self.machine.handle(event, self._loop.time()):
            match effect:
                case fx.Send(message=message):
                    self._send(message)
                case fx.SetTimer(name=name, delay_s=delay_s):
                    self._cancel(name)
                    self._timers[name] = self._loop.call_later(delay_s, self._fire, name)
                case fx.CancelTimer(name=name):
                    self._cancel(name)
                case fx.Work(task=task):
                    self._queue(task)
                case fx.Persist(item=OutboxPut() as item):
                    self._offered(item)
                case fx.Refuse(reason=reason):
                    self._shared.tally.refused[f"device: {reason}"] += 1
                case fx.Report(what="counted", data=data) if data["counted"] == data["segments"]:
                    self._counted(data["round"])
                case fx.Report(what="declined", data=data):
                    self._shared.tally.refused[f"declined: {data['why']}"] += 1

    def _queue(self, task: object) -> None:
        if isinstance(task, OpenPackage):
            manifest = task.manifest
            if manifest.kind == "round":
                row = self._shared.tally.round(manifest.at)
                row.began_s = row.began_s or self._shared.now_s()
            task = OpenPackage(manifest, self._shared.blob(manifest.blob.digest, task.blob))
        self._setup.queue(self, task)

    def _send(self, message: object) -> None:
        if self._client is None or not self._client.up:
            return
        frame = encode(message)  # type: ignore[arg-type]
        if self._upload is not None and isinstance(message, Offer | Part):
            row = self._shared.tally.round(self._upload.at)
            row.upload_messages += 1
            row.upload_bytes += len(frame)
        self._client.publish(frame, self._setup.qos)

    def _offered(self, item: OutboxPut) -> None:
        if item.dummy:
            self._upload = None
            return
        blob, now_s, tally = item.upload.blob.digest, self._shared.now_s(), self._shared.tally
        self._upload = _Upload(item.at, blob, now_s)
        tally.offer(item.at, blob, item.marks, now_s, self._worker.total)
        if self._client is None or not self._client.up:
            tally.away(item.at, blob)

    def _note_ack(self, note: Note) -> None:
        body = decode_body(note.body)
        upload = self._upload
        if isinstance(body, Ack) and upload is not None and body.blob == upload.blob:
            now_s, before_s = self._shared.now_s(), self._held_before_s
            took_s = self._shared.tally.ack(
                upload.at, upload.blob, body.status, body.reason, now_s, before_s
            )
            self._held_before_s = before_s if took_s is None else took_s

    def _counted(self, number: object) -> None:
        """This device read that its upload in this round was counted."""
        if self._upload is not None and self._upload.at.exchange == number:
            took_s = self._shared.now_s() - self._upload.offered_s
            self._shared.tally.counted_s.add(took_s, self._counted_before_s)
            self._counted_before_s = took_s

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self._take(fx.Timer(name))

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
