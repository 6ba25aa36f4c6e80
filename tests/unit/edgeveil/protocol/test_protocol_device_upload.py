"""A device: consent, upload, and until it was counted."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from device_bench import (
    ME,
    MODEL,
    PACKAGE,
    SEALED,
    SEGMENTS,
    device,
    done,
    fire,
    own,
    receive,
    snapshot,
    upload,
    work_on,
)
from protocol_kit import (
    CLOUD,
    JOB,
    PROXY,
    at,
    bodies,
    commit_of,
    headers,
    manifest,
    messages,
    of,
    offer,
    refused,
    reports,
    signing_key,
    stored,
    tasks,
    timers,
)

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m

DIGEST = hashlib.sha256(SEALED.data).digest()
NAMED = JOB.hex()[:12]


def ack(status, digest=DIGEST, signer=PROXY, reason=""):
    return signer.note(m.Ack(digest, status, reason))


def test_declining_says_so_and_names_the_cause_but_not_the_reason():
    machine, header = device(), manifest(MODEL)
    work_on(machine, header)
    out = done(machine, dr.ComputeAnswer(header, PACKAGE), dr.NoAnswer("over it by 3", "budget"))
    assert bodies(out, m.Decline) == [m.Decline(header.at, "budget")]
    assert all(b"over it" not in m.encode(send.message) for send in of(out, fx.Send))
    assert reports(out)["declined"]["why"] == "over it by 3"
    assert reports(out)["declined"]["cause"] == "budget"
    assert machine.state is dr.DeviceState.IDLE


def test_what_fails_at_the_box_is_declined_as_its_fault():
    machine, header = device(), manifest(MODEL)
    work_on(machine, header)
    out = done(machine, dr.ComputeAnswer(header, PACKAGE), fx.WorkFailed("no space is left"))
    assert bodies(out, m.Decline) == [m.Decline(header.at, "fault")]
    assert reports(out)["declined"]["why"] == "no space is left"


def test_an_upload_is_durable_before_it_is_sent():
    machine = device()
    out = upload(machine)
    kinds = [type(effect) for effect in out]
    assert kinds.index(fx.Persist) < kinds.index(fx.Send)
    (item,) = stored(out)
    (header,) = headers(out)
    assert isinstance(item, dr.OutboxPut) and item.upload == header
    assert header.groups == (0, 1, 2) and header.blob.digest == DIGEST
    assert machine.state is dr.DeviceState.UPLOADING


def test_work_of_a_round_that_is_over_is_not_sent():
    machine, old = device(), manifest(MODEL, at(1))
    work_on(machine, old)
    work_on(machine, manifest(MODEL, at(2)))
    assert done(machine, dr.ComputeAnswer(old, PACKAGE), SEALED) == []
    assert messages(done(machine, dr.ComputeAnswer(old, PACKAGE), dr.NoAnswer("x")), m.Offer) == []
    assert machine.state is dr.DeviceState.WORKING


def test_an_upload_is_sent_again_ever_more_rarely_until_acknowledged():
    machine = device(resend_s=5.0, waits_cap_s=30.0)
    waits = [timers(upload(machine))["resend"]]
    for _ in range(4):
        out = fire(machine, "resend")
        assert [h.blob.digest for h in headers(out)] == [DIGEST]
        waits.append(timers(out)["resend"])
    caps = (5.0, 10.0, 20.0, 30.0, 30.0)
    assert all(cap / 2 < wait <= cap for wait, cap in zip(waits, caps, strict=True))
    out = receive(machine, ack("held"))
    assert of(out, fx.CancelTimer) == [fx.CancelTimer(own("resend").name)]
    assert machine.state is dr.DeviceState.ANSWERED
    assert fire(machine, "resend") == []


def test_a_proxy_that_is_away_for_days_is_waited_for():
    machine = device(waits_cap_s=30.0)
    upload(machine)
    for _ in range(2000):
        out = fire(machine, "resend")
    assert 15.0 < timers(out)["resend"] <= 30.0


def test_a_large_upload_is_offered_and_its_parts_are_pulled():
    machine, header = device(), manifest(MODEL)
    work_on(machine, header)
    data = bytes(range(250)) * 20
    out = done(
        machine,
        dr.ComputeAnswer(header, PACKAGE),
        dr.SealedAnswer((0,), (5000,), data, (b"m" * 32,)),
    )
    (offered,) = messages(out, m.Offer)
    assert offered.data == b"" and messages(out, m.BlobPart) == []
    blob = m.decode_header(offered.header).blob
    pulled = messages(receive(machine, m.Need(blob.digest, tuple(range(blob.parts)))), m.BlobPart)
    assert b"".join(piece.data for piece in pulled) == data
    assert messages(receive(machine, m.Need(blob.digest, (2, 0, 0))), m.BlobPart) == [
        pulled[0],
        pulled[2],
    ]
    assert refused(receive(machine, m.Need(blob.digest, (blob.parts,)))) == ["bad_index"]
    assert receive(machine, m.Need(b"x" * 32, (0,))) == []


@pytest.mark.parametrize(("size", "inline"), [(15_000, True), (17_000, False)])
def test_a_small_upload_alone_is_offered_whole_however_large_packets_may_be(size, inline):
    machine, header = device(packet_bytes=1 << 18), manifest(MODEL)
    work_on(machine, header)
    out = done(
        machine,
        dr.ComputeAnswer(header, PACKAGE),
        dr.SealedAnswer((0,), (size,), bytes(size), (b"m" * 32,)),
    )
    (offered,) = messages(out, m.Offer)
    assert len(offered.data) == (size if inline else 0)


def test_the_upload_is_kept_after_the_acknowledgement():
    machine = device()
    upload(machine)
    receive(machine, ack("held"))
    assert machine.memory.uploads


@pytest.mark.parametrize("status", ["refused", "closed", "duplicate"])
def test_a_refused_upload_is_dropped_and_reported(status):
    machine = device()
    upload(machine)
    out = receive(machine, ack(status, reason="closed_round"))
    # "Closed" may follow a lost acknowledgement: only a refusal says that it was never taken.
    outcome = "refused" if status == "refused" else "dropped"
    assert stored(out) == [dr.OutboxDrop(at(), outcome)]
    assert reports(out)["upload_refused"] == {"job": NAMED, "round": 1, "why": "closed_round"}
    assert machine.state is dr.DeviceState.IDLE and not machine.memory.uploads


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (ack("refused", signer=m.Signer("proxy", signing_key(9))), "forged"),
        (ack("refused", signer=ME.signer), "unknown_signer"),
        (ack("refused", signer=CLOUD), "unexpected_body"),
        (PROXY.note(m.Close(JOB, "failed")), "unexpected_body"),
        (PROXY.note(m.Want(JOB)), "unexpected_body"),
    ],
)
def test_nobody_else_can_end_an_upload(message, reason):
    machine = device()
    upload(machine)
    before = snapshot(machine)
    assert refused(receive(machine, message)) == [reason]
    assert snapshot(machine) == before


def test_an_acknowledgement_of_something_else_is_ignored():
    machine = device()
    upload(machine)
    assert receive(machine, ack("refused", digest=b"x" * 32)) == []
    assert machine.state is dr.DeviceState.UPLOADING


# --- commit -------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", [3, 2, 0])
def test_a_commit_says_how_many_segments_were_counted(accepted):
    machine = device()
    upload(machine)
    receive(machine, ack("held"))
    record, data = commit_of(at(), [*SEGMENTS[:accepted], b"another device's"])
    out = receive(machine, offer(record, data))
    told = {"job": NAMED, "round": 1, "segments": 3, "counted": accepted}
    assert reports(out)["counted"] == told
    outcome = {3: "counted", 0: "missing"}.get(accepted, "partial")
    assert stored(out) == [dr.OutboxDrop(at(), outcome)] and not machine.memory.uploads
    assert machine.state is dr.DeviceState.IDLE
    assert receive(machine, offer(record, data)) == []


def test_an_empty_commit_ends_the_upload():
    machine = device()
    upload(machine)
    record, data = commit_of(at(), [])
    assert reports(receive(machine, offer(record, data)))["counted"]["counted"] == 0


def test_a_commit_of_another_round_is_not_fetched():
    machine = device()
    upload(machine)
    record, data = commit_of(at(1, 2), SEGMENTS)
    assert receive(machine, offer(record, data)) == []
    assert machine.memory.uploads


def test_a_forged_commit_is_refused():
    machine = device()
    upload(machine)
    record, data = commit_of(at(), SEGMENTS)
    assert refused(receive(machine, offer(record, data, PROXY))) == ["unknown_signer"]


# --- the end of a round, a job, a process ----------------------------------------------------


def test_after_the_deadline_the_upload_is_given_up():
    machine = device()
    upload(machine)
    assert stored(fire(machine, "deadline")) == [dr.OutboxDrop(at(), "dropped")]
    assert machine.state is dr.DeviceState.IDLE
    assert fire(machine, "resend") == []


def test_the_deadline_leaves_an_acknowledged_upload_alone():
    machine = device()
    upload(machine)
    receive(machine, ack("held"))
    assert fire(machine, "deadline") == [] and machine.memory.uploads


def test_a_newer_round_drops_the_old_upload():
    machine = device()
    upload(machine)
    out = receive(machine, offer(manifest(MODEL, at(2)), MODEL))
    assert dr.OutboxDrop(at(), "dropped") in stored(out) and not machine.memory.uploads


@pytest.mark.parametrize(("accepted", "outcome"), [(3, "counted"), (2, "partial"), (0, "missing")])
def test_a_commit_that_comes_after_the_next_round_still_counts(accepted, outcome):
    machine = device()
    upload(machine)
    receive(machine, ack("held"))
    receive(machine, offer(manifest(MODEL, at(2)), MODEL))
    record, data = commit_of(at(), SEGMENTS[:accepted])
    out = receive(machine, offer(record, data))
    assert stored(out) == [dr.LateRecord(at(), outcome)]
    assert reports(out)["counted"]["counted"] == accepted
    assert machine.state is dr.DeviceState.OPENING
    assert receive(machine, offer(record, data)) == []


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(("accepted", "outcome"), [(3, "counted"), (2, "partial"), (0, "missing")])
def test_a_commit_tells_of_an_upload_that_was_never_acknowledged(accepted, outcome, closed):
    """The acknowledgement may have been lost, also where the proxy then says that it is closed."""
    machine = device()
    upload(machine)
    if closed:
        receive(machine, ack("closed", reason="closed_round"))
    receive(machine, offer(manifest(MODEL, at(2)), MODEL))
    record, data = commit_of(at(), SEGMENTS[:accepted])
    assert stored(receive(machine, offer(record, data))) == [dr.LateRecord(at(), outcome)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_closed_job_drops_the_upload(restarted):
    machine = device()
    upload(machine)
    if restarted:
        machine = device(machine.memory)
        machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    out = receive(machine, CLOUD.note(m.Close(JOB, "cancelled")))
    assert dr.OutboxDrop(at(), "dropped") in stored(out)
    assert not machine.memory.uploads and machine.state is dr.DeviceState.IDLE


def test_a_foreign_job_s_end_changes_nothing_here():
    machine = device()
    upload(machine)
    receive(machine, CLOUD.note(m.Close(b"K" * 16, "failed")))
    assert machine.state is dr.DeviceState.UPLOADING and machine.memory.uploads


def test_a_restart_sends_the_same_upload_and_does_no_second_work():
    first = device()
    sent = headers(upload(first))
    machine = device(first.memory)
    out = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert headers(out) == sent and machine.state is dr.DeviceState.UPLOADING
    assert tasks(receive(machine, offer(manifest(MODEL), MODEL))) == []
    receive(machine, ack("held"))
    record, data = commit_of(at(), SEGMENTS)
    assert reports(receive(machine, offer(record, data)))["counted"]["counted"] == 3


def test_a_restart_before_the_upload_takes_the_round_up_again():
    first, header = device(), manifest(MODEL)
    work_on(first, header)
    assert len(tasks(receive(device(first.memory), offer(header, MODEL)))) == 1


def test_a_restart_still_refuses_a_fork():
    first, header = device(), manifest(MODEL)
    upload(first, header)
    fork = msgspec.structs.replace(header, commitment=b"z" * 32)
    out = receive(device(first.memory), offer(fork, MODEL))
    assert refused(out) == ["forked_manifest"]


def test_stopping_says_goodbye():
    out = device(dr.DeviceMemory()).handle(fx.Command("stop"), 0.0)
    assert bodies(out, m.Bye) == [m.Bye(ME.id)]


def test_late_timers_and_unknown_events_do_nothing():
    machine = device()
    for event in (fx.Timer("resend"), fx.Timer("repair"), fx.Timer("?"), fx.WorkDone("?", "?")):
        assert machine.handle(event, 0.0) == []


@pytest.mark.parametrize("end", ["counted", "refused", "expired", "declined"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_settled_round_is_not_taken_up_again(end, restarted):
    machine = device()
    if end == "declined":
        work_on(machine, manifest(MODEL))
        out = done(machine, dr.ComputeAnswer(manifest(MODEL), PACKAGE), dr.NoAnswer("busy"))
        assert [type(item) for item in stored(out)] == [dr.ManifestMark]
    else:
        upload(machine)
    if end == "counted":
        record, data = commit_of(at(), SEGMENTS)
        receive(machine, offer(record, data))
    if end == "refused":
        receive(machine, ack("closed"))
    if end == "expired":
        fire(machine, "deadline")
    machine = device(machine.memory) if restarted else machine
    assert receive(machine, offer(manifest(MODEL), MODEL)) == []
    fork = msgspec.structs.replace(manifest(MODEL), commitment=b"z" * 32)
    assert refused(receive(machine, offer(fork, MODEL))) == ["forked_manifest"]
    assert len(tasks(receive(machine, offer(manifest(MODEL, at(1, 2)), MODEL)))) == 1
