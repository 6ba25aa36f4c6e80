"""A release after its job: the canary's verdict, what is published, what is said of it."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from round_kit import job
from test_cloud_host import Desk

from edgeveil.config.cloud import ReleaseValidity
from edgeveil.crypto.keys import OpeningKey
from edgeveil.errors import ProtocolError
from edgeveil.jobs.job import ReleaseRollout
from edgeveil.protocol.cloud import CountReports, PublishRelease, SealPublication
from edgeveil.protocol.cloud_job import JobStatus, ReleaseHeld, SealRelease
from edgeveil.protocol.messages import HEALTH, ReleaseOutcome, ReleaseStatement, data_set_tag
from edgeveil.protocol.sealed import decode_package, open_broadcast, seal_segment
from edgeveil_cloud.rollout_store import Rollout
from edgeveil_cloud.rollouts import RolloutDriver, verdict
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import StoreError

ASKED = ReleaseRollout(canary_share=0.5, canary_floor=3, soak_s=100.0)
CANARY = Rollout("a", "bench", "canary", "", canary=4, started_at=0.0, expires_s=9.0, held=True)


@pytest.mark.parametrize(
    ("counts", "now_s", "stage"),
    [
        ({"in_use": 2, "refused_by_policy": 2}, 1000.0, "canary"),
        ({"in_use": 3}, 99.0, "canary"),
        ({"in_use": 3, "refused_by_policy": 1}, 100.0, "all"),
        ({"in_use": 3, "failed_trial": 1}, 1.0, "withdrawn"),
        ({"rolled_back": 1}, 1.0, "withdrawn"),
    ],
)
def test_a_canary_is_judged_by_its_counts(counts, now_s, stage):
    assert verdict(replace(CANARY, reports={"canary": counts}), ASKED, now_s)[0] == stage


class Course:
    """A host whose jobs have ended, and the driver of their releases at a time that tests set."""

    def __init__(self, devices=6):
        self.now_s = 1_700_000_000.0
        self.store = Store(now_s=lambda: self.now_s)
        self.keys = []
        self.enrol(devices)
        self.posted = []
        self.offering = set()  # cells
        offering = self.offering.__contains__
        self.machine = SimpleNamespace(runs={}, offering=offering, keys={"": None}, responding={""})
        runner = SimpleNamespace(post=lambda event: self.posted.append(event.request))
        self.desk = Desk(self.store)
        jobs, validity = self.desk.host.jobs, ReleaseValidity(valid_s=2100.0)
        self.driver = RolloutDriver(self.store, jobs, self.machine, runner, validity)
        self.store.set_status(self.desk.id, "failed")

    def enrol(self, count):
        self.keys += [OpeningKey.generate() for _ in range(count)]
        self.store.set_enrolled({key.public().to_bytes() for key in self.keys})

    def release(self, **asked):
        """A job from its start to its release, which the proxy holds."""
        self.now_s += 1
        broadcast = self.sealed(release=asked)
        self.held(broadcast)
        self.desk.host.store(JobStatus(self.desk.wire, "completed"))
        return self.desk.id, broadcast

    def sealed(self, **asked):
        desk = self.desk
        desk.id = desk.run(job(**asked))
        desk.commit(1, 2, 3, 4)
        return desk.perform(SealRelease(desk.wire))

    def held(self, broadcast):
        self.desk.host.store(ReleaseHeld(broadcast.manifest.sequence))

    def openers(self, broadcast):
        """Who can open a broadcast, each with the package and the membership tag."""
        opened = [(k, open_broadcast(k, broadcast.manifest, broadcast.data)) for k in self.keys]
        return [(key, *found) for key, found in opened if found is not None]

    def report(self, broadcast, *reports):
        """Reports come: outcomes of devices that can open the broadcast, or sealed bytes."""
        manifest, (_, _, membership) = broadcast.manifest, self.openers(broadcast)[0]
        sealed = tuple(
            one if isinstance(one, bytes) else sealed_report(manifest, membership, one)
            for one in reports
        )
        self.desk.perform(CountReports(manifest.at, sealed, b"n" * 32))

    def look(self):
        self.posted.clear()
        self.driver.look()
        return list(self.posted)

    def published(self):
        return [one for one in self.look() if isinstance(one, PublishRelease)]

    def publish(self):
        broadcast = self.desk.perform(SealPublication(self.desk.wire))
        self.held(broadcast)
        return broadcast

    def stage(self, name):
        (shown,) = self.driver.shown(name)
        return str(shown["stage"])


def sealed_report(manifest, membership, outcome):
    return seal_segment(manifest, HEALTH, membership, outcome.to_bytes())


def statement(asked):
    (said,) = [one for one in asked if isinstance(one, ReleaseStatement)]
    return said


GOOD, BAD = ReleaseOutcome.IN_USE, ReleaseOutcome.FAILED_TRIAL
SOME = {"canary_share": 0.5, "canary_floor": 3, "soak_s": 100.0}


def test_a_canary_of_a_job_that_cannot_be_read_is_withdrawn(monkeypatch):
    """One of an earlier version, whose method is gone: the cloud itself goes on."""
    course = Course()
    name, _ = course.release(**SOME)
    unreadable = Mock(side_effect=ProtocolError("bad_job", "method 'gep' is gone"))
    monkeypatch.setattr(course.desk.host.jobs, "plan", unreadable)
    course.look()
    assert course.stage(name) == "withdrawn"


def test_a_canary_alone_opens_a_release_and_if_it_is_good_the_rest_after_the_soak_time():
    course = Course()
    name, broadcast = course.release(**SOME)
    assert broadcast.manifest.selected == len(course.openers(broadcast)) == 3
    course.report(broadcast, GOOD, GOOD, GOOD)
    assert not course.published()
    course.now_s += 100
    assert PublishRelease(course.desk.wire) in course.look()
    assert course.stage(name) == "all"
    everyone = course.publish()
    assert len(course.openers(everyone)) == 6
    assert everyone.manifest.package_digest == broadcast.manifest.package_digest
    course.now_s += 100
    assert not course.published()


def test_a_bad_canary_withdraws_the_release_and_brings_the_one_before_back():
    course = Course()
    first, old = course.release()
    first_wire = course.desk.wire
    course.look()
    second, broadcast = course.release(**SOME)
    number = broadcast.manifest.sequence
    # While a canary is judged the release before it is still good.
    assert statement(course.look()).renewed == (old.manifest.sequence, number)
    course.report(broadcast, GOOD, BAD)
    asked = course.look()
    assert (course.stage(first), course.stage(second)) == ("all", "withdrawn")
    said = statement(asked)
    assert (said.withdrawn, said.renewed) == ((number,), (old.manifest.sequence,))
    # The proxy keeps one release of a data set: devices that were away need the older one again.
    assert PublishRelease(first_wire) in asked
    assert "release_withdrawn" in [one.type for one in course.store.events_after(0, second)]
    with pytest.raises(StoreError, match="withdrawn"):
        course.driver.promote(second)


def test_a_report_counts_once_and_only_of_a_device_that_was_asked():
    course = Course()
    name, broadcast = course.release(**SOME)
    manifest, (_, _, membership) = broadcast.manifest, course.openers(broadcast)[0]
    report = sealed_report(manifest, membership, GOOD)
    stranger = sealed_report(manifest, bytes(32), BAD)
    dummy = seal_segment(manifest, HEALTH, membership, b"")
    for reports in ((report, stranger, dummy), (report, stranger, dummy), (report,)):
        course.report(broadcast, *reports)
        assert course.driver.shown(name)[0]["reports"] == {"canary": {"in_use": 1}}
    course.report(broadcast, *[GOOD] * 9)
    assert course.driver.shown(name)[0]["reports"] == {"canary": {"in_use": 3}}


def test_a_device_that_is_admitted_later_gets_the_release_of_its_data_set():
    course = Course()
    course.release()
    assert not course.published()
    course.now_s += 60
    course.enrol(1)
    assert course.look() == []  # more may come in a moment
    course.now_s += 2
    assert course.look() == [PublishRelease(course.desk.wire)]
    broadcast = course.publish()
    opened = course.openers(broadcast)
    assert len(opened) == 7 and opened[-1][0] is course.keys[-1]
    assert decode_package(opened[-1][1]).data_set == "bench"
    assert broadcast.manifest.data_set == data_set_tag("bench")
    course.now_s += 60
    assert not course.published()


def test_what_is_good_is_renewed_again_and_again_and_what_was_replaced_is_not():
    course = Course()
    _, old = course.release()
    said = statement(course.look())
    assert said.renewed == (old.manifest.sequence,)
    assert said.expires_s == course.now_s + 2100.0
    course.now_s += 299
    assert course.look() == []
    course.now_s += 1
    again = statement(course.look())
    assert again.number > said.number
    assert again.expires_s == course.now_s + 2100.0
    _, new = course.release()
    assert statement(course.look()).renewed == (new.manifest.sequence,)


def test_an_operator_promotes_a_canary_and_withdraws_what_went_to_all():
    course = Course()
    name, _ = course.release(**SOME)
    course.driver.promote(name)
    # What the machine is at is not disturbed.
    course.machine.runs = {b"job": SimpleNamespace(releasing=True)}
    assert not course.published()
    course.machine.runs = {}
    course.offering.add("")
    assert not course.published()
    course.offering.clear()
    assert course.published() == [PublishRelease(course.desk.wire)]
    everyone = course.publish()
    course.driver.withdraw(name)
    said = statement(course.look())
    assert everyone.manifest.sequence in said.withdrawn
    assert said.renewed == ()


def test_a_release_of_a_job_that_runs_is_left_to_the_job_and_its_canary_stays_the_same():
    course = Course(devices=12)
    first = course.sealed(release=SOME)
    assert course.look() == []
    second = course.desk.perform(SealRelease(course.desk.wire))
    opened = [[key for key, *_ in course.openers(one)] for one in (first, second)]
    assert opened[0] == opened[1] and len(opened[0]) == 6


def test_rollouts_go_on_where_they_stood_after_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path / 'cloud.sqlite'}"
    store = Store(url)
    name = store.submit_job("a", b"", bytes(32)).id
    store.rollouts.begin(name, "bench", [b"k" * 32], 9.0)
    store.rollouts.sent(name, 5, "canary", 1, bytes(64))
    store.rollouts.held(5)
    store.close()
    again = Store(url)
    (found,) = again.rollouts.all()
    assert (found.stage, found.sequences, found.held) == ("canary", (5,), True)
    assert again.rollouts.canary(name) == [b"k" * 32]
    assert again.rollouts.secret(name, 5) == (5, bytes(64))
    again.close()
