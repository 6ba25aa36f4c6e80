"""The proxy closes a round: when, with how many, and what the cloud then sees."""

from collections import Counter
from dataclasses import replace

import protocol_kit as kit
import proxy_bench as pb
import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.proxy_rounds import CollectionState


def opened(shuffle=None, memory=None, floor=3, push_bytes=1 << 20, **changes):
    given = {"shuffle": shuffle} if shuffle else {}
    machine = pb.proxy(memory, **given, min_batch_floor=floor, push_bytes=push_bytes)
    pb.open_round(machine, kit.manifest(pb.MODEL, **({"selected": 5, "quorum": 4} | changes)))
    return machine


def state(machine, number=1):
    return machine.rounds.collections[kit.at(number)].state


def decline(machine, number, cause=""):
    return pb.says(
        machine, pb.FLEET[number], pb.FLEET[number].signer.note(m.Decline(kit.at(), cause))
    )


def batch_of(effects):
    """(header, blob) of the one batch sent to the cloud."""
    ((header, offer),) = [
        (m.decode_header(one.header), one)
        for one in kit.messages(effects, m.Offer)
        if isinstance(m.decode_header(one.header), m.Batch)
    ]
    return header, offer.data or b"".join(part.data for part in kit.messages(effects, m.BlobPart))


def uploads(effects):
    """How many each batch has that is sent to the cloud."""
    return [header.uploads for header in kit.headers(effects) if isinstance(header, m.Batch)]


def test_at_quorum_the_others_get_a_grace():
    machine = opened(grace_s=7.0)
    for number in range(4):
        out = pb.upload(machine, number)
    assert kit.timers(out) == {f"grace:{kit.JOB.hex()}:1:1": 7.0}
    assert state(machine) is CollectionState.GRACE
    assert uploads(pb.fire(machine, "grace")) == [4]


@pytest.mark.parametrize(("job_floor", "proxy_floor"), [(4, 2), (2, 4)])
def test_below_either_floor_nothing_is_handed_over(job_floor, proxy_floor):
    machine = opened(min_batch=job_floor, floor=proxy_floor, quorum=2)
    for number in range(3):
        assert pb.to_cloud(pb.upload(machine, number)) == []
    out = pb.fire(machine, "deadline")
    assert kit.bodies(out, m.Shortfall) == [m.Shortfall(kit.at(), 3, 0)]
    assert kit.headers(out) == [] and state(machine) is CollectionState.SHORT
    assert kit.stored(out) == [pr.UploadsDropped(kit.at())] and machine.rounds.spooled_bytes == 0
    assert kit.acks(pb.upload(machine, 0))[0][0] == "held"
    assert kit.acks(pb.upload(machine, 3))[0][0] == "closed"


def test_a_quorum_below_the_floor_does_not_end_a_round_early():
    machine = opened(quorum=1)
    pb.upload(machine, 0)
    pb.upload(machine, 1)
    assert state(machine) is CollectionState.COLLECTING
    pb.upload(machine, 2)
    assert state(machine) is CollectionState.GRACE


def test_every_selected_device_is_counted_under_one_outcome():
    machine = opened()
    out = [*decline(machine, 0, "budget"), *decline(machine, 1), *pb.upload(machine, 2)]
    out += pb.fire(machine, "deadline")
    counted = Counter()
    for report in kit.of([*out, *pb.upload(machine, 3)], fx.Report):
        if report.kind == "answer":
            counted[report.data["outcome"]] += report.data["count"]
    kept = sum(isinstance(item, pr.UploadKept) for item in kit.stored(out))
    # Five were selected; who is late was absent.
    assert kept == 1 and counted == {"budget": 1, "declined": 1, "absent": 2, "late": 1}


def test_a_shortfall_is_told_until_the_round_is_repeated():
    machine = opened()
    pb.fire(machine, "deadline")
    for _ in range(2):
        assert kit.bodies(pb.fire(machine, "short"), m.Shortfall) == [m.Shortfall(kit.at(), 0, 0)]
    pb.open_round(machine, kit.manifest(pb.MODEL, kit.at(1, 2)))
    assert pb.fire(machine, "short") == []


def pieces(header, data):
    result, offset = [], 0
    for count, size in zip(header.counts, kit.SEALED_BYTES, strict=True):
        result.append([data[offset + i * size : offset + (i + 1) * size] for i in range(count)])
        offset += count * size
    assert offset == len(data)
    return result


def test_a_group_below_the_floor_is_not_handed_over():
    machine = opened(selected=6, quorum=6)
    pb.upload(machine, 0)
    for number in (1, 2, 3):
        pb.upload(machine, number, groups=(1,))
    header, data = batch_of(pb.fire(machine, "deadline"))
    assert header.uploads == 4
    assert header.counts == (0, 4, 0)
    assert len(data) == 4 * kit.SEALED_BYTES[1]


def test_the_batch_says_nothing_of_who_in_what_order_or_when():
    """Under a shuffle that forgets the order, two arrivals give the same bytes."""
    frames = []
    for order, now_s in (((0, 1, 2), 5.0), ((2, 0, 1), 9e9)):
        machine = opened(shuffle=list.sort)
        for number in order:
            pb.upload(machine, number)
        out = machine.handle(fx.Timer(f"deadline:{kit.JOB.hex()}:1:1"), now_s)
        frames.append(b"".join(m.encode(message) for message in pb.to_cloud(out)))
    assert frames[0] == frames[1]
    for who in pb.FLEET:
        for name in (who.id.encode(), bytes.fromhex(who.id), who.key.to_bytes()):
            assert name not in frames[0]


def handed_over():
    machine = opened()
    for number in range(3):
        pb.upload(machine, number)
    return machine, batch_of(pb.fire(machine, "deadline"))[0]


@pytest.mark.parametrize("signer", [kit.PROXY, m.Signer("cloud", kit.signing_key(9))])
def test_nobody_else_takes_the_batch_away(signer):
    machine, header = handed_over()
    out = pb.cloud_says(machine, signer.note(m.Ack(header.blob.digest, "held")))
    assert len(kit.refused(out)) == 1 and state(machine) is CollectionState.HANDING_OVER


def durable(machine, *more):
    """The memory as a host would load it after these items."""
    items = [item for effects in more for item in kit.stored(effects)]
    uploads = [item for item in items if isinstance(item, pr.UploadKept)]
    return pr.ProxyMemory(dict(machine.memory.kept), uploads, dict(machine.memory.batches))


def test_uploads_survive_a_restart_and_the_deadline_runs_again():
    machine = opened(deadline_s=9.0)
    memory = durable(machine, *[pb.upload(machine, number) for number in range(3)])
    again = pb.proxy(memory, disk=machine.disk, min_batch_floor=3, push_bytes=1 << 20)
    started = again.handle(fx.Command("started"), 0.0)
    assert kit.timers(started)[f"deadline:{kit.JOB.hex()}:1:1"] == 9.0
    for number in (0, 4):  # of the fourth in a place of its own
        assert kit.acks(pb.upload(again, number))[0][0] == "held"
    header, data = batch_of(pb.fire(again, "deadline"))
    assert header.uploads == 4
    sent = [bytes((number + 1, 0)) * (kit.SEALED_BYTES[0] // 2) for number in (0, 1, 2, 4)]
    assert sorted(pieces(header, data)[0]) == sorted(sent)


def test_a_round_that_was_short_is_so_after_a_restart():
    machine = opened()
    memory = durable(machine, *(pb.upload(machine, number) for number in range(2)))
    pb.fire(machine, "deadline")
    memory.uploads = [replace(u, held=replace(u.held, digest=b"", slot=-1)) for u in memory.uploads]
    again = pb.proxy(memory, min_batch_floor=3)
    out = again.handle(fx.Command("started"), 0.0)
    assert kit.bodies(out, m.Shortfall) == [m.Shortfall(kit.at(), 2, 0)]
    assert kit.acks(pb.upload(again, 3))[0][0] == "closed"
    assert kit.acks(pb.upload(again, 0))[0][0] == "held"


def shuffling():
    """All three have uploaded; the host is at its shuffle."""
    machine = opened(selected=3)
    machine.hold_work = True
    for number in range(3):
        out = pb.upload(machine, number)
    (task,) = kit.tasks(out)
    assert state(machine) is CollectionState.SHUFFLING and pb.to_cloud(out) == []
    return machine, fx.WorkDone(task, machine.disk.perform(task, machine.shuffle))


def test_while_it_is_shuffled_a_round_is_closed():
    machine, done = shuffling()
    assert kit.acks(pb.upload(machine, 3))[0][0] == "closed"
    assert kit.acks(pb.upload(machine, 0))[0][0] == "held"
    assert pb.fire(machine, "deadline") == pb.fire(machine, "grace") == []
    assert uploads(machine.handle(done, 0.0)) == [3]
    assert state(machine) is CollectionState.HANDING_OVER
    assert machine.handle(done, 0.0) == []


def test_a_shuffle_that_fails_is_tried_until_it_does_not():
    machine, done = shuffling()
    for _ in range(2):
        failed = fx.WorkDone(done.task, fx.WorkFailed("no space left on the disk"))
        out = machine.handle(failed, 0.0)
        assert kit.timers(out) == {f"shuffle:{kit.JOB.hex()}:1:1": 3.0} and kit.stored(out) == []
        assert kit.tasks(pb.fire(machine, "shuffle")) == [done.task]
    assert uploads(machine.handle(done, 0.0)) == [3]


def test_what_was_shuffled_for_a_round_that_is_gone_is_neither_handed_over_nor_kept():
    machine, done = shuffling()
    pb.cloud_says(machine, kit.CLOUD.note(m.Close(kit.JOB, "cancelled")))
    assert machine.handle(done, 0.0) == [fx.Persist(pr.RoundDropped(kit.at()))]
    assert machine.memory.batches == {}


@pytest.mark.parametrize("ended_by", ["ack", "commit"])
def test_a_delivered_round_stays_closed_after_a_restart(ended_by):
    machine, header = handed_over()
    ack = kit.CLOUD.note(m.Ack(header.blob.digest, "held"))
    commit = kit.offer(*kit.commit_of(kit.at(), [b"a"]))
    pb.cloud_says(machine, ack if ended_by == "ack" else commit)
    again = pb.proxy(machine.memory, min_batch_floor=3)
    assert state(again) is CollectionState.DELIVERED
    assert not kit.of(again.handle(fx.Command("started"), 0.0), fx.SetTimer)
    assert kit.acks(pb.upload(again, 4))[0][0] == "closed"


STALLED = 5


def opened_of_attendance(machine, number):
    fields = {"selected": 6, "quorum": 4, "min_batch": 3, "sequence": number}
    model = b"model %d" % number
    pb.cloud_says(machine, kit.offer(kit.manifest(model, kit.at(number), **fields), model))


def answer(machine, number, who):
    return [effect for device in who for effect in pb.upload(machine, device, where=kit.at(number))]


def play(machine, number):
    """A round that all but one answer: how many uploads it had, and whether it took its grace."""
    opened_of_attendance(machine, number)
    out = answer(machine, number, range(5))
    graced = state(machine, number) is CollectionState.GRACE
    if graced:
        out += pb.fire(machine, "grace", number)
    (count,) = uploads(out)
    return count, graced


@pytest.fixture
def machine():
    """Device 5 let three rounds pass."""
    machine = pb.proxy()
    assert [play(machine, number) for number in (1, 2, 3)] == [(5, True)] * 3
    return machine


def test_one_that_was_away_is_waited_for_when_it_comes_again(machine):
    assert play(machine, 4) == (5, False)
    pb.hello(machine, pb.FLEET[STALLED])
    opened_of_attendance(machine, 5)
    assert uploads(answer(machine, 5, range(5))) == []
    assert uploads(answer(machine, 5, [STALLED])) == [6]
    assert [play(machine, n)[1] for n in (6, 7, 8, 9)] == [True] * 3 + [False]
    pb.hello(machine, pb.FLEET[STALLED])  # it has answered since
    assert play(machine, 10) == (5, True)


def came(there, **settings):
    """The proxy has come, and these devices have said hello in time."""
    machine = pb.proxy(cover_window_s=10.0, **settings)
    machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    for number in there:
        pb.hello(machine, pb.FLEET[number])
    machine.handle(fx.Timer("hellos"), 10.0)
    return machine


def opened_of_cover(there=range(6), **changes):
    machine = came(there)
    header = kit.manifest(pb.MODEL, **({"selected": 4, "quorum": 3, "min_batch": 3} | changes))
    pb.open_round(machine, header)
    return machine


def bye(machine, number):
    return pb.says(
        machine, pb.FLEET[number], pb.FLEET[number].signer.note(m.Bye(pb.FLEET[number].id))
    )


def test_it_is_over_when_all_who_are_there_have_answered():
    machine = opened_of_cover(quorum=4)
    assert [uploads(pb.upload(machine, number)) for number in range(6)] == [[]] * 5 + [[6]]


def test_who_goes_is_not_waited_for_and_who_comes_is():
    machine = opened_of_cover(there=range(5), quorum=4)
    for number in range(3):
        pb.upload(machine, number)
    pb.hello(machine, pb.FLEET[5])
    bye(machine, 3)
    assert uploads(pb.upload(machine, 4)) == []
    assert uploads(pb.upload(machine, 5)) == [5]


def test_the_quorum_is_never_less_than_the_job_s():
    machine = opened_of_cover(there=range(4), quorum=4)
    bye(machine, 3)
    for number in range(3):
        pb.upload(machine, number)
    assert state(machine) is CollectionState.COLLECTING


def test_while_devices_have_yet_to_say_hello_nothing_is_over():
    """Just after the proxy came: the answers of the unselected are here, the selected are not."""
    machine = pb.proxy(cover_window_s=10.0)
    out = machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    assert kit.timers(out)["hellos"] > kit.bodies(out, m.Here)[0].spread_s
    for number in range(3):
        pb.hello(machine, pb.FLEET[number])
    pb.open_round(machine, kit.manifest(pb.MODEL, selected=3, quorum=3, min_batch=3))
    for number in range(3):
        pb.upload(machine, number)
    assert state(machine) is CollectionState.COLLECTING
    for number in range(3, 6):
        pb.hello(machine, pb.FLEET[number])
    machine.handle(fx.Timer("hellos"), 4.0)
    assert [uploads(pb.upload(machine, number)) for number in (3, 4, 5)] == [[], [], [6]]


def test_what_dummies_would_fill_the_spool_is_refused_before_anybody_answers():
    """All who are there will upload: who was selected must not find the spool full. The first
    rounds of a job may be small: then all had paid when the later one was refused."""
    sealed = sum(kit.SEALED_BYTES)
    job = kit.manifest(b"job", kit.at(0, 1), kind="job", min_batch=3, upload_bytes=sealed)
    for devices, reasons in ((5, ["spool_too_small_for_cover"]), (4, [])):
        machine = came(range(devices), spool_bytes=4 * sealed)
        assert kit.refused(pb.cloud_says(machine, kit.offer(job, b"job"))) == reasons
        out = pb.open_round(machine)
        assert kit.refused(out) == reasons and bool(pb.to_devices(out)) == (not reasons)
        assert kit.acks(out) == [("refused" if reasons else "held", "".join(reasons))]
    for number in range(4):
        assert kit.acks(pb.upload(machine, number))[0][0] == "held"
    assert kit.refused(pb.open_round(pb.proxy(spool_bytes=4 * sealed))) == []


def test_after_a_restart_it_is_the_deadline_that_ends_it():
    """While it is not known who is there, those who have answered would look like all."""
    machine = opened_of_cover()
    memory = durable(machine, *[pb.upload(machine, number) for number in range(4)])
    again = pb.proxy(memory, disk=machine.disk, cover_window_s=10.0)
    assert uploads(again.handle(fx.Command("started"), 0.0)) == []
    pb.hello(again, pb.FLEET[0])
    assert uploads(pb.upload(again, 4)) == []
    assert uploads(pb.fire(again, "deadline")) == [5]
