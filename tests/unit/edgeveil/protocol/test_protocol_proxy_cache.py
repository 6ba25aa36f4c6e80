"""The proxy keeps broadcasts on the disk: checked there, bounded, and only while they count."""

from __future__ import annotations

import zlib

import msgspec
from protocol_kit import (
    CLOUD,
    JOB,
    at,
    bodies,
    commit_of,
    manifest,
    offer,
    parts_of,
    refused,
    stored,
    tasks,
)
from proxy_bench import MODEL, cloud_says, open_round, proxy, to_devices

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Ack, Close, ExchangeId
from edgeveil.protocol.proxy_broadcasts import BroadcastDropped
from edgeveil.protocol.proxy_rounds import KeptBroadcast

LONG = bytes(range(256)) * 20


def acks(effects):
    return [(ack.status, ack.reason) for ack in bodies(effects, Ack)]


def test_a_broadcast_that_is_not_its_digest_is_fetched_again():
    machine, header = proxy(), manifest(LONG)
    cloud_says(machine, offer(header))
    *rest, last = parts_of(header, LONG)
    wrong = bytes(len(last.data))
    lie = msgspec.structs.replace(last, data=wrong, crc=zlib.crc32(wrong))
    for piece in (*rest, lie):
        out = cloud_says(machine, piece)
    assert refused(out) == ["bad_digest"] and to_devices(out) == [] and acks(out) == []
    assert stored(out)[-1] == BroadcastDropped(header.blob.digest)
    assert machine.memory.kept == {}
    cloud_says(machine, offer(header))
    for piece in (*rest, last):
        out = cloud_says(machine, piece)
    assert acks(out) == [("held", "")]


def checked(machine, task, data):
    """The host has checked what it was asked to."""
    return machine.handle(fx.WorkDone(task, KeptBroadcast(task.signed, task.header, data)), 0.0)


def test_a_round_that_was_overtaken_while_it_was_checked_is_not_opened():
    machine, header = proxy(), manifest(MODEL)
    machine.hold_work = True
    (old,) = tasks(cloud_says(machine, offer(header, MODEL)))
    (new,) = tasks(cloud_says(machine, offer(manifest(b"newer", at(1, 2)), b"newer")))
    checked(machine, new, b"newer")
    out = checked(machine, old, MODEL)
    assert stored(out) == [BroadcastDropped(header.blob.digest)] and to_devices(out) == []
    assert list(machine.rounds.collections) == [at(1, 2)]
    assert [kept.header.at for kept in machine.memory.kept.values()] == [at(1, 2)]


def test_a_commit_that_the_next_round_overtakes_is_still_passed_on_and_kept():
    machine = proxy()
    open_round(machine)
    machine.hold_work = True
    record, data = commit_of(at(), [b"a"])
    (commit,) = tasks(cloud_says(machine, offer(record, data)))
    (new,) = tasks(cloud_says(machine, offer(manifest(b"newer", at(2)), b"newer")))
    checked(machine, new, b"newer")
    out = checked(machine, commit, data)
    assert to_devices(out) == [offer(record, data)] and acks(out) == [("held", "")]
    assert machine.memory.kept[record.blob.digest].header == record
    assert list(machine.rounds.open) == [at(2)]


def test_a_record_that_a_later_one_overtakes_while_it_is_checked_is_dropped():
    machine = proxy()
    machine.hold_work = True
    held = [commit_of(at(number), [bytes([number])]) for number in (1, 2)]
    first, second = (tasks(cloud_says(machine, offer(*one)))[0] for one in held)
    checked(machine, second, held[1][1])
    out = checked(machine, first, held[0][1])
    assert refused(out) == ["replayed_commit"] and to_devices(out) == []
    assert BroadcastDropped(held[0][0].blob.digest) in stored(out)
    assert [kept.header for kept in machine.memory.kept.values()] == [held[1][0]]


def records(machine):
    headers = [kept.header for kept in machine.memory.kept.values()]
    return {header.at for header in headers if header.kind == "commit"}


def test_a_record_outlives_the_next_round_and_ends_with_the_next_record():
    machine = proxy()
    first, other = commit_of(at(), [b"a"]), commit_of(at(9, job=b"K" * 16), [b"k"])
    for record in (first, other):
        cloud_says(machine, offer(*record))
    open_round(machine, manifest(MODEL, at(2)))
    assert records(machine) == {at(), other[0].at}
    cloud_says(machine, offer(*commit_of(at(2), [b"b"])))
    assert records(machine) == {at(2), other[0].at}
    assert refused(cloud_says(machine, offer(*first))) == ["replayed_commit"]


def test_what_is_missing_of_a_record_when_the_next_round_comes_is_not_asked_for():
    machine = proxy()
    record, data = commit_of(at(), [bytes([n]) for n in range(40)])
    cloud_says(machine, offer(record))
    cloud_says(machine, parts_of(record, data)[0])
    open_round(machine, manifest(MODEL, at(2)))
    assert machine.broadcasts.arriving == {}


def test_what_is_checked_when_its_job_ends_is_not_kept():
    machine = proxy()
    machine.hold_work = True
    (task,) = tasks(cloud_says(machine, offer(manifest(MODEL), MODEL)))
    cloud_says(machine, CLOUD.note(Close(JOB, "cancelled")))
    out = checked(machine, task, MODEL)
    assert out == [fx.Persist(BroadcastDropped(task.header.blob.digest))]
    assert machine.memory.kept == {}


# --- the cache's bound ----------------------------------------------------------------------


def test_the_cache_has_a_bound_and_says_so():
    machine = proxy(cache_bytes=3 * len(LONG))
    for job in (b"1", b"2"):
        header = manifest(LONG + job, ExchangeId(job * 16, 0, 0), kind="job")
        cloud_says(machine, offer(header))
        for piece in parts_of(header, LONG + job):
            out = cloud_says(machine, piece)
        assert acks(out) == [("held", "")]
    used = machine.cache_bytes
    third = manifest(LONG, ExchangeId(b"3" * 16, 0, 0), kind="job")
    out = cloud_says(machine, offer(third))
    assert refused(out) == ["cache_full"] and acks(out) == [("refused", "cache_full")]
    assert machine.cache_bytes == used and machine.broadcasts.arriving == {}


def test_what_a_broadcast_ends_makes_room_for_it():
    machine = proxy(cache_bytes=int(1.5 * len(LONG)))
    for number in range(1, 4):
        data = LONG + bytes([number])
        header = manifest(data, at(number))
        cloud_says(machine, offer(header))
        for piece in parts_of(header, data):
            out = cloud_says(machine, piece)
        assert acks(out) == [("held", "")]
    assert [kept.header.at.exchange for kept in machine.memory.kept.values()] == [3]


def test_a_broadcast_under_way_takes_its_room_at_once():
    machine = proxy(cache_bytes=int(1.5 * len(LONG)))
    cloud_says(machine, offer(manifest(LONG, ExchangeId(b"1" * 16, 0, 0), kind="job")))
    second = manifest(LONG + b"2", ExchangeId(b"2" * 16, 0, 0), kind="job")
    assert refused(cloud_says(machine, offer(second))) == ["cache_full"]
