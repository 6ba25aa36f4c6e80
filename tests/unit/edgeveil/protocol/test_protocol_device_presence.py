"""A device that comes and goes by its owner's conditions."""

import pytest
from device_bench import ME, MODEL, PACKAGE, SEALED, device, done, fire, receive, upload, work_on
from protocol_kit import JOB, PROXY, bodies, headers, manifest, offer, tasks, timers

from edgeveil.protocol import effects as fx
from edgeveil.protocol.device_round import ComputeAnswer, DeviceState, NoAnswer
from edgeveil.protocol.messages import Ack, Bye, Hello, Here, Later

LEAVE, COME = fx.Command("leave"), fx.Command("come")
UP = fx.PeerConnected(fx.ProxyAddress())


def told(machine, event):
    return machine.handle(event, 0.0)


def test_a_device_away_from_its_start_says_nothing_when_it_is_connected():
    machine = device()
    assert told(machine, LEAVE) == []
    assert bodies(told(machine, UP), Hello) == bodies(told(machine, UP), Bye) == []
    assert len(bodies(told(machine, COME), Hello)) == 1


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


def test_while_away_it_takes_up_no_round_and_after_it_the_same_one():
    machine, header = device(), manifest(MODEL)
    told(machine, UP)
    told(machine, LEAVE)
    assert receive(machine, offer(header, MODEL)) == []
    assert (machine.state, machine.memory.seen) == (DeviceState.IDLE, {})
    told(machine, COME)
    assert len(tasks(receive(machine, offer(header, MODEL)))) == 1


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


def test_who_comes_back_before_the_round_is_over_never_left():
    machine, header = device(), manifest(MODEL)
    told(machine, UP)
    work_on(machine, header)
    told(machine, LEAVE)
    told(machine, COME)
    out = done(machine, ComputeAnswer(header, PACKAGE), NoAnswer("no"))
    assert bodies(out, Bye) == []


def test_a_proxy_that_comes_is_told_again_what_it_may_have_missed():
    """With the hello, at the moment in the spread; not again with the hellos that follow it."""
    machine = device()
    told(machine, UP)
    upload(machine)
    again = machine.memory.uploads[JOB].upload
    here = receive(machine, PROXY.note(Here(60.0)))
    assert headers(here) == []
    assert timers(here).keys() == {"hello"}
    assert headers(fire(machine, "hello")) == [again]
    assert headers(fire(machine, "hello")) == []


def test_a_proxy_that_comes_is_not_sent_an_upload_that_it_holds():
    machine = device()
    told(machine, UP)
    upload(machine)
    receive(machine, PROXY.note(Ack(machine.memory.uploads[JOB].upload.blob.digest, "held")))
    receive(machine, PROXY.note(Here(60.0)))
    assert headers(fire(machine, "hello")) == []
