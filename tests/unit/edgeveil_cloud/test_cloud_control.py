"""The queue's driver: one job after the other, resumed where it stood, cancelled in any state."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from played import in_loop
from round_kit import job, public_keys

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import ConfigError
from edgeveil.jobs import Job
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine, RosterMark
from edgeveil.protocol.cloud_job import CloudState
from edgeveil.protocol.cloud_reasons import DISK, EDGE_LINK, OWN_LINK, SILENT, STORE
from edgeveil.protocol.messages import Close, Note, PeerKeys, Signer, decode, decode_body
from edgeveil.protocol.tensors import pack_tensors
from edgeveil.transport.runtime import Runtime
from edgeveil_cloud import control as controls
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord, StoreAway
from edgeveil_cloud.stored_jobs import wire_id

YAML = """
job: queued
data: {source: bench, classes: 3, input_shape: [4], nominal_records: 30}
features: [{name: identity}]
train: {method: fm, rounds: 2}
privacy: {epsilon: 4.0}
round: {min_batch: 3}
"""


class Cloud:
    """A cloud without a broker: what it would publish is kept."""

    def __init__(self, store, devices=4, running=1, cells=("",)):
        self.store = store
        self.sent = []
        store.set_enrolled({*store.enrolled(), *public_keys(devices)})
        self.host = CloudHost(store, None, BroadcastLimits(4096))
        key, proxy = SigningKey.generate(), SigningKey.generate()
        pinned = PeerKeys.pinned(proxy=proxy.public())
        self.machine = CloudMachine(Signer("cloud", key), dict.fromkeys(cells, pinned))
        log = logging.getLogger("edgeveil.test")
        self.runtime = Runtime(self.machine, self.host, self._publish, None, log, 65536)
        self.control = Control(store, self.host, self.machine, self.runtime, running=running)
        self._look, self._looks = self.control.look, 0
        self.control.look = self._counted_look

    def _counted_look(self):
        self._look()
        self._looks += 1

    async def _publish(self, to, frame):
        self.sent.append(decode(frame, 65536))

    def closed(self):
        notes = [m for m in self.sent if isinstance(m, Note)]
        bodies = [decode_body(note.body) for note in notes]
        return [body for body in bodies if isinstance(body, Close)]

    def submit(self, wanted=None):
        wanted = wanted or job()
        return self.store.submit_job(wanted.job, wanted.canonical(), wanted.digest()).id

    @asynccontextmanager
    async def plays(self):
        tasks = [asyncio.create_task(t) for t in (self.control.run(), self.runtime.run())]
        try:
            async with asyncio.timeout(20):
                yield
                assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def until(self, condition):
        while not condition():
            await asyncio.sleep(0.005)

    async def looked_again(self):
        """Wait until the queue was looked at twice more, from its beginning to its end."""
        before = self._looks
        await self.until(lambda: self._looks >= before + 2)

    def runs(self, entry):
        return wire_id(entry) in self.machine.courses

    def course(self):
        """That of the job that runs alone."""
        (course,) = self.machine.courses.values()
        return course

    def status(self, entry):
        return self.store.job(entry).status

    def types(self, entry):
        return [event.type for event in self.store.events_after(0, entry)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(controls, "LOOK_S", 0.01)


@pytest.fixture
def store(tmp_path):
    return Store(f"sqlite:///{tmp_path / 'cloud.sqlite'}")


@pytest.fixture
def cloud(store):
    return Cloud(store)


def away(_job):
    raise StoreAway("the store failed (disk I/O error)")


def commit(cloud, entry, index):
    plan = cloud.host.jobs.plan(cloud.store.job(entry))
    round = plan.round(index)
    record = RoundRecord(index, round.phase, round.number, 1, 3)
    cloud.store.commit_round(entry, record, pack_tensors(plan.cloud.initial_state()))


# --- submitting -------------------------------------------------------------------------------


def test_a_yaml_job_is_queued_and_a_bad_one_tells_every_problem(cloud):
    entry = cloud.store.job(cloud.control.submit(YAML))
    assert (entry.name, entry.status) == ("queued", "queued")
    assert Job.from_canonical(entry.canonical).rounds == 2
    with pytest.raises(ConfigError) as caught:
        cloud.control.submit(YAML.replace("epsilon: 4.0", "epsilom: 4.0").replace("3,", "one,"))
    assert len(caught.value.problems) >= 2
    assert len(cloud.store.jobs()) == 1


@in_loop
async def test_the_status_counts_and_names_the_running_job(cloud):
    first, _ = cloud.submit(), cloud.submit()
    idle = {"state": "idle", "job": None, "round": None, "jobs": [], "most_running": 1}
    counts = {"enrolled": 4, "queued": 2, "paused": 0, "refused": {}}
    assert {**cloud.control.status(), "time_s": 0} == {"time_s": 0, **idle, **counts}
    async with cloud.plays():
        await cloud.until(
            lambda: cloud.runs(first) and cloud.course().state is CloudState.ANNOUNCING
        )
        said = cloud.control.status()
        assert (said["job"], said["round"], said["queued"]) == (first, 1, 1)
        one = {"job": first, "state": "announcing", "round": 1, "attempt": 1}
        assert (said["state"], said["jobs"]) == ("announcing", [one])


# --- one after the other ----------------------------------------------------------------------


@in_loop
async def test_a_job_is_started_once_and_cancelled_before_the_machine_has_heard_of_it(cloud):
    first = cloud.submit()
    looking = asyncio.create_task(cloud.control.run())  # and the machine is busy elsewhere
    await cloud.until(lambda: cloud.status(first) == "running")
    await cloud.looked_again()
    assert cloud.runtime._events.qsize() == 1
    assert cloud.types(first).count("job_running") == 1
    cloud.control.cancel(first)
    machine = asyncio.create_task(cloud.runtime.run())
    await cloud.until(lambda: cloud.status(first) == "cancelled")
    await cloud.until(cloud.closed)
    for task in (looking, machine):
        task.cancel()
    await asyncio.wait([looking, machine])
    assert not cloud.machine.courses


# --- beside each other ---


@in_loop
async def test_so_many_jobs_run_at_once_the_most_urgent_first(store):
    cloud = Cloud(store, running=2)
    low, normal, high = (
        store.submit_job(p, job().canonical(), job().digest(), priority=p).id
        for p in ("low", "normal", "high")
    )
    async with cloud.plays():
        await cloud.until(lambda: cloud.runs(high) and cloud.runs(normal))
        await cloud.looked_again()
        assert cloud.status(low) == "queued" and len(cloud.control.status()["jobs"]) == 2
        pause(cloud, high)
        await cloud.until(lambda: cloud.runs(low))
        assert cloud.runs(normal)


@in_loop
async def test_a_job_that_waits_for_devices_holds_up_none_behind_it(cloud):
    large, small = cloud.submit(job(selection={"devices": 5})), cloud.submit()
    async with cloud.plays():
        await cloud.until(lambda: cloud.runs(small))
        assert cloud.status(large) == "queued"
    assert "job_waiting" in cloud.types(large)


def test_the_priority_of_a_job_file_is_kept_and_devices_hear_nothing_of_it(store, cloud):
    urgent = store.job(cloud.control.submit(YAML + "priority: high\n"))
    usual = store.job(cloud.control.submit(YAML))
    assert (urgent.priority, usual.priority) == ("high", "normal")
    assert urgent.canonical == usual.canonical


# --- waiting for devices ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"selection": {"devices": 5}},
        {"selection": {"min_devices": 5}},
        {"round": {"min_batch": 5}},
        {  # four devices that answer 3 rounds each make no 5 batches of 3
            "train": {"method": "fm", "rounds": 5},
            "round": {"min_batch": 3},
            "privacy": {"epsilon": 8.0, "delta": 1e-5, "max_participations": 3},
            "selection": {"devices": 3, "min_devices": 3},
        },
    ],
)
@in_loop
async def test_a_job_waits_until_enough_devices_are_there_and_says_so_once(store, cloud, changes):
    entry = cloud.submit(job(**changes))
    async with cloud.plays():
        await cloud.until(lambda: "job_waiting" in cloud.types(entry))
        await cloud.looked_again()
        assert cloud.types(entry).count("job_waiting") == 1
        assert cloud.status(entry) == "queued"
        store.set_enrolled([*store.enrolled(), *public_keys(1)])
        await cloud.until(lambda: cloud.runs(entry))
    waiting = [e for e in store.events_after(0, entry) if e.type == "job_waiting"]
    assert [dict(event.data) for event in waiting] == [{"enrolled": 4, "wanted": 5}]


@in_loop
async def test_a_running_job_that_waits_after_a_restart_can_be_cancelled(store, cloud):
    entry = cloud.submit(job(selection={"devices": 5}))
    store.set_status(entry, "running")
    async with cloud.plays():
        await cloud.until(lambda: "job_waiting" in cloud.types(entry))
        cloud.control.cancel(entry)
        assert cloud.status(entry) == "cancelled"
        await cloud.until(cloud.closed)
    assert cloud.closed()[0] == Close(wire_id(entry), "cancelled")


# --- pausing ---------------------------------------------------------------------------------


def pause(cloud, entry):
    """As the machine does it."""
    course = cloud.machine.courses.pop(wire_id(entry))
    for effect in course._pause("no device answered"):
        if isinstance(effect, fx.Persist):
            cloud.host.store(effect.item)


def paused(cloud, reason, wanted=None):
    """A job that paused for this."""
    entry = cloud.submit(wanted)
    cloud.store.set_status(entry, "running")
    cloud.store.set_status(entry, "paused", reason)
    return entry


@in_loop
async def test_a_paused_job_stays_so_over_a_restart(store, cloud):
    entry = paused(cloud, "no device answered")
    again = Cloud(store)
    async with again.plays():
        await again.looked_again()
        assert store.job(entry).status == "paused"
        assert not again.machine.courses
        again.control.resume(entry)
        await again.until(lambda: again.runs(entry))
    assert again.closed() == []


@in_loop
async def test_a_paused_or_resumed_job_is_cancelled_and_everybody_is_told(store, cloud):
    entries = [paused(cloud, "why"), paused(cloud, "why")]
    store.resume(entries[1])
    for entry in entries:
        cloud.control.cancel(entry)
    async with cloud.plays():
        await cloud.until(lambda: len(cloud.closed()) >= 2)
    told = {(close.job_id, close.status) for close in cloud.closed()}
    assert told == {(wire_id(entry), "cancelled") for entry in entries}


@in_loop
async def test_a_job_that_pauses_just_as_it_is_cancelled_is_cancelled(cloud):
    entry = cloud.submit()
    async with cloud.plays():
        await cloud.until(lambda: cloud.runs(entry))
        cloud.control.cancel(entry)  # the machine has not heard of it when it pauses
        pause(cloud, entry)
        await cloud.until(lambda: cloud.status(entry) == "cancelled")
        await cloud.until(cloud.closed)


# --- resuming ---------------------------------------------------------------------------------


@in_loop
async def test_a_job_goes_on_behind_its_last_commit_with_an_attempt_not_used_before(store, cloud):
    entry, waiting = cloud.submit(), cloud.submit()
    store.set_status(entry, "running")
    commit(cloud, entry, 1)
    for attempt in (1, 2):
        store.put_round_key(entry, 2, attempt, bytes([attempt]) * 64)
    again = Cloud(store, devices=0)
    async with again.plays():
        await again.until(lambda: again.runs(entry))
    start = again.course().start
    assert (start.round, start.attempt, start.rounds) == (2, 3, 4)
    assert again.status(waiting) == "queued"


@in_loop
async def test_the_ends_of_jobs_are_told_again(store):
    first = Cloud(store)
    entries = [first.submit(), first.submit()]
    for entry, status in zip(entries, ("failed", "cancelled"), strict=True):
        store.set_status(entry, status)
    again = Cloud(store)
    async with again.plays():
        await again.until(lambda: len(again.closed()) >= 2)
    told = {(close.job_id, close.status) for close in again.closed()}
    assert told == {(wire_id(entries[0]), "failed"), (wire_id(entries[1]), "cancelled")}


@in_loop
async def test_a_stored_job_that_cannot_be_read_fails_alone(store, cloud):
    strange = store.submit_job("old", b'{"of": "another version"}', bytes(32)).id
    good = cloud.submit()
    async with cloud.plays():
        await cloud.until(lambda: cloud.runs(good))
    assert cloud.status(strange) == "failed"
    assert "cannot be read" in store.job(strange).reason


def test_a_store_that_is_away_fails_no_job(store, cloud, monkeypatch):
    entry = cloud.submit()
    monkeypatch.setattr(store, "last_commit", away)
    with pytest.raises(StoreAway):
        cloud.control._ready(store.job(entry))
    assert cloud.status(entry) == "queued"


@pytest.mark.parametrize("reason", [OWN_LINK, EDGE_LINK, SILENT, f"{DISK} (No space left)"])
@in_loop
async def test_a_pause_for_a_link_or_the_disk_ends_by_itself_and_no_other_does(store, reason):
    cloud, able = Cloud(store, running=4), [False]
    cloud.control._able = lambda _: able[0]
    other = paused(cloud, "the proxy refused the broadcast: closed_job")
    named = paused(cloud, reason)
    async with cloud.plays():
        await cloud.looked_again()
        assert cloud.status(named) == "paused"  # the proxy has said nothing yet
        assert cloud.sent  # and was asked to
        cloud.machine.heard.add("")
        cloud.control._tried_s.clear()
        await cloud.looked_again()
        assert cloud.status(named) == "paused"  # nothing can be written yet
        able[0] = True
        cloud.control._tried_s.clear()
        await cloud.until(lambda: cloud.runs(named))
        assert cloud.status(other) == "paused"


@pytest.mark.parametrize("devices", [3, "all"])
def test_a_pause_for_the_disk_ends_once_a_whole_batch_has_room(store, devices):
    """Small files fit long before: each try would use up an answer of the devices."""
    cloud, asked = Cloud(store, running=4), []
    cloud.control._able = lambda room_bytes: asked.append(room_bytes) or False
    wanted = job(selection={"devices": devices, "min_devices": 3})
    disk, link = paused(cloud, f"{DISK} (No space left)", wanted), paused(cloud, OWN_LINK, wanted)
    cloud.machine.heard.add("")
    cloud.control.look()
    plan = cloud.host.jobs.plan(store.job(disk))
    enrolled = store.counts().enrolled
    assert enrolled > 3
    assert asked == [(3 if devices == 3 else enrolled) * plan.upload_bytes, 0]
    assert store.job(link).status == "paused"


@in_loop
async def test_a_job_goes_on_in_the_cells_that_are_reached_if_their_devices_are_enough(store):
    cloud = Cloud(store, running=4, cells=("", "north"))
    here, both = paused(cloud, OWN_LINK), paused(cloud, OWN_LINK, job(selection={"devices": 6}))
    store.set_enrolled(set(public_keys(7)[4:]), "north")
    cloud.machine.heard.add("")
    async with cloud.plays():
        await cloud.until(lambda: cloud.runs(here))
        assert cloud.status(both) == "paused"  # the devices of one cell are too few for it
        cloud.machine.heard.add("north")
        cloud.control._tried_s.clear()
        await cloud.until(lambda: cloud.runs(both))


@in_loop
async def test_a_job_that_a_stale_roster_paused_goes_on_once_it_is_fresh():
    store = Store(now_s=lambda: 1000.0)
    cloud = Cloud(store)
    cloud.machine.heard.add("")
    store.take_roster(RosterMark("5e" * 16, 1), 999.0)
    entry = paused(cloud, store.roster_problem())
    async with cloud.plays():
        await cloud.looked_again()
        assert cloud.status(entry) == "paused"
        store.take_roster(RosterMark("5e" * 16, 2), 2000.0)
        cloud.control._tried_s.clear()
        await cloud.until(lambda: cloud.runs(entry))


@in_loop
async def test_a_store_that_still_takes_nothing_leaves_the_job_paused_and_the_cloud_alive(
    store, cloud, monkeypatch
):
    cloud.machine.heard.add("")
    entry = paused(cloud, f"{STORE} (the store failed (disk I/O error))")
    async with cloud.plays():
        with monkeypatch.context() as patched:
            patched.setattr(store, "resume", away)
            await cloud.looked_again()
        assert cloud.status(entry) == "paused"
        cloud.control._tried_s.clear()
        await cloud.until(lambda: cloud.runs(entry))
