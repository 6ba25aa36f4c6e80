"""Hellos at a bounded pace; cover traffic is announced."""

from __future__ import annotations

import pytest
from protocol_kit import bodies, member, of, refused, stored, timers
from proxy_bench import FLEET, open_round, proxy, says, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Ack, Bye, Cover, Hello, Here, Later, NewSealingKey


def hello(machine, who, now_s=0.0):
    return says(machine, who, who.signer.note(Hello(who.id, knows=3)), now_s)


def crowd(machine, count):
    """So many admitted devices."""
    many = [member(1000 + number) for number in range(count)]
    machine.registry.members.update({who.id: who.key for who in many})
    return many


def test_hellos_beyond_the_pace_are_told_when_to_come_and_heard_then():
    machine = proxy(hellos_per_s=5.0)
    waiting = [(0.0, number, who) for number, who in enumerate(crowd(machine, 40))]
    heard = []
    for _ in range(400):
        if not waiting:
            break
        waiting.sort(key=lambda item: item[:2])
        now_s, number, who = waiting.pop(0)
        out = hello(machine, who, now_s)
        if bodies(out, Ack):
            heard.append(now_s)
            continue
        (later,) = bodies(out, Later)
        assert later.delay_s > 0 and who.id not in machine.online
        waiting.append((now_s + later.delay_s, number, who))
    assert len(heard) == 40 and heard == sorted(heard)
    for start_s in range(15):
        assert sum(start_s <= when_s < start_s + 1 for when_s in heard) <= 10
    assert heard[-1] < 20


def test_delays_are_spread():
    machine = proxy(hellos_per_s=2.0)
    outs = [hello(machine, who) for who in crowd(machine, 12)]
    delays = [later.delay_s for out in outs for later in bodies(out, Later)]
    assert len(delays) == 10
    assert delays == sorted(delays) and delays[-1] == pytest.approx(6.0, abs=0.1)


def test_within_the_pace_nobody_is_put_off():
    machine = proxy(hellos_per_s=2.0)
    for number, who in enumerate(crowd(machine, 20)):
        assert bodies(hello(machine, who, number * 0.5), Later) == []


def test_a_forged_hello_takes_nobody_s_place():
    machine = proxy(hellos_per_s=1.0)
    for _ in range(5):
        forged = FLEET[1].signer.note(Hello(FLEET[0].id, knows=3))
        assert refused(says(machine, FLEET[0], forged)) == ["unknown_signer"]
    assert bodies(hello(machine, FLEET[0]), Ack)


def test_one_device_that_keeps_saying_hello_does_not_take_the_others_place():
    machine = proxy(hellos_per_s=20.0)
    loud, others = FLEET[0], crowd(machine, 40)
    for moment in range(4000):
        now_s = moment / 200
        out = hello(machine, loud, now_s)
        if moment >= 5 and now_s < 10:
            assert refused(out) == ["hello_too_often"] and of(out, fx.Send) == []
        if moment % 100 == 0:
            assert bodies(hello(machine, others.pop(), now_s), Ack)


def test_a_pace_below_one_a_second_still_hears_one():
    assert bodies(hello(proxy(hellos_per_s=0.1), FLEET[0]), Ack)


def test_other_notes_are_never_put_off():
    machine = proxy(hellos_per_s=1.0)
    for who in FLEET:
        hello(machine, who)
    out = says(machine, FLEET[0], FLEET[0].signer.note(Bye(FLEET[0].id)))
    assert refused(out) == [] and bodies(out, Later) == []


def here_of(machine):
    (here,) = bodies(machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0), Here)
    return here.spread_s


def test_a_large_fleet_is_asked_to_come_over_a_longer_time():
    machine = proxy(hellos_per_s=10.0, hello_spread_s=0.5)
    crowd(machine, 94)
    assert here_of(machine) == pytest.approx(10.0)
    assert here_of(proxy(hello_spread_s=0.5)) == 0.5


@pytest.mark.parametrize("window_s", [0.0, 7.0])
def test_cover_traffic_is_announced_to_all_and_to_each_who_comes(window_s):
    machine = proxy(cover_window_s=window_s)
    out = machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    assert bodies(out, Cover) == ([Cover(window_s)] if window_s else [])
    greeted = hello(machine, FLEET[0])
    assert bodies(greeted, Cover) == ([Cover(window_s)] if window_s else [])
    if window_s:
        notes = of(greeted, fx.Send)
        assert [send.to for send in notes[:2]] == [fx.DeviceAddress(FLEET[0].id)] * 2
    assert timers(greeted) == {}


def test_who_answers_after_its_copy_said_bye_is_asked_for_a_hello():
    machine = proxy()
    machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    hello(machine, FLEET[0])
    says(machine, FLEET[0], FLEET[0].signer.note(Bye(FLEET[0].id)))
    open_round(machine)
    assert bodies(upload(machine, 0), Here) == []  # all are still coming
    machine.handle(fx.Timer("hellos"), 60.0)
    out = upload(machine, 0)
    assert of(out, fx.Send)[-1].to == fx.DeviceAddress(FLEET[0].id)
    assert bodies(out, Here) == [Here(0.0)]
    hello(machine, FLEET[0], 60.0)
    assert bodies(upload(machine, 0), Here) == []


def test_a_revoked_device_is_not_online_any_more():
    machine = proxy()
    hello(machine, FLEET[0])
    del machine.registry.members[FLEET[0].id]
    machine.handle(fx.Command("roster_changed"), 0.0)
    assert machine.online == set()


def last_delay_s(machine, loud):
    """What an honest device is told after 20 s in which sound hellos used up all the pace."""
    honest, others = FLEET[2], crowd(machine, 200)
    for moment in range(200):
        now_s = moment / 10
        while machine.hello_rate.free(now_s):
            hello(machine, others.pop(), now_s)
        for who in loud:
            for _ in range(20):
                hello(machine, who, now_s)
    (later,) = bodies(hello(machine, honest, now_s), Later)
    return later.delay_s


def test_one_device_that_keeps_saying_hello_does_not_put_the_others_off():
    calm_s = last_delay_s(proxy(hellos_per_s=5.0), [])
    assert last_delay_s(proxy(hellos_per_s=5.0), [FLEET[1]]) <= calm_s + 2 * 5 / 5.0


def test_hellos_of_strangers_are_not_answered_and_put_nobody_off():
    calm_s = last_delay_s(proxy(hellos_per_s=5.0), [])
    strangers = [member(number) for number in range(50, 53)]
    machine = proxy(hellos_per_s=5.0)
    assert last_delay_s(machine, strangers) == calm_s
    out = hello(machine, strangers[0], 20.0)
    assert refused(out) == ["unknown_signer"] and of(out, fx.Send) == []


def test_a_new_sealing_key_is_kept_once_and_others_come_once_a_minute():
    """Keeping one is a transaction, and a roster of all devices for the cloud."""
    machine, who, other = proxy(), FLEET[0], FLEET[1]

    def new_key(number, by=who):
        return by.signer.note(NewSealingKey(by.id, bytes([number] * 32), number))

    outs = [says(machine, who, new_key(200)) for _ in range(100)]
    assert [len(stored(out)) for out in outs] == [1] + [0] * 99
    assert all(len(bodies(out, Ack)) == 1 for out in outs)
    outs = [says(machine, who, new_key(n), n / 2) for n in range(1, 118)]
    assert [refused(out) for out in outs] == [["new_key_too_often"]] * 117
    assert len(stored(says(machine, other, new_key(1, other), 59.0))) == 1
    assert len(stored(says(machine, who, new_key(118), 60.0))) == 1


def test_a_device_that_keeps_asking_while_it_is_put_off_is_refused():
    machine = proxy(hellos_per_s=1.0)
    hello(machine, FLEET[0])
    outs = [hello(machine, FLEET[1]) for _ in range(7)]
    assert [len(bodies(out, Later)) for out in outs] == [1] * 5 + [0, 0]
    assert [refused(out) for out in outs[5:]] == [["hello_too_often"]] * 2
    assert of(outs[5], fx.Send) == []
