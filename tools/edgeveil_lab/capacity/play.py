"""A fleet of any size: the real cloud and proxy, with their stores, in virtual time.

Devices that rounds ask are real machines; all others only listen and are a number. Each party is
one queue, as long at a message as this processor was; a broker is a line of so many bytes a second.
Packages and segments have their real sizes and are not encrypted (`SizedSealing`).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from edgeveil.config.cloud import CloudSite
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.buckets import bucket_bytes, bucket_level, bucket_of, bucket_stanzas
from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey, VerifyKey
from edgeveil.crypto.sealing import stanza_area_bytes
from edgeveil.enrolment import Enrolment
from edgeveil.errors import JobFailed
from edgeveil.jobs import parse_job
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.device_round import DeviceMemory, DeviceSettings
from edgeveil.protocol.messages import (
    Manifest,
    Message,
    Note,
    PeerKeys,
    Signer,
    decode,
    decode_body,
    encode,
)
from edgeveil.protocol.sealed import Plaintext, Terms, front_bytes, in_pieces
from edgeveil.testing import PlainSealing
from edgeveil.transport.process import make_signing_key
from edgeveil.transport.runtime import perform
from edgeveil_cloud.role import STORE_FILE, CloudChance
from edgeveil_cloud.role import build as build_cloud
from edgeveil_lab.load.device import NoiseWorker, SharedVerifyKey, SharedWork
from edgeveil_lab.load.scenario import LoadOptions, job_yaml
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_proxy.role import build as build_proxy
from edgeveil_proxy.spool import SPOOL_FILE

_LOG = logging.getLogger("edgeveil.capacity")
_NOWHERE = {"url": "mqtt://127.0.0.1:1"}
_LATENCY_S = 0.001
_NO_LIMIT = 1 << 40
_LATEST_S = 30 * 86400.0  # of virtual time: nothing moves any more
_INSERT = "INSERT INTO device (id, identity, sealing, note, admitted_s) VALUES (?, ?, ?, ?, ?)"
_ASIDE = 1.2  # devices that are played, for each that a round asks
BROKER_BYTES_PER_S = 125e6


# --- what is counted ---


@dataclass
class PartyTally:
    """One party's account. Bytes are of frames, without what MQTT and TLS add; `seconds` of the
    processor."""

    sent: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received: Counter[str] = field(default_factory=Counter)
    received_bytes: int = 0
    stored: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def send(self, kind: str, size_bytes: int, copies: int = 1) -> None:
        self.sent[kind] += copies
        self.sent_bytes += size_bytes * copies

    def receive(self, kind: str, size_bytes: int) -> None:
        self.received[kind] += 1
        self.received_bytes += size_bytes

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - start

    def since(self, before: PartyTally) -> PartyTally:
        return PartyTally(
            self.sent - before.sent,
            self.sent_bytes - before.sent_bytes,
            self.received - before.received,
            self.received_bytes - before.received_bytes,
            self.stored - before.stored,
            {what: s - before.seconds.get(what, 0.0) for what, s in self.seconds.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "messages_out": self.sent.total(),
            "bytes_out": self.sent_bytes,
            "messages_in": self.received.total(),
            "bytes_in": self.received_bytes,
            "rows": dict(self.stored),
            "busy_s": round(sum(self.seconds.values()), 4),
            "seconds": {what: round(s, 4) for what, s in sorted(self.seconds.items())},
            "sent": dict(self.sent),
            "received": dict(self.received),
        }


class SizedSealing(PlainSealing):
    """`PlainSealing` whose keys take as many bytes, and buckets, as stanzas do."""

    def seal_broadcast(
        self,
        terms: Terms,
        package: Plaintext,
        recipients: Sequence[SealingKey],
        part_bytes: int,
        *,
        bucketed: bool = False,
    ) -> tuple[Manifest, bytes, bytes]:
        """See `edgeveil.protocol.sealed.seal_broadcast`; always in buckets."""
        manifest, data, tag = super().seal_broadcast(terms, package, recipients, part_bytes)
        level = bucket_level(recipients)
        if level > 1:
            manifest = in_pieces(msgspec.structs.replace(manifest, buckets=level), data)
        return manifest, data, tag

    def front(self, recipients: Sequence[SealingKey]) -> bytes:
        """The keys of each bucket, filled up to its size."""
        level, count = bucket_level(recipients), len(recipients)
        dealt: list[list[bytes]] = [[] for _ in range(level)]
        for key in recipients:
            dealt[bucket_of(key, level) if level > 1 else 0].append(key.to_bytes())
        size = stanza_area_bytes(count)
        if level > 1:
            size = bucket_bytes(max(bucket_stanzas(count, level), *map(len, dealt)))
        return b"".join(b"".join(keys).ljust(size, b"\0") for keys in dealt)

    def open_broadcast(
        self, key: OpeningKey, manifest: Manifest, data: bytes
    ) -> tuple[bytes, bytes] | None:
        front = front_bytes(manifest, len(data))
        if not self.is_listed(key, manifest, data[:front]):
            return None
        return data[front:], self.membership(manifest)

    def is_listed(self, key: OpeningKey, manifest: Manifest, stanzas: bytes) -> bool:
        return key.public().to_bytes() in stanzas


# --- parties ---


class PlayedParty:
    """A real machine and its host; `tally` is its account."""

    def __init__(self, name: str, play: FleetPlay, address: fx.Address) -> None:
        self.name, self.play, self.address = name, play, address
        self.tally = PartyTally()
        self.machine: fx.Machine
        self.host: Any
        self.refused: Counter[str] = Counter()
        self.free_s = self.worker_free_s = 0.0  # of its loop, of what works beside it
        self.timers: dict[str, int] = {}

    def join(self, role: Any) -> PlayedParty:
        self.machine, self.host = role.machine, role.host
        return self

    def post(self, event: fx.Event) -> None:
        self.play.post(self, event)

    def take(self, event: fx.Event) -> None:
        """Handle an event with all its effects; virtual time goes on by what they took."""
        start_s = max(self.play.now_s, self.free_s)
        began = time.process_time()
        with self.tally.busy("decide"):
            effects = self.machine.handle(event, start_s)
        for effect in effects:
            self._do(effect, start_s + time.process_time() - began)
        self.free_s = start_s + time.process_time() - began

    def _do(self, effect: fx.Effect, at_s: float) -> None:
        match effect:
            case fx.Send(to=to, message=message):
                with self.tally.busy("encode"):
                    frame = encode(message)
                self.play.carry(self, to, message, frame, at_s)
            case fx.Persist(item=item):
                with self.tally.busy("store"):
                    self.host.store(item)
            case fx.Work(task=task):
                began = time.process_time()
                with self.tally.busy(type(task).__name__):
                    result = perform(self.host, task, _LOG)
                done_s = max(at_s, self.worker_free_s) + time.process_time() - began
                self.worker_free_s = done_s
                self.play.post(self, fx.WorkDone(task, result), done_s)
            case fx.SetTimer(name=name, delay_s=delay_s):
                self.timers[name] = self.play.post(self, fx.Timer(name), at_s + delay_s)
            case fx.CancelTimer(name=name):
                self.timers.pop(name, None)
            case fx.Refuse(reason=reason):
                self.refused[reason] += 1
            case fx.Report() as report:
                self.host.report(report)


class PlayedDevice:
    """A device that rounds may ask: the real machine, which answers with noise."""

    def __init__(
        self, play: FleetPlay, shared: SharedWork, cloud: VerifyKey, proxy: VerifyKey
    ) -> None:
        self.signing, self.opening = SigningKey.generate(), OpeningKey.generate()
        self.id = self.signing.public().fingerprint()
        self.play = play
        self.machine = DeviceMachine(
            Signer(self.id, self.signing),
            PeerKeys.pinned(cloud=cloud, proxy=proxy),
            DeviceMemory(),
            DeviceSettings(packet_bytes=play.shape.packet_bytes, blob_bytes=_NO_LIMIT),
            sealing=(self.opening.public(),),
        )
        self.worker = NoiseWorker(shared, self.opening, self.id, SizedSealing())
        self.timers: dict[str, int] = {}

    def take(self, event: fx.Event) -> None:
        """Each on a box of its own: in no virtual time."""
        for effect in self.machine.handle(event, self.play.now_s):
            match effect:
                case fx.Send(message=message):
                    self.play.from_device(self, message)
                case fx.Work(task=task):
                    done = fx.WorkDone(task, self.worker.perform(task))
                    self.play.post(self, done)
                case fx.SetTimer(name=name, delay_s=delay_s):
                    due_s = self.play.now_s + delay_s
                    self.timers[name] = self.play.post(self, fx.Timer(name), due_s)
                case fx.CancelTimer(name=name):
                    self.timers.pop(name, None)


# --- the play ---


class FleetPlay:
    """One cloud, one proxy and their fleet in `folder`. `say` hears what is being done."""

    def __init__(
        self, shape: LoadOptions, folder: Path, say: Callable[[str], None] = lambda _line: None
    ) -> None:
        self.shape, self._folder, self._say = shape, folder, say
        self.now_s = 0.0
        self._queue: list[tuple[float, int, PlayedParty | PlayedDevice, fx.Event]] = []
        self._numbers = itertools.count()
        self._lines = Counter[str]()  # until when a broker's line is taken
        self.edge, self.crowd, self.answering = PartyTally(), PartyTally(), PartyTally()
        self._buckets: dict[int, dict[int, list[PlayedDevice]]] = {}  # by level
        self._chance = Random(7)  # noqa: S311 - which of those played a round asks
        self._set_up()

    def _set_up(self) -> None:
        shape, state = self.shape, {n: self._folder / n for n in ("cloud", "proxy")}
        keys = {name: make_signing_key(state[name], name).public() for name in state}
        self._say(f"admitting {shape.devices:,} devices")
        shared = SharedWork(shape.packet_bytes, shape.payload_bytes)
        played = min(shape.devices, int(_ASIDE * shape.asked) + 1)
        known = {name: SharedVerifyKey(key.to_bytes()) for name, key in keys.items()}
        self.devices = {
            one.id: one
            for one in (
                PlayedDevice(self, shared, known["cloud"], known["proxy"]) for _ in range(played)
            )
        }
        self._by_key = {one.opening.public().to_bytes() for one in self.devices.values()}
        _admit(state["proxy"] / REGISTRY_FILE, self.devices.values(), shape.devices)
        limits = {
            "packet_bytes": shape.packet_bytes,
            "blob_bytes": _NO_LIMIT,
            "spool_bytes": _NO_LIMIT,
        }
        self.proxy = PlayedParty("proxy", self, fx.ProxyAddress())
        room = {"upload_bytes": _NO_LIMIT, "cache_bytes": _NO_LIMIT, "devices": 10**7}
        proxy_site = ProxySite.model_validate(
            {
                "edge_broker": _NOWHERE,
                "cloud_broker": _NOWHERE,
                "state_dir": state["proxy"],
                "cloud_key_file": state["cloud"] / "cloud.pub",
                "limits": {**limits, **room, "hellos_per_s": 1e6},
            }
        )
        with self.proxy.tally.busy("start"):
            self.proxy_role = build_proxy(proxy_site, link=self.proxy.join)
        self.cloud = PlayedParty("cloud", self, fx.CloudAddress())
        cloud_site = CloudSite.model_validate(
            {
                "broker": _NOWHERE,
                "state_dir": state["cloud"],
                "proxy_key_file": state["proxy"] / "proxy.pub",
                "limits": limits,
            }
        )
        self.cloud_role = build_cloud(
            cloud_site,
            random=CloudChance(choose=self._choose),
            link=self.cloud.join,
            sealing=SizedSealing(),
        )
        self.stores = {
            "cloud": (state["cloud"] / STORE_FILE,),
            "proxy": (state["proxy"] / REGISTRY_FILE, state["proxy"] / SPOOL_FILE),
        }

    def close(self) -> None:
        self.proxy_role.close()
        self.cloud_role.close()

    def _choose(self, keys: Sequence[bytes], count: int) -> list[bytes]:
        """As uniform as `draw`, over those that are played."""
        return self._chance.sample([key for key in keys if key in self._by_key], count)

    # --- the queue ---

    def post(
        self, to: PlayedParty | PlayedDevice, event: fx.Event, at_s: float | None = None
    ) -> int:
        """An event at a moment (None: now); its number."""
        number = next(self._numbers)
        due_s = self.now_s if at_s is None else at_s
        heapq.heappush(self._queue, (due_s, number, to, event))
        return number

    def run(self, until: Callable[[], bool]) -> None:
        """Play until the condition holds. Raises JobFailed where nothing is left to happen."""
        while not until():
            if not self._queue or self.now_s > _LATEST_S:
                raise JobFailed("the fleet came to a stand")
            self.now_s, number, to, event = heapq.heappop(self._queue)
            if isinstance(event, fx.Timer) and to.timers.get(event.name) != number:
                continue
            to.take(event)

    def _line(self, broker: str, at_s: float, size_bytes: float) -> float:
        """When bytes that come to a broker now have left it."""
        begin_s = max(at_s, self._lines[broker])
        self._lines[broker] = begin_s + size_bytes / BROKER_BYTES_PER_S  # type: ignore[assignment]
        return float(self._lines[broker]) + _LATENCY_S

    # --- frames ---

    def carry(
        self, sender: PlayedParty, to: fx.Address, message: Message, frame: bytes, at_s: float
    ) -> None:
        kind, size = kind_of(message), len(frame)
        sender.tally.send(kind, size)
        if isinstance(to, fx.ProxyAddress | fx.CloudAddress):
            peer = self.cloud if isinstance(to, fx.CloudAddress) else self.proxy
            peer.tally.receive(kind, size)
            with peer.tally.busy("decode"):
                said = decode(frame, self.shape.packet_bytes)
            event = fx.MessageReceived(sender.address, said)
            self.post(peer, event, self._line("cloud", at_s, size))
            return
        self.edge.receive(kind, size)
        if isinstance(to, fx.DeviceAddress):
            self.edge.send(kind, size)
            self.answering.receive(kind, size)
            heard, copies = [self.devices[to.id]], 1.0
        else:
            copies, heard = float(self.shape.devices), list(self.devices.values())
            if isinstance(to, fx.BucketAddress):
                copies, heard = copies / to.level, self._of_bucket(to)
            if not isinstance(to, fx.BucketAddress) or not to.index:  # each device hears one bucket
                self.edge.send(kind, size, self.shape.devices)
                self.crowd.receive(kind, size)
        due_s = self._line("edge", at_s, size * copies)
        for device in heard:
            self.post(device, fx.MessageReceived(fx.ProxyAddress(), message), due_s)

    def _of_bucket(self, to: fx.BucketAddress) -> list[PlayedDevice]:
        if to.level not in self._buckets:
            dealt: dict[int, list[PlayedDevice]] = {}
            for one in self.devices.values():
                index = bucket_of(one.opening.public(), to.level)
                dealt.setdefault(index, []).append(one)
            self._buckets[to.level] = dealt
        return self._buckets[to.level].get(to.index, [])

    def from_device(self, device: PlayedDevice, message: Message) -> None:
        frame = encode(message)
        kind, size = kind_of(message), len(frame)
        for tally in (self.edge, self.proxy.tally):
            tally.receive(kind, size)
        self.edge.send(kind, size)
        self.answering.send(kind, size)
        with self.proxy.tally.busy("decode"):
            said = decode(frame, self.shape.packet_bytes)
        due_s = self._line("edge", self.now_s, size)
        self.post(self.proxy, fx.MessageReceived(fx.DeviceAddress(device.id), said), due_s)

    # --- what happens ---

    def play(self) -> dict[str, Any]:
        """All comes, a job with its rounds, its release; what each cost, for JSON."""
        self._say("the fleet comes")
        phases = {"come": self._phase(self._come)}
        self._say("the job is announced")
        phases["announce"] = self._phase(self._announce)
        for number in range(1, self.shape.rounds + 1):
            self._say(f"round {number} of {self.shape.rounds}")
            phases[f"round {number}"] = self._phase(lambda n=number: self._committed(n))  # type: ignore[misc]
        self._say("the release")
        phases["release"] = self._phase(
            lambda: self.run(lambda: self.cloud_role.store.job(self.job).ended)
        )
        return phases

    def _phase(self, what: Callable[[], None]) -> dict[str, Any]:
        before = {name: deepcopy(tally) for name, tally in self.tallies()}
        rows, start_s = self.rows(), self.now_s
        what()
        spent = {name: tally.since(before[name]) for name, tally in self.tallies()}
        grown = {party: found - rows[party] for party, found in self.rows().items()}
        for party, more in grown.items():
            spent[party].stored = more
        return {
            "seconds": self.now_s - start_s,
            "parties": {name: tally.to_dict() for name, tally in spent.items()},
        }

    def tallies(self) -> Iterator[tuple[str, PartyTally]]:
        """Every party's account; the crowd's is what each single device of it hears."""
        yield "cloud", self.cloud.tally
        yield "proxy", self.proxy.tally
        yield "edge broker", self.edge
        yield "devices asked", self.answering
        yield "each device", self.crowd

    def rows(self) -> dict[str, Counter[str]]:
        return {
            party: sum((_rows(file) for file in files), Counter[str]())
            for party, files in self.stores.items()
        }

    def _come(self) -> None:
        self.post(self.proxy, fx.PeerConnected(fx.CloudAddress()))
        self.post(self.proxy, fx.PeerConnected(fx.AllDevices()))
        self.post(self.cloud, fx.PeerConnected(fx.ProxyAddress()))
        for device in self.devices.values():
            self.post(device, fx.PeerConnected(fx.ProxyAddress()))
        store, wanted = self.cloud_role.store, len(self.devices)
        self.run(
            lambda: len(self.proxy_role.machine.online) == wanted and bool(store.roster_marks())
        )

    def _announce(self) -> None:
        job = parse_job(job_yaml(self.shape, self.shape.devices))
        store = self.cloud_role.store
        self.job = store.submit_job(job.job, job.canonical(), job.digest()).id
        self.cloud_role.control.start(store.job(self.job))
        memory = self.proxy_role.machine.memory
        self.run(lambda: any(one.header.kind == "job" for one in memory.kept.values()))

    def _committed(self, number: int) -> None:
        store = self.cloud_role.store

        def done() -> bool:
            last = store.last_commit(self.job)
            return last is not None and last.index >= number

        self.run(done)


def kind_of(message: Message) -> str:
    """What a message is called in an account: of a note, what it says."""
    if isinstance(message, Note):
        return type(decode_body(message.body)).__name__.lower()
    return type(message).__name__.lower()


def _admit(path: Path, played: Any, devices: int) -> None:
    """Those that are played, and keys that nobody has: their devices never say a word."""
    registry = Registry(path, limit=10**7)
    registry.admit_many(Enrolment.make(one.signing, one.opening) for one in played)
    registry.close()
    others = devices - len(played)
    rows = ((os.urandom(8).hex(), os.urandom(32), os.urandom(32), "", 0.0) for _ in range(others))
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(_INSERT, rows)
        db.execute("UPDATE roster SET epoch = epoch + 1")


def _rows(path: Path) -> Counter[str]:
    found = Counter[str]()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            query = f'SELECT count(*) FROM "{name}"'  # noqa: S608 - a name of the store's own
            found[name] = int(db.execute(query).fetchone()[0])
    return found
