"""Uploads are pulled: in turn, in order, with a bound on what is on its way."""

from __future__ import annotations

import hashlib
import zlib

import msgspec
import pytest
from protocol_kit import (
    CLOUD,
    JOB,
    PART_BYTES,
    at,
    bodies,
    manifest,
    messages,
    of,
    offer,
    parts_of,
    refused,
    timers,
)
from proxy_bench import FLEET, MODEL, cloud_says, open_round, proxy, says, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.transfer import NEED_LIMIT, describe

SEALED = 4048
ROOM = 4 * PART_BYTES  # for one upload
GROUP = m.Group("layer0", SEALED - m.SEAL_OVERHEAD_BYTES)


def opened(sealed=SEALED, **settings):
    machine = proxy(**settings)
    group = m.Group("layer0", sealed - m.SEAL_OVERHEAD_BYTES)
    open_round(machine, manifest(MODEL, groups=(group,), selected=6, quorum=6))
    return machine


def big(number, size=SEALED):
    """Device `number`'s upload: header and parts."""
    data = hashlib.shake_256(bytes([number])).digest(size)
    header = m.Upload(at(), (0,), describe(data, PART_BYTES))
    return header, parts_of(header, data), data


def offered(machine, number, now_s=0.0, size=SEALED):
    header, _, _ = big(number, size)
    return says(machine, FLEET[number], offer(header, b"", FLEET[number].signer), now_s)


def needs(effects):
    """(device number, indices) of every request."""
    ids = [who.id for who in FLEET]
    return [
        (ids.index(send.to.id), send.message.indices)
        for send in of(effects, fx.Send)
        if isinstance(send.message, m.Need)
    ]


def acks(effects):
    return [(ack.status, ack.reason) for ack in bodies(effects, m.Ack)]


def test_an_offered_upload_is_asked_for_at_once_where_there_is_room():
    machine = opened()
    out = offered(machine, 0)
    assert needs(out) == [(0, (0, 1, 2, 3))] and "credit" in timers(out)
    assert machine.credit_bytes == SEALED


def test_uploads_wait_their_turn_and_the_next_is_asked_when_one_is_here():
    machine = opened(credit_bytes=2 * ROOM)
    assert [needs(offered(machine, n)) for n in range(4)] == [
        [(0, (0, 1, 2, 3))],
        [(1, (0, 1, 2, 3))],
        [],
        [],
    ]
    for piece in big(1)[1]:
        out = says(machine, FLEET[1], piece)
    assert acks(out) == [("held", "")] and needs(out) == [(2, (0, 1, 2, 3))]
    assert machine.credit_bytes <= 2 * ROOM


def test_a_large_upload_lets_the_others_in_between():
    size = PART_BYTES * (NEED_LIMIT + 3)
    machine = opened(size, credit_bytes=NEED_LIMIT * PART_BYTES)
    assert needs(offered(machine, 0, size=size)) == [(0, tuple(range(NEED_LIMIT)))]
    assert needs(offered(machine, 1, size=size)) == []
    pieces = big(0, size)[1]
    for piece in pieces[:NEED_LIMIT]:
        out = says(machine, FLEET[0], piece)
    assert needs(out) == [(1, tuple(range(NEED_LIMIT)))]
    asked = [
        need
        for piece in big(1, size)[1][:NEED_LIMIT]
        for need in needs(says(machine, FLEET[1], piece))
    ]
    rest = (NEED_LIMIT, NEED_LIMIT + 1, NEED_LIMIT + 2)
    assert asked == [(0, rest), (1, rest)]
    for piece in pieces[NEED_LIMIT:]:
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")]


def test_credit_below_a_part_still_lets_one_part_through():
    machine = opened(credit_bytes=1)
    assert needs(offered(machine, 0)) == [(0, (0,))]
    for index, piece in enumerate(big(0)[1][:-1]):
        assert needs(says(machine, FLEET[0], piece)) == [(0, (index + 1,))]


def test_a_repeated_offer_changes_nothing_while_it_waits_or_comes():
    machine = opened(credit_bytes=ROOM)
    offered(machine, 0)
    says(machine, FLEET[0], big(0)[1][0])
    offered(machine, 1)
    assert offered(machine, 0) == offered(machine, 1) == []
    for piece in big(0)[1][1:]:
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")]


def test_a_silent_device_gives_its_place_to_others_and_is_asked_again():
    machine = opened(credit_bytes=ROOM, credit_patience_s=5.0)
    offered(machine, 0)
    offered(machine, 1)
    out = machine.handle(fx.Timer("credit"), 5.0)
    assert (1, (0, 1, 2, 3)) in needs(out)
    for piece in big(1)[1]:
        out += says(machine, FLEET[1], piece, 6.0)
    assert (0, (0,)) in needs(out)  # and for less, among the slow


def test_a_device_that_comes_back_is_asked_again_at_once_and_keeps_what_it_sent():
    machine = opened()
    offered(machine, 0)
    first, *rest = big(0)[1]
    says(machine, FLEET[0], first)
    out = says(machine, FLEET[0], FLEET[0].signer.note(m.Hello(FLEET[0].id, knows=3)))
    assert needs(out) == [(0, (1, 2, 3))] and machine.credit_bytes == SEALED - PART_BYTES
    for piece in rest:
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")] and machine.credit_bytes == 0


def test_coming_back_does_not_move_a_device_in_the_queue():
    machine = opened(credit_bytes=ROOM)
    for number in range(3):
        offered(machine, number)
    assert needs(says(machine, FLEET[1], FLEET[1].signer.note(m.Hello(FLEET[1].id, knows=3)))) == []
    for piece in big(0)[1]:
        out = says(machine, FLEET[0], piece)
    assert needs(out) == [(1, (0, 1, 2, 3))]


def test_what_comes_late_counts_and_is_not_asked_again():
    machine = opened(credit_bytes=ROOM)
    offered(machine, 0)
    offered(machine, 1)
    machine.handle(fx.Timer("credit"), 5.0)
    pieces = big(0)[1]
    says(machine, FLEET[0], pieces[0], 6.0)
    for piece in big(1)[1]:
        says(machine, FLEET[1], piece, 6.0)
    for piece in pieces[1:]:
        out = says(machine, FLEET[0], piece, 7.0)
    assert acks(out) == [("held", "")]
    assert machine.disk.uploads[at()][:SEALED] == big(0)[2]


def test_after_a_gap_the_rest_is_asked_again_once_those_on_their_way_are_through():
    machine = opened()
    offered(machine, 0)
    first, _lost, *rest = big(0)[1]
    out = says(machine, FLEET[0], first)
    for piece in rest:
        assert needs(out) == []
        out = says(machine, FLEET[0], piece)
    assert needs(out) == [(0, (1, 2, 3))]
    for piece in big(0)[1][1:]:
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")] and machine.disk.uploads[at()] == big(0)[2]


def test_an_upload_that_is_not_its_digest_begins_anew_behind_the_others():
    machine = opened(credit_bytes=ROOM)
    offered(machine, 0)
    offered(machine, 1)
    *rest, last = big(0)[1]
    wrong = bytes(len(last.data))
    lie = msgspec.structs.replace(last, data=wrong, crc=zlib.crc32(wrong))
    for piece in (*rest, lie):
        out = says(machine, FLEET[0], piece)
    assert refused(out) == ["bad_digest"] and acks(out) == []
    assert needs(out) == [(1, (0, 1, 2, 3))]
    for piece in big(1)[1]:
        out = says(machine, FLEET[1], piece)
    assert needs(out) == [(0, (0, 1, 2, 3))]
    for piece in (*rest, last):
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")]


def test_another_upload_of_the_device_takes_the_place_of_one_under_way():
    machine = opened()
    offered(machine, 0)
    says(machine, FLEET[0], big(0)[1][0])
    header, pieces, data = big(9)
    out = says(machine, FLEET[0], offer(header, b"", FLEET[0].signer))
    assert needs(out) == [(0, (0, 1, 2, 3))] and machine.spool_bytes == SEALED
    for piece in pieces:
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")] and machine.disk.uploads[at()] == data


@pytest.mark.parametrize("how", ["decline", "close"])
def test_what_is_of_no_use_gives_its_credit_back(how):
    machine = opened()
    offered(machine, 0)
    assert machine.credit_bytes == SEALED
    if how == "decline":
        says(machine, FLEET[0], FLEET[0].signer.note(m.Decline(at())))
    else:
        cloud_says(machine, CLOUD.note(m.Close(JOB, "cancelled")))
    assert machine.credit_bytes == 0 and len(machine.uploads.arriving) == 0
    assert refused(says(machine, FLEET[0], big(0)[1][0])) == ["unknown_blob"]


def test_a_round_that_closes_gives_credit_back_and_the_late_are_told():
    machine = proxy()
    open_round(machine, manifest(MODEL, groups=(GROUP,), selected=3, quorum=3))
    offered(machine, 5)
    for number in range(3):
        offered(machine, number)
        for piece in big(number)[1]:
            says(machine, FLEET[number], piece)
    assert machine.credit_bytes == 0
    assert acks(offered(machine, 5)) == [("closed", "closed_round")]


def test_the_timer_runs_only_while_something_is_expected():
    machine = opened()
    offered(machine, 0)
    assert "credit" not in timers(offered(machine, 1))
    for number in (0, 1):
        for piece in big(number)[1]:
            says(machine, FLEET[number], piece)
    assert machine.handle(fx.Timer("credit"), 5.0) == []
    assert "credit" in timers(offered(machine, 2))


def test_an_upload_that_fits_its_offer_needs_no_turn():
    machine = proxy(credit_bytes=1)
    open_round(machine, manifest(MODEL, selected=6))
    out = upload(machine, 0)
    assert acks(out) == [("held", "")] and messages(out, m.Need) == []


def test_parts_that_come_twice_do_not_end_what_was_asked_for():
    machine = opened(credit_bytes=100 * ROOM, credit_patience_s=5.0)
    offered(machine, 0)
    pieces = big(0)[1]
    for piece in (pieces[0], pieces[1], pieces[2], pieces[1]):  # and the last is lost with the link
        assert needs(says(machine, FLEET[0], piece, 0.1)) == []
    assert machine.credit_bytes == 0
    out = machine.handle(fx.Timer("credit"), 5.0) + machine.handle(fx.Timer("credit"), 10.0)
    assert needs(out) == [(0, (3,))]
    assert acks(says(machine, FLEET[0], pieces[3], 11.0)) == [("held", "")]


def test_after_twice_come_parts_a_device_that_comes_back_is_asked_at_once():
    machine = opened(credit_bytes=100 * ROOM)
    offered(machine, 0)
    pieces = big(0)[1]
    for piece in (pieces[0], pieces[1], pieces[2], pieces[1]):
        says(machine, FLEET[0], piece)
    out = says(machine, FLEET[0], FLEET[0].signer.note(m.Hello(FLEET[0].id, knows=3)))
    assert needs(out) == [(0, (3,))]


def test_late_parts_of_a_grant_taken_back_do_not_end_the_next_one():
    size = PART_BYTES * (NEED_LIMIT + 4)
    machine = opened(size, credit_bytes=1 << 20, credit_patience_s=5.0)
    offered(machine, 0, size=size)
    pieces = big(0, size)[1]
    says(machine, FLEET[0], pieces[0], 1.0)
    out = machine.handle(fx.Timer("credit"), 5.0) + machine.handle(fx.Timer("credit"), 10.0)
    ((_, asked),) = needs(out)
    for _ in range(2):  # those of the first request, late; then the second's but for its last
        for index in asked[:-1]:
            assert needs(says(machine, FLEET[0], pieces[index], 11.0)) == []
    asked_again = []
    for now_s in range(15, 50, 5):
        asked_again += needs(machine.handle(fx.Timer("credit"), float(now_s)))
    assert asked_again[0][1][0] == asked[-1]


@pytest.mark.parametrize("how", ["hello", "another offer"])
def test_neither_a_hello_nor_another_offer_makes_a_slow_device_brisk(how):
    machine = opened(credit_bytes=ROOM, credit_patience_s=5.0)
    offered(machine, 0)
    machine.handle(fx.Timer("credit"), 5.0)
    if how == "hello":
        says(machine, FLEET[0], FLEET[0].signer.note(m.Hello(FLEET[0].id, knows=3)), 6.0)
    else:
        header, _, _ = big(9)
        says(machine, FLEET[0], offer(header, b"", FLEET[0].signer), 6.0)
    credit = machine.uploads.credit
    assert credit.holds(FLEET[0].id) and credit.take_back(12.0) == []


@pytest.mark.parametrize("claimed", [PART_BYTES + 1, SEALED, 10 * SEALED])
def test_an_upload_in_parts_that_no_packet_carries_is_refused(claimed):
    machine = opened()
    header = m.Upload(at(), (0,), describe(big(0)[2], claimed))
    out = says(machine, FLEET[0], offer(header, b"", FLEET[0].signer))
    assert refused(out) == ["large_parts"] and acks(out) == [("refused", "large_parts")]
    assert machine.credit_bytes == machine.spool_bytes == 0


def test_a_slow_device_is_asked_for_a_quarter_of_the_credit_at_most():
    size = PART_BYTES * NEED_LIMIT
    machine = opened(size, credit_bytes=size, credit_patience_s=5.0)
    assert needs(offered(machine, 0, size=size)) == [(0, tuple(range(NEED_LIMIT)))]
    assert needs(machine.handle(fx.Timer("credit"), 5.0)) == [(0, (0, 1, 2, 3))]


def test_a_device_is_asked_for_so_many_parts_right_or_wrong_and_no_more():
    machine = opened()
    assert not machine.asks(FLEET[0].id)
    offered(machine, 0)
    wrong = msgspec.structs.replace(big(0)[1][0], data=b"")
    for _ in range(4):
        assert machine.asks(FLEET[0].id)
        assert refused(says(machine, FLEET[0], wrong)) == ["bad_part"]
    assert not machine.asks(FLEET[0].id)
    for piece in big(0)[1]:  # the right ones still count
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")] and not machine.asks(FLEET[0].id)


def test_the_last_part_again_and_again_is_refused_and_asks_for_nothing():
    machine = opened()
    offered(machine, 0)
    first, *_, last = big(0)[1]
    assert machine.asks(FLEET[0].id) == (1, 4)
    for _ in range(50):
        out = says(machine, FLEET[0], last)
        assert refused(out) == ["out_of_turn"] and needs(out) == []
    says(machine, FLEET[0], first)  # what counts is followed by one request, and by no more
    asked = [need for _ in range(50) for need in needs(says(machine, FLEET[0], last))]
    assert asked == [(0, (1, 2, 3))] and machine.uploads.credit.holds(FLEET[0].id)
    for piece in big(0)[1][1:]:
        out = says(machine, FLEET[0], piece)
    assert acks(out) == [("held", "")]
