"""One simulated device: the real machine; shared frames are decoded and verified once."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from edgeveil.crypto.keys import MaskSeed, OpeningKey, SigningKey, VerifyKey
from edgeveil.errors import EdgeVeilError, ProtocolError
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.plan import Plan
from edgeveil.parts.methods.noise_only import as_summed_steps, steps_of_one
from edgeveil.protocol import device as tasks
from edgeveil.protocol import device_round, messages, sealed
from edgeveil.protocol import effects as fx
from edgeveil.protocol.tensors import masked_segment
from edgeveil.protocol.transfer import Fetch
from edgeveil.transport.mqtt_packets import Login, encoded_topic
from edgeveil_lab.load.counters import UploadCounters
from edgeveil_lab.load.mqtt import BareClient
from edgeveil_lab.load.sites import FleetMember

if TYPE_CHECKING:
    from edgeveil_lab.load.generator import Generator

# --- shared by the devices of one process: frames, jobs, noise, counts, randomness ---

_FRAMES = 4096
_FRAMES_BYTES = 128 << 20
_KEY_BYTES = 96  # of a frame: tag, blob digest and index of a part, signer and more of an offer
_POOL_BYTES = 4 << 20
_NOISE_RANGE = 8.0  # bound on the pool's float32 normals
_SIGNATURES = 64


class SharedWork:
    def __init__(self, packet_bytes: int, payload_bytes: int) -> None:
        self.counters = UploadCounters()
        self.chance = random.Random(os.urandom(16))  # noqa: S311 - drops and delays only
        self._packet_bytes = packet_bytes
        self._frames: OrderedDict[bytes, tuple[bytes, messages.Message]] = OrderedDict()
        self._frames_bytes = 0
        self._blobs: dict[bytes, bytes] = {}
        self._plans: dict[bytes, Plan] = {}
        self._record: messages.Commit | None = None  # the newest
        # Pieces of the newest record by blob digest: place, number of places, parts so far.
        self._pieces: dict[bytes, tuple[int, int, Fetch[messages.Commit]]] = {}
        pool = np.random.default_rng().standard_normal(
            max(_POOL_BYTES, 2 * payload_bytes) // 4, np.float32
        )
        self._noise = pool.astype("<f4").tobytes()

    # --- frames ---

    def message(self, frame: bytes) -> messages.Message:
        """Return the decoded frame, and follow commit records; raises ProtocolError."""
        key = frame[:_KEY_BYTES]
        known = self._frames.get(key)
        if known is not None and known[0] == frame:
            return known[1]
        message = messages.decode(frame, self._packet_bytes)
        if isinstance(message, messages.Offer | messages.BlobPart):
            self._follow(message)
            self._frames[key] = (frame, message)
            self._frames_bytes += len(frame)
            while len(self._frames) > _FRAMES or self._frames_bytes > _FRAMES_BYTES:
                _, (old, _message) = self._frames.popitem(last=False)
                self._frames_bytes -= len(old)
        return message

    def blob(self, digest: bytes, data: bytes) -> bytes:
        """Return one shared copy of a broadcast that devices keep until they open it."""
        if digest not in self._blobs:
            while len(self._blobs) >= 4:
                del self._blobs[next(iter(self._blobs))]
            self._blobs[digest] = data
        return self._blobs[digest]

    def _follow(self, message: messages.Message) -> None:
        """Count each commit record once, whichever device received it first; drop old rounds."""
        if isinstance(message, messages.Offer):
            header = messages.decode_header(message.header)
            if isinstance(header, messages.Manifest) and header.kind == "round":
                self._frames.clear()  # frames of the last round are hardly repeated
                self._blobs.clear()
                self._frames_bytes = 0
            if not isinstance(header, messages.Commit) or header == self._record:
                return
            self._record = header
            if message.data or not header.blob.size_bytes:
                self.counters.commit(header.at, message.data)
                return
            pieces = [(0, 1, header.blob)]
            pieces += [(n, len(header.pieces), one) for n, one in enumerate(header.pieces)]
            self._pieces = {
                blob.digest: (place, places, Fetch(message, header, blob.size_bytes, blob=blob))
                for place, places, blob in pieces
            }
        elif (
            isinstance(message, messages.BlobPart) and self._record and message.blob in self._pieces
        ):
            place, places, fetch = self._pieces[message.blob]
            if fetch.add(message):
                del self._pieces[message.blob]
                self.counters.commit(fetch.header.at, fetch.finish(), place, places)

    # --- work ---

    def learn(self, job_id: bytes, canonical: bytes, digest: bytes) -> None:
        if hashlib.sha256(canonical).digest() != digest:
            raise ProtocolError("wrong_job")
        if job_id not in self._plans:
            self._plans[job_id] = compile_canonical(canonical)

    def plan(self, manifest: messages.Manifest) -> Plan:
        plan = self._plans.get(manifest.at.job_id)
        if plan is None:
            raise ProtocolError("unknown_job")
        return plan

    def noise(self, byte_count: int) -> bytes:
        """Return finite float32 noise from a random offset of a pool drawn in advance."""
        start = 4 * self.chance.randrange((len(self._noise) - byte_count) // 4)
        return self._noise[start : start + byte_count]


class SharedVerifyKey(VerifyKey):
    """The cloud's key, which verifies equal signatures on equal bytes once for all devices."""

    __slots__ = ("_checks",)
    _checks: SimpleNamespace

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        verify = lru_cache(_SIGNATURES)(super().library_key().verify)  # failures are not cached
        object.__setattr__(self, "_checks", SimpleNamespace(verify=verify))

    def library_key(self) -> SimpleNamespace:  # type: ignore[override]
        return self._checks


# --- work of the device machine: real opening and sealing, of noise ---


class NoiseWorker:
    """One device's work; `total` is the sum of the newest upload's values."""

    __slots__ = ("_device", "_membership", "_opening", "_released", "_sealing", "_shared", "total")

    def __init__(
        self, shared: SharedWork, opening: OpeningKey, device: str, sealing: sealed.Sealing = sealed
    ) -> None:
        self._shared, self._opening, self._device = shared, opening, device
        self._sealing = sealing
        self._membership = self._released = b""
        self.total = 0.0

    def perform(self, task: object) -> object:
        """Return the outcome of one task, `WorkFailed` on an error."""
        try:
            match task:
                case tasks.FindStanza(manifest=manifest, stanzas=stanzas):
                    return tasks.StanzaLook(
                        self._sealing.is_listed(self._opening, manifest, stanzas)
                    )
                case device_round.OpenPackage(manifest=manifest, blob=blob):
                    return self._open(manifest, blob)
                case tasks.InstallJob(manifest=manifest, package=package):
                    self._shared.learn(manifest.at.job_id, package.job, manifest.job_digest)
                    return tasks.Installation()
                case device_round.ComputeAnswer(manifest=manifest, round_key=key):
                    return self._seal(manifest, self._membership, key, dummy=False)
                case device_round.SealDummies(manifest=manifest, round_key=key):
                    return self._seal(manifest, os.urandom(32), key, dummy=True)
                case tasks.InstallRelease() | tasks.AdoptRelease():
                    return tasks.Installation()
                case tasks.SealReport(manifest=manifest):
                    health = messages.ReleaseOutcome.IN_USE.to_bytes() if self._released else b""
                    membership = self._released or os.urandom(32)
                    return tasks.MadeReport(
                        self._sealing.seal_segment(manifest, messages.HEALTH, membership, health)
                    )
                case tasks.ApplyStatement():
                    return tasks.StatementApplied(left=False)
        except ProtocolError as error:
            return fx.WorkFailed(error.reason)
        except EdgeVeilError as error:
            return fx.WorkFailed(str(error))
        return fx.WorkFailed("unknown_task")

    def _open(self, manifest: messages.Manifest, blob: bytes) -> device_round.OpenedPackage:
        opened = self._sealing.open_broadcast(self._opening, manifest, blob)
        if manifest.kind == "release":
            self._released = b""
        chance = self._shared.chance.random()
        if opened is None:
            return device_round.OpenedPackage(None, chance)
        package, membership = opened
        if manifest.kind == "round":
            self._membership = membership
        else:
            self._released = membership
        return device_round.OpenedPackage(sealed.decode_package(package), chance)

    def _seal(
        self, manifest: messages.Manifest, membership: bytes, round_key: bytes, *, dummy: bool
    ) -> device_round.SealedAnswer:
        plan = self._shared.plan(manifest)
        round = plan.round(manifest.at.round)
        if manifest.groups != plan.groups(round) or manifest.masked != plan.masked(round):
            raise ProtocolError("wrong_groups")
        values = [self._shared.noise(4 * spec.count) for spec in plan.segments(round)]
        sealed_seed = b""
        if manifest.masked:
            noise, sealed_seed = self._mask(manifest, values, membership, round_key)
        else:
            noise = values
            self.total = sum(float(np.frombuffer(n, "<f4").sum(dtype=np.float64)) for n in noise)
        answers = [
            self._sealing.seal_segment(manifest, group, membership, one)
            for one, group in zip(noise, manifest.groups, strict=True)
        ]
        groups, sizes = tuple(range(len(answers))), tuple(map(len, answers))
        marks = tuple(sealed.segment_mark(membership, segment) for segment in answers)
        return device_round.SealedAnswer(
            groups, sizes, b"".join(answers), marks, dummy, seed=sealed_seed
        )

    def _mask(
        self,
        manifest: messages.Manifest,
        values: Sequence[bytes],
        membership: bytes,
        round_key: bytes,
    ) -> tuple[list[bytes], bytes]:
        """Return the masked segments, and the masks' sealed seed for the proxy."""
        seed, summed = MaskSeed.generate(), self._shared.plan(manifest).context.summed
        vectors = sealed.masked_vectors(manifest.at, manifest.groups, manifest.masked)
        steps = [
            as_summed_steps(np.frombuffer(v, np.float32) / np.float32(_NOISE_RANGE), summed)
            for v in values
        ]
        self.total = sum(int(one.sum()) for one in steps) / steps_of_one(summed)
        parts = zip(vectors, steps, strict=True)
        check = sealed.RoundCheck.of_manifest(manifest, membership)
        masked = [masked_segment(of, one, seed, check) for of, one in parts]
        return masked, sealed.seal_seed(seed, manifest, self._device, round_key)


# --- the device ---

KEEPALIVE_S = 60
BACKOFF_BASE_S, BACKOFF_CAP_S = 1.0, 60.0  # as the real link's
_ANSWER_S = 2 * device_round.DeviceSettings.resend_s  # enough to offer an upload again
_STEADY_S = 5.0


@dataclass(frozen=True)
class _Upload:
    """The newest real upload; `offered_s` is in seconds since 1970."""

    at: messages.RoundId
    blob: bytes
    offered_s: float


class LoadDevice:
    """A machine, its connection and its timers; `online` while it wants to be connected."""

    def __init__(self, crowd: Generator, member: FleetMember) -> None:
        signing = SigningKey(member.signing)
        self.id: str = signing.public().fingerprint()
        self._crowd, self._shared, options = crowd, crowd.shared, crowd.options
        self._signer = messages.Signer(self.id, signing)
        opening = OpeningKey(member.opening)
        self._sealing = (opening.public(),)
        self.machine = tasks.DeviceMachine(
            self._signer,
            crowd.keys,
            device_round.DeviceMemory(),
            device_round.DeviceSettings(packet_bytes=options.packet_bytes, blob_bytes=1 << 40),
            sealing=self._sealing,
        )
        self._worker = NoiseWorker(crowd.shared, opening, self.id)
        self._password = member.password
        self._topic = encoded_topic(crowd.topics.device_up(self.id))
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._client: BareClient | None = None
        self._failures, self._up_since_s, self._dialled_s = 0, 0.0, 0.0
        self._upload: _Upload | None = None
        self.online = False
        self.answered = asyncio.Event()  # by the broker, or the connection was lost

    # --- the connection ---

    def client(self) -> BareClient:
        """Create a new connection, which the caller dials."""
        options, spoken = self._crowd.options, self._crowd.topics
        will = messages.encode(self._signer.note(messages.Bye(self.id)))
        login = Login(
            client_id=f"{self.id}-load",
            username=options.user or self.id,
            password=self._crowd.password if options.user else self._password,
            will=(spoken.device_up(self.id), will),
            keepalive_s=KEEPALIVE_S,
            packet_bytes=options.packet_bytes,
        )
        self.answered.clear()
        self._dialled_s, counters = self._loop.time(), self._shared.counters
        counters.first_dial_s = counters.first_dial_s or time.time()
        topics = (spoken.all_down, spoken.device_down(self.id), *spoken.buckets(self._sealing))
        self._client = BareClient(self, login, options.protocol, topics, self._topic)
        return self._client

    @property
    def connected(self) -> bool:
        return self._client is not None

    def connect(self) -> None:
        self.online = True
        self._crowd.dialler.dial(self)

    def on_up(self) -> None:
        self.answered.set()
        now_s, counters = self._loop.time(), self._shared.counters
        counters.connected += 1
        counters.connects += 1
        counters.connect_s.add(now_s - self._dialled_s)
        counters.last_up_s = time.time()
        self._up_since_s = now_s
        if self._upload is not None:
            self._loop.call_later(_ANSWER_S, self._expect_answer, self._client, self._upload)
        self._take(fx.PeerConnected(fx.ProxyAddress()))

    def _expect_answer(self, client: BareClient | None, upload: _Upload) -> None:
        # The device has been back long enough to offer again: a missing answer counts from now.
        if self._client is client and self._upload is upload:
            self._shared.counters.away(upload.at, upload.blob, away=False)

    def on_down(self, reason: str) -> None:
        """Reconnect after a random delay, whose range doubles with each failure."""
        self.answered.set()
        counters, client = self._shared.counters, self._client
        was_up = self._up_since_s > 0
        if client is not None:
            self.add_bytes()
            self._client = None
        if was_up:
            counters.connected -= 1
            if self._loop.time() - self._up_since_s >= _STEADY_S:
                self._failures = 0
            self._up_since_s = 0.0
        if not self.online:
            return
        if self._upload is not None:
            counters.away(self._upload.at, self._upload.blob)
        if was_up:
            counters.reconnects += 1
        else:
            counters.failed += 1
            counters.refused[f"connect: {reason}"] += 1
        self._failures += 1
        longest_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** min(self._failures, 30))
        self._loop.call_later(self._shared.chance.uniform(0, longest_s), self._redial)

    def _redial(self) -> None:
        if self.online and self._client is None:
            self._crowd.dialler.dial(self)

    def cut(self) -> None:
        if self._client is not None:
            self._client.cut()

    def leave(self) -> None:
        if self.online:
            self._take(fx.Command("stop"))
        self.online = False
        for timer in self._timers.values():
            timer.cancel()
        if self._client is not None:
            self._client.finish()

    def tick(self, now_s: float) -> None:
        if self._client is not None:
            self._client.tick(now_s)
            self.add_bytes()

    def add_bytes(self) -> None:
        if self._client is None:
            return
        self._shared.counters.bytes_up += self._client.bytes_out
        self._shared.counters.bytes_down += self._client.bytes_in
        self._client.bytes_in = self._client.bytes_out = 0

    # --- the machine ---

    def on_frame(self, payload: bytes) -> None:
        try:
            message = self._shared.message(payload)
            if isinstance(message, messages.Note) and message.body.signer == "proxy":
                self._note_ack(message)
        except ProtocolError as error:
            self._shared.counters.refused[error.reason] += 1
            return
        self._take(fx.MessageReceived(fx.ProxyAddress(), message))

    def perform(self, task: object) -> Callable[[], None]:
        """Do a queued task; return a callable that passes the outcome to the machine."""
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
                case fx.Persist(item=device_round.OutboxPut() as item):
                    self._offered(item)
                case fx.Refuse(reason=reason):
                    self._shared.counters.refused[f"device: {reason}"] += 1
                case fx.Report(kind="counted", data=data) if data["counted"] == data["segments"]:
                    upload = self._upload  # this device's commit record lists it
                    if upload is not None and upload.at.round == data["round"]:
                        counted_s = self._shared.counters.counted_s
                        counted_s.add(time.time() - upload.offered_s)
                case fx.Report(kind="declined", data=data):
                    self._shared.counters.refused[f"declined: {data['why']}"] += 1

    def _queue(self, task: object) -> None:
        """Queue a task; a broadcast in one bucket is the same for all, and one copy is kept."""
        manifest = getattr(task, "manifest", None)
        if manifest is not None and manifest.buckets == 1:
            if isinstance(task, tasks.FindStanza):
                stanzas = self._shared.blob(manifest.pieces[0].digest, task.stanzas)
                task = tasks.FindStanza(manifest, stanzas)
            elif isinstance(task, device_round.OpenPackage):
                blob = self._shared.blob(manifest.blob.digest, task.blob)
                task = device_round.OpenPackage(manifest, blob)
        self._crowd.queue(self, task)

    def _send(self, message: object) -> None:
        if self._client is None or not self._client.up:
            return
        frame = messages.encode(message)  # type: ignore[arg-type]
        if self._upload is not None and isinstance(message, messages.Offer | messages.BlobPart):
            row = self._shared.counters.round(self._upload.at)
            row.upload_messages += 1
            row.upload_bytes += len(frame)
        self._client.publish(frame, self._crowd.options.qos)

    def _offered(self, item: device_round.OutboxPut) -> None:
        if item.dummy:
            self._upload = None
            return
        blob, now_s, counters = item.upload.blob.digest, time.time(), self._shared.counters
        self._upload = _Upload(item.at, blob, now_s)
        counters.offer(item.at, blob, item.marks, now_s, self._worker.total)
        if self._client is None or not self._client.up:
            counters.away(item.at, blob)

    def _note_ack(self, note: messages.Note) -> None:
        body = messages.decode_body(note.body)
        upload = self._upload
        if isinstance(body, messages.Ack) and upload is not None and body.blob == upload.blob:
            self._shared.counters.ack(upload.at, upload.blob, body.status, body.reason, time.time())

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self._take(fx.Timer(name))

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
