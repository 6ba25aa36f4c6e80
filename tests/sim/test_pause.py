"""A job whose devices are away pauses; resumed, it goes on with them and spends nothing twice."""

import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Note
from edgeveil_cloud.open_segments import RoundSecret
from tests.kits.fleet import Fleet, small_job
from tests.sim.hostile import Attacker, filled

pytestmark = pytest.mark.slow

JOB = small_job(round={"deadline_s": 5.0, "min_batch": 3, "retries": 1, "grace_s": 1.0})


class Mute:
    """A machine that hears of rounds and never answers one, though it is there."""

    def __init__(self, machine):
        self._machine = machine

    @property
    def at(self):
        return self._machine.at

    def handle(self, event, now_s):
        made = self._machine.handle(event, now_s)
        return [e for e in made if not isinstance(e, fx.Work | fx.Send) or self._says_hello(e)]

    @staticmethod
    def _says_hello(effect):
        return isinstance(effect, fx.Send) and isinstance(effect.message, Note)


def rounds(fleet, job):
    return [(r.index, r.attempt, r.uploads) for r in fleet.store.rounds(job)]


def asked(fleet, job, index, attempt):
    raw = fleet.store.round_key(job, index, attempt)
    assert raw is not None
    return set(RoundSecret.from_bytes(raw).recipients)


@pytest.fixture
def stopped(tmp_path):
    fleet = Fleet(tmp_path, 5, floor=3)
    job = fleet.submit(JOB)
    fleet.net.run(lambda: len(rounds(fleet, job)) == 2)
    for box in fleet.devices[1:]:
        box.runner.up = False
    assert fleet.finish(job) == "paused"
    return fleet, job


def test_a_paused_job_goes_on_with_the_same_devices_and_spends_once(stopped):
    fleet, job = stopped
    assert "below the minimum" in fleet.store.job(job).reason
    before = asked(fleet, job, 3, 1)
    assert before == asked(fleet, job, 3, 2)
    for box in fleet.devices[1:]:
        box.runner.up = True
        fleet.net.connect(box.runner)
    fleet.resume(job)
    fleet.net.run(lambda: fleet.store.round_key(job, 3, 3) is not None)
    assert asked(fleet, job, 3, 3) == before
    assert fleet.finish(job) == "completed"
    assert [r[0] for r in rounds(fleet, job)] == [1, 2, 3, 4, 5]
    assert rounds(fleet, job)[2] == (3, 3, 5)
    assert {round(box.ledger.spent().epsilon, 6) for box in fleet.devices} == {8.0}
    types = [event.type for event in fleet.store.events_after(0, job)]
    assert types.count("job_paused") == types.count("job_resumed") == 1


def test_a_job_whose_devices_are_away_pauses_and_another_one_ends(tmp_path):
    fleet = Fleet(tmp_path, 6)
    limits = {"deadline_s": 5.0, "min_batch": 6, "retries": 0, "grace_s": 1.0}
    large = fleet.submit(small_job(job="large", round=limits))
    other = fleet.submit(small_job(job="other"))
    fleet.net.run(lambda: bool(rounds(fleet, large)))
    fleet.devices[0].runner.up = False
    assert [fleet.finish(job) for job in (large, other)] == ["paused", "completed"]


def test_a_job_says_what_it_lacked_where_one_device_sends_nan_and_one_stalls(tmp_path):
    fleet = Fleet(tmp_path, 6, floor=3)
    Attacker(fleet, fleet.devices[0], filled(float("nan")))
    fleet.devices[1].runner.machine = Mute(fleet.devices[1].runner.machine)
    job = fleet.submit(
        small_job(round={"deadline_s": 5.0, "min_batch": 5, "retries": 1, "grace_s": 1.0})
    )
    assert fleet.finish(job) == "paused"
    reason, events = fleet.store.job(job).reason, fleet.store.events_after(0, job)
    assert "4 valid uploads, at least 5 are needed" in reason
    assert "6 selected, 5 uploaded, 0 declined, 1 late or absent" in reason
    groups = 1  # the first round asks for one segment: the curvature
    assert f"{groups} segments void: {groups} not finite" in reason
    answers = [e.data["answers"] for e in events if "answers" in e.data]
    assert [e.type for e in events if "answers" in e.data] == ["round_repeated", "job_paused"]
    assert answers == 2 * [
        {"selected": 6, "uploaded": 5, "declined": 0, "absent": 1, "void": {"not_finite": groups}}
    ]


def test_a_stalled_device_costs_a_few_rounds_their_grace(tmp_path):
    fleet = Fleet(tmp_path, 6, floor=3)
    fleet.devices[1].runner.machine = Mute(fleet.devices[1].runner.machine)
    limits = {"deadline_s": 60.0, "min_batch": 3, "retries": 1, "grace_s": 20.0}
    job = fleet.submit(small_job(round=limits, train={"method": "fm", "rounds": 6}))
    assert fleet.finish(job) == "completed"
    waited = [record.seconds > 20.0 for record in fleet.store.rounds(job)]
    assert waited == [True] * 3 + [False] * 3 + [True] + [False] * (len(waited) - 7)


def test_no_round_waits_for_a_device_whose_messages_the_proxy_drops(tmp_path):
    fleet = Fleet(tmp_path, 6, floor=3)
    silent, conduct = fleet.devices[1], fleet.proxy.conduct
    silent.runner.machine = Mute(silent.runner.machine)
    while not conduct.cooling_down:
        conduct.refused(fx.DeviceAddress(silent.id), "forged")
    limits = {"deadline_s": 60.0, "min_batch": 3, "retries": 1, "grace_s": 20.0}
    job = fleet.submit(small_job(round=limits))
    assert fleet.finish(job) == "completed"
    waited = [record.seconds > 20.0 for record in fleet.store.rounds(job)]
    assert waited == [False, False, False, True, False]  # it is tried again, once
