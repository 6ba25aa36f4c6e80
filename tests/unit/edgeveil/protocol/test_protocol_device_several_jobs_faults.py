"""Three jobs at one device under loss, repetition, delay and crashes, with a real store.

The proxy is played: of each job it offers one round after the other, takes uploads and says so.
Hypothesis decides what becomes of each frame, and after which durable write the device's process
ends. When the tape is over nothing is lost any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from device_bench import MODEL, PACKAGE, SEALED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol_kit import (
    CLOUD,
    CLOUD_KEY,
    PACKET_BYTES,
    PROXY,
    PROXY_KEY,
    at,
    commit_of,
    manifest,
    member,
)

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device import DeviceMachine
from edgeveil.transport.memory import LATENCY_S, MemoryNet, Node, no_faults
from edgeveil_edge.store import DeviceStore

ME = member(0)
HERE, THERE = fx.DeviceAddress(ME.id), fx.ProxyAddress()
JOBS = tuple(bytes((name,)) * 16 for name in b"JKL")
ROUNDS = 3
BUDGET_S = {JOBS[0]: 1.0, JOBS[1]: 1.5, JOBS[2]: 2.0}
WORK_S = 0.3


class CrashError(BaseException):
    """The device's process ends here."""


def model(where: m.ExchangeId) -> bytes:
    return MODEL + where.job_id + where.numbers


def answer_to(where: m.ExchangeId, made: int) -> dr.SealedAnswer:
    """Anew each time that it is computed."""
    return replace(
        SEALED, data=SEALED.data[:-24] + where.job_id + where.numbers[:4] + bytes((made,)) * 4
    )


@dataclass
class Host:
    """Opens and answers, and counts how often; its process ends after the stores it is told to."""

    crashes: frozenset[int]
    disk: DeviceStore = field(default_factory=lambda: DeviceStore(":memory:"))
    made: dict[m.ExchangeId, int] = field(default_factory=dict)
    stores: int = 0

    def together(self) -> nullcontext[None]:
        return nullcontext()

    def store(self, item: object) -> None:
        self.disk.store(item)
        self.stores += 1
        if self.stores in self.crashes:
            raise CrashError

    def perform(self, task: object) -> object:
        match task:
            case dr.OpenPackage(manifest=header):
                return dr.OpenedPackage(PACKAGE, 0.5, BUDGET_S[header.at.job_id])
            case dr.ComputeAnswer(manifest=header):
                # As the ledger recalls it: what was committed once is sealed again.
                self.made[header.at] = self.made.get(header.at, 0) + 1
                return answer_to(header.at, self.made[header.at])
        return fx.WorkFailed("unexpected")

    def report(self, report: fx.Report) -> None:
        pass


class Played:
    """Cloud and proxy in one: what they offer, hear and say."""

    at = None

    def __init__(self) -> None:
        self.number = dict.fromkeys(JOBS, 1)
        self.held: dict[m.ExchangeId, list[tuple[bytes, int]]] = {}
        self.uploads: dict[m.ExchangeId, set[bytes]] = {}

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.PeerConnected():
                return self.tick()
            case fx.Timer():
                return self.tick()
            case fx.MessageReceived(message=message):
                return [fx.Send(HERE, said) for said in self.heard(message)]
        return []

    def tick(self) -> list[fx.Effect]:
        offers = [said for job in JOBS for said in self.open_round(job)]
        return [*(fx.Send(HERE, said) for said in offers), fx.SetTimer("tick", 20.0)]

    def open_round(self, job: bytes) -> list[m.Message]:
        number = self.number[job]
        if number > ROUNDS:
            return [CLOUD.note(m.Close(job, "completed"))]
        where = at(number, job=job)
        data = model(where)
        return [CLOUD.offer(manifest(data, where, deadline_s=600.0), data)]

    def heard(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Note) and isinstance(m.decode_body(message.body), m.Hello):
            digest = hashlib.sha256(message.body.payload).digest()
            offers = [said for job in JOBS for said in self.open_round(job)]
            return [PROXY.note(m.Ack(digest, "held")), *offers]
        if not isinstance(message, m.Offer):
            return []
        upload = m.decode_header(message.header)
        assert isinstance(upload, m.Upload)
        self.uploads.setdefault(upload.at, set()).add(upload.blob.digest)
        job, number = upload.at.job_id, upload.at.exchange
        if number != self.number[job]:
            return [PROXY.note(m.Ack(upload.blob.digest, "closed"))]
        assert hashlib.sha256(message.data).digest() == upload.blob.digest
        self.held.setdefault(upload.at, []).append((upload.blob.digest, upload.number))
        self.number[job] += 1
        said: list[m.Message] = [PROXY.note(m.Ack(upload.blob.digest, "held"))]
        if number % 2:  # of the others the record is late for ever
            marks, data = commit_of(upload.at, [message.data])
            said.append(CLOUD.offer(marks, data))
        return said + self.open_round(job)


class Scene:
    """The device and who plays the others, over a network with faults."""

    def __init__(self, tape: bytes, crashes: frozenset[int]) -> None:
        self._tape: Iterator[int] = iter(tape)
        self.net = MemoryNet(self._faults, self._work_s, PACKET_BYTES)
        self.host, self.played = Host(crashes), Played()
        for job in JOBS:
            self.host.disk.put_job(job, b"{}", b"")
        self.net.add(THERE, self.played, self.host)
        self.start()

    def _faults(self, _sender: fx.Address, _to: fx.Address, _frame: bytes) -> list[float]:
        kind = next(self._tape, None)
        if kind is None:
            return [LATENCY_S]
        return [[], [], [LATENCY_S], [LATENCY_S, 1.0], [kind / 32]][kind % 5]

    def _work_s(self, task: object) -> float:
        return WORK_S if isinstance(task, dr.ComputeAnswer) else 0.01

    def start(self) -> Node:
        """A process of the device, with what the one before kept."""
        keys = m.PeerKeys.pinned(cloud=CLOUD_KEY, proxy=PROXY_KEY)
        bounds = dr.DeviceSettings(packet_bytes=PACKET_BYTES)
        machine = DeviceMachine(ME.signer, keys, self.host.disk.load(), bounds)
        old = self.net.nodes.get(HERE)
        if old is not None:
            old.up = False
        node = self.net.add(HERE, machine, self.host)
        self.net.connect(node)
        self.net.connect(self.net.nodes[THERE])
        return node

    def run(self) -> DeviceMachine:
        """Until all jobs have ended for the device."""
        while True:
            with crashing() as crashed:
                assert self.net.run(self.over, 3600.0), "a job did not come to its end"
            if not crashed:
                machine = self.net.nodes[HERE].machine
                assert isinstance(machine, DeviceMachine)
                return machine
            self.start()

    def over(self) -> bool:
        machine = self.net.nodes[HERE].machine
        assert isinstance(machine, DeviceMachine)
        return set(machine.memory.closed) == set(JOBS)


@contextmanager
def crashing() -> Iterator[list[bool]]:
    crashed: list[bool] = []
    try:
        yield crashed
    except CrashError:
        crashed.append(True)


@given(st.binary(max_size=300), st.frozensets(st.integers(1, 40), max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_round_of_every_job_is_answered_once(tape: bytes, crashes: frozenset[int]) -> None:
    scene = Scene(tape, crashes)
    machine = scene.run()
    played, disk = scene.played, scene.host.disk.load()
    every = {at(number, job=job) for job in JOBS for number in range(1, ROUNDS + 1)}
    assert set(played.held) == every
    assert all(len(found) == 1 for found in played.held.values())
    # An upload is on disk before it leaves, so a crash seals none of them anew.
    assert all(len(digests) == 1 for digests in played.uploads.values())
    assert not machine.memory.uploads and not disk.uploads and not machine.rounds.under_way
    numbers = sorted(number for found in played.held.values() for _, number in found)
    assert len(set(numbers)) == len(every)
    assert disk.answered == machine.memory.answered >= len(every)


def test_all_uploads_under_way_outlive_the_process() -> None:
    """None is acknowledged before the process ends, and each is there again, as it was."""
    scene = Scene(b"", frozenset())

    def no_upload(sender: fx.Address, _to: fx.Address, frame: bytes) -> list[float]:
        is_upload = sender == HERE and isinstance(m.decode(frame, PACKET_BYTES), m.Offer)
        return [] if is_upload else [LATENCY_S]

    scene.net.faults = no_upload
    assert scene.net.run(lambda: len(scene.host.disk.load().uploads) == len(JOBS), 60.0)
    scene.net.faults = no_faults
    before = scene.host.disk.load().uploads
    scene.start()
    scene.run()
    sent = {
        where: digests for where, digests in scene.played.uploads.items() if where.exchange == 1
    }
    assert sent == {item.at: {item.upload.blob.digest} for item in before.values()}


def test_without_faults_no_answer_is_computed_twice() -> None:
    scene = Scene(b"", frozenset())
    scene.run()
    assert set(scene.host.made.values()) == {1}
