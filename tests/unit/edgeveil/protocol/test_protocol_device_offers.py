"""A device: what it fetches, opens and refuses."""

from __future__ import annotations

import msgspec
import pytest
from device_bench import (
    ME,
    MODEL,
    PACKAGE,
    device,
    done,
    fire,
    receive,
    snapshot,
    upload,
    work_on,
)
from protocol_kit import (
    JOB,
    PART_BYTES,
    PROXY,
    at,
    bodies,
    commit_of,
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

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import Installation, InstallRelease
from edgeveil.protocol.messages import Blob, ExchangeId, Hello, Need, Signer
from edgeveil.protocol.sealed import JobPackage, ReleasePackage

LONG = bytes(range(256)) * 20


def test_a_fresh_round_is_remembered_before_it_is_opened():
    machine, header = device(), manifest(MODEL, deadline_s=60.0, grace_s=5.0)
    out = receive(machine, offer(header, MODEL))
    assert tasks(out) == [dr.OpenPackage(header, MODEL)]
    assert [item.at for item in stored(out)] == [header.at]
    assert isinstance(out[0], fx.Persist)
    assert timers(out)["deadline"] == 65.0
    assert machine.state is dr.DeviceState.OPENING


def test_a_large_model_comes_together_from_parts_in_any_order():
    machine, header = device(), manifest(LONG)
    assert not tasks(receive(machine, offer(header)))
    pieces = parts_of(header, LONG)
    for piece in reversed(pieces[1:]):
        assert not tasks(receive(machine, piece))
    assert tasks(receive(machine, pieces[0])) == [dr.OpenPackage(header, LONG)]
    assert receive(machine, pieces[0]) == []


def test_missing_parts_are_asked_for_until_they_came():
    machine, header = device(), manifest(LONG)
    receive(machine, offer(header))
    pieces = parts_of(header, LONG)
    receive(machine, pieces[1])
    assert not messages(fire(machine, "repair"), Need)
    out = fire(machine, "repair")
    (need,) = messages(out, Need)
    assert need == Need(header.blob.digest, (0, 2, 3, 4))
    assert timers(out)["repair"] > timers(fire(machine, "repair"))["repair"] / 4
    for index in need.indices:
        out = receive(machine, pieces[index])
    assert tasks(out) == [dr.OpenPackage(header, LONG)]
    assert fire(machine, "repair") == []


def test_silence_makes_the_looks_rarer_up_to_a_cap():
    machine = device(repair_s=1.0, waits_cap_s=5.0)
    receive(machine, offer(manifest(LONG)))
    waits = [timers(fire(machine, "repair"))["repair"] for _ in range(4)]
    assert all(cap / 2 < wait <= cap for wait, cap in zip(waits, (2.0, 4.0, 5.0, 5.0), strict=True))


def test_parts_of_no_known_blob_are_of_no_interest():
    header = manifest(LONG)
    assert receive(device(), parts_of(header, LONG)[0]) == []


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


def test_a_repeated_offer_brings_what_the_first_one_lacked():
    machine, header = device(), manifest(MODEL)
    assert not tasks(receive(machine, offer(header)))
    assert tasks(receive(machine, offer(header, MODEL))) == [dr.OpenPackage(header, MODEL)]


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


def test_not_selected_is_a_normal_end():
    machine, header = device(), manifest(MODEL)
    receive(machine, offer(header, MODEL))
    assert done(machine, dr.OpenPackage(header, MODEL), dr.OpenedPackage(None)) == []
    assert machine.state is dr.DeviceState.IDLE


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


def test_a_release_is_installed_once():
    machine = device()
    (task,) = tasks(install(machine, 7))
    assert isinstance(task, InstallRelease)
    assert "model_installed" in reports(done(machine, task, Installation()))
    assert machine.memory.release_sequence == 7
    assert receive(machine, offer(release(7), b"final 7")) == []


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


def test_an_older_release_under_way_is_not_installed_over_a_newer_one():
    machine = device()
    receive(machine, offer(release(6), b"final 6"))
    (newer,) = tasks(install(machine, 7))
    done(machine, newer, Installation())
    opened = dr.OpenedPackage(ReleasePackage("digits", b"old"))
    assert tasks(done(machine, dr.OpenPackage(release(6), b"final 6"), opened)) == []
    assert machine.memory.release_sequence == 7


def test_a_release_that_could_not_be_used_holds_up_no_round():
    """Its number was the cloud's own word, but nothing came of it."""
    machine = device()
    (task,) = tasks(install(machine, 2**62))
    assert refused(done(machine, task, fx.WorkFailed("refused_release"))) == ["refused_release"]
    header = manifest(MODEL)
    assert refused(receive(machine, offer(header, MODEL))) == []


# --- the link -----------------------------------------------------------------------------


def test_a_device_says_hello_on_every_connection():
    machine = device()
    for _ in range(2):
        out = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
        assert bodies(out, Hello) == [Hello(ME.id, knows=3)]
    assert len(of(out, fx.Send)) == 1
