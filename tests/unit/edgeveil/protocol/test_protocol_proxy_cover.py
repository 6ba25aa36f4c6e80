"""With cover traffic a round waits for all who are there, not for so many as were selected."""

from __future__ import annotations

from protocol_kit import (
    JOB,
    SEALED_BYTES,
    at,
    bodies,
    headers,
    manifest,
    offer,
    refused,
    timers,
)
from proxy_bench import FLEET, MODEL, cloud_says, fire, open_round, proxy, says, to_devices, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_rounds import CollectionState, ProxyMemory, UploadKept


def came(there, **settings):
    """The proxy has come, and these devices have said hello in time."""
    machine = proxy(cover_window_s=10.0, **settings)
    machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    for number in there:
        hello(machine, number)
    machine.handle(fx.Timer("hellos"), 10.0)
    return machine


def opened(there=range(6), **changes):
    machine = came(there)
    header = manifest(MODEL, **({"selected": 4, "quorum": 3, "min_batch": 3} | changes))
    open_round(machine, header)
    return machine


def hello(machine, number):
    return says(
        machine, FLEET[number], FLEET[number].signer.note(m.Hello(FLEET[number].id, knows=3))
    )


def bye(machine, number):
    return says(machine, FLEET[number], FLEET[number].signer.note(m.Bye(FLEET[number].id)))


def batches(effects):
    return [header for header in headers(effects) if isinstance(header, m.Batch)]


def state(machine):
    return machine.rounds.collections[at(1, 1)].state


def test_it_is_over_when_all_who_are_there_have_answered():
    machine = opened(quorum=4)
    for number in range(5):
        assert batches(upload(machine, number)) == []
    (batch,) = batches(upload(machine, 5))
    assert batch.uploads == 6


def test_the_quorum_is_a_share_of_all_who_are_there():
    """3 of 4 selected: of 6 who are there, 4.5, so 5."""
    machine = opened()
    for number in range(4):
        upload(machine, number)
    assert state(machine) is CollectionState.COLLECTING
    out = upload(machine, 4)
    assert state(machine) is CollectionState.GRACE
    assert timers(out)[f"grace:{JOB.hex()}:1:1"] == 5.0 + 10.0  # the job's, and the window
    (batch,) = batches(fire(machine, "grace"))
    assert batch.uploads == 5


def test_who_goes_is_not_waited_for_and_who_comes_is():
    machine = opened(there=range(5), quorum=4)
    for number in range(3):
        upload(machine, number)
    hello(machine, 5)
    bye(machine, 3)
    assert batches(upload(machine, 4)) == []
    (batch,) = batches(upload(machine, 5))
    assert batch.uploads == 5


def test_the_last_one_who_goes_ends_it():
    machine = opened(there=range(4), selected=3)
    for number in range(3):
        upload(machine, number)
    (batch,) = batches(bye(machine, 3))
    assert batch.uploads == 3


def test_where_nobody_is_there_yet_the_deadline_is_waited_for():
    machine = opened(there=())
    for number in range(2):
        hello(machine, number)
        upload(machine, number)
    assert state(machine) is CollectionState.COLLECTING
    assert bodies(fire(machine, "deadline"), m.Shortfall)[0].uploads == 2


def test_fewer_who_are_there_than_were_selected_are_not_all():
    """The others are away for a moment, or have not said hello: dummies must not end it."""
    machine = opened(there=range(3))
    for number in range(2):
        upload(machine, number)
    assert batches(upload(machine, 2)) == []
    assert state(machine) is CollectionState.GRACE  # 3 of 4, the job's own quorum
    hello(machine, 3)
    (batch,) = batches(upload(machine, 3))
    assert batch.uploads == 4


def test_the_quorum_is_never_less_than_the_job_s():
    machine = opened(there=range(4), quorum=4)
    bye(machine, 3)
    for number in range(3):
        upload(machine, number)
    assert state(machine) is CollectionState.COLLECTING


def test_while_devices_have_yet_to_say_hello_nothing_is_over():
    """Just after the proxy came: the answers of the unselected are here, the selected are not."""
    machine = proxy(cover_window_s=10.0)
    out = machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    assert timers(out)["hellos"] > bodies(out, m.Here)[0].spread_s
    for number in range(3):
        hello(machine, number)
    open_round(machine, manifest(MODEL, selected=3, quorum=3, min_batch=3))
    for number in range(3):
        upload(machine, number)
    assert state(machine) is CollectionState.COLLECTING
    for number in range(3, 6):
        hello(machine, number)
    machine.handle(fx.Timer("hellos"), 4.0)
    for number in range(3, 5):
        assert batches(upload(machine, number)) == []
    (batch,) = batches(upload(machine, 5))
    assert batch.uploads == 6


def test_a_new_link_to_the_devices_gives_them_that_time_again():
    machine = came(range(4))
    machine.handle(fx.PeerConnected(fx.AllDevices()), 20.0)
    open_round(machine, manifest(MODEL, selected=4, quorum=4, min_batch=3))
    for number in range(4):
        upload(machine, number)
    assert state(machine) is CollectionState.COLLECTING
    (batch,) = batches(machine.handle(fx.Timer("hellos"), 24.0))
    assert batch.uploads == 4


def test_who_was_told_to_come_later_has_that_time():
    machine = proxy(cover_window_s=10.0, hellos_per_s=1.0)
    machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    (later,) = [b for n in range(2) for b in bodies(hello(machine, n), m.Later)]
    out = machine.handle(fx.Timer("hellos"), later.delay_s - 0.5)
    assert timers(out)["hellos"] > 0.5
    assert timers(machine.handle(fx.Timer("hellos"), later.delay_s + 0.5)) == {}


def test_a_device_hears_of_cover_before_it_hears_of_a_round():
    """Also one that is told to say hello again later: rounds are offered to all."""
    machine = proxy(cover_window_s=10.0, hellos_per_s=1.0)
    put_off = [out for out in (hello(machine, n) for n in range(3)) if bodies(out, m.Later)]
    assert len(put_off) == 2
    for out in put_off:
        assert [type(body) for body in bodies(out, m.Cover | m.Later)] == [m.Cover, m.Later]
    said = to_devices(open_round(machine))
    assert [type(message) for message in said] == [m.Note, m.Offer]
    assert m.decode_body(said[0].body) == m.Cover(10.0)


def test_a_job_whose_largest_dummies_would_fill_the_spool_is_refused_before_its_first_round():
    """Its first rounds may be small: then all had paid when the later one was refused."""
    sealed = sum(SEALED_BYTES)
    told = manifest(b"job", at(0, 1), kind="job", min_batch=3, upload_bytes=sealed)
    for devices, reasons in ((5, ["spool_too_small_for_cover"]), (4, [])):
        machine = came(range(devices), spool_bytes=4 * sealed)
        assert refused(cloud_says(machine, offer(told, b"job"))) == reasons


def test_a_round_whose_dummies_would_fill_the_spool_is_refused_before_anybody_answers():
    """All who are there will upload: who was selected must not find the spool full."""
    sealed = sum(SEALED_BYTES)
    room = {"spool_bytes": 4 * sealed}
    out = open_round(came(range(5), **room))
    assert refused(out) == ["spool_too_small_for_cover"] and to_devices(out) == []
    (ack,) = bodies(out, m.Ack)
    assert (ack.status, ack.reason) == ("refused", "spool_too_small_for_cover")
    machine = came(range(4), **room)
    assert refused(open_round(machine)) == []
    for number in range(4):
        assert bodies(upload(machine, number), m.Ack)[0].status == "held"
    assert refused(open_round(proxy(**room))) == []


def test_without_cover_nothing_is_said_of_it():
    """A note that ends it could be played again."""
    machine = proxy()
    out = machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    out += hello(machine, 0) + open_round(machine)
    assert bodies(out, m.Here) and not bodies(out, m.Cover)


def test_after_a_restart_it_is_the_deadline_that_ends_it():
    """While it is not known who is there, those who have answered would look like all."""
    machine = opened()
    kept = []
    for number in range(4):
        out = upload(machine, number)
        kept += [
            e.item for e in out if isinstance(e, fx.Persist) and isinstance(e.item, UploadKept)
        ]
    memory = ProxyMemory(dict(machine.memory.kept), kept)
    again = proxy(memory, disk=machine.disk, cover_window_s=10.0)
    assert batches(again.handle(fx.Command("started"), 0.0)) == []
    hello(again, 0)
    assert batches(upload(again, 4)) == []
    (batch,) = batches(fire(again, "deadline"))
    assert batch.uploads == 5


def test_after_a_restart_it_is_over_when_all_have_come_and_answered():
    machine, kept = opened(), []
    for number in range(4):
        out = upload(machine, number)
        kept += [
            e.item for e in out if isinstance(e, fx.Persist) and isinstance(e.item, UploadKept)
        ]
    memory = ProxyMemory(dict(machine.memory.kept), kept)
    again = proxy(memory, disk=machine.disk, cover_window_s=10.0)
    again.handle(fx.Command("started"), 0.0)
    again.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    for number in range(6):
        hello(again, number)
    assert batches(again.handle(fx.Timer("hellos"), 4.0)) == []
    assert batches(upload(again, 4)) == []
    (batch,) = batches(upload(again, 5))
    assert batch.uploads == 6
