"""A batch on its way into the cloud: every part to the disk, none in memory, none twice."""

from __future__ import annotations

import pytest
from cloud_bench import batch, cloud, done, fire, hand_over, receive, state, waiting
from msgspec import structs
from protocol_kit import (
    JOB,
    PROXY,
    at,
    messages,
    offer,
    parts_of,
    refused,
    stored,
    tasks,
    timers,
)

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import BlobPart, Need
from edgeveil.protocol.transfer import NEED_LIMIT, describe


def spooled(effects):
    return [item for item in stored(effects) if isinstance(item, cj.BatchPart)]


def pulling(size=100_000, **settings):
    """A machine that was offered a large batch, and what it asked for."""
    machine = waiting(cloud(push_bytes=10_000, **settings))
    header, data = batch(size=size)
    out = receive(machine, offer(header, b"", PROXY))
    return machine, header, parts_of(header, data), out


def asked(effects):
    return [index for need in messages(effects, Need) for index in need.indices]


def test_a_batch_inside_its_offer_is_stored_and_absorbed():
    header, data = batch()
    out = hand_over(waiting())
    assert stored(out) == [cj.BatchPart(header.blob.digest, 0, data, JOB)]
    assert tasks(out) == [cj.Absorb({"": header})]


def test_a_small_batch_is_waited_for_and_its_missing_parts_are_asked_for():
    machine = waiting()
    header, data = batch(size=3000)
    assert messages(receive(machine, offer(header, b"", PROXY)), Need) == []
    pieces = parts_of(header, data)
    assert len(spooled(receive(machine, pieces[1]))) == 1
    fire(machine, "repair")
    assert asked(fire(machine, "repair")) == [0, 2]
    receive(machine, pieces[2])
    out = receive(machine, pieces[0])
    assert stored(out) == [cj.BatchPart(header.blob.digest, 0, pieces[0].data, JOB)]
    assert tasks(out) == [cj.Absorb({"": header})]
    assert receive(machine, pieces[0]) == [] and fire(machine, "repair") == []


def test_a_large_batch_is_pulled_at_once_with_many_parts_always_under_way():
    machine, header, pieces, out = pulling(size=400_000)
    wanted, came, open_at_once = asked(out), [], []
    assert wanted == list(range(NEED_LIMIT))
    while wanted:
        index = wanted.pop(0)
        came.append(index)
        out = receive(machine, pieces[index])
        wanted += asked(out)
        open_at_once.append(len(wanted))
    assert came == list(range(len(pieces))) and tasks(out) == [cj.Absorb({"": header})]
    assert max(open_at_once) <= cj.BATCH_CREDIT
    assert min(open_at_once[: -cj.BATCH_CREDIT]) >= NEED_LIMIT // 2


def test_each_part_is_stored_at_its_place_and_once():
    machine, header, pieces, _ = pulling()
    out = receive(machine, pieces[3])
    offset = 3 * header.blob.part_bytes
    assert spooled(out) == [cj.BatchPart(header.blob.digest, offset, pieces[3].data, JOB)]
    assert receive(machine, pieces[3]) == []


@pytest.mark.parametrize(
    "bad",
    [
        lambda p: BlobPart(p.blob, 10**6, p.crc, p.data),
        lambda p: BlobPart(p.blob, p.index, p.crc ^ 1, p.data),
        lambda p: BlobPart(p.blob, p.index, p.crc, p.data[:-1]),
    ],
)
def test_a_part_that_does_not_fit_is_refused_and_stores_nothing(bad):
    machine, _, pieces, _ = pulling()
    out = receive(machine, bad(pieces[0]))
    assert refused(out) == ["bad_part"] and stored(out) == []
    assert len(spooled(receive(machine, pieces[0]))) == 1


def test_lost_parts_are_asked_for_again_when_nothing_comes():
    machine, _, pieces, _ = pulling()
    for index in (0, 1, 5):
        receive(machine, pieces[index])
    assert asked(fire(machine, "repair")) == []  # parts came since the last look
    again = asked(fire(machine, "repair"))
    assert again[:4] == [2, 3, 4, 6] and len(again) == NEED_LIMIT


def test_a_long_pull_is_no_silence_and_a_stalled_one_is():
    machine, _, pieces, out = pulling(proxy_margin_s=30.0)
    assert timers(out)["watchdog"] == 30.0
    receive(machine, pieces[0])
    assert timers(fire(machine, "repair"))["watchdog"] == 30.0
    assert "watchdog" not in timers(fire(machine, "repair"))
    header, _ = batch(size=100_000)
    assert "watchdog" not in timers(receive(machine, offer(header, b"", PROXY)))
    out = fire(machine, "watchdog")
    assert tasks(out) == [cj.SealRound(JOB, 1, 2)] and stored(out) == [cj.BatchDropped(JOB)]


def test_a_batch_larger_than_the_spool_pauses_the_job_and_says_why():
    machine = waiting(cloud(spool_bytes=50_000))
    header, _ = batch(size=100_000)
    (status,) = stored(receive(machine, offer(header, b"", PROXY)))
    assert status.status == "paused"
    assert "100000" in status.reason and "limits.spool_bytes" in status.reason


def test_a_batch_larger_than_the_spool_that_nobody_waits_for_is_refused():
    machine = waiting(cloud(spool_bytes=50_000))
    header, _ = batch(at(2), size=100_000)
    assert refused(receive(machine, offer(header, b"", PROXY))) == ["oversized_blob"]
    assert state(machine) is cj.CloudState.WAITING


def test_a_batch_beyond_the_limit_of_broadcasts_is_taken():
    machine = waiting(cloud(blob_bytes=50_000, spool_bytes=200_000, push_bytes=10_000))
    header, _ = batch(size=100_000)
    assert asked(receive(machine, offer(header, b"", PROXY)))


@pytest.mark.parametrize(
    "result", [fx.WorkFailed("bad_digest"), cj.TooFewUploads("1 valid upload")]
)
def test_a_batch_of_no_use_is_dropped_with_its_file(result):
    machine = waiting()
    (task,) = tasks(hand_over(machine))
    out = done(machine, task, result)
    assert cj.BatchDropped(JOB) in stored(out) and tasks(out) == [cj.SealRound(JOB, 1, 2)]


def test_a_batch_of_the_next_attempt_takes_the_place_of_the_one_before():
    machine = waiting(what=cj.StartJob(JOB, 1, 1, exchanges=2, retries=1))
    first, data = batch(at(), fill=b"a", size=3000)
    second, other = batch(at(), fill=b"b", size=3000)
    receive(machine, offer(first, b"", PROXY))
    receive(machine, parts_of(first, data)[0])
    receive(machine, offer(second, b"", PROXY))
    assert receive(machine, parts_of(first, data)[1]) == []
    out = [receive(machine, part) for part in parts_of(second, other)][-1]
    assert tasks(out) == [cj.Absorb({"": second})]
    assert isinstance(out, list) and not any(isinstance(e, fx.Refuse) for e in out)


def test_large_parts_take_as_many_bytes_of_credit_and_not_as_many_parts():
    machine = waiting(cloud(push_bytes=10_000, packet_bytes=1 << 20))
    part_bytes = 1 << 19
    data = bytes(200 * part_bytes)
    header = structs.replace(batch()[0], blob=describe(data, part_bytes))
    wanted = asked(receive(machine, offer(header, b"", PROXY)))
    for piece in parts_of(header, data)[:60]:
        wanted += asked(receive(machine, piece))
        assert len(wanted) - piece.index - 1 <= cj.BATCH_CREDIT_BYTES // part_bytes
