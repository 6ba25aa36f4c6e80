"""Devices that never answer cost a round its grace a few times, not for ever."""

from __future__ import annotations

import pytest
from protocol_kit import at, headers, manifest, offer
from proxy_bench import FLEET, cloud_says, fire, proxy, says, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Batch, Decline, Hello
from edgeveil.protocol.proxy import SetAside
from edgeveil.protocol.proxy_rounds import Attendance, CollectionState

STALLED = 5


def opened(machine, number, **changes):
    """Round `number`, for all six devices unless `changes` say other."""
    fields = {"selected": 6, "quorum": 4, "min_batch": 3, "sequence": number} | changes
    model = b"model %d" % number
    cloud_says(machine, offer(manifest(model, at(number), **fields), model))


def answer(machine, number, who):
    """These devices upload to round `number`."""
    return [effect for device in who for effect in upload(machine, device, where=at(number))]


def uploads(effects):
    return [header.uploads for header in headers(effects) if isinstance(header, Batch)]


def state(machine, number):
    return machine.rounds.collections[at(number)].state


def play(machine, number, who, **changes):
    """A round that these answer: how many uploads it had, and whether it took its grace."""
    opened(machine, number, **changes)
    out = answer(machine, number, who)
    graced = state(machine, number) is CollectionState.GRACE
    if graced:
        out += fire(machine, "grace", number)
    (count,) = uploads(out)
    return count, graced


@pytest.fixture
def machine():
    """Device 5 let three rounds pass."""
    machine = proxy()
    for number in (1, 2, 3):
        assert play(machine, number, range(5)) == (5, True)
    return machine


def test_a_stalled_device_costs_the_first_rounds_their_grace_and_no_more(machine):
    assert [play(machine, n, range(5))[1] for n in (4, 5, 6)] == [False] * 3


def test_it_is_tried_again_ever_more_rarely(machine):
    graced = [n for n in range(4, 40) if play(machine, n, range(5))[1]]
    assert graced == [7, 13, 25]


def test_it_counts_again_as_soon_as_it_delivers(machine):
    opened(machine, 4)
    answer(machine, 4, [STALLED, 0, 1, 2])
    assert state(machine, 4) is CollectionState.GRACE  # nobody is left out but who is stalled
    assert uploads(answer(machine, 4, [3])) == []
    assert uploads(answer(machine, 4, [4])) == [6]
    assert play(machine, 5, range(5)) == (5, True)


def hello(machine):
    device = FLEET[STALLED]
    says(machine, device, device.signer.note(Hello(device.id, knows=3)))


def test_one_that_was_away_is_waited_for_when_it_comes_again(machine):
    assert play(machine, 4, range(5)) == (5, False)
    hello(machine)
    opened(machine, 5)
    assert uploads(answer(machine, 5, range(5))) == []
    assert uploads(answer(machine, 5, [STALLED])) == [6]
    assert [play(machine, n, range(5))[1] for n in (6, 7, 8, 9)] == [True] * 3 + [False]
    hello(machine)  # it has answered since
    assert play(machine, 10, range(5)) == (5, True)


def test_one_that_comes_during_a_round_is_waited_for_there(machine):
    opened(machine, 4)
    assert uploads(answer(machine, 4, range(4))) == []
    hello(machine)
    assert uploads(answer(machine, 4, [4])) == []
    assert uploads(answer(machine, 4, [STALLED])) == [6]


def test_one_that_comes_again_and_again_and_never_answers_costs_one_grace(machine):
    graced = []
    for number in (4, 5, 6):
        hello(machine)
        graced.append(play(machine, number, range(5))[1])
    assert graced == [True, False, False]


def test_a_decline_is_an_answer(machine):
    opened(machine, 4)
    device = FLEET[STALLED]
    says(machine, device, device.signer.note(Decline(at(4))))
    answer(machine, 4, range(5))
    assert play(machine, 5, range(5)) == (5, True)


def test_below_the_quorum_it_is_waited_for_till_the_deadline(machine):
    opened(machine, 4, quorum=5)
    assert uploads(answer(machine, 4, range(4))) == []
    assert state(machine, 4) is CollectionState.COLLECTING
    device = FLEET[4]
    says(machine, device, device.signer.note(Decline(at(4))))
    assert state(machine, 4) is CollectionState.COLLECTING
    assert uploads(answer(machine, 4, [STALLED])) == [5]


def test_rounds_that_fell_short_are_held_against_nobody():
    machine = proxy()
    for number in (1, 2, 3):
        opened(machine, number)
        answer(machine, number, [0])
        fire(machine, "deadline", number)
        assert state(machine, number) is CollectionState.SHORT
    assert play(machine, 4, range(5)) == (5, True)


def test_where_some_are_selected_nobody_knows_who_was_missing():
    """Four of six: each of the three who stay silent may be the one that is awaited."""
    machine = proxy()
    for number in range(1, 8):
        assert play(machine, number, range(3), selected=4, quorum=3) == (3, True)


def test_a_device_in_a_cool_down_is_not_waited_for_from_then_on():
    machine = proxy()
    opened(machine, 1)
    answer(machine, 1, range(5))
    assert state(machine, 1) is CollectionState.GRACE
    out = machine.handle(fx.Command(SetAside(FLEET[STALLED].id)), 0.0)
    assert uploads(out) == [5]
    assert play(machine, 2, range(5)) == (5, False)
    assert uploads(_all_but_last(machine)) == [6]


def _all_but_last(machine):
    """Round 3: the device is back, and all others are waited for."""
    opened(machine, 3)
    return answer(machine, 3, [STALLED, *range(5)])


def test_with_cover_traffic_who_is_there_and_silent_is_not_waited_for_either():
    machine = proxy(cover_window_s=10.0)
    machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    for device in FLEET:
        says(machine, device, device.signer.note(Hello(device.id, knows=3)))
    machine.handle(fx.Timer("hellos"), 10.0)
    graced = [play(machine, n, range(5), selected=4, quorum=2)[1] for n in range(1, 7)]
    assert graced == [True] * 3 + [False] * 3


def test_who_is_revoked_is_forgotten(machine):
    device = FLEET[STALLED].id
    key = machine.registry.members.pop(device)
    machine.handle(fx.Command("roster_changed"), 0.0)
    machine.registry.members[device] = key
    machine.handle(fx.Command("roster_changed"), 0.0)
    assert play(machine, 4, range(5)) == (5, True)


def test_attendance_counts_rounds_in_a_row():
    attendance = Attendance(2)
    for _ in range(2):
        attendance.missed(["a"])
        assert attendance.waits_for("b")
    assert not attendance.waits_for("a")
    attendance.answered("a")
    attendance.missed(["a"])
    assert attendance.waits_for("a")
