"""Rounds of several jobs at hand at once: none waits for another but for its turn to compute."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import protocol_kit as kit
from device_bench import MODEL, PACKAGE, SEALED, device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol_kit import at

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device import DeviceMachine
from edgeveil.transport.memory import LATENCY_S, MemoryNet, Node, no_faults
from edgeveil_edge.store import DeviceStore

JOBS = (kit.JOB, b"K" * 16, b"L" * 16)


def several() -> DeviceMachine:
    return device(dr.DeviceMemory(jobs=dict.fromkeys(JOBS)))


def model(job: bytes) -> bytes:
    return MODEL + job


def round_of(job: bytes, number: int = 1, **changes: object) -> m.Manifest:
    return kit.manifest(model(job), at(number, job=job), **changes)


def answer_of(job: bytes) -> dr.SealedAnswer:
    """Each job's has other bytes."""
    return replace(SEALED, data=SEALED.data[:-1] + job[:1])


def hear(machine: DeviceMachine, message: object, now_s: float = 0.0) -> list[fx.Effect]:
    return machine.handle(fx.MessageReceived(fx.ProxyAddress(), message), now_s)


def open_(
    machine: DeviceMachine,
    header: m.Manifest,
    now_s: float = 0.0,
    budget_s: float = 0.0,
    **more: float,
) -> list[fx.Effect]:
    """The package comes and opens."""
    data = model(header.at.job_id)
    hear(machine, kit.offer(header, data), now_s)
    opened = dr.OpenedPackage(PACKAGE, budget_s=budget_s, **more)
    return machine.handle(fx.WorkDone(dr.OpenPackage(header, data), opened), now_s)


def done(machine: DeviceMachine, task: object, result: object, now_s: float) -> list[fx.Effect]:
    return machine.handle(fx.WorkDone(task, result), now_s)


def upload(machine: DeviceMachine, job: bytes, number: int = 1) -> list[fx.Effect]:
    (task,) = kit.tasks(open_(machine, round_of(job, number)))
    return done(machine, task, answer_of(job), 0.0)


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_of_too_many_rounds_one_that_is_over_makes_room() -> None:
    machine = device(dr.DeviceMemory(jobs=dict.fromkeys(JOBS)), jobs=2)
    upload(machine, JOBS[1])
    (task,) = kit.tasks(open_(machine, round_of(JOBS[0])))
    assert kit.refused(hear(machine, kit.offer(round_of(JOBS[2]), model(JOBS[2])))) == [
        "too_many_rounds"
    ]
    done(machine, task, dr.NoAnswer("few"), 0.0)
    assert kit.refused(hear(machine, kit.offer(round_of(JOBS[2]), model(JOBS[2])))) == []


def works(effects: list[fx.Effect]) -> list[dr.ComputeAnswer]:
    return [task for task in kit.tasks(effects) if isinstance(task, dr.ComputeAnswer)]


def test_one_computes_after_the_other_and_begins_when_the_time_of_the_first_has_passed() -> None:
    machine = several()
    (first,) = works(open_(machine, round_of(JOBS[0]), 100.0, budget_s=4.0))
    out = open_(machine, round_of(JOBS[1]), 101.0, budget_s=8.0)
    assert (works(out), kit.timers(out)[dr.TURN]) == ([], 2.5)
    assert (
        works(done(machine, first, answer_of(JOBS[0]), 101.5)) == []
    )  # done, and it does not show
    (second,) = works(machine.handle(fx.Timer(dr.TURN), 103.52))
    assert (first.begun_s, first.until_s) == (100.0, 103.0)
    assert (second.begun_s, second.until_s) == (103.5, 109.5)


def test_the_round_whose_time_ends_first_is_next() -> None:
    """In the order in which they came one of the two would come too late."""
    machine = several()
    open_(machine, round_of(JOBS[0]), 100.0, budget_s=8.0)
    slow = round_of(JOBS[1], deadline_s=60.0)
    quick = round_of(JOBS[2], deadline_s=10.0)
    open_(machine, slow, 100.0, budget_s=40.0, needed_s=20.0)
    open_(machine, quick, 100.0, budget_s=2.0, needed_s=1.0)
    (second,) = works(machine.handle(fx.Timer(dr.TURN), 107.0))
    assert second.manifest == quick
    (third,) = works(machine.handle(fx.Timer(dr.TURN), 108.75))
    assert third.manifest == slow
    assert third.allowed_s >= 20.0


def test_under_cover_what_comes_too_late_is_covered() -> None:
    machine = several()
    hear(machine, kit.PROXY.note(m.Cover(20.0)), 100.0)
    open_(machine, round_of(JOBS[0]), 100.0, budget_s=40.0)
    out = open_(machine, round_of(JOBS[1]), 100.0, budget_s=40.0)
    assert kit.bodies(out, m.Decline) == []
    assert [type(task) for task in kit.tasks(out)] == [dr.SealDummies]


Plan = Sequence[tuple[float, float, float]]  # of each job: when its package comes, budget, chance


def played(plan: Plan, work: Sequence[float], cover_s: float) -> dict[bytes, tuple[object, ...]]:
    """What becomes visible of each job, and when, if their work takes `work` seconds."""
    machine = several()
    if cover_s:
        hear(machine, kit.PROXY.note(m.Cover(cover_s)))
    events: list[tuple[float, int, fx.Event]] = []
    number, live = 0, dict[str, int]()

    def post(when_s: float, event: fx.Event) -> int:
        nonlocal number
        number += 1
        events.append((when_s, number, event))
        return number

    chances = {job: chance for job, (_, _, chance) in zip(JOBS, plan, strict=False)}
    budgets = {job: budget for job, (_, budget, _) in zip(JOBS, plan, strict=False)}
    seconds = dict(zip(JOBS, work, strict=False))
    for job, (comes_s, _, _) in zip(JOBS, plan, strict=False):
        header = round_of(job)
        post(comes_s, fx.MessageReceived(fx.ProxyAddress(), kit.offer(header, model(job))))
    seen: dict[bytes, tuple[object, ...]] = {}
    busy_s = 0.0
    while events:
        events.sort(key=lambda entry: entry[:2])
        now_s, mine, event = events.pop(0)
        if isinstance(event, fx.Timer) and live.get(event.name) != mine:
            continue
        for effect in machine.handle(event, now_s):
            match effect:
                case fx.SetTimer(name=name, delay_s=delay_s) if name.startswith(
                    ("resend", dr.TURN)
                ):
                    if now_s < 1000.0:
                        live[name] = post(now_s + delay_s, fx.Timer(name))
                case fx.CancelTimer(name=name):
                    live.pop(name, None)
                case fx.Work(task=dr.OpenPackage(manifest=header) as task):
                    job = header.at.job_id
                    found = dr.OpenedPackage(PACKAGE, chances[job], budgets[job])
                    post(now_s, fx.WorkDone(task, found))
                case fx.Work(task=dr.ComputeAnswer(manifest=header) as task):
                    job = header.at.job_id
                    assert busy_s <= task.begun_s <= now_s, "two turns at once"
                    busy_s = task.until_s  # and then it is sealed
                    ends_s = min(now_s + seconds[job], max(now_s, task.until_s))
                    post(ends_s, fx.WorkDone(task, answer_of(job)))
                case fx.Work(task=dr.SealDummies(manifest=header) as task):
                    dummy = replace(answer_of(header.at.job_id), dummy=True)
                    post(now_s, fx.WorkDone(task, dummy))
                case fx.Send(message=m.Offer() as sent):
                    job = kit.headers([fx.Send(fx.ProxyAddress(), sent)])[0].at.job_id
                    seen.setdefault(job, ("answers", round(now_s, 6)))
                case fx.Send() as sent if kit.bodies([sent], m.Decline):
                    job = kit.bodies([sent], m.Decline)[0].at.job_id
                    seen.setdefault(job, ("declines", round(now_s, 6)))
    return seen


times = st.floats(0, 20)
plans = st.lists(st.tuples(times, st.floats(0.1, 30), st.floats(0, 0.99)), min_size=2, max_size=3)
seconds = st.lists(st.floats(0, 60), min_size=3, max_size=3)


@given(plans, seconds, seconds, st.sampled_from([0.0, 10.0, 60.0]))
def test_when_anything_leaves_does_not_follow_from_how_long_any_work_takes(
    plan: Plan, work: Sequence[float], other: Sequence[float], cover_s: float
) -> None:
    """Of none of the jobs, and not whether it answers either."""
    seen = played(plan, work, cover_s)
    assert seen == played(plan, other, cover_s)
    assert len(seen) == len(plan)


ME = kit.member(0)
HERE, THERE = fx.DeviceAddress(ME.id), fx.ProxyAddress()
JOBS_FAULTS = tuple(bytes((name,)) * 16 for name in b"JKL")
ROUNDS = 3
BUDGET_S = {JOBS_FAULTS[0]: 1.0, JOBS_FAULTS[1]: 1.5, JOBS_FAULTS[2]: 2.0}
WORK_S = 0.3


class CrashError(BaseException):
    """The device's process ends here."""


def model_of_faults(where: m.ExchangeId) -> bytes:
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
        self.number = dict.fromkeys(JOBS_FAULTS, 1)
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
        offers = [said for job in JOBS_FAULTS for said in self.open_round(job)]
        return [*(fx.Send(HERE, said) for said in offers), fx.SetTimer("tick", 20.0)]

    def open_round(self, job: bytes) -> list[m.Message]:
        number = self.number[job]
        if number > ROUNDS:
            return [kit.CLOUD.note(m.Close(job, "completed"))]
        where = at(number, job=job)
        data = model_of_faults(where)
        return [kit.CLOUD.offer(kit.manifest(data, where, deadline_s=600.0), data)]

    def heard(self, message: m.Message) -> list[m.Message]:
        if isinstance(message, m.Note) and isinstance(m.decode_body(message.body), m.Hello):
            digest = hashlib.sha256(message.body.payload).digest()
            offers = [said for job in JOBS_FAULTS for said in self.open_round(job)]
            return [kit.PROXY.note(m.Ack(digest, "held")), *offers]
        if not isinstance(message, m.Offer):
            return []
        upload = m.decode_header(message.header)
        assert isinstance(upload, m.Upload)
        self.uploads.setdefault(upload.at, set()).add(upload.blob.digest)
        job, number = upload.at.job_id, upload.at.exchange
        if number != self.number[job]:
            return [kit.PROXY.note(m.Ack(upload.blob.digest, "closed"))]
        assert hashlib.sha256(message.data).digest() == upload.blob.digest
        self.held.setdefault(upload.at, []).append((upload.blob.digest, upload.number))
        self.number[job] += 1
        said: list[m.Message] = [kit.PROXY.note(m.Ack(upload.blob.digest, "held"))]
        if number % 2:  # of the others the record is late for ever
            marks, data = kit.commit_of(upload.at, [message.data])
            said.append(kit.CLOUD.offer(marks, data))
        return said + self.open_round(job)


class Scene:
    """The device and who plays the others, over a network with faults."""

    def __init__(self, tape: bytes, crashes: frozenset[int]) -> None:
        self._tape: Iterator[int] = iter(tape)
        self.net = MemoryNet(self._faults, self._work_s, kit.PACKET_BYTES)
        self.host, self.played = Host(crashes), Played()
        for job in JOBS_FAULTS:
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
        keys = m.PeerKeys.pinned(cloud=kit.CLOUD_KEY, proxy=kit.PROXY_KEY)
        bounds = dr.DeviceSettings(packet_bytes=kit.PACKET_BYTES)
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
        return set(machine.memory.closed) == set(JOBS_FAULTS)


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
    every = {at(number, job=job) for job in JOBS_FAULTS for number in range(1, ROUNDS + 1)}
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
        is_upload = sender == HERE and isinstance(m.decode(frame, kit.PACKET_BYTES), m.Offer)
        return [] if is_upload else [LATENCY_S]

    scene.net.faults = no_upload
    assert scene.net.run(lambda: len(scene.host.disk.load().uploads) == len(JOBS_FAULTS), 60.0)
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
