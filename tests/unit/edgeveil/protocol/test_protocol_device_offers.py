"""A device: what it fetches, opens and refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cloud_bench import cloud
from device_bench import (
    ME,
    MODEL,
    PACKAGE,
    SEALED,
    device,
    done,
    fire,
    receive,
    snapshot,
    upload,
    work_on,
)
from protocol_kit import (
    CLOUD,
    JOB,
    PART_BYTES,
    PROXY,
    at,
    bodies,
    commit_of,
    headers,
    manifest,
    messages,
    of,
    offer,
    parts_of,
    refused,
    reports,
    signing_key,
    stored,
    tasks,
    timers,
    upload_of,
)
from proxy_bench import proxy

from edgeveil.protocol import device as dv
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import Installation
from edgeveil.protocol.device_round import (
    ComputeAnswer,
    DeviceMemory,
    DeviceState,
    NoAnswer,
    OpenedPackage,
    OpenPackage,
)
from edgeveil.protocol.messages import (
    Ack,
    Blob,
    Bye,
    Close,
    ExchangeId,
    Hello,
    Here,
    Later,
    Manifest,
    Need,
    Roster,
    Signer,
    Want,
)
from edgeveil.protocol.sealed import JobPackage, ReleasePackage

LONG = bytes(range(256)) * 20


def test_a_large_model_comes_together_from_parts_in_any_order():
    machine, header = device(), manifest(LONG)
    assert not tasks(receive(machine, offer(header)))
    pieces = parts_of(header, LONG)
    for piece in reversed(pieces[1:]):
        assert not tasks(receive(machine, piece))
    assert tasks(receive(machine, pieces[0])) == [dr.OpenPackage(header, LONG)]
    assert receive(machine, pieces[0]) == []


@pytest.mark.parametrize("older", [at(4, 10), at(5, 2)])
def test_an_older_round_or_attempt_is_refused(older):
    machine = device()
    receive(machine, offer(manifest(MODEL, at(5, 3)), MODEL))
    before = snapshot(machine)
    assert refused(receive(machine, offer(manifest(MODEL, older), MODEL))) == ["replayed_round"]
    assert snapshot(machine) == before


def test_a_replay_is_refused_after_a_restart_too():
    memory = dr.DeviceMemory(jobs={JOB: None}, seen={JOB: dr.ManifestMark(at(5), b"s" * 32)})
    out = receive(device(memory), offer(manifest(MODEL, at(4)), MODEL))
    assert refused(out) == ["replayed_round"]


def test_a_second_model_under_one_round_is_refused():
    machine, header = device(), manifest(MODEL)
    receive(machine, offer(header, MODEL))
    before = snapshot(machine)
    fork = msgspec.structs.replace(header, commitment=b"z" * 32)
    assert refused(receive(machine, offer(fork, MODEL))) == ["forked_manifest"]
    assert snapshot(machine) == before


def test_the_same_offer_again_does_no_second_work():
    machine, header = device(), manifest(MODEL)
    for _ in range(2):
        work_on(machine, header)
    out = receive(machine, offer(header, MODEL))
    assert tasks(out) == [] and refused(out) == []
    assert machine.state is dr.DeviceState.WORKING


@pytest.mark.parametrize(
    ("signer", "reason"),
    [(Signer("cloud", signing_key(99)), "forged"), (PROXY, "unknown_signer")],
)
def test_only_the_cloud_broadcasts(signer, reason):
    machine = device()
    before = snapshot(machine)
    assert refused(receive(machine, offer(manifest(MODEL), MODEL, signer))) == [reason]
    assert snapshot(machine) == before


def test_a_header_that_is_no_broadcast_is_refused():
    header, data = upload_of(at(), 1)
    assert refused(receive(device(), offer(header, data))) == ["unexpected_header"]


@pytest.mark.parametrize(
    ("header", "inline", "reason"),
    [
        (manifest(MODEL), b"other length", "bad_digest"),
        (manifest(MODEL), MODEL[:-1] + b"?", "bad_digest"),
        (manifest(MODEL, blob=Blob(b"x" * 32, 10_001, PART_BYTES)), b"", "oversized_blob"),
        (manifest(MODEL, blob=Blob(b"x" * 32, 9_000, 1)), b"", "tiny_parts"),
        (manifest(MODEL, stanza_bytes=len(MODEL) + 1), MODEL, "malformed"),
    ],
)
def test_a_signed_offer_that_cannot_be_fetched_changes_nothing(header, inline, reason):
    machine = device(blob_bytes=10_000)
    upload(machine, manifest(MODEL, at(0)))
    before = snapshot(machine)
    assert refused(receive(machine, offer(header, inline))) == [reason]
    assert snapshot(machine) == before


def test_a_model_that_does_not_open_is_refused_by_its_reason():
    machine, header = device(), manifest(MODEL)
    receive(machine, offer(header, MODEL))
    out = done(machine, dr.OpenPackage(header, MODEL), fx.WorkFailed("wrong_commitment"))
    assert refused(out) == ["wrong_commitment"] and machine.state is dr.DeviceState.IDLE


def test_a_round_that_holds_no_round_is_refused():
    machine, header = device(), manifest(MODEL)
    receive(machine, offer(header, MODEL))
    out = done(machine, dr.OpenPackage(header, MODEL), dr.OpenedPackage(JobPackage(b"{}", b"")))
    assert refused(out) == ["malformed_package"] and tasks(out) == []
    assert machine.state is dr.DeviceState.IDLE


def test_a_newer_round_takes_the_place_of_the_one_at_work():
    machine, old, new = device(), manifest(MODEL, at(1)), manifest(b"newer", at(2))
    receive(machine, offer(old, MODEL))
    assert tasks(receive(machine, offer(new, b"newer"))) == [dr.OpenPackage(new, b"newer")]
    assert done(machine, dr.OpenPackage(old, MODEL), dr.OpenedPackage(PACKAGE)) == []
    assert tasks(done(machine, dr.OpenPackage(new, b"newer"), dr.OpenedPackage(PACKAGE))) == [
        dr.ComputeAnswer(new, PACKAGE, closes_s=60.0)
    ]


def test_fetches_that_never_end_do_not_stop_later_rounds():
    """Each round's commit is announced and its parts are lost: the next round clears them."""
    machine = device()
    for number in range(1, 12):
        upload(machine, manifest(MODEL, at(number)))
        record, _ = commit_of(at(number), [b"%d %d" % (number, i) for i in range(100)])
        receive(machine, offer(record))
    out = receive(machine, offer(manifest(MODEL, at(12)), MODEL))
    assert refused(out) == [] and len(tasks(out)) == 1


# --- releases -----------------------------------------------------------------------------


def release(sequence, job=JOB):
    return manifest(
        b"final %d" % sequence, ExchangeId(job, 0, 0), kind="release", sequence=sequence
    )


def install(machine, sequence):
    header, data = release(sequence), b"final %d" % sequence
    opened = dr.OpenedPackage(ReleasePackage("digits", b"onnx"))
    return receive(machine, offer(header, data)) and done(
        machine, dr.OpenPackage(header, data), opened
    )


def test_an_older_release_cannot_take_the_place_of_the_installed_one():
    machine = device(dr.DeviceMemory(jobs={JOB: None}, release_sequence=7))
    out = receive(machine, offer(release(6), b"final 6"))
    assert refused(out) == ["replayed_release"]


def test_a_round_from_before_a_release_is_not_answered():
    """Its cloud counts from behind: the job's model would be refused, the budget be gone."""
    machine = device(dr.DeviceMemory(jobs={JOB: None}, release_sequence=7))
    behind, ahead = (manifest(MODEL, sequence=number) for number in (6, 8))
    assert refused(receive(machine, offer(behind, MODEL))) == ["outdated_round"]
    assert tasks(receive(machine, offer(ahead, MODEL))) == [dr.OpenPackage(ahead, MODEL)]


def test_a_release_that_could_not_be_used_holds_up_no_round():
    """Its number was the cloud's own word, but nothing came of it."""
    machine = device()
    (task,) = tasks(install(machine, 2**62))
    assert refused(done(machine, task, fx.WorkFailed("refused_release"))) == ["refused_release"]
    header = manifest(MODEL)
    assert refused(receive(machine, offer(header, MODEL))) == []


# --- the link -----------------------------------------------------------------------------


# --- A device: which jobs it learns, and the rounds that come before their job is kno


JOB_DATA = b"sealed job"
JOB_HEADER = manifest(JOB_DATA, at(0), kind="job", groups=(), selected=0)


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


def test_a_closed_job_stays_closed():
    machine = device()
    out = receive(machine, CLOUD.note(Close(JOB, "completed")))
    assert reports(out)["job_closed"]["status"] == "completed"
    assert receive(machine, CLOUD.note(Close(JOB, "completed"))) == []
    for header, data in ((manifest(MODEL), MODEL), (JOB_HEADER, JOB_DATA)):
        assert refused(receive(machine, offer(header, data))) == ["closed_job"]


# --- A device: what the cloud, the proxy and the broker can make it hold, fetch and r


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


# --- jobs ---------------------------------------------------------------------------------


def test_of_many_jobs_the_newest_are_kept_and_the_round_at_hand_is_safe() -> None:
    machine = device(jobs=3)
    work_on(machine, manifest(MODEL))
    for number in range(5):
        learn(machine, number)
    assert list(machine.memory.jobs) == [JOB, job_id(3), job_id(4)]
    assert list(machine.memory.closed) == [job_id(0), job_id(1), job_id(2)]
    assert machine.state is dr.DeviceState.WORKING


def test_ends_of_jobs_are_remembered_up_to_a_bound() -> None:
    machine = device()
    for number in range(dv.CLOSED_KEPT + 20):
        receive(machine, CLOUD.note(Close(job_id(number), "failed")))
    assert len(machine.memory.closed) == dv.CLOSED_KEPT
    assert job_id(0) not in machine.memory.closed
    assert job_id(dv.CLOSED_KEPT + 19) in machine.memory.closed


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


# --- A device that comes and goes by its owner's conditions


LEAVE, COME = fx.Command("leave"), fx.Command("come")
UP = fx.PeerConnected(fx.ProxyAddress())


def told(machine, event):
    return machine.handle(event, 0.0)


def test_it_leaves_once_and_comes_again():
    machine = device()
    told(machine, UP)
    out = told(machine, LEAVE)
    assert bodies(out, Bye) == [Bye(ME.id)]
    assert fx.CancelTimer("hello") in out
    assert told(machine, LEAVE) == []
    assert len(bodies(told(machine, COME), Hello)) == 1
    assert told(machine, COME) == []


@pytest.mark.parametrize("asked", [Here(60.0), Later(5.0)])
def test_while_away_it_does_not_come_because_the_proxy_asks(asked):
    machine = device()
    told(machine, UP)
    told(machine, LEAVE)
    assert receive(machine, PROXY.note(asked)) == []
    assert fire(machine, "hello") == []


def test_what_it_has_begun_it_ends_before_it_goes():
    machine, header = device(), manifest(MODEL)
    told(machine, UP)
    work_on(machine, header)
    assert told(machine, LEAVE) == []
    out = done(machine, ComputeAnswer(header, PACKAGE), SEALED)
    assert bodies(out, Bye) == []
    assert machine.state is DeviceState.UPLOADING
    assert bodies(fire(machine, "deadline"), Bye) == [Bye(ME.id)]


def test_it_goes_with_the_end_of_a_round_that_it_declines():
    machine, header = device(), manifest(MODEL)
    told(machine, UP)
    work_on(machine, header)
    told(machine, LEAVE)
    out = done(machine, ComputeAnswer(header, PACKAGE), NoAnswer("the budget is spent"))
    assert bodies(out, Bye) == [Bye(ME.id)]


def test_a_proxy_that_comes_is_not_sent_an_upload_that_it_holds():
    machine = device()
    told(machine, UP)
    upload(machine)
    receive(machine, PROXY.note(Ack(machine.memory.uploads[JOB].upload.blob.digest, "held")))
    receive(machine, PROXY.note(Here(60.0)))
    assert headers(fire(machine, "hello")) == []


# --- What each role says when nothing came for long: a word that is answered, and no


def test_a_device_says_hello() -> None:
    out = device().handle(fx.PeerSilent(fx.ProxyAddress()), 0.0)
    assert len(bodies(out, Hello)) == len(of(out, fx.Send)) == 1


def test_a_device_that_is_away_says_nothing() -> None:
    machine = device()
    machine.handle(fx.Command("leave"), 0.0)
    assert machine.handle(fx.PeerSilent(fx.ProxyAddress()), 0.0) == []


def test_a_proxy_asks_its_devices_and_offers_the_cloud_its_roster() -> None:
    assert len(bodies(proxy().handle(fx.PeerSilent(fx.AllDevices()), 0.0), Here)) == 1
    (header,) = headers(proxy().handle(fx.PeerSilent(fx.CloudAddress()), 0.0))
    assert isinstance(header, Roster)


def test_a_cloud_asks_the_proxy() -> None:
    out = cloud().handle(fx.PeerSilent(fx.ProxyAddress()), 0.0)
    assert len(bodies(out, Here)) == len(of(out, fx.Send)) == 1
