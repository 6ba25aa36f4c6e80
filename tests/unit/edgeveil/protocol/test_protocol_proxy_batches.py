"""The proxy closes a round: when, with how many, and what the cloud then sees."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from protocol_kit import (
    CLOUD,
    GROUPS,
    JOB,
    PROXY,
    SEALED_BYTES,
    at,
    bodies,
    commit_of,
    headers,
    manifest,
    messages,
    of,
    offer,
    refused,
    signing_key,
    stored,
    tasks,
    timers,
)
from proxy_bench import FLEET, MODEL, cloud_says, fire, open_round, proxy, says, to_cloud, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.messages import (
    DECLINE_CAUSES,
    Ack,
    Batch,
    BlobPart,
    Close,
    Decline,
    Hello,
    Here,
    Need,
    Shortfall,
    Signer,
    encode,
)


def opened(shuffle=None, memory=None, floor=3, push_bytes=1 << 20, **changes):
    given = {"shuffle": shuffle} if shuffle else {}
    machine = proxy(memory, **given, min_batch_floor=floor, push_bytes=push_bytes)
    open_round(machine, manifest(MODEL, **({"selected": 5, "quorum": 4} | changes)))
    return machine


def state(machine):
    return machine.rounds.collections[at(1, 1)].state


def decline(machine, number, cause=""):
    return says(machine, FLEET[number], FLEET[number].signer.note(Decline(at(), cause)))


def batch_of(effects):
    """(header, blob) of the one batch sent to the cloud."""
    (header,) = [h for h in headers(effects) if isinstance(h, Batch)]
    return header, b"".join(part.data for part in messages(effects, BlobPart)) or effects_data(
        effects
    )


def effects_data(effects):
    return next(m.data for m in to_cloud(effects) if hasattr(m, "data"))


# --- when -----------------------------------------------------------------------------------


def test_when_all_answered_the_round_is_handed_over_at_once():
    machine = opened(quorum=5)
    for number in range(3):
        assert to_cloud(upload(machine, number)) == []
    decline(machine, 3)
    header, _ = batch_of(upload(machine, 4))
    assert (header.uploads, header.declined, header.counts) == (4, 1, (4, 4, 4))
    assert state(machine) is pr.CollectionState.HANDING_OVER


def test_a_decline_may_be_the_last_answer():
    machine = opened()
    for number in range(3):
        upload(machine, number)
    decline(machine, 3)
    header, _ = batch_of(decline(machine, 4))
    assert (header.uploads, header.declined) == (3, 2)


def test_at_quorum_the_others_get_a_grace():
    machine = opened(grace_s=7.0)
    for number in range(3):
        upload(machine, number)
    out = upload(machine, 3)
    assert (
        timers(out) == {f"grace:{JOB.hex()}:1:1": 7.0}
        and state(machine) is pr.CollectionState.GRACE
    )
    header, _ = batch_of(fire(machine, "grace"))
    assert header.uploads == 4


def test_a_late_answer_within_the_grace_counts():
    machine = opened()
    for number in range(4):
        upload(machine, number)
    header, _ = batch_of(upload(machine, 4))
    assert header.uploads == 5
    assert fire(machine, "grace") == []


@pytest.mark.parametrize("uploads", [3, 4])
def test_at_the_deadline_enough_is_enough(uploads):
    machine = opened()
    for number in range(uploads):
        upload(machine, number)
    header, _ = batch_of(fire(machine, "deadline"))
    assert header.uploads == uploads


@pytest.mark.parametrize(("job_floor", "proxy_floor"), [(4, 2), (2, 4)])
def test_below_either_floor_nothing_is_handed_over(job_floor, proxy_floor):
    machine = opened(min_batch=job_floor, floor=proxy_floor, quorum=2)
    for number in range(3):
        assert to_cloud(upload(machine, number)) == []
    out = fire(machine, "deadline")
    assert bodies(out, Shortfall) == [Shortfall(at(), 3, 0)]
    assert headers(out) == [] and state(machine) is pr.CollectionState.SHORT
    assert stored(out) == [pr.UploadsDropped(at())] and machine.spool_bytes == 0
    assert bodies(upload(machine, 0), Ack)[0].status == "held"
    assert bodies(upload(machine, 3), Ack)[0].status == "closed"


def test_a_quorum_below_the_floor_does_not_end_a_round_early():
    machine = opened(quorum=1)
    upload(machine, 0)
    upload(machine, 1)
    assert state(machine) is pr.CollectionState.COLLECTING
    upload(machine, 2)
    assert state(machine) is pr.CollectionState.GRACE


def test_when_too_many_declined_the_round_is_short_at_once():
    machine = opened()
    for number in range(3):
        decline(machine, number)
    upload(machine, 3)
    assert bodies(upload(machine, 4), Shortfall) == [Shortfall(at(), 2, 3, (0, 0, 0, 0, 0))]


def test_declines_are_handed_on_as_counts_by_cause():
    machine = opened()
    for number, cause in enumerate(["budget", "policy", "budget", "later"]):
        decline(machine, number, cause)
    (short,) = bodies(upload(machine, 4), Shortfall)
    assert dict(zip(DECLINE_CAUSES, short.causes, strict=True)) == {
        "policy": 1,
        "budget": 2,
        "conditions": 0,
        "fit": 0,
        "fault": 0,
    }
    assert short.declined == 4
    whole = opened()
    for number in range(4):
        upload(whole, number)
    header, _ = batch_of(decline(whole, 4, "fit"))
    assert (header.declined, header.causes) == (1, (0, 0, 0, 1, 0))


def test_offline_devices_are_counted_once_all_had_their_time_to_come():
    machine = opened()
    fire(machine, "deadline")
    (unknown,) = bodies(fire(machine, "short"), Shortfall)
    assert unknown.offline == -1
    machine = opened()
    machine.online.update(device.id for device in FLEET[:2])
    machine._context.all_came = True
    fire(machine, "deadline")
    (known,) = bodies(fire(machine, "short"), Shortfall)
    assert known.offline == len(machine.registry.admitted()) - 2 > 0


def test_every_selected_device_is_counted_under_one_outcome():
    machine = opened()
    out = [*decline(machine, 0, "budget"), *decline(machine, 1), *upload(machine, 2)]
    out += fire(machine, "deadline")
    late = upload(machine, 3)
    counted = Counter()
    for report in of([*out, *late], fx.Report):
        if report.what == "answer":
            counted[report.data["outcome"]] += report.data["count"]
    kept = sum(isinstance(item, pr.UploadKept) for item in stored(out))
    assert counted == {"budget": 1, "declined": 1, "absent": 2, "late": 1}
    assert kept + 1 + 1 + 2 == 5  # all who were selected; who is late was absent


def test_a_shortfall_is_told_until_the_round_is_repeated():
    machine = opened()
    fire(machine, "deadline")
    for _ in range(3):
        assert bodies(fire(machine, "short"), Shortfall) == [Shortfall(at(), 0, 0)]
    open_round(machine, manifest(MODEL, at(1, 2)))
    assert fire(machine, "short") == []


def test_a_shortfall_that_nobody_answers_is_told_ever_less_often_and_at_once_to_who_comes():
    machine = opened()
    waits = [timers(fire(machine, "deadline"))]
    waits += [timers(fire(machine, "short")) for _ in range(20)]
    waits_s = [next(iter(timer.values())) for timer in waits]
    assert waits_s[:3] == [3.0, 6.0, 12.0] and waits_s[-1] == waits_s[-2] == 300.0
    for event in (
        fx.PeerConnected(fx.CloudAddress()),
        fx.MessageReceived(fx.CloudAddress(), CLOUD.note(Here(1.0))),
    ):
        assert bodies(machine.handle(event, 0.0), Shortfall) == [Shortfall(at(), 0, 0)]


def test_timers_of_a_round_that_is_gone_do_nothing():
    machine = opened()
    cloud_says(machine, CLOUD.note(Close(JOB, "cancelled")))
    assert [fire(machine, what) for what in ("deadline", "grace", "handover", "short")] == [[]] * 4


# --- what -----------------------------------------------------------------------------------


def pieces(header, data):
    """The batch's segments by group."""
    result, offset = [], 0
    for count, size in zip(header.counts, SEALED_BYTES, strict=True):
        result.append([data[offset + i * size : offset + (i + 1) * size] for i in range(count)])
        offset += count * size
    assert offset == len(data)
    return result


def sent(number, group):
    return bytes((number + 1, group)) * (SEALED_BYTES[group] // 2)


def test_the_batch_holds_every_segment_once_and_nothing_else():
    machine = opened(selected=6, quorum=6)
    upload(machine, 0, groups=(0, 1))
    upload(machine, 1, groups=(0, 2))
    for number in (2, 3):
        upload(machine, number)
    header, data = batch_of(fire(machine, "deadline"))
    assert header.counts == (4, 3, 3)
    expected = [{0: (0, 1, 2, 3), 1: (0, 2, 3), 2: (1, 2, 3)}[g] for g in range(3)]
    for group, found in enumerate(pieces(header, data)):
        assert sorted(found) == sorted(sent(number, group) for number in expected[group])


def test_a_group_below_the_floor_is_not_handed_over():
    machine = opened(selected=6, quorum=6)
    upload(machine, 0)
    for number in (1, 2, 3):
        upload(machine, number, groups=(1,))
    header, data = batch_of(fire(machine, "deadline"))
    assert header.uploads == 4
    assert header.counts == (0, 4, 0)
    assert len(data) == 4 * SEALED_BYTES[1]


def test_every_group_is_shuffled_on_its_own():
    turns = itertools.count()

    def rotate(items):
        by = next(turns)
        items[:] = items[by:] + items[:by]

    machine = opened(shuffle=rotate)
    for number in range(3):
        upload(machine, number)
    found = pieces(*batch_of(fire(machine, "deadline")))
    order = [[segment[0] - 1 for segment in group] for group in found]
    assert order == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert next(turns) == len(GROUPS)


def test_without_a_shuffle_every_group_keeps_the_order_of_arrival():
    machine = opened(shuffle=list.reverse, shuffled=False)
    for number in (2, 0, 1):
        upload(machine, number)
    found = pieces(*batch_of(fire(machine, "deadline")))
    assert [[segment[0] - 1 for segment in group] for group in found] == [[2, 0, 1]] * len(GROUPS)


def test_the_batch_says_nothing_of_who_in_what_order_or_when():
    """Under a shuffle that forgets the order, two arrivals give the same bytes."""
    frames = []
    for order, now_s in (((0, 1, 2), 5.0), ((2, 0, 1), 9e9)):
        machine = opened(shuffle=list.sort)
        for number in order:
            upload(machine, number)
        name = f"deadline:{JOB.hex()}:1:1"
        out = machine.handle(fx.Timer(name), now_s)
        frames.append(b"".join(encode(message) for message in to_cloud(out)))
    assert frames[0] == frames[1]
    for who in FLEET:
        assert who.id.encode() not in frames[0] and bytes.fromhex(who.id) not in frames[0]
        assert who.key.to_bytes() not in frames[0]


# --- until the cloud holds it -----------------------------------------------------------------


def handed_over():
    machine = opened()
    for number in range(3):
        upload(machine, number)
    out = fire(machine, "deadline")
    return machine, batch_of(out)[0], out


def test_a_batch_is_durable_before_it_is_sent():
    _, header, out = handed_over()
    kinds = [type(effect) for effect in out]
    assert kinds.index(fx.Persist) < kinds.index(fx.Send)
    (item,) = stored(out)
    assert isinstance(item, pr.BatchKept) and item.batch == header


def test_a_batch_is_offered_until_the_cloud_holds_it():
    machine, header, out = handed_over()
    for _ in range(3):
        assert timers(out) == {f"handover:{JOB.hex()}:1:1": 3.0}
        out = fire(machine, "handover")
        assert headers(out) == [header]
    out = cloud_says(machine, CLOUD.note(Ack(header.blob.digest, "held")))
    assert (
        stored(out) == [pr.BatchDelivered(at())] and state(machine) is pr.CollectionState.DELIVERED
    )
    assert fire(machine, "handover") == []
    assert cloud_says(machine, CLOUD.note(Ack(header.blob.digest, "held"))) == []


def test_parts_of_a_batch_are_sent_again():
    machine, header, out = handed_over()
    data = batch_of(out)[1]
    size = header.blob.part_bytes
    (part,) = messages(cloud_says(machine, Need(header.blob.digest, (0,))), BlobPart)
    assert part.data == data[:size]
    assert refused(cloud_says(machine, Need(b"x" * 32, (0,)))) == ["unknown_blob"]


@pytest.mark.parametrize("push", [True, False])
def test_a_batch_is_pushed_once_if_small_enough_and_then_only_offered(push):
    machine = opened(selected=6, quorum=6, push_bytes=1 << 20 if push else 1)
    for number in range(5):
        upload(machine, number)
    out = upload(machine, 5)
    header, data = batch_of(out)
    assert header.blob.parts > 1
    assert len(messages(out, BlobPart)) == (header.blob.parts if push else 0)
    assert len(data) == (header.blob.size_bytes if push else 0)
    again = fire(machine, "handover")
    assert headers(again) == [header] and messages(again, BlobPart) == []


def test_the_cloud_coming_back_gets_the_batch():
    machine, header, _ = handed_over()
    assert header in headers(machine.handle(fx.PeerConnected(fx.CloudAddress()), 0.0))


@pytest.mark.parametrize("signer", [PROXY, Signer("cloud", signing_key(9))])
def test_nobody_else_takes_the_batch_away(signer):
    machine, header, _ = handed_over()
    out = cloud_says(machine, signer.note(Ack(header.blob.digest, "held")))
    assert len(refused(out)) == 1 and state(machine) is pr.CollectionState.HANDING_OVER


def test_a_commit_ends_the_hand_over():
    machine, _, _ = handed_over()
    record, data = commit_of(at(), [b"a"])
    cloud_says(machine, offer(record, data))
    assert machine.memory.batches == {} and fire(machine, "handover") == []


# --- restart ------------------------------------------------------------------------------


def durable(machine, *more):
    """The memory as a host would load it after these items."""
    items = [item for effects in more for item in stored(effects)]
    uploads = [item for item in items if isinstance(item, pr.UploadKept)]
    return pr.ProxyMemory(dict(machine.memory.kept), uploads, dict(machine.memory.batches))


def restarted(machine, *more):
    """A new process on the same disk."""
    memory = durable(machine, *more)
    return proxy(memory, disk=machine.disk, min_batch_floor=3, push_bytes=1 << 20)


def test_uploads_survive_a_restart_and_the_deadline_runs_again():
    machine = opened(deadline_s=9.0)
    done = [upload(machine, number) for number in range(3)]
    again = restarted(machine, *done)
    assert timers(again.handle(fx.Command("started"), 0.0))[f"deadline:{JOB.hex()}:1:1"] == 9.0
    assert bodies(upload(again, 0), Ack)[0].status == "held"
    assert bodies(upload(again, 4), Ack)[0].status == "held"  # in a place of its own
    header, data = batch_of(fire(again, "deadline"))
    assert header.uploads == 4
    assert sorted(pieces(header, data)[0]) == sorted(sent(number, 0) for number in (0, 1, 2, 4))


def test_a_round_that_was_short_is_so_after_a_restart():
    machine = opened()
    memory = durable(machine, *(upload(machine, number) for number in range(2)))
    fire(machine, "deadline")
    memory.uploads = [replace(u, held=replace(u.held, digest=b"", slot=-1)) for u in memory.uploads]
    again = proxy(memory, min_batch_floor=3)
    assert bodies(again.handle(fx.Command("started"), 0.0), Shortfall) == [Shortfall(at(), 2, 0)]
    assert bodies(upload(again, 3), Ack)[0].status == "closed"
    assert bodies(upload(again, 0), Ack)[0].status == "held"


def test_a_round_that_was_complete_is_handed_over_after_a_restart():
    """The crash came between the last upload's acknowledgement and the hand-over."""
    machine = opened(selected=3)
    machine.hold_work = True
    done = [upload(machine, number) for number in range(3)]
    again = restarted(machine, *done)
    header, _ = batch_of(again.handle(fx.Command("started"), 0.0))
    assert header.uploads == 3


def test_while_it_is_shuffled_a_round_is_closed():
    machine = opened(selected=3)
    machine.hold_work = True
    for number in range(3):
        out = upload(machine, number)
    (task,) = tasks(out)
    assert state(machine) is pr.CollectionState.SHUFFLING and to_cloud(out) == []
    assert bodies(upload(machine, 3), Ack)[0].status == "closed"
    assert bodies(upload(machine, 0), Ack)[0].status == "held"
    assert fire(machine, "deadline") == fire(machine, "grace") == []
    shuffled = machine.disk.perform(task, machine.shuffle)
    header, _ = batch_of(machine.handle(fx.WorkDone(task, shuffled), 0.0))
    assert header.uploads == 3 and state(machine) is pr.CollectionState.HANDING_OVER
    assert machine.handle(fx.WorkDone(task, shuffled), 0.0) == []


def test_a_shuffle_that_fails_is_tried_until_it_does_not():
    machine = opened(selected=3)
    machine.hold_work = True
    for number in range(3):
        out = upload(machine, number)
    (task,) = tasks(out)
    for _ in range(3):
        out = machine.handle(fx.WorkDone(task, fx.WorkFailed("no space left on the disk")), 0.0)
        assert timers(out) == {f"shuffle:{JOB.hex()}:1:1": 3.0} and stored(out) == []
        assert tasks(fire(machine, "shuffle")) == [task]
    machine.hold_work = False
    header, _ = batch_of(fire(machine, "shuffle"))
    assert header.uploads == 3


def test_what_was_shuffled_for_a_round_that_is_gone_is_neither_handed_over_nor_kept():
    machine = opened(selected=3)
    machine.hold_work = True
    for number in range(3):
        out = upload(machine, number)
    (task,) = tasks(out)
    shuffled = machine.disk.perform(task, machine.shuffle)
    cloud_says(machine, CLOUD.note(Close(JOB, "cancelled")))
    assert machine.handle(fx.WorkDone(task, shuffled), 0.0) == [fx.Persist(pr.RoundDropped(at()))]
    assert machine.memory.batches == {}


def test_a_batch_survives_a_restart_and_takes_no_more_uploads():
    machine, header, _ = handed_over()
    again = proxy(durable(machine), min_batch_floor=3)
    assert bodies(upload(again, 3), Ack)[0].status == "closed"
    assert header in headers(again.handle(fx.PeerConnected(fx.CloudAddress()), 0.0))
    assert header in headers(fire(again, "handover"))


@pytest.mark.parametrize("ended_by", ["ack", "commit"])
def test_a_delivered_round_stays_closed_after_a_restart(ended_by):
    machine, header, _ = handed_over()
    if ended_by == "ack":
        cloud_says(machine, CLOUD.note(Ack(header.blob.digest, "held")))
    else:
        record, data = commit_of(at(), [b"a"])
        cloud_says(machine, offer(record, data))
    again = proxy(machine.memory, min_batch_floor=3)
    assert state(again) is pr.CollectionState.DELIVERED
    assert not of(again.handle(fx.Command("started"), 0.0), fx.SetTimer)
    assert bodies(upload(again, 4), Ack)[0].status == "closed"


def test_a_device_that_comes_when_a_round_takes_no_more_uploads_is_not_offered_it():
    machine, _, _ = handed_over()
    out = says(machine, FLEET[5], FLEET[5].signer.note(Hello(FLEET[5].id, knows=3)))
    assert headers(out) == []
    open_round(machine, manifest(MODEL, at(2)))
    out = says(machine, FLEET[5], FLEET[5].signer.note(Hello(FLEET[5].id, knows=3)))
    assert [header.at for header in headers(out)] == [at(2)]
