"""A device: what the cloud, the proxy and the broker can make it hold, fetch and remember."""

from __future__ import annotations

from typing import Any

import pytest
from device_bench import MODEL, PACKAGE, device, done, fire, receive, snapshot, upload, work_on
from protocol_kit import (
    CLOUD,
    JOB,
    at,
    bodies,
    manifest,
    messages,
    of,
    offer,
    parts_of,
    refused,
    reports,
    stored,
    tasks,
    timers,
)

from edgeveil.protocol import device as dv
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import BlobPart, Close, ExchangeId, Manifest, Need, Offer, Want
from edgeveil.protocol.sealed import JobPackage

LONG = bytes(range(256)) * 20


def job_id(number: int) -> bytes:
    return b"%016d" % number


def announced(number: int, data: bytes | None = None, **changes: Any) -> tuple[Manifest, bytes]:
    """A job's manifest and its sealed package."""
    data = data or b"sealed job %d" % number
    where = ExchangeId(job_id(number), 0, 0)
    return manifest(data, where, kind="job", groups=(), selected=0, **changes), data


def learn(machine: dv.DeviceMachine, number: int) -> list[fx.Effect]:
    header, data = announced(number)
    receive(machine, offer(header, data))
    package = JobPackage(b"{}", b"graph")
    done(machine, dr.OpenPackage(header, data), dr.OpenedPackage(package))
    return done(machine, dv.InstallJob(header, package), dv.Installation())


# --- fetches ------------------------------------------------------------------------------


def stalled(machine: dv.DeviceMachine, count: int) -> list[Manifest]:
    """So many job packages on their way, of which no part ever came."""
    headers = [announced(n, LONG + bytes((n,)))[0] for n in range(count)]
    for header in headers:
        assert refused(receive(machine, offer(header))) == []
    return headers


def test_what_stands_still_gives_way_to_what_is_new() -> None:
    machine = device()
    stalled(machine, dv.AT_ONCE)
    before = snapshot(machine)
    fresh, _ = announced(99, LONG)
    assert refused(receive(machine, offer(fresh))) == ["too_many_fetches"]
    assert snapshot(machine) == before
    fire(machine, "repair")  # a look at which nothing had come
    assert refused(receive(machine, offer(fresh))) == []
    assert len(machine.fetches.under_way) == dv.AT_ONCE
    assert fresh.blob.digest in machine.fetches.under_way


def test_what_moves_is_not_given_up() -> None:
    machine = device()
    moving, *_ = stalled(machine, dv.AT_ONCE)
    fire(machine, "repair")
    receive(machine, parts_of(moving, LONG + b"\0")[0])
    for number in range(50, 50 + dv.AT_ONCE):
        receive(machine, offer(announced(number, LONG + bytes((number,)))[0]))
    assert moving.blob.digest in machine.fetches.under_way


def test_the_bytes_on_their_way_are_bounded_by_what_was_claimed() -> None:
    machine = device(fetch_bytes=2 * len(LONG) + 10)
    stalled(machine, 2)
    assert refused(receive(machine, offer(announced(9, LONG)[0]))) == ["too_many_fetches"]
    header = manifest(MODEL)
    assert tasks(receive(machine, offer(header, MODEL))) == [
        dr.OpenPackage(header, MODEL)
    ]  # needs no room


def test_a_round_that_finds_no_room_changes_nothing() -> None:
    machine = device()
    stalled(machine, dv.AT_ONCE)
    before = snapshot(machine)
    out = receive(machine, offer(manifest(LONG)))
    assert refused(out) == ["too_many_fetches"]
    assert stored(out) == []
    assert snapshot(machine) == before
    assert machine.state is dr.DeviceState.IDLE


def test_a_round_s_package_that_never_completes_is_given_up_at_the_deadline() -> None:
    machine = device()
    receive(machine, offer(manifest(LONG)))
    assert machine.fetches.under_way
    fire(machine, "deadline")
    assert machine.state is dr.DeviceState.IDLE
    assert not machine.fetches.under_way
    assert fire(machine, "repair") == []
    out = receive(machine, offer(manifest(MODEL, at(2)), MODEL))
    assert len(tasks(out)) == 1


def test_a_slow_link_is_asked_for_a_bounded_number_of_parts_at_a_time() -> None:
    data = LONG * 40
    machine, header = device(), manifest(data)
    receive(machine, offer(header))
    pieces, asked, came = parts_of(header, data), [], 0
    waiting = [n for need in _needs(fire(machine, "repair")) for n in need]
    while waiting:
        assert len(waiting) <= 16
        came += 1
        asked = _needs(receive(machine, pieces[waiting.pop(0)]))
        waiting += [n for need in asked for n in need]
    assert came == len(pieces)
    assert machine.state is dr.DeviceState.OPENING


def _needs(effects: list[fx.Effect]) -> list[tuple[int, ...]]:
    return [need.indices for need in messages(effects, Need)]


# --- jobs ---------------------------------------------------------------------------------


def test_of_many_jobs_the_newest_are_kept_and_the_round_at_hand_is_safe() -> None:
    machine = device(jobs=3)
    work_on(machine, manifest(MODEL))
    for number in range(5):
        learn(machine, number)
    assert list(machine.memory.jobs) == [JOB, job_id(3), job_id(4)]
    assert list(machine.memory.closed) == [job_id(0), job_id(1), job_id(2)]
    assert machine.state is dr.DeviceState.WORKING


def test_a_forgotten_job_is_ended_on_the_disk_too() -> None:
    machine = device(dr.DeviceMemory(), jobs=1)
    learn(machine, 1)
    assert stored(learn(machine, 2)) == [dv.JobClosed(job_id(1), "forgotten")]


def test_ends_of_jobs_are_remembered_up_to_a_bound() -> None:
    machine = device()
    for number in range(dv.CLOSED_KEPT + 20):
        receive(machine, CLOUD.note(Close(job_id(number), "failed")))
    assert len(machine.memory.closed) == dv.CLOSED_KEPT
    assert job_id(0) not in machine.memory.closed
    assert job_id(dv.CLOSED_KEPT + 19) in machine.memory.closed


def test_a_job_is_asked_for_again_until_its_round_is_over() -> None:
    machine, header = device(dr.DeviceMemory()), manifest(MODEL, deadline_s=60.0, grace_s=5.0)
    out = receive(machine, offer(header, MODEL))
    waits = [timers(out)["want"]]
    for now_s in (5.0, 15.0, 64.0):
        out = machine.handle(fx.Timer("want"), now_s)
        assert bodies(out, Want) == [Want(JOB)]
        waits.append(timers(out)["want"])
    assert waits[0] <= 5.0 < waits[2] <= 20.0
    assert machine.handle(fx.Timer("want"), 65.1) == []
    assert machine.handle(fx.Timer("want"), 66.0) == []


@pytest.mark.parametrize("outcome", [dr.OpenedPackage(None), fx.WorkFailed("wrong_package")])
def test_a_job_that_is_of_no_use_here_is_fetched_once(outcome: object) -> None:
    """Its rounds are looked into as those of any other one where the device is not selected."""
    machine = device(dr.DeviceMemory())
    header, data = announced(7)
    round_ = manifest(MODEL, ExchangeId(job_id(7), 1, 1))
    receive(machine, offer(round_, MODEL))
    receive(machine, offer(header, data))
    assert tasks(done(machine, dr.OpenPackage(header, data), outcome)) == [
        dr.OpenPackage(round_, MODEL)
    ]
    assert done(machine, dr.OpenPackage(round_, MODEL), dr.OpenedPackage(None)) == []
    assert receive(machine, offer(header, data)) == []
    later = manifest(MODEL, ExchangeId(job_id(7), 2, 1))
    assert tasks(receive(machine, offer(later, MODEL))) == [dr.OpenPackage(later, MODEL)]
    changed, other = announced(7, b"for everybody", sequence=2)
    assert tasks(receive(machine, offer(changed, other))) == [dr.OpenPackage(changed, other)]


def test_a_job_that_ends_while_it_is_learned_leaves_nothing() -> None:
    machine = device(dr.DeviceMemory())
    header, data = announced(7)
    receive(machine, offer(header, data))
    receive(machine, CLOUD.note(Close(job_id(7), "cancelled")))
    out = done(machine, dv.InstallJob(header, JobPackage(b"{}", b"g")), dv.Installation())
    assert stored(out) == [dv.JobClosed(job_id(7), "forgotten")]
    assert not machine.memory.jobs


# --- reasons ------------------------------------------------------------------------------


def test_refusals_are_counted_by_slugs_and_sentences_go_to_the_owner() -> None:
    machine, header = device(), manifest(MODEL)
    receive(machine, offer(header, MODEL))
    out = done(machine, dr.OpenPackage(header, MODEL), fx.WorkFailed("the file /x cannot be read"))
    assert refused(out) == ["failed_work"]
    assert reports(out)["failed_work"]["why"] == "the file /x cannot be read"


def test_a_device_that_was_away_for_many_rounds_joins_at_the_next() -> None:
    machine = device()
    upload(machine, manifest(MODEL, at(1)))
    out = receive(machine, offer(manifest(MODEL, at(9, 3)), MODEL))
    assert len(tasks(out)) == 1
    assert machine.state is dr.DeviceState.OPENING
    header = manifest(MODEL, at(9, 3))
    done(machine, dr.OpenPackage(header, MODEL), dr.OpenedPackage(PACKAGE))
    assert of(done(machine, dr.ComputeAnswer(header, PACKAGE), fx.WorkFailed("x")), fx.Report)


def test_parts_of_a_foreign_blob_take_no_memory() -> None:
    machine = device()
    for number in range(100):
        receive(machine, BlobPart(b"%032d" % number, 0, 0, bytes(1000)))
        receive(machine, Offer(offer(manifest(MODEL), MODEL).header, b""))
    assert len(machine.fetches.under_way) == 1
