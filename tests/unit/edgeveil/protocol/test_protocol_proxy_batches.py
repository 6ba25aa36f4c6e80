"""The proxy closes a round: when, with how many, and what the cloud then sees."""

import protocol_kit as kit
import proxy_bench as pb
import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.proxy_rounds import CollectionState


def opened(shuffle=pb.keep_order, floor=3, **changes):
    machine = pb.proxy(shuffle=shuffle, min_batch_floor=floor, push_bytes=1 << 20)
    pb.open_round(machine, kit.manifest(pb.MODEL, **({"selected": 5, "quorum": 4} | changes)))
    return machine


def state(machine, number=1):
    return machine.rounds.collections[kit.at(number)].state


def batches(effects):
    return [header for header in kit.headers(effects) if isinstance(header, m.Batch)]


def uploads(effects):
    """How many each batch has that is sent to the cloud."""
    return [batch.uploads for batch in batches(effects)]


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


def test_a_group_below_the_floor_is_not_handed_over():
    machine = opened(selected=6, quorum=6)
    pb.upload(machine, 0)
    for number in (1, 2, 3):
        pb.upload(machine, number, groups=(1,))
    (batch,) = batches(pb.fire(machine, "deadline"))
    assert (batch.uploads, batch.counts) == (4, (0, 4, 0))
    assert batch.blob.size_bytes == 4 * kit.SEALED_BYTES[1]


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
    return machine, batches(pb.fire(machine, "deadline"))[0]


def test_nobody_else_takes_the_batch_away():
    machine, header = handed_over()
    for signer in (kit.PROXY, m.Signer("cloud", kit.signing_key(9))):
        out = pb.from_cloud(machine, signer.note(m.Ack(header.blob.digest, "held")))
        assert len(kit.refused(out)) == 1 and state(machine) is CollectionState.HANDING_OVER


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
    machine, done = shuffling()  # and of a job that was cancelled nothing is kept
    pb.from_cloud(machine, kit.CLOUD.note(m.Close(kit.JOB, "cancelled")))
    assert machine.handle(done, 0.0) == [fx.Persist(pr.RoundDropped(kit.at()))]
    assert machine.memory.batches == {}


def test_a_delivered_round_stays_closed_after_a_restart():
    machine, header = handed_over()
    pb.from_cloud(machine, kit.CLOUD.note(m.Ack(header.blob.digest, "held")))
    again = pb.proxy(machine.memory, min_batch_floor=3)
    assert state(again) is CollectionState.DELIVERED
    assert not kit.of(again.handle(fx.Command("started"), 0.0), fx.SetTimer)
    assert kit.acks(pb.upload(again, 4))[0][0] == "closed"


def came(there, **settings):
    """The proxy has come, and these devices have said hello in time."""
    machine = pb.proxy(cover_window_s=10.0, **settings)
    machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    for number in there:
        pb.hello(machine, pb.FLEET[number])
    machine.handle(fx.Timer("hellos"), 10.0)
    return machine


def test_who_goes_is_not_waited_for_and_who_comes_is():
    machine, gone = came(range(5)), pb.FLEET[3]
    pb.open_round(machine, kit.manifest(pb.MODEL, selected=4, quorum=4))
    for number in range(3):
        pb.upload(machine, number)
    pb.hello(machine, pb.FLEET[5])
    pb.send_note(machine, gone, m.Bye(gone.id))
    assert uploads(pb.upload(machine, 4)) == []
    assert uploads(pb.upload(machine, 5)) == [5]


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
        assert kit.refused(pb.from_cloud(machine, kit.offer(job, b"job"))) == reasons
        out = pb.open_round(machine)
        assert kit.refused(out) == reasons and bool(pb.to_devices(out)) == (not reasons)
    for number in range(4):
        assert kit.acks(pb.upload(machine, number))[0][0] == "held"
    assert kit.refused(pb.open_round(pb.proxy(spool_bytes=4 * sealed))) == []


def test_after_a_restart_it_is_the_deadline_that_ends_it():
    """While it is not known who is there, those who have answered would look like all."""
    machine = came(range(6))
    pb.open_round(machine)
    items = [item for number in range(4) for item in kit.stored(pb.upload(machine, number))]
    kept = [item for item in items if isinstance(item, pr.UploadKept)]
    memory = pr.ProxyMemory(dict(machine.memory.kept), kept)
    again = pb.proxy(memory, disk=machine.disk, cover_window_s=10.0)
    assert uploads(again.handle(fx.Command("started"), 0.0)) == []
    pb.hello(again, pb.FLEET[0])
    assert uploads(pb.upload(again, 4)) == []
    assert uploads(pb.fire(again, "deadline")) == [5]
