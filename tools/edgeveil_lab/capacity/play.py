"""A fleet of any size in virtual time: the real cloud and proxy, with their stores.

Devices that rounds select are real machines; the others only receive and are counted. A party is a
queue that is busy as long as this processor was; a broker is a line of BROKER_BYTES_PER_S. Packages
and segments have their real sizes and are not encrypted (`SizedSealing`)."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from edgeveil.config.cloud import CloudSite
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.buckets import bucket_bytes, bucket_level, bucket_of, bucket_stanzas
from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey
from edgeveil.crypto.sealing import stanza_area_bytes
from edgeveil.enrolment import Enrolment
from edgeveil.errors import JobFailed
from edgeveil.jobs import parse_job
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.device_round import DeviceMemory, DeviceSettings
from edgeveil.protocol.sealed import Plaintext, Terms, front_bytes, in_pieces
from edgeveil.testing import PlainSealing
from edgeveil.transport.memory import LATENCY_S, MemoryNet, Node
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
_NO_LIMIT = 1 << 40
_LATEST_S = 30 * 86400.0  # virtual time after which a fleet counts as stuck
_INSERT = "INSERT INTO device (id, identity, sealing, note, admitted_s) VALUES (?, ?, ?, ?, ?)"
_PLAYED_SHARE = 1.2  # played devices for each device that a round selects
BROKER_BYTES_PER_S = 125e6
_PROXY, _CLOUD = fx.ProxyAddress(), fx.CloudAddress()
_NAMES: dict[fx.Address, str] = {_PROXY: "proxy", _CLOUD: "cloud"}
PARTIES = ("cloud", "proxy", "edge broker", "devices asked", "each device")
"""Parties with a tally; "each device" counts the bytes that every single device receives."""


# --- tallies ---


class PartyTally(Counter[tuple[str, str]]):
    """One party's messages by kind, bytes of frames, rows stored and processor seconds."""

    def send(self, kind: str, size_bytes: int, copies: int = 1) -> None:
        self["sent", kind] += copies
        self["moved", "out"] += size_bytes * copies

    def receive(self, kind: str, size_bytes: int) -> None:
        self["received", kind] += 1
        self["moved", "in"] += size_bytes

    @contextmanager
    def busy(self, work: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self["seconds", work] += time.process_time() - start  # type: ignore[assignment]

    def since(self, before: PartyTally) -> dict[str, Any]:
        grown: dict[str, Counter[str]] = defaultdict(Counter)
        for (count, name), amount in (self - before).items():
            grown[count][name] = amount
        return {
            "messages_out": grown["sent"].total(),
            "bytes_out": grown["moved"]["out"],
            "messages_in": grown["received"].total(),
            "bytes_in": grown["moved"]["in"],
            "rows": dict(grown["stored"]),
            "busy_s": round(grown["seconds"].total(), 4),
            "seconds": {work: round(s, 4) for work, s in sorted(grown["seconds"].items())},
            "sent": dict(grown["sent"]),
            "received": dict(grown["received"]),
        }


class SizedSealing(PlainSealing):
    """`PlainSealing` with stanza areas and buckets of the real size."""

    def seal_broadcast(
        self,
        terms: Terms,
        package: Plaintext,
        recipients: Sequence[SealingKey],
        part_bytes: int,
        *,
        bucketed: bool = False,
    ) -> tuple[messages.Manifest, bytes, bytes]:
        manifest, data, tag = super().seal_broadcast(terms, package, recipients, part_bytes)
        level = bucket_level(recipients)
        if level > 1:
            manifest = in_pieces(msgspec.structs.replace(manifest, buckets=level), data)
        return manifest, data, tag

    def front(self, recipients: Sequence[SealingKey]) -> bytes:
        """Return the keys of each bucket, padded to its size."""
        level, count = bucket_level(recipients), len(recipients)
        dealt: list[list[bytes]] = [[] for _ in range(level)]
        for key in recipients:
            dealt[bucket_of(key, level) if level > 1 else 0].append(key.to_bytes())
        size = stanza_area_bytes(count)
        if level > 1:
            size = bucket_bytes(max(bucket_stanzas(count, level), *map(len, dealt)))
        return b"".join(b"".join(keys).ljust(size, b"\0") for keys in dealt)

    def open_broadcast(
        self, key: OpeningKey, manifest: messages.Manifest, data: bytes
    ) -> tuple[bytes, bytes] | None:
        front = front_bytes(manifest, len(data))
        if not self.is_listed(key, manifest, data[:front]):
            return None
        return data[front:], self.membership(manifest)

    def is_listed(self, key: OpeningKey, manifest: messages.Manifest, stanzas: bytes) -> bool:
        return key.public().to_bytes() in stanzas


class NoiseHost(NoiseWorker):
    together = nullcontext

    def store(self, item: object) -> None: ...

    def report(self, report: fx.Report) -> None: ...


# --- the play ---


class FleetPlay(MemoryNet):
    """One cloud, one proxy and their fleet in `folder`; `show` receives the current step."""

    def __init__(
        self, shape: LoadOptions, folder: Path, show: Callable[[str], None] = lambda _step: None
    ) -> None:
        super().__init__(work_s=lambda _task: 0.0, packet_bytes=shape.packet_bytes)
        self.shape, self._folder, self._show = shape, folder, show
        self._free_s = defaultdict[str, float](float)  # when a loop, worker or line is free
        self.tallies = {name: PartyTally() for name in PARTIES}
        self._buckets: dict[int, dict[int, list[Node]]] = {}  # by level
        self._chance = Random(7)  # noqa: S311 - which of those played a round asks
        self._set_up()

    def _set_up(self) -> None:
        shape, state = self.shape, {n: self._folder / n for n in ("cloud", "proxy")}
        keys = {name: make_signing_key(state[name], name).public() for name in state}
        self._show(f"admitting {shape.devices:,} devices")
        shared = SharedWork(shape.packet_bytes, shape.payload_bytes)
        played = min(shape.devices, int(_PLAYED_SHARE * shape.asked) + 1)
        pinned = messages.PeerKeys.pinned(
            **{name: SharedVerifyKey(key.to_bytes()) for name, key in keys.items()}
        )
        settings = DeviceSettings(packet_bytes=shape.packet_bytes, blob_bytes=_NO_LIMIT)
        enrolments = []
        self._by_key: dict[bytes, Node] = {}
        for _ in range(played):
            signing, opening = SigningKey.generate(), OpeningKey.generate()
            enrolments.append(Enrolment.make(signing, opening))
            name, public = signing.public().fingerprint(), opening.public()
            machine = DeviceMachine(
                messages.Signer(name, signing), pinned, DeviceMemory(), settings, sealing=(public,)
            )
            host = NoiseHost(shared, opening, name, SizedSealing())
            self._by_key[public.to_bytes()] = self.add(fx.DeviceAddress(name), machine, host)
        _admit(state["proxy"] / REGISTRY_FILE, enrolments, shape.devices)
        limits = {"packet_bytes": shape.packet_bytes}
        limits |= dict.fromkeys(("blob_bytes", "spool_bytes"), _NO_LIMIT)
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
        with self.tallies["proxy"].busy("start"):
            self.proxy_role = build_proxy(proxy_site, link=self._join)
        cloud_site = CloudSite.model_validate(
            {
                "broker": _NOWHERE,
                "state_dir": state["cloud"],
                "proxy_key_file": state["proxy"] / "proxy.pub",
                "limits": limits,
            }
        )
        draws, sealing = CloudChance(choose=self._choose), SizedSealing()
        self.cloud_role = build_cloud(cloud_site, random=draws, link=self._join, sealing=sealing)
        self.stores = {
            "cloud": (state["cloud"] / STORE_FILE,),
            "proxy": (state["proxy"] / REGISTRY_FILE, state["proxy"] / SPOOL_FILE),
        }

    def _join(self, role: Any) -> Node:
        return self.add(role.address, role.machine, role.host)

    def close(self) -> None:
        self.proxy_role.close()
        self.cloud_role.close()

    def _choose(self, keys: Sequence[bytes], count: int) -> list[bytes]:
        """Sample uniformly, as `draw` does, but only played devices."""
        return self._chance.sample([key for key in keys if key in self._by_key], count)

    # --- a party's turn, which takes as much virtual time as processor time ---

    def _step(self, node: Node, event: fx.Event) -> None:
        if node.address not in _NAMES:  # devices take no virtual time
            super()._step(node, event)
            return
        party = _NAMES[node.address]
        start_s, began = max(self.now_s, self._free_s[party]), time.process_time()
        with self.tallies[party].busy("decide"):
            effects = node.machine.handle(event, start_s)
        for effect in effects:
            self._do(node, effect, start_s + time.process_time() - began)
        self._free_s[party] = start_s + time.process_time() - began

    def _do(self, node: Node, effect: fx.Effect, at_s: float) -> None:
        party = _NAMES[node.address]
        tally, worker, wait_s = self.tallies[party], f"{party}'s worker", at_s - self.now_s
        match effect:
            case fx.Send(to=to, message=message):
                with tally.busy("encode"):
                    frame = messages.encode(message)
                self._carry(node.address, to, message, frame, at_s)
            case fx.Persist(item=item):
                with tally.busy("store"):
                    node.host.store(item)
            case fx.Work(task=task):
                began = time.process_time()
                with tally.busy(type(task).__name__):
                    result = perform(node.host, task, _LOG)
                done_s = max(at_s, self._free_s[worker]) + time.process_time() - began
                self._free_s[worker] = done_s
                self.post(node, fx.WorkDone(task, result), done_s - self.now_s)
            case fx.SetTimer(name=name, delay_s=delay_s):
                number = node.timers[name] = next(self._order)
                self.post(node, fx.Timer(name), wait_s + delay_s, number)
            case _:
                self._execute(node, effect)

    # --- frames ---

    def _line(self, broker: str, at_s: float, size_bytes: float) -> float:
        """Return the delay until bytes that arrive at a broker at `at_s` have been sent."""
        begin_s = max(at_s, self._free_s[broker])
        self._free_s[broker] = begin_s + size_bytes / BROKER_BYTES_PER_S
        return self._free_s[broker] + LATENCY_S - self.now_s

    def _receive(self, party: str, frame: bytes) -> messages.Message:
        with self.tallies[party].busy("decode"):
            message = messages.decode(frame, self.packet_bytes)
        self.tallies[party].receive(kind_of(message), len(frame))
        return message

    def _carry(
        self,
        sender: fx.Address,
        to: fx.Address,
        message: messages.Message,
        frame: bytes,
        at_s: float,
    ) -> None:
        kind, size, edge = kind_of(message), len(frame), self.tallies["edge broker"]
        self.tallies[_NAMES[sender]].send(kind, size)
        if to in _NAMES:
            event = fx.MessageReceived(sender, self._receive(_NAMES[to], frame))
            self.post(self.nodes[to], event, self._line("cloud broker", at_s, size))
            return
        edge.receive(kind, size)
        copies, receivers = float(self.shape.devices), list(self._by_key.values())
        if isinstance(to, fx.DeviceAddress):
            edge.send(kind, size)
            self.tallies["devices asked"].receive(kind, size)
            copies, receivers = 1.0, [self.nodes[to]]
        elif isinstance(to, fx.BucketAddress):
            copies, receivers = copies / to.level, self._bucket_nodes(to)
        if isinstance(to, fx.AllDevices) or (isinstance(to, fx.BucketAddress) and not to.index):
            edge.send(kind, size, self.shape.devices)  # each device receives one bucket
            self.tallies["each device"].receive(kind, size)
        wait_s = self._line("edge broker", at_s, size * copies)
        for node in receivers:
            self.post(node, fx.MessageReceived(_PROXY, message), wait_s)

    def _bucket_nodes(self, to: fx.BucketAddress) -> list[Node]:
        if to.level not in self._buckets:
            dealt = self._buckets[to.level] = {}
            for key, node in self._by_key.items():
                dealt.setdefault(bucket_of(SealingKey(key), to.level), []).append(node)
        return self._buckets[to.level].get(to.index, [])

    def _send(self, sender: fx.Address, _to: fx.Address, frame: bytes) -> None:
        """Carry a device's frame to the proxy."""
        message, edge = self._receive("proxy", frame), self.tallies["edge broker"]
        kind, size = kind_of(message), len(frame)
        edge.receive(kind, size)
        edge.send(kind, size)
        self.tallies["devices asked"].send(kind, size)
        wait_s = self._line("edge broker", self.now_s, size)
        self.post(self.nodes[_PROXY], fx.MessageReceived(sender, message), wait_s)

    # --- phases ---

    def play(self) -> dict[str, Any]:
        """Connect the fleet, play a job with its release; return each phase's costs for JSON."""
        store, rounds = self.cloud_role.store, range(1, self.shape.rounds + 1)
        steps: dict[str, Callable[[], None]] = {"come": self._connect, "announce": self._announce}
        steps |= {f"round {number}": partial(self._committed, number) for number in rounds}
        steps["release"] = lambda: self._until(lambda: store.job(self.job).ended)
        phases = {}
        for name, step in steps.items():
            self._show(name)
            before, start_s = deepcopy(self.tallies), self.now_s
            step()
            for party, found in self.rows().items():
                for table, count in found.items():
                    self.tallies[party]["stored", table] = count
            phases[name] = {
                "seconds": self.now_s - start_s,
                "parties": {n: tally.since(before[n]) for n, tally in self.tallies.items()},
            }
        return phases

    def rows(self) -> dict[str, Counter[str]]:
        return {
            party: sum((_rows(file) for file in files), Counter[str]())
            for party, files in self.stores.items()
        }

    def _until(self, done: Callable[[], bool]) -> None:
        if not self.run(done, _LATEST_S):
            raise JobFailed("the fleet makes no progress")

    def _connect(self) -> None:
        for node in self.nodes.values():
            self.connect(node)
        store, wanted = self.cloud_role.store, len(self._by_key)
        self._until(
            lambda: len(self.proxy_role.machine.online) == wanted and bool(store.roster_marks())
        )

    def _announce(self) -> None:
        job = parse_job(job_yaml(self.shape, self.shape.devices))
        store = self.cloud_role.store
        self.job = store.submit_job(job.job, job.canonical(), job.digest()).id
        self.cloud_role.control.start(store.job(self.job))
        memory = self.proxy_role.machine.memory
        self._until(lambda: any(one.header.kind == "job" for one in memory.kept.values()))

    def _committed(self, number: int) -> None:
        store = self.cloud_role.store

        def done() -> bool:
            last = store.last_commit(self.job)
            return last is not None and last.index >= number

        self._until(done)


def kind_of(message: messages.Message) -> str:
    """Return the name of a message in a tally: the type of a note's body, else its own."""
    if isinstance(message, messages.Note):
        return type(messages.decode_body(message.body)).__name__.lower()
    return type(message).__name__.lower()


def _admit(path: Path, played: Sequence[Enrolment], devices: int) -> None:
    """Admit the played devices, and random keys for all others."""
    registry = Registry(path, limit=10**7)
    registry.admit_many(played)
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
