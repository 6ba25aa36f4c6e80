"""With cover traffic a round waits for all who are there, not for so many as were selected."""

from __future__ import annotations

from protocol_kit import JOB, bodies, headers, manifest, timers
from proxy_bench import FLEET, MODEL, fire, open_round, proxy, says, upload

from fl_core.protocol import effects as fx
from fl_core.protocol.collection import State
from fl_core.protocol.messages import Batch, Bye, Hello, Shortfall
from fl_core.protocol.proxy_tasks import ProxyMemory, UploadKept


def opened(there=range(6), **changes):
    machine = proxy(cover_window_s=10.0)
    for number in there:
        hello(machine, number)
    header = manifest(MODEL, **({"selected": 4, "quorum": 3, "min_batch": 3} | changes))
    open_round(machine, header)
    return machine


def hello(machine, number):
    return says(machine, FLEET[number], FLEET[number].signer.note(Hello(FLEET[number].id)))


def bye(machine, number):
    return says(machine, FLEET[number], FLEET[number].signer.note(Bye(FLEET[number].id)))


def batches(effects):
    return [header for header in headers(effects) if isinstance(header, Batch)]


def state(machine):
    return machine.rounds.by_key[JOB, 1, 1].state


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
    assert state(machine) is State.COLLECTING
    out = upload(machine, 4)
    assert state(machine) is State.GRACE
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
    machine = opened(there=range(4), quorum=4)
    for number in range(3):
        upload(machine, number)
    (batch,) = batches(bye(machine, 3))
    assert batch.uploads == 3


def test_where_nobody_is_there_yet_the_deadline_is_waited_for():
    machine = opened(there=())
    for number in range(2):
        hello(machine, number)
        upload(machine, number)
    assert state(machine) is State.COLLECTING
    assert bodies(fire(machine, "deadline"), Shortfall)[0].uploads == 2


def test_after_a_restart_it_is_the_deadline_that_ends_it():
    """Who is there is not known then, and those who have answered would look like all."""
    machine = opened()
    kept = []
    for number in range(4):
        out = upload(machine, number)
        kept += [e.item for e in out if isinstance(e, fx.Store) and isinstance(e.item, UploadKept)]
    memory = ProxyMemory(dict(machine.memory.kept), kept)
    again = proxy(memory, disk=machine.disk, cover_window_s=10.0)
    assert batches(again.handle(fx.Command("started"), 0.0)) == []
    hello(again, 0)
    assert batches(upload(again, 4)) == []
    (batch,) = batches(fire(again, "deadline"))
    assert batch.uploads == 5
