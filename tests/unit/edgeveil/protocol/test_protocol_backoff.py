"""A device's waits: spread over the fleet, put off when asked; an acknowledgement is for good."""

from __future__ import annotations

import hashlib

import pytest
from device_bench import MODEL, SEALED, device, receive, upload
from protocol_kit import (
    JOB,
    PROXY,
    at,
    bodies,
    commit_of,
    headers,
    manifest,
    of,
    offer,
    refused,
    reports,
    stored,
    tasks,
    timers,
)

from edgeveil.protocol import effects as fx
from edgeveil.protocol.device_round import DeviceState, OutboxHeld
from edgeveil.protocol.messages import Ack, Hello, Later
from edgeveil.protocol.transfer import Backoff

DIGEST = hashlib.sha256(SEALED.data).digest()


def test_a_fleet_s_waits_are_spread_and_never_longer_than_said() -> None:
    waits = [Backoff(f"{n:016x}").wait_s(4.0, 1, 30.0) for n in range(2000)]
    assert all(4.0 < wait <= 8.0 for wait in waits)
    tenths = [int((wait - 4.0) / 0.4) for wait in waits]
    assert min(tenths.count(tenth) for tenth in range(10)) > 120  # 200 expected, 13 deviation


def test_the_waits_of_one_device_differ_and_repeat_after_a_restart() -> None:
    one, again = Backoff("a" * 16), Backoff("a" * 16)
    waits = [one.wait_s(1.0, 0, 30.0) for _ in range(20)]
    assert len(set(waits)) == 20
    assert waits == [again.wait_s(1.0, 0, 30.0) for _ in range(20)]


@pytest.mark.parametrize(("tries", "most_s"), [(0, 5.0), (1, 10.0), (3, 30.0), (10_000, 30.0)])
def test_waits_double_up_to_a_cap(tries: int, most_s: float) -> None:
    wait_s = Backoff("a" * 16).wait_s(5.0, tries, 30.0)
    assert most_s / 2 < wait_s <= most_s


def test_a_hello_that_is_put_off_is_said_again_after_the_delay() -> None:
    machine = device()
    machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    out = receive(machine, PROXY.note(Later(12.5)))
    assert timers(out) == {"hello": 12.5}
    assert of(out, fx.Send) == []
    assert len(bodies(machine.handle(fx.Timer("hello"), 12.5), Hello)) == 1


def test_a_delay_that_is_too_long_is_not_believed() -> None:
    assert timers(receive(device(), PROXY.note(Later(9 * 86400.0)))) == {"hello": 600.0}


def test_a_proxy_that_puts_off_is_there() -> None:
    """The owner is told of a proxy that does not answer, not of one that is busy."""
    machine = device()
    machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    for now_s in range(10):
        receive(machine, PROXY.note(Later(1.0)))
        assert "unheard" not in reports(machine.handle(fx.Timer("hello"), float(now_s)))


# --- what is acknowledged -------------------------------------------------------------------


def test_an_acknowledgement_is_durable() -> None:
    machine = device()
    upload(machine)
    out = receive(machine, PROXY.note(Ack(DIGEST, "held")))
    assert stored(out) == [OutboxHeld(at())]
    assert machine.memory.uploads
    assert machine.memory.uploads[JOB].held


def test_an_acknowledged_upload_is_not_offered_again_after_a_restart() -> None:
    first = device()
    upload(first)
    receive(first, PROXY.note(Ack(DIGEST, "held")))
    machine = device(first.memory)
    assert headers(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)) == []
    assert machine.state is DeviceState.ANSWERED
    assert tasks(receive(machine, offer(manifest(MODEL), MODEL))) == []
    # A late word that the round is closed takes nothing back.
    assert receive(machine, PROXY.note(Ack(DIGEST, "closed"))) == []
    record, data = commit_of(at(), [])
    out = receive(machine, offer(record, data))
    assert refused(out) == []
    assert reports(out)["counted"]["counted"] == 0
