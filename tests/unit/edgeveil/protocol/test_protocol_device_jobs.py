"""A device: which jobs it learns, and the rounds that come before their job is known."""

from __future__ import annotations

import pytest
from device_bench import MODEL, PACKAGE, device, done, fire, receive
from protocol_kit import (
    CLOUD,
    JOB,
    at,
    bodies,
    manifest,
    messages,
    offer,
    parts_of,
    refused,
    reports,
    tasks,
    timers,
)

from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import Installation, InstallJob
from edgeveil.protocol.device_round import DeviceMemory, DeviceState, OpenedPackage, OpenPackage
from edgeveil.protocol.messages import Close, Need, Want
from edgeveil.protocol.sealed import JobPackage

LONG = bytes(range(256)) * 20
JOB_DATA = b"sealed job"
JOB_HEADER = manifest(JOB_DATA, at(0), kind="job", groups=(), selected=0)


def test_a_round_waits_for_its_job():
    machine, header = device(DeviceMemory()), manifest(MODEL)
    out = receive(machine, offer(header, MODEL))
    assert bodies(out, Want) == [Want(JOB)] and tasks(out) == []
    receive(machine, offer(JOB_HEADER, JOB_DATA))
    package = JobPackage(b"{}", b"graph")
    out = done(machine, OpenPackage(JOB_HEADER, JOB_DATA), OpenedPackage(package))
    assert tasks(out) == [InstallJob(JOB_HEADER, package)]
    out = done(machine, InstallJob(JOB_HEADER, package), Installation())
    assert tasks(out) == [OpenPackage(header, MODEL)] and list(machine.memory.jobs) == [JOB]


def at_its_job():
    """A device whose host opens the job; the round comes meanwhile."""
    machine, header = device(DeviceMemory()), manifest(LONG)
    assert tasks(receive(machine, offer(JOB_HEADER, JOB_DATA))) == [
        OpenPackage(JOB_HEADER, JOB_DATA)
    ]
    out = receive(machine, offer(header))
    assert bodies(out, Want) == [] and {"repair", "want"} <= set(timers(out))
    return machine, header


def job_learned(machine):
    package = JobPackage(b"{}", b"graph")
    (learn,) = tasks(done(machine, OpenPackage(JOB_HEADER, JOB_DATA), OpenedPackage(package)))
    return done(machine, learn, Installation())


@pytest.mark.parametrize("before", [0, 2, 5])
def test_what_is_pushed_of_a_round_before_its_job_is_learned_comes_once(before):
    machine, header = at_its_job()
    pieces = parts_of(header, LONG)
    assert len(pieces) == 5
    for piece in pieces[:before]:
        assert receive(machine, piece) == []
    out = job_learned(machine)
    for piece in pieces[before:]:
        assert not tasks(out) and messages(out, Need) == []
        out = receive(machine, piece)
    assert tasks(out) == [OpenPackage(header, LONG)]
    assert machine.state is DeviceState.OPENING and fire(machine, "repair") == []


def test_a_round_put_by_stays_when_it_is_offered_again():
    machine, header = at_its_job()
    for piece in parts_of(header, LONG):
        receive(machine, piece)
    for out in (receive(machine, offer(header)), fire(machine, "repair")):
        assert tasks(out) == [] and messages(out, Need) == []
    assert tasks(job_learned(machine)) == [OpenPackage(header, LONG)]


def test_what_is_not_the_round_is_found_before_it_is_put_by():
    machine, header = at_its_job()
    *wrong, last = parts_of(header, LONG[::-1])
    for piece in wrong:
        assert receive(machine, piece) == []
    assert refused(receive(machine, last)) == ["bad_digest"]
    for piece in parts_of(header, LONG):
        assert receive(machine, piece) == []
    assert receive(machine, last) == []  # one too many
    assert tasks(job_learned(machine)) == [OpenPackage(header, LONG)]


def test_a_job_that_is_coming_is_not_asked_for():
    machine, header = device(DeviceMemory()), manifest(MODEL)
    announced = manifest(LONG, at(0), kind="job", groups=(), selected=0)
    receive(machine, offer(announced))
    for out in (receive(machine, offer(header, MODEL)), fire(machine, "want")):
        assert bodies(out, Want) == [] and "want" in timers(out)
    machine.fetches.forget(lambda _header: True)  # as when it stands still and room is needed
    assert bodies(fire(machine, "want"), Want) == [Want(JOB)]


def test_a_job_that_the_host_is_at_is_not_opened_twice():
    machine, _ = at_its_job()
    assert receive(machine, offer(JOB_HEADER, JOB_DATA)) == []
    job_learned(machine)
    assert receive(machine, offer(JOB_HEADER, JOB_DATA)) == []


def test_a_round_whose_job_never_came_is_forgotten_when_it_is_over():
    machine, header = device(DeviceMemory()), manifest(LONG, deadline_s=60.0, grace_s=5.0)
    receive(machine, offer(header))
    assert header.blob.digest in machine.fetches.under_way
    assert machine.handle(fx.Timer("want"), 65.1) == []
    assert machine.fetches.under_way == {} and fire(machine, "repair") == []


def test_a_newer_round_of_an_unknown_job_takes_the_place_of_the_older():
    machine, newer = device(DeviceMemory()), manifest(LONG[::-1], at(2))
    receive(machine, offer(manifest(LONG)))
    receive(machine, offer(newer))
    assert list(machine.fetches.under_way) == [newer.blob.digest]


def test_a_job_that_holds_no_job_is_refused_and_not_fetched_again():
    machine = device(DeviceMemory())
    receive(machine, offer(JOB_HEADER, JOB_DATA))
    assert refused(done(machine, OpenPackage(JOB_HEADER, JOB_DATA), OpenedPackage(PACKAGE))) == [
        "malformed_package"
    ]
    assert receive(machine, offer(JOB_HEADER, JOB_DATA)) == []


def test_a_known_job_is_not_fetched_again():
    assert receive(device(), offer(JOB_HEADER, JOB_DATA)) == []


def test_a_closed_job_stays_closed():
    machine = device()
    out = receive(machine, CLOUD.note(Close(JOB, "completed")))
    assert reports(out)["job_closed"]["status"] == "completed"
    assert receive(machine, CLOUD.note(Close(JOB, "completed"))) == []
    for header, data in ((manifest(MODEL), MODEL), (JOB_HEADER, JOB_DATA)):
        assert refused(receive(machine, offer(header, data))) == ["closed_job"]
