"""The proxy's upload side: one complete, well-formed upload per admitted identity and round."""

import hashlib
import zlib

import msgspec
import protocol_kit as kit
from hypothesis import given
from hypothesis import strategies as st
from proxy_bench import (
    FLEET,
    MODEL,
    from_cloud,
    hello,
    open_round,
    proxy,
    send,
    send_note,
    send_offer,
    upload,
)

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_uploads import SLOW_SHARE, Credit
from edgeveil.protocol.transfer import describe

PATIENCE_S, SEALED = 5.0, 4048
BIG = kit.manifest(
    MODEL, groups=(m.Group("layer0", SEALED - m.SEAL_OVERHEAD_BYTES),), selected=6, quorum=6
)
ONE_AT_A_TIME = {"credit_bytes": 4 * kit.PART_BYTES, "credit_patience_s": PATIENCE_S}


def opened(header=None, **settings):
    machine = proxy(**settings)
    open_round(machine, header or kit.manifest(MODEL, selected=6, quorum=5))
    return machine


def big(number):
    """(header, parts, bytes) of an upload for the round `BIG`."""
    data = hashlib.shake_256(bytes([number])).digest(SEALED)
    header = m.Upload(kit.at(), (0,), describe(data, kit.PART_BYTES))
    return header, kit.parts_of(header, data), data


def offer_big(machine, number, content=None, now_s=0.0):
    header = big(number if content is None else content)[0]
    return send_offer(machine, FLEET[number], header, now_s=now_s)


def send_parts(machine, number, pieces, now_s=0.0):
    return [e for piece in pieces for e in send(machine, FLEET[number], piece, now_s)]


def collection(machine):
    return machine.rounds.collections[kit.at(1, 1)]


def test_a_second_upload_of_one_identity_or_one_with_wrong_groups_is_refused():
    machine = opened()
    upload(machine, 0)
    kept = dict(collection(machine).uploads)
    out = send(machine, FLEET[0], kit.offer(*kit.upload_of(kit.at(), 77), FLEET[0].signer))
    assert kit.acks(out) == [("duplicate", "duplicate_upload")]
    blob = describe(bytes(sum(kit.SEALED_BYTES)), kit.PART_BYTES)
    for groups in ((1, 0), (0, 0), (3,), (0, 2**31)):
        header = m.Upload(kit.at(), groups, blob)
        out = send_offer(machine, FLEET[1], header)
        assert kit.acks(out) == [("refused", "wrong_groups")]
    assert collection(machine).uploads == kept
    out = upload(opened(upload_bytes=sum(kit.SEALED_BYTES) - 1), 0)
    assert kit.acks(out) == [("refused", "oversized_blob")]


def test_an_upload_under_another_s_name_is_refused():
    machine = opened()
    header, data = kit.upload_of(kit.at(), 1)
    signed_by_me = kit.offer(header, data, FLEET[0].signer)
    assert kit.refused(send(machine, FLEET[1], signed_by_me)) == ["unknown_signer"]
    stranger = kit.member(99)
    out = send_offer(machine, stranger, header, data)
    assert kit.refused(out) == ["unknown_signer"] and kit.bodies(out, m.Ack) == []
    assert collection(machine).uploads == {}


def test_a_large_upload_comes_in_parts_of_its_own_device_only():
    machine, (*pieces, last) = opened(BIG), big(0)[1]
    offer_big(machine, 0)
    assert kit.refused(send(machine, FLEET[1], pieces[0])) == ["unknown_blob"]
    for piece in pieces:
        out = send(machine, FLEET[0], piece)
        assert kit.of(out, fx.Send) == [] and len(kit.stored(out)) == 1
    assert kit.acks(send(machine, FLEET[0], last)) == [("held", "")]
    assert machine.disk.uploads[kit.at()] == big(0)[2]


def test_nobody_both_declines_and_uploads():
    """Declining between the first and the last part must not count a device twice."""
    machine = opened(BIG)
    offer_big(machine, 0)
    send_note(machine, FLEET[0], m.Decline(kit.at()))
    send_parts(machine, 0, big(0)[1])
    assert collection(machine).uploads == {} and len(collection(machine).declined) == 1


def test_uploads_under_way_reserve_their_place_with_their_first_part():
    machine = opened(BIG, spool_bytes=2 * SEALED)
    assert [kit.refused(offer_big(machine, number)) for number in range(4)] == [[]] * 4
    assert machine.rounds.spooled_bytes == 0  # an offer alone keeps nobody out
    got = [kit.refused(send_parts(machine, number, big(number)[1][:1])) for number in range(3)]
    assert got == [[], [], ["spool_full"]]
    assert machine.rounds.spooled_bytes == 2 * SEALED
    second = send_parts(machine, 0, big(0)[1][1:2])  # its own place is not counted twice
    assert kit.refused(second) == []
    late = offer_big(machine, 4)
    assert kit.refused(late) == ["spool_full"] and kit.of(late, fx.Send) == []
    from_cloud(machine, kit.offer(*kit.commit_of(kit.at(), [])))  # they give their places back
    open_round(machine, kit.manifest(MODEL, kit.at(2)))
    assert kit.acks(upload(machine, 1, where=kit.at(2))) == [("held", "")]


def needs(effects):
    """(device number, indices) of every request."""
    numbers = {who.id: number for number, who in enumerate(FLEET)}
    sends = [e for e in kit.of(effects, fx.Send) if isinstance(e.message, m.Need)]
    return [(numbers[send.to.id], send.message.indices) for send in sends]


def test_a_silent_device_gives_its_place_to_others_and_is_asked_again():
    machine = opened(BIG, **ONE_AT_A_TIME)
    offer_big(machine, 0)
    offer_big(machine, 1)
    out = machine.handle(fx.Timer("credit"), 5.0)
    assert (1, (0, 1, 2, 3)) in needs(out)
    out += send_parts(machine, 1, big(1)[1], 6.0)
    assert (0, (0,)) in needs(out)  # and for less, among the slow


def test_an_upload_that_is_not_its_digest_begins_anew_behind_the_others():
    machine = opened(BIG, **ONE_AT_A_TIME)
    offer_big(machine, 0)
    offer_big(machine, 1)
    *rest, last = big(0)[1]
    wrong = bytes(len(last.data))
    lie = msgspec.structs.replace(last, data=wrong, crc=zlib.crc32(wrong))
    out = send_parts(machine, 0, (*rest, lie))
    assert kit.refused(out) == ["bad_digest"] and kit.acks(out) == []
    assert needs(out) == [(1, (0, 1, 2, 3))]
    assert needs(send_parts(machine, 1, big(1)[1])) == [(0, (0, 1, 2, 3))]
    assert kit.acks(send_parts(machine, 0, (*rest, last))) == [("held", "")]


def test_another_upload_of_the_device_takes_the_place_of_one_under_way():
    machine = opened(BIG, **ONE_AT_A_TIME)
    offer_big(machine, 0)
    send_parts(machine, 0, big(0)[1][:1])
    _, pieces, data = big(9)
    out = offer_big(machine, 0, content=9)
    assert needs(out) == [(0, (0, 1, 2, 3))] and machine.rounds.spooled_bytes == SEALED
    assert kit.acks(send_parts(machine, 0, pieces)) == [("held", "")]
    assert machine.disk.uploads[kit.at()] == data


def test_neither_a_hello_nor_another_offer_makes_a_slow_device_brisk():
    for another in (True, False):
        machine = opened(BIG, **ONE_AT_A_TIME)
        offer_big(machine, 0)
        machine.handle(fx.Timer("credit"), 5.0)
        if another:
            offer_big(machine, 0, content=9, now_s=6.0)
        else:
            hello(machine, FLEET[0], 6.0)
        credit = machine.uploads.credit
        assert credit.holds(FLEET[0].id) and credit.revoke(12.0) == []


def test_an_upload_in_parts_that_no_packet_carries_is_refused():
    machine = opened(BIG, **ONE_AT_A_TIME)
    header = m.Upload(kit.at(), (0,), describe(big(0)[2], kit.PART_BYTES + 1))
    out = send_offer(machine, FLEET[0], header)
    assert kit.acks(out) == [("refused", "large_parts")]
    assert machine.uploads.credit.granted_bytes == machine.rounds.spooled_bytes == 0


def test_a_device_is_asked_for_so_many_parts_right_or_wrong_and_no_more():
    machine, pieces = opened(BIG, **ONE_AT_A_TIME), big(0)[1]
    assert not machine.uploads.open_request(FLEET[0].id)
    offer_big(machine, 0)
    wrong = msgspec.structs.replace(pieces[0], data=b"")
    for _ in range(4):
        assert machine.uploads.open_request(FLEET[0].id)
        assert kit.refused(send(machine, FLEET[0], wrong)) == ["bad_part"]
    assert not machine.uploads.open_request(FLEET[0].id)
    assert kit.acks(send_parts(machine, 0, pieces)) == [("held", "")]  # the right ones still count
    assert not machine.uploads.open_request(FLEET[0].id)


def test_the_last_part_again_and_again_is_refused_and_asks_for_nothing():
    machine, (first, *rest) = opened(BIG, **ONE_AT_A_TIME), big(0)[1]
    offer_big(machine, 0)
    assert machine.uploads.open_request(FLEET[0].id) == (1, 4)
    for _ in range(50):
        out = send(machine, FLEET[0], rest[-1])
        assert kit.refused(out) == ["out_of_turn"] and needs(out) == []
    send_parts(machine, 0, [first])  # what counts is followed by one request, and by no more
    assert needs(send_parts(machine, 0, rest[-1:] * 50)) == [(0, (1, 2, 3))]
    assert machine.uploads.credit.holds(FLEET[0].id)
    assert kit.acks(send_parts(machine, 0, rest)) == [("held", "")]


def test_however_many_are_slow_the_others_have_most_of_the_credit():
    it = Credit(1000, PATIENCE_S)
    slow = [f"slow{number}" for number in range(50)]
    now_s = 0.0
    for who in slow:
        it.want(who, 100)
    while len(it._known_slow) < len(slow):
        it.deal(now_s)
        now_s += PATIENCE_S
        for who in it.revoke(now_s):
            it.want(who, 100)
    it.deal(now_s)
    assert it.granted_bytes <= it.limit_bytes // SLOW_SHARE
    for number in range(20):
        it.want(f"fast{number}", 100)
    dealt = it.deal(now_s)
    assert len(dealt) >= 7 and all(who.startswith("fast") for who in dealt)
    for who in dealt:
        it.arrived(who, 100, now_s)
        it.leave(who)
    assert len(it.deal(now_s)) == len(dealt)


steps = st.tuples(
    st.sampled_from(["want", "arrived", "leave", "wait"]), st.integers(0, 6), st.integers(1, 400)
)


@given(st.lists(steps, max_size=80))
def test_the_bound_holds_whatever_happens(course):
    it, now_s = Credit(1000, PATIENCE_S), 0.0
    for what, number, size_bytes in course:
        who = str(number)
        if what == "want":
            it.want(who, size_bytes)
        elif what == "arrived":
            it.arrived(who, size_bytes, now_s)
        elif what == "leave":
            it.leave(who)
        else:
            now_s += size_bytes / 40
            for lost in it.revoke(now_s):
                it.want(lost, size_bytes)
        it.deal(now_s)
        lanes = (it._brisk, it._slow)
        running = [grant.left_bytes for lane in lanes for grant in lane.granted.values()]
        assert it.granted_bytes == sum(running)
        assert it.granted_bytes <= it.limit_bytes + 400  # each lane may always serve one
        assert all(left >= 0 for left in running)
