"""The queue's driver: one job after the other, resumed where it stood, cancelled in any state."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from round_kit import job, public_keys

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import ConfigError
from edgeveil.jobs import Job
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine, RosterMark
from edgeveil.protocol.cloud_reasons import DISK, OWN_LINK, STORE
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
        bodies = [decode_body(note.body) for note in self.sent if isinstance(note, Note)]
        return {(wire.job_id, wire.status) for wire in bodies if isinstance(wire, Close)}

    def submit(self, wanted=None, **options):
        wanted = wanted or job()
        return self.store.submit_job(wanted.job, wanted.canonical(), wanted.digest(), **options).id

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
        self.control._tried_s.clear()
        before = self._looks
        await self.until(lambda: self._looks >= before + 2)

    async def runs(self, *entries):
        self.control._tried_s.clear()
        await self.until(lambda: all(wire_id(one) in self.machine.runs for one in entries))

    def course(self):
        (course,) = self.machine.runs.values()
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


def test_a_yaml_job_is_queued_with_its_priority_and_a_bad_one_tells_every_problem(cloud):
    entry = cloud.store.job(cloud.control.submit(YAML))
    assert (entry.name, entry.status, entry.priority) == ("queued", "queued", "normal")
    assert Job.from_canonical(entry.canonical).rounds == 2
    with pytest.raises(ConfigError) as caught:
        cloud.control.submit(YAML.replace("epsilon: 4.0", "epsilom: 4.0").replace("3,", "one,"))
    assert len(caught.value.problems) >= 2
    assert len(cloud.store.jobs()) == 1
    urgent = cloud.store.job(cloud.control.submit(YAML + "priority: high\n"))
    assert (urgent.priority, urgent.canonical) == ("high", entry.canonical)  # devices see no other


async def test_a_job_is_started_once_and_cancelled_before_the_machine_has_heard_of_it(cloud):
    first = cloud.submit()
    looking = asyncio.create_task(cloud.control.run())  # and the machine is busy elsewhere
    await cloud.until(lambda: cloud.status(first) == "running")
    await cloud.looked_again()
    assert cloud.runtime._events.qsize() == 1
    assert cloud.types(first).count("job_running") == 1
    cloud.control.cancel(first)
    machine = asyncio.create_task(cloud.runtime.run())
    await cloud.until(lambda: cloud.status(first) == "cancelled" and cloud.closed())
    for task in (looking, machine):
        task.cancel()
    await asyncio.wait([looking, machine])
    assert not cloud.machine.runs


async def test_so_many_jobs_run_at_once_the_most_urgent_first(store):
    cloud = Cloud(store, running=2)
    low, normal, high = (cloud.submit(priority=one) for one in ("low", "normal", "high"))
    async with cloud.plays():
        await cloud.runs(high, normal)
        await cloud.looked_again()
        assert cloud.status(low) == "queued" and len(cloud.control.status()["jobs"]) == 2
        pause(cloud, high)
        await cloud.runs(low, normal)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": {"min_batch": 5}},
        {  # four devices that answer 3 rounds each make no 5 batches of 3
            "train": {"method": "fm", "rounds": 5},
            "round": {"min_batch": 3},
            "privacy": {"epsilon": 8.0, "delta": 1e-5, "max_participations": 3},
            "selection": {"devices": 3, "min_devices": 3},
        },
    ],
)
async def test_a_job_waits_for_devices_says_so_once_and_holds_up_none_behind_it(store, changes):
    cloud = Cloud(store, running=2)
    entry, small = cloud.submit(job(**changes)), cloud.submit()
    async with cloud.plays():
        await cloud.runs(small)
        await cloud.looked_again()
        assert cloud.status(entry) == "queued"
        store.set_enrolled([*store.enrolled(), *public_keys(1)])
        await cloud.runs(entry)
    waiting = [e for e in store.events_after(0, entry) if e.type == "job_waiting"]
    assert [dict(event.data) for event in waiting] == [{"enrolled": 4, "wanted": 5}]


def pause(cloud, entry):
    course = cloud.machine.runs.pop(wire_id(entry))
    for effect in course._pause("no device answered"):
        if isinstance(effect, fx.Persist):
            cloud.host.store(effect.item)


def paused(cloud, reason, wanted=None):
    entry = cloud.submit(wanted)
    cloud.store.set_status(entry, "running")
    cloud.store.set_status(entry, "paused", reason)
    return entry


async def test_a_paused_job_stays_so_over_a_restart_until_it_is_resumed(store, cloud):
    entry = paused(cloud, "no device answered")
    again = Cloud(store)
    async with again.plays():
        await again.looked_again()
        assert again.status(entry) == "paused"
        assert not again.machine.runs
        again.control.resume(entry)
        await again.runs(entry)
    assert not again.closed()


async def test_every_end_is_told_to_everybody_and_told_again_after_a_restart(store, cloud):
    """Of jobs that were paused, resumed, waiting for devices after a restart, or had failed."""
    entries = [paused(cloud, "why"), paused(cloud, "why")]
    store.resume(entries[1])
    entries.append(cloud.submit(job(selection={"devices": 5})))
    store.set_status(entries[2], "running")
    for entry in entries:
        cloud.control.cancel(entry)
    told = {(wire_id(entry), "cancelled") for entry in entries}
    failed = cloud.submit()
    store.set_status(failed, "failed")
    for one in (cloud, Cloud(store)):
        async with one.plays():
            await one.until(lambda one=one: one.closed() == told | {(wire_id(failed), "failed")})


async def test_a_job_that_pauses_just_as_it_is_cancelled_is_cancelled(cloud):
    entry = cloud.submit()
    async with cloud.plays():
        await cloud.runs(entry)
        cloud.control.cancel(entry)  # the machine has not heard of it when it pauses
        pause(cloud, entry)
        await cloud.until(lambda: cloud.status(entry) == "cancelled" and cloud.closed())


async def test_a_job_goes_on_behind_its_last_commit_with_an_attempt_not_used_before(store, cloud):
    entry, waiting = cloud.submit(), cloud.submit()
    store.set_status(entry, "running")
    plan = cloud.host.jobs.plan(store.job(entry))
    round = plan.round(1)
    record = RoundRecord(1, round.phase, round.number, 1, 3)
    store.commit_round(entry, record, pack_tensors(plan.cloud.initial_state()))
    for attempt in (1, 2):
        store.put_round_key(entry, 2, attempt, bytes([attempt]) * 64)
    again = Cloud(store, devices=0)
    async with again.plays():
        await again.runs(entry)
    start = again.course().start
    assert (start.round, start.attempt, start.rounds) == (2, 3, 4)
    assert again.status(waiting) == "queued"


async def test_a_stored_job_that_cannot_be_read_fails_alone(store, cloud):
    strange = store.submit_job("old", b'{"of": "another version"}', bytes(32)).id
    good = cloud.submit()
    async with cloud.plays():
        await cloud.runs(good)
    assert cloud.status(strange) == "failed"


def test_a_store_that_is_away_fails_no_job(store, cloud, monkeypatch):
    entry = cloud.submit()
    monkeypatch.setattr(store, "last_commit", away)
    with pytest.raises(StoreAway):
        cloud.control._ready(store.job(entry))
    assert cloud.status(entry) == "queued"


@pytest.mark.parametrize("reason", [OWN_LINK, f"{DISK} (No space left)", f"{STORE} (I/O error)"])
async def test_a_pause_for_a_link_the_disk_or_the_store_ends_by_itself_and_no_other_does(
    store, monkeypatch, reason
):
    cloud, able = Cloud(store, running=4), [False]
    cloud.control._able = lambda _: able[0]
    other = paused(cloud, "the proxy refused the broadcast: closed_job")
    named = paused(cloud, reason)
    async with cloud.plays():
        await cloud.looked_again()
        assert cloud.status(named) == "paused"  # the proxy has said nothing yet
        assert cloud.sent  # and was asked to
        cloud.machine.responding.add("")
        await cloud.looked_again()
        assert cloud.status(named) == "paused"  # nothing can be written yet
        able[0] = True
        with monkeypatch.context() as patched:
            patched.setattr(store, "resume", away)
            await cloud.looked_again()
            assert cloud.status(named) == "paused"  # the store still takes nothing
        await cloud.runs(named)
        assert cloud.status(other) == "paused"


@pytest.mark.parametrize("devices", [3, "all"])
def test_a_pause_for_the_disk_ends_once_a_whole_batch_has_room(store, devices):
    """Small files fit long before: each try would use up an answer of the devices."""
    cloud, asked = Cloud(store, running=4), []
    cloud.control._able = lambda room_bytes: asked.append(room_bytes) or False
    wanted = job(selection={"devices": devices, "min_devices": 3})
    disk, link = paused(cloud, f"{DISK} (No space left)", wanted), paused(cloud, OWN_LINK, wanted)
    cloud.machine.responding.add("")
    cloud.control.look()
    plan = cloud.host.jobs.plan(store.job(disk))
    uploads = 3 if devices == 3 else store.counts().enrolled
    assert asked == [uploads * plan.upload_bytes, 0]
    assert cloud.status(link) == "paused"


async def test_a_job_goes_on_in_the_cells_that_are_reached_if_their_devices_are_enough(store):
    cloud = Cloud(store, running=4, cells=("", "north"))
    here, both = paused(cloud, OWN_LINK), paused(cloud, OWN_LINK, job(selection={"devices": 6}))
    store.set_enrolled(set(public_keys(7)[4:]), "north")
    cloud.machine.responding.add("")
    async with cloud.plays():
        await cloud.runs(here)
        assert cloud.status(both) == "paused"  # the devices of one cell are too few for it
        cloud.machine.responding.add("north")
        await cloud.runs(both)


async def test_a_job_that_a_stale_roster_paused_goes_on_once_it_is_fresh():
    store = Store(now_s=lambda: 1000.0)
    cloud = Cloud(store)
    cloud.machine.responding.add("")
    store.take_roster(RosterMark("5e" * 16, 1), 999.0)
    entry = paused(cloud, store.roster_problem())
    async with cloud.plays():
        await cloud.looked_again()
        assert cloud.status(entry) == "paused"
        store.take_roster(RosterMark("5e" * 16, 2), 2000.0)
        await cloud.runs(entry)
