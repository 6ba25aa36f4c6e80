"""The cloud's work: what is sealed and kept, what a batch changes, and that it changes it once."""

import errno
import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import sqlalchemy as sa
from round_kit import batched, job, public_keys
from safetensors.numpy import load_file

from edgeveil.data.records import Records
from edgeveil.errors import JobFailed
from edgeveil.jobs import load_job
from edgeveil.protocol import cloud_job as ct
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import RosterKept, RosterRefused
from edgeveil.protocol.cloud_reasons import (
    BY_ITSELF,
    DISK,
    MEMORY,
    STORE,
    USED_UP,
    resumes_by_itself,
)
from edgeveil.protocol.messages import KNOWS_BUCKETS, RoundId
from edgeveil.protocol.sealed import seal_segment
from edgeveil.protocol.transfer import describe
from edgeveil.transport.metrics import Metrics
from edgeveil_cloud import commit_round
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.database import _store_away
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.metrics import CloudMetrics
from edgeveil_cloud.open_segments import RoundSecret
from edgeveil_cloud.round_report import Recorder
from edgeveil_cloud.store import Store
from edgeveil_cloud.stored_jobs import wire_id

OPEN = {
    "encrypt": {"privacy_eval_type": "NOT_ENCRYPT"},
    "privacy": {"epsilon": 4.0, "delta": 1e-5, "accept_unproven": True},
}


class Desk:
    """A cloud's host with one running job."""

    def __init__(self, store, wanted=None, devices=4, part_bytes=4096):
        self.store = store
        rng = np.random.default_rng(5)
        test = Records(rng.uniform(0, 1, (20, 4)).astype(np.float32), rng.integers(0, 3, 20))
        self.host = CloudHost(store, test, BroadcastLimits(part_bytes), clock=lambda: 0.0)
        self.batches = {}
        if not store.enrolled():
            self.enrol(public_keys(devices))
        self.id = self.run(wanted or job())

    def enrol(self, keys, number=1):
        self.host.store(RosterKept(number, b"".join(keys)))

    def run(self, wanted):
        entry = self.store.submit_job(wanted.job, wanted.canonical(), wanted.digest())
        self.store.set_status(entry.id, "running")
        return entry.id

    @property
    def wire(self):
        return wire_id(self.id)

    def sealed(self, index=1, attempt=1):
        assert isinstance(self.perform(ct.SealJob(self.wire)), ct.Broadcast)
        broadcast = self.perform(ct.SealRound(self.wire, index, attempt))
        assert isinstance(broadcast, ct.Broadcast)
        return broadcast

    def secret(self, at):
        return RoundSecret.from_bytes(self.store.round_key(self.id, at.round, at.attempt))

    def answers(self, broadcast, count=3, value=1.0):
        manifest = broadcast.manifest
        membership = self.secret(manifest.at).membership
        specs = self.plan().segments(self.plan().round(manifest.at.round))
        groups = []
        for spec, group in zip(specs, manifest.groups, strict=True):
            raw = [np.full(spec.shape, value + n, spec.dtype).tobytes() for n in range(count)]
            groups.append([seal_segment(manifest, group, membership, one) for one in raw])
        return self.absorb(manifest.at, groups, count)

    def absorb(self, at, groups, uploads):
        batch, data = batched(at, groups, uploads, declined=1)
        self.batches[batch.blob.digest] = data
        return ct.Absorb({"": batch})

    def perform(self, task):
        """Do a task, after the parts of its batch; of several cells the outcome is as it is."""
        if isinstance(task, ct.Absorb):
            digest = task.batches[""].blob.digest
            self.host.store(ct.BatchPart(digest, 0, self.batches[digest], self.wire))
        outcome = self.host.perform(task)
        return outcome.by_cell[""] if isinstance(outcome, ct.CellBroadcasts) else outcome

    def commit(self, *rounds):
        for index in rounds:
            absorbed = self.perform(self.answers(self.sealed(index)))
            assert isinstance(absorbed, ct.RoundCommit)

    def restart(self, **more):
        self.host = CloudHost(self.store, None, BroadcastLimits(4096), **more)

    def end(self, status, reason=""):
        self.host.store(ct.JobStatus(self.wire, status, reason))
        (end,) = self.events(f"job_{status}")
        return end

    def plan(self):
        return self.host.jobs.plan(self.store.job(self.id))

    def events(self, kind, job_id=None):
        found = self.store.events_after(0, job_id or self.id)
        return [dict(event.data) for event in found if event.type == kind]


@pytest.fixture
def desk():
    return Desk(Store())


def test_a_recording_holds_broadcasts_and_uploads_of_the_last_job_or_ends_it(desk, tmp_path):
    folder = tmp_path / "recording"
    desk.restart(recorder=Recorder(folder))
    plan = desk.plan()
    desk.commit(*range(1, len(plan.all_rounds) + 1))
    assert (folder / "job.json").read_bytes() == job().canonical()
    files = sorted(folder.glob("*.safetensors"))
    state = desk.host.jobs.state(desk.store.job(desk.id))
    assert np.array_equal(load_file(files[-2])["weight"], plan.cloud.model(state)["weight"])
    uploads = load_file(files[-1])
    assert {f"head.weight/{n:04d}" for n in range(3)} <= uploads.keys()
    assert {float(array.flat[0]) for array in uploads.values()} == {1.0, 2.0, 3.0}
    desk.host.store(ct.JobStatus(desk.wire, "completed", ""))
    desk.id = desk.run(job(job="another"))
    desk.commit(1)
    assert len(list(folder.glob("*.safetensors"))) == 2
    (tmp_path / "taken").write_text("a file")
    desk.restart(recorder=Recorder(tmp_path / "taken"))
    with pytest.raises(JobFailed, match="record_dir"):
        desk.commit(2)


def test_sequences_grow_where_the_clock_steps_back(tmp_path):
    now_s, sequences = 2e9, []
    for step_s in (0.0, -3600.0, 1.0, 7200.0):
        now_s += step_s
        store = Store(f"sqlite:///{tmp_path}/cloud.db", now_s=lambda: now_s)  # noqa: B023
        desk = Desk(store, job(job="next"))
        announced = desk.perform(ct.SealJob(desk.wire))
        sequences += [announced.manifest.sequence, desk.sealed().manifest.sequence]
        store.close()
    assert sequences == sorted(set(sequences))
    assert sequences[-1] >= now_s * 1000


@pytest.mark.parametrize("knows", [0, KNOWS_BUCKETS])
def test_stanzas_are_in_buckets_once_every_device_looks_there(knows):
    desk = Desk(Store(), part_bytes=8192)
    desk.host.store(RosterKept(2, b"".join(public_keys(100)), knows=knows))
    for task in (ct.SealJob(desk.wire), ct.SealRound(desk.wire, 1, 1)):
        manifest = desk.perform(task).manifest
        assert ((manifest.buckets > 1), manifest.selected) == (bool(knows), 100)


def test_a_roster_with_a_smaller_number_that_was_made_later_is_no_replay():
    """Somebody said a larger number with the proxy's key: the last roster would go stale."""
    now_s, day_s = 1e9, 24 * 3600.0
    desk = Desk(Store(now_s=lambda: now_s))
    keys = b"".join(desk.store.enrolled())
    desk.host.store(RosterKept(2**62, keys, "5e" * 16, now_s + day_s))

    def refused(made_s):
        desk.host.store(RosterRefused("replayed_roster", "5e" * 16, "", made_s + day_s))
        return desk.store.roster_problem()

    assert refused(now_s - 60) == "", "a broker says an old one again"
    now_s += 600
    assert "accept-registry" in refused(now_s)
    blocked = desk.perform(ct.SealJob(desk.wire))
    assert isinstance(blocked, ct.Obstacle) and "accept-registry" in blocked.reason
    desk.store.accept_registry()
    desk.host.store(RosterKept(4, keys, "5e" * 16, 2.0**40))
    assert refused(now_s - 7200) == "", "made before the last hour"
    assert "accept-registry" in refused(now_s), "however long the one that was taken says it lasts"


def test_a_cloud_that_nobody_would_believe_announces_nothing(desk):
    desk.host._not_trusted = lambda: "the key that the root names is not here"
    blocked = desk.perform(ct.SealJob(desk.wire))
    assert blocked == ct.Obstacle("the key that the root names is not here")
    assert "job" not in [one.data.get("kind") for one in desk.store.events_after(0, desk.id)]


def test_a_batch_is_committed_once_with_its_record_and_its_key_is_deleted(desk):
    broadcast = desk.sealed()
    desk.sealed(1, 2)
    task, other = desk.answers(broadcast), desk.answers(broadcast, value=7.0)
    absorbed = desk.perform(task)
    assert (absorbed.commit.accepted, len(absorbed.data)) == (3, 3 * 32)
    assert absorbed.commit.blob == describe(absorbed.data, 4096)
    assert [desk.store.round_key(desk.id, 1, attempt) for attempt in (1, 2)] == [None, None]
    last = desk.store.last_commit(desk.id)
    assert (last.index, b"".join(last.accepted)) == (1, absorbed.data)
    (event,) = desk.events("exchange_committed")
    assert (event["uploads"], event["declined"], event["refused"]) == (3, 1, {})
    before = (last, desk.store.events_after(0))
    assert desk.perform(task) == absorbed
    desk.restart()
    assert desk.perform(task) == absorbed
    with pytest.raises(JobFailed):  # another batch
        desk.perform(other)
    assert (desk.store.last_commit(desk.id), desk.store.events_after(0)) == before


def test_one_batch_of_an_attempt_is_opened_and_may_be_opened_again(desk):
    broadcast = desk.sealed()
    poor = desk.answers(broadcast, count=2)
    first = desk.perform(poor)
    assert isinstance(first, ct.TooFewUploads)
    with pytest.raises(JobFailed):
        desk.perform(desk.answers(broadcast))
    desk.restart()
    assert desk.perform(poor) == first


def test_nobody_is_left_out_of_the_attempt_after_an_opened_batch(desk):
    everybody = desk.store.enrolled()
    desk.sealed()
    desk.enrol(everybody[1:], 2)  # before a batch was opened one who is revoked is just left out
    assert desk.sealed(1, 2).manifest.selected == 3
    assert isinstance(desk.perform(desk.answers(desk.sealed(1, 3), count=2)), ct.TooFewUploads)
    desk.enrol(everybody[2:], 3)
    assert isinstance(desk.perform(ct.SealRound(desk.wire, 1, 4)), ct.Obstacle)
    desk.enrol(everybody, 4)
    assert isinstance(desk.perform(desk.answers(desk.sealed(1, 4))), ct.RoundCommit)
    desk.enrol(everybody[1:], 5)
    assert desk.sealed(2).manifest.selected == 3


def test_a_cloud_that_dies_with_an_opened_batch_leaves_nobody_out_either(desk, monkeypatch):
    task = desk.answers(desk.sealed())
    monkeypatch.setattr(commit_round, "aggregate", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        desk.perform(task)
    desk.restart()
    desk.enrol(desk.store.enrolled()[1:], 2)
    assert isinstance(desk.perform(ct.SealJob(desk.wire)), ct.Broadcast)
    assert isinstance(desk.perform(ct.SealRound(desk.wire, 1, 2)), ct.Obstacle)


@pytest.mark.parametrize(("changes", "value"), [({"round": {"min_batch": 1}}, 3e38), (OPEN, 1.0)])
def test_events_of_absurd_inferences_and_of_no_guarantee_are_strict_json(changes, value):
    desk = Desk(Store(), job(**changes))
    desk.commit(1, 2)
    count = 1 if value > 1 else 3
    absorbed = desk.perform(desk.answers(desk.sealed(3), count=count, value=value))
    assert isinstance(absorbed, ct.RoundCommit)
    inference = desk.end("completed")["privacy"]["inference"]
    committed = desk.events("exchange_committed")[-1]["epsilon"]["inference"]
    assert (inference["epsilon"] is None) == (committed is None) == (changes is OPEN)
    for event in desk.store.events_after(0):
        json.dumps(event.data, allow_nan=False)  # as a database server and a browser want it


def test_an_early_end_prints_the_whole_training_price(desk):
    """Who cancels may have looked at the rounds before: the smaller price would not hold."""
    desk.commit(1, 2, 3)
    end, plan = desk.end("cancelled", "by hand"), desk.plan()
    training, inference = end["privacy"]["training"], end["privacy"]["inference"]
    assert training["epsilon"] == plan.quote().training.epsilon > plan.quote(3).training.epsilon
    assert inference["epsilon"] == plan.quote(3).inference.epsilon
    assert inference["epsilon_per_round"] == pytest.approx(5)
    assert end["final"]["accuracy"] == desk.events("exchange_committed")[-1]["accuracy"]


@pytest.mark.parametrize("broadcast", [True, False])
def test_a_round_that_was_broadcast_and_never_committed_is_counted(desk, broadcast):
    desk.sealed(1) if broadcast else desk.perform(ct.SealJob(desk.wire))
    end = desk.end("failed", "too few")
    price = desk.plan().quote().training.epsilon
    assert end["privacy"]["training"]["epsilon"] == (price if broadcast else 0)
    assert end["final"] == {"accuracy": None}
    assert desk.store.round_key(desk.id, 1, 1) is None


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (sqlite3.OperationalError("database or disk is full"), STORE),
        (ConnectionResetError("of a driver of another database"), STORE),
        (OSError(errno.ENOSPC, "No space left on device"), DISK),
        (OSError(errno.EMFILE, "Too many open files"), USED_UP),
        (MemoryError(), MEMORY),
    ],
)
def test_what_the_machine_or_the_store_lacks_pauses_a_job_until_it_is_back(desk, error, lacking):
    if lacking == STORE:
        error = _store_away(sa.exc.OperationalError("", {}, error), sa.make_url("sqlite:////x"))
    desk.host._perform = Mock(side_effect=error)
    blocked = desk.host.perform(ct.SealRound(desk.wire, 1, 1))
    assert isinstance(blocked, ct.Obstacle) and blocked.reason.startswith(lacking)
    desk.host.store(ct.JobStatus(desk.wire, "paused", blocked.reason))
    stored = desk.store.job(desk.id).reason
    assert resumes_by_itself(stored) and stored.endswith(BY_ITSELF)


def test_reports_become_events_of_the_job_that_they_are_about(desk):
    other = desk.store.submit_job("other", b"{}", bytes(32)).id
    desk.host.report(fx.Report("batch", {"round": 1, "uploads": 3}))
    assert desk.events("batch") == []
    for job_id, number in ((desk.wire, 1), (wire_id(other), 7)):
        at = RoundId(job_id, number, 1)
        desk.host.report(fx.Report("batch", {"round": number, "uploads": 3}, at))
        desk.host.report(fx.Report("held", {"round": number}, at))
    assert desk.events("batch") == [{"round": 1, "uploads": 3}]
    assert desk.events("batch", other) == [{"round": 7, "uploads": 3}]
    assert desk.events("held") == []


def test_shared_noise_has_a_second_epsilon_once_devices_were_asked_and_other_noise_none():
    for name, kinds in (("digits_shared", {"collusion"}), ("digits_features", {"inference"})):
        desk = Desk(Store(), load_job(Path(f"configs/jobs/{name}.yaml")))
        shown = CloudMetrics(Metrics(), desk.store, desk.host, SimpleNamespace(runs={}))
        shown.watch(fx.WorkDone(ct.SealRound(desk.wire, 1, 1), ct.CellBroadcasts({})))
        (family,) = [one for one in shown.collect() if one.name == "edgeveil_epsilon_spent"]
        found = {sample.labels["kind"]: sample.value for sample in family.samples}
        assert found.keys() - {"training"} >= kinds
        assert found.get("collusion", 9e9) > 3 * found["training"] > 0
        assert ("collusion" in found) is (name == "digits_shared")
