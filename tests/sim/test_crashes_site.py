"""Processes with their real hosts end between two effects or two writes; all promises hold.

The suite takes boundaries at even distances; EDGEVEIL_CRASH_STEP=1 takes each one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from edgeveil.config.policy import Policy
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.privacy.sampler import os_random
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.storage import SqliteFile
from edgeveil_cloud.stored_jobs import wire_id
from tests.kits.fleet import PACKET_BYTES, Fleet, small_job
from tests.sim.crash_net import CrashNet, Died
from tests.sim.lossy_fleet import RAM
from tests.sim.test_secure_sums import UPDATES

pytestmark = pytest.mark.slow

STEP = int(os.environ.get("EDGEVEIL_CRASH_STEP", "0"))
RUNS, PAIRS = 6, 4
UNSURE = 12  # boundaries by the end that not every run has: the cloud's store looks at the clock
DEVICES = 3
LOOK_S = 0.5
OF_CORRELATED_NOISE = {"max_collusion_epsilon_per_job": 1e9, "allowed_methods": ("sgd",)}


class CrashSite(Fleet):
    """Three devices, all asked in each round; `look` is the cloud's own look at its queue.

    With `kind` streamed, masked uploads go on to the cloud as they come. With correlated noise two
    cohorts of three take turns.
    """

    net: CrashNet

    def __init__(self, folder, *deaths, kind=""):
        policy, options = Policy(min_devices=DEVICES), {}
        if kind == "streamed":
            options = {"packet_bytes": 4096, "proxy": {"limits": {"lot_bytes": 1}}}
        elif kind == "correlated":
            policy = policy.model_copy(update=OF_CORRELATED_NOISE)
        floor, devices = 1 if kind == "streamed" else 2, DEVICES * (1 + (kind == "correlated"))
        super().__init__(folder, devices, floor=floor, policy=policy, transport=CrashNet, **options)
        self.net.wire = []
        names = {
            "cloud": fx.CloudAddress(),
            "proxy": fx.ProxyAddress(),
            "device": fx.DeviceAddress(self.devices[0].id),
        }
        self.names = names
        self.net.deaths = frozenset((names[who], number) for who, number in deaths)
        self.died = 0

    def play(self, job):
        entry = self.store.submit_job(job.job, job.canonical(), job.digest())
        self._run(lambda: self.store.job(entry.id).ended, 2000.0)
        self._run(lambda: False, self.net.now_s + 120.0)
        return entry.id

    def _run(self, reached, limit_s):
        while True:
            try:
                while not reached() and self.net.now_s < limit_s:
                    with self.net.acting(self.cloud.runner):
                        self.cloud.control.look()
                    self.net.post(self.cloud.runner, fx.Command("look"), LOOK_S)
                    self.net.run(reached, self.net.now_s + LOOK_S)
            except Died as death:
                self.died += 1
                self._restart(death)
            else:
                return

    def _restart(self, death):
        node = death.node
        node.up = False
        self.net.forget(node)
        if isinstance(node.address, fx.CloudAddress):
            self.start_cloud()
            self.cloud.control.repeat_ends()
        elif isinstance(node.address, fx.ProxyAddress):
            self.start_proxy()
            self.net.post(self.proxy.runner, fx.Command("started"))
        else:
            number = next(n for n, box in enumerate(self.devices) if box.runner is node)
            self.devices[number] = self.start_device(number + 1)
        self.net.connect(self.net.nodes[node.address])

    def start_cloud(self):
        super().start_cloud()
        sa.event.listen(
            self.store._database.engine, "commit", lambda _connection: self.net.boundary()
        )

    def start_device(self, number):
        box = super().start_device(number)
        # Noise that is the same again, seeded or derived, would hide a second draw.
        box.host._work._noise_for = lambda _question: os_random
        return box


@contextmanager
def told_writes(monkeypatch, site):
    """Inside, every durable write of proxy and devices is a boundary."""
    plain = SqliteFile.transaction

    @contextmanager
    def transaction(file, *begin):
        with plain(file, *begin) as db:
            yield db
        site.net.boundary()

    with monkeypatch.context() as patch:
        patch.setattr(SqliteFile, "transaction", transaction)
        yield


# --- what must hold afterwards ---


def check_job(site, job):
    entry = site.store.job(job)
    assert entry.status == "completed", f"{entry.status}: {entry.reason}"
    rounds = site.store.rounds(job)
    assert [round.index for round in rounds] == list(range(1, len(rounds) + 1))
    assert all(2 <= round.uploads <= DEVICES for round in rounds)
    counted = [name for names in _counted(site).values() for name in names]
    assert len(counted) == len(set(counted)), "a segment was counted twice"


def check_uploads(site, job):
    counted = _counted(site)
    for box in site.devices:
        sent = {(r.round, r.attempt): set(r.segment_hashes) for r in box.store.receipts()}
        for at in _acknowledged(site, box.id) & counted.keys():
            assert sent[at] <= counted[at], f"an upload of round {at} is missing"


def check_ledgers(site, job):
    events = [e for e in site.store.events_after(0, job) if e.type == "job_completed"]
    printed = events[-1].data["privacy"]
    for box in site.devices:
        book = read_ledger(box.site.state_dir / LEDGER_FILE)
        (entry,) = book.account(box.site.data.name).values()
        assert book.links == 2 + len(entry.answers), "a round was released twice"
        assert not entry.is_open
        assert {r.round for r in box.store.receipts()} <= set(entry.answers)
        for kind, quote in (
            ("training", entry.spent.training),
            ("inference", entry.spent.inference),
        ):
            assert quote.epsilon <= printed[kind]["epsilon"]


def check_clean(site, job):
    release = site.store.release(job)
    assert release is not None
    for box in site.devices:
        (model,) = (box.site.state_dir / "releases").rglob("model.onnx")
        assert model.read_bytes() == release.onnx
        memory = box.store.load()
        assert not memory.uploads
        assert not memory.jobs
    left = site.proxy.spool.load()
    assert not left.uploads
    assert not left.batches
    assert sorted(kept.header.kind for kept in left.kept.values()) == ["commit", "release"]
    assert site.store.round_key(job, 1, 1) is None


def _counted(site):
    """(round, attempt) -> hashes in the commit record that the cloud sent."""
    found = {}
    for sender, to, frame in site.net.wire or []:
        if isinstance(sender, fx.CloudAddress) and isinstance(to, fx.ProxyAddress):
            message = m.decode(frame, PACKET_BYTES)
            header = m.decode_header(message.header) if isinstance(message, m.Offer) else None
            if isinstance(header, m.Commit) and isinstance(message, m.Offer):
                hashes = message.data
                assert len(hashes) == header.blob.size_bytes
                cut = {bytes(hashes[i : i + 32]) for i in range(0, len(hashes), 32)}
                found[header.at.round, header.at.attempt] = cut
    return found


def _acknowledged(site, device):
    """(round, attempt) of the uploads that the proxy told this device it holds."""
    offered = {}
    held = set()
    for sender, to, frame in site.net.wire or []:
        message = m.decode(frame, PACKET_BYTES)
        if sender == fx.DeviceAddress(device) and isinstance(message, m.Offer):
            header = m.decode_header(message.header)
            assert isinstance(header, m.Upload)
            offered[header.blob.digest] = (header.at.round, header.at.attempt)
        if to == fx.DeviceAddress(device) and isinstance(message, m.Note):
            body = m.decode_body(message.body)
            if isinstance(body, m.Ack) and body.status == "held":
                held.add(body.blob)
    return {offered[digest] for digest in held & offered.keys()}


def _answers(site):
    """The proxy's answers to choices, each with its first bytes."""
    choices = set[bytes]()  # the questions that are no checks
    for _, _, frame in site.net.wire or []:
        message = m.decode(frame, PACKET_BYTES)
        if isinstance(message, m.Note) and isinstance(m.decode_body(message.body), m.Unmask):
            choices.add(hashlib.sha256(message.body.payload).digest())
        header = m.decode_header(message.header) if isinstance(message, m.Offer) else None
        if isinstance(header, m.MaskSums) and header.question in choices:
            yield header, message.data


def check_unmasked_once(site, job):
    """Of each round the proxy told masks for one choice at most, whoever died when, and that
    it keeps; with the job everything that masks were for is gone.
    """
    questions = {}
    for header, _ in _answers(site):
        round = header.at.job_id, header.at.round
        questions.setdefault(round, set()).add(header.question)
    assert all(len(asked) == 1 for asked in questions.values()), "unmasked twice"
    jobs = site.cloud.host.jobs
    secure = jobs.plan(jobs.entry(wire_id(job))).job.aggregation.secure
    unmasked = len(site.store.rounds(job)) if secure else 0
    assert len(questions) == unmasked
    left = site.proxy.spool.load()
    assert not left.unmasked
    assert left.summed == {job_id for job_id, _ in questions}
    assert site.store.kept_sums(job, 1) is None


def check_noise(site, job):
    """Each question has one answer, which takes back a share of the noise before; no half stays."""
    answers = {}
    for header, data in _answers(site):
        answers.setdefault(header.at.round, set()).add((header.blob.digest, data[0]))
    plan = site.cloud.host.jobs.plan(site.store.job(job))
    if plan.context.correlation is None:
        return
    shares = [[share for _, share in sorted(of_it)] for _, of_it in sorted(answers.items())]
    assert shares == [[0], [1], [1], [1]]
    assert not site.proxy.spool.load().halves


def job(kind=""):
    secure = bool(kind)
    if kind == "correlated":
        noise = {"noise": "correlated", "min_separation": 2, "max_participations": 2}
        return small_job(
            **UPDATES | {"train": {"method": "sgd", "rounds": 4}},
            privacy={"epsilon": 8.0, "delta": 1e-5, "local_share": 0.5, **noise},
            aggregation={"name": "fedavg", "secure": True},
            selection={"devices": DEVICES},
            round={"deadline_s": 20.0, "min_batch": 2, "grace_s": 1.0, "retries": 5},
            unsupervised={"eval_type": "NOT_EVAL"},
        )
    return small_job(
        train={"method": "fm", "rounds": 2},
        aggregation={"name": "fedavg", "secure": secure},
        selection={"devices": DEVICES},
        round={"deadline_s": 20.0, "min_batch": 2, "grace_s": 1.0, "retries": 5},
    )


# --- deaths ---


@pytest.fixture(
    params=[
        pytest.param("", marks=pytest.mark.drill, id="plain"),
        "secure",
        pytest.param("correlated", marks=pytest.mark.drill),
        pytest.param("streamed", marks=pytest.mark.drill),
    ]
)
def secure(request):
    return str(request.param)


def played(monkeypatch, secure, *deaths):
    with tempfile.TemporaryDirectory(prefix="edgeveil-crashes-", dir=RAM) as folder:
        site = CrashSite(Path(folder), *deaths, kind=secure)
        with told_writes(monkeypatch, site):
            done = site.play(job(secure))
        try:
            for check in (
                check_job,
                check_uploads,
                check_ledgers,
                check_unmasked_once,
                check_noise,
                check_clean,
            ):
                check(site, done)
        except Exception as error:
            raise AssertionError(f"with {deaths}: {type(error).__name__}: {error}") from error
        finally:
            site.close()
    return site


def boundaries(monkeypatch, secure):
    site = played(monkeypatch, secure)
    assert site.died == 0
    wire = [m.decode(frame, 1 << 20) for _, _, frame in site.net.wire or []]
    headers = [m.decode_header(message.header) for message in wire if isinstance(message, m.Offer)]
    batches = [header for header in headers if isinstance(header, m.Batch)]
    assert batches
    assert all(bool(batch.stream) == (secure == "streamed") for batch in batches)
    return {who: site.net.passed[address] - UNSURE for who, address in site.names.items()}


@pytest.mark.parametrize("who", ["cloud", "proxy", "device"])
def test_one_death(monkeypatch, who, secure):
    last = boundaries(monkeypatch, secure)[who]
    assert last > 50
    broken = []
    for number in range(1, last + 1, STEP or last // RUNS):
        try:
            assert played(monkeypatch, secure, (who, number)).died == 1
        except AssertionError as error:
            broken.append(str(error))
    assert not broken


def test_two_deaths(monkeypatch, secure):
    chance, last = Random(21), boundaries(monkeypatch, secure)
    for _ in range(100 // STEP if STEP else PAIRS):
        deaths = {(who, chance.randint(1, last[who])) for who in chance.choices(sorted(last), k=2)}
        assert played(monkeypatch, secure, *deaths).died >= 1
