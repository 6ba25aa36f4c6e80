"""The proxy's upload side: one complete, well-formed upload per admitted identity and round."""

import hashlib
import zlib

import msgspec
import protocol_kit as kit
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxy_bench import FLEET, MODEL, cloud_says, hello, open_round, proxy, says, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.messages import Ack, Decline, Upload
from edgeveil.protocol.proxy_rounds import UploadKept
from edgeveil.protocol.proxy_uploads import SLOW_SHARE, Credit, UploadPart
from edgeveil.protocol.transfer import NEED_LIMIT, describe

BIG = kit.manifest(MODEL, groups=(kit.manifest(MODEL).groups[0].__class__("layer0", 4000),))


def opened(**settings):
    machine = proxy(**settings)
    open_round(machine, kit.manifest(MODEL, selected=6, quorum=5))
    return machine


def collection(machine):
    return machine.rounds.collections[kit.at(1, 1)]


def test_an_upload_is_durable_before_it_is_acknowledged():
    machine = opened()
    out = upload(machine, 0)
    kinds = [type(effect) for effect in out]
    assert kinds.index(fx.Persist) < kinds.index(fx.Send)
    part, item = kit.stored(out)
    assert isinstance(part, UploadPart) and hashlib.sha256(part.data).digest() == item.held.digest
    assert isinstance(item, UploadKept) and item.device == FLEET[0].id
    assert kit.of(out, fx.Send)[0].to == fx.DeviceAddress(FLEET[0].id)
    assert kit.acks(out) == [("held", "")]
    assert kit.reports(out)["answered"] == {
        "round": 1,
        "uploads": 1,
        "declined": 0,
        "causes": {},
        "selected": 6,
    }


def test_a_second_upload_of_one_identity_is_refused():
    machine = opened()
    upload(machine, 0)
    kept = dict(collection(machine).uploads)
    header, data = kit.upload_of(kit.at(), 77)
    out = says(machine, FLEET[0], kit.offer(header, data, FLEET[0].signer))
    assert kit.refused(out) == ["duplicate_upload"] and kit.acks(out) == [
        ("duplicate", "duplicate_upload")
    ]
    assert collection(machine).uploads == kept


@pytest.mark.parametrize("groups", [(1, 0), (0, 0), (0, 1, 2, 3), (3,), (0, 2**31)])
def test_wrong_groups_are_refused(groups):
    machine = opened()
    blob = describe(bytes(sum(kit.SEALED_BYTES)), kit.PART_BYTES)
    out = says(machine, FLEET[0], kit.offer(Upload(kit.at(), groups, blob), b"", FLEET[0].signer))
    assert kit.refused(out) == ["wrong_groups"] and kit.acks(out) == [("refused", "wrong_groups")]


def test_an_upload_under_another_s_name_is_refused():
    machine = opened()
    header, data = kit.upload_of(kit.at(), 1)
    signed_by_me = kit.offer(header, data, FLEET[0].signer)
    assert kit.refused(says(machine, FLEET[1], signed_by_me)) == ["unknown_signer"]
    stranger = kit.member(99)
    out = says(machine, stranger, kit.offer(header, data, stranger.signer))
    assert kit.refused(out) == ["unknown_signer"] and kit.bodies(out, Ack) == []
    assert collection(machine).uploads == {}


def test_a_large_upload_comes_in_parts_of_its_own_device_only():
    machine = proxy()
    open_round(machine, BIG)
    data = bytes(4048)
    header = Upload(kit.at(), (0,), describe(data, kit.PART_BYTES))
    says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer))
    pieces = kit.parts_of(header, data)
    assert kit.refused(says(machine, FLEET[1], pieces[0])) == ["unknown_blob"]
    for piece in pieces[:-1]:
        out = says(machine, FLEET[0], piece)
        assert kit.of(out, fx.Send) == [] and len(kit.stored(out)) == 1
    assert kit.acks(says(machine, FLEET[0], pieces[-1])) == [("held", "")]
    assert machine.disk.uploads[kit.at()] == data


def test_an_upload_above_the_proxy_s_limit_is_refused_for_good():
    out = upload(opened(upload_bytes=sum(kit.SEALED_BYTES) - 1), 0)
    assert kit.acks(out) == [("refused", "oversized_blob")]


def decline(machine, number, where=None):
    who = FLEET[number]
    return says(machine, who, who.signer.note(Decline(where or kit.at())))


def test_nobody_both_declines_and_uploads():
    """Declining between the first and the last part must not count a device twice."""
    machine = proxy()
    open_round(machine, BIG)
    data = bytes(4048)
    header = Upload(kit.at(), (0,), describe(data, kit.PART_BYTES))
    says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer))
    decline(machine, 0)
    for piece in kit.parts_of(header, data):
        says(machine, FLEET[0], piece)
    assert collection(machine).uploads == {} and len(collection(machine).declined) == 1


def test_a_full_spool_is_no_answer_and_the_device_s_next_offer_may_find_room():
    machine = opened(spool_bytes=3 * sum(kit.SEALED_BYTES))
    open_round(machine, kit.manifest(MODEL, kit.at(job=b"K" * 16)))
    for number in range(3):
        upload(machine, number)
    out = upload(machine, 0, where=kit.at(job=b"K" * 16))
    assert kit.refused(out) == ["spool_full"] and kit.of(out, fx.Send) == []
    record, data = kit.commit_of(kit.at(), [])
    cloud_says(machine, kit.offer(record, data))
    assert kit.acks(upload(machine, 0, where=kit.at(job=b"K" * 16))) == [("held", "")]


def test_uploads_under_way_reserve_their_place_with_their_first_part():
    machine = proxy(spool_bytes=2 * 4048)
    open_round(machine, BIG)
    header = Upload(kit.at(), (0,), describe(bytes(4048), kit.PART_BYTES))
    first, second, *_ = kit.parts_of(header, bytes(4048))
    for who in FLEET[:4]:
        assert kit.refused(says(machine, who, kit.offer(header, b"", who.signer))) == []
    assert machine.rounds.spooled_bytes == 0  # an offer alone keeps nobody out
    got = [kit.refused(says(machine, who, first)) for who in FLEET[:3]]
    assert got == [[], [], ["spool_full"]]
    assert machine.rounds.spooled_bytes == 2 * 4048
    assert kit.refused(says(machine, FLEET[0], second)) == []  # its own place is not counted twice
    late = says(machine, FLEET[4], kit.offer(header, b"", FLEET[4].signer))
    assert kit.refused(late) == ["spool_full"] and kit.of(late, fx.Send) == []


def test_an_unfinished_upload_gives_its_place_back_when_the_round_ends():
    machine = proxy(spool_bytes=4048)
    open_round(machine, BIG)
    header = Upload(kit.at(), (0,), describe(bytes(4048), kit.PART_BYTES))
    says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer))
    record, data = kit.commit_of(kit.at(), [])
    cloud_says(machine, kit.offer(record, data))
    open_round(machine, kit.manifest(MODEL, kit.at(2)))
    assert kit.acks(upload(machine, 1, where=kit.at(2))) == [("held", "")]


SEALED = 4048
ROOM = 4 * kit.PART_BYTES  # for one upload


def opened_of_arrivals(sealed=SEALED, **settings):
    machine = proxy(**settings)
    group = m.Group("layer0", sealed - m.SEAL_OVERHEAD_BYTES)
    open_round(machine, kit.manifest(MODEL, groups=(group,), selected=6, quorum=6))
    return machine


def big(number, size=SEALED):
    """Device `number`'s upload: header and parts."""
    data = hashlib.shake_256(bytes([number])).digest(size)
    header = m.Upload(kit.at(), (0,), describe(data, kit.PART_BYTES))
    return header, kit.parts_of(header, data), data


def offered(machine, number, now_s=0.0, size=SEALED):
    header, _, _ = big(number, size)
    return says(machine, FLEET[number], kit.offer(header, b"", FLEET[number].signer), now_s)


def needs(effects):
    """(device number, indices) of every request."""
    ids = [who.id for who in FLEET]
    return [
        (ids.index(send.to.id), send.message.indices)
        for send in kit.of(effects, fx.Send)
        if isinstance(send.message, m.Need)
    ]


def test_a_repeated_offer_changes_nothing_while_it_waits_or_comes():
    machine = opened_of_arrivals(credit_bytes=ROOM)
    offered(machine, 0)
    says(machine, FLEET[0], big(0)[1][0])
    offered(machine, 1)
    assert offered(machine, 0) == offered(machine, 1) == []
    for piece in big(0)[1][1:]:
        out = says(machine, FLEET[0], piece)
    assert kit.acks(out) == [("held", "")]


def test_a_silent_device_gives_its_place_to_others_and_is_asked_again():
    machine = opened_of_arrivals(credit_bytes=ROOM, credit_patience_s=5.0)
    offered(machine, 0)
    offered(machine, 1)
    out = machine.handle(fx.Timer("credit"), 5.0)
    assert (1, (0, 1, 2, 3)) in needs(out)
    for piece in big(1)[1]:
        out += says(machine, FLEET[1], piece, 6.0)
    assert (0, (0,)) in needs(out)  # and for less, among the slow


def test_a_device_that_comes_back_is_asked_again_at_once_and_keeps_what_it_sent():
    machine = opened_of_arrivals()
    offered(machine, 0)
    first, *rest = big(0)[1]
    says(machine, FLEET[0], first)
    out = hello(machine, FLEET[0])
    assert (
        needs(out) == [(0, (1, 2, 3))]
        and machine.uploads.credit.granted_bytes == SEALED - kit.PART_BYTES
    )
    for piece in rest:
        out = says(machine, FLEET[0], piece)
    assert kit.acks(out) == [("held", "")] and machine.uploads.credit.granted_bytes == 0


def test_an_upload_that_is_not_its_digest_begins_anew_behind_the_others():
    machine = opened_of_arrivals(credit_bytes=ROOM)
    offered(machine, 0)
    offered(machine, 1)
    *rest, last = big(0)[1]
    wrong = bytes(len(last.data))
    lie = msgspec.structs.replace(last, data=wrong, crc=zlib.crc32(wrong))
    for piece in (*rest, lie):
        out = says(machine, FLEET[0], piece)
    assert kit.refused(out) == ["bad_digest"] and kit.acks(out) == []
    assert needs(out) == [(1, (0, 1, 2, 3))]
    for piece in big(1)[1]:
        out = says(machine, FLEET[1], piece)
    assert needs(out) == [(0, (0, 1, 2, 3))]
    for piece in (*rest, last):
        out = says(machine, FLEET[0], piece)
    assert kit.acks(out) == [("held", "")]


def test_another_upload_of_the_device_takes_the_place_of_one_under_way():
    machine = opened_of_arrivals()
    offered(machine, 0)
    says(machine, FLEET[0], big(0)[1][0])
    header, pieces, data = big(9)
    out = says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer))
    assert needs(out) == [(0, (0, 1, 2, 3))] and machine.rounds.spooled_bytes == SEALED
    for piece in pieces:
        out = says(machine, FLEET[0], piece)
    assert kit.acks(out) == [("held", "")] and machine.disk.uploads[kit.at()] == data


@pytest.mark.parametrize("how", ["hello", "another offer"])
def test_neither_a_hello_nor_another_offer_makes_a_slow_device_brisk(how):
    machine = opened_of_arrivals(credit_bytes=ROOM, credit_patience_s=5.0)
    offered(machine, 0)
    machine.handle(fx.Timer("credit"), 5.0)
    if how == "hello":
        hello(machine, FLEET[0], 6.0)
    else:
        header, _, _ = big(9)
        says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer), 6.0)
    credit = machine.uploads.credit
    assert credit.holds(FLEET[0].id) and credit.revoke(12.0) == []


@pytest.mark.parametrize("claimed", [kit.PART_BYTES + 1, SEALED, 10 * SEALED])
def test_an_upload_in_parts_that_no_packet_carries_is_refused(claimed):
    machine = opened_of_arrivals()
    header = m.Upload(kit.at(), (0,), describe(big(0)[2], claimed))
    out = says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer))
    assert kit.refused(out) == ["large_parts"] and kit.acks(out) == [("refused", "large_parts")]
    assert machine.uploads.credit.granted_bytes == machine.rounds.spooled_bytes == 0


def test_a_slow_device_is_asked_for_a_quarter_of_the_credit_at_most():
    size = kit.PART_BYTES * NEED_LIMIT
    machine = opened_of_arrivals(size, credit_bytes=size, credit_patience_s=5.0)
    assert needs(offered(machine, 0, size=size)) == [(0, tuple(range(NEED_LIMIT)))]
    assert needs(machine.handle(fx.Timer("credit"), 5.0)) == [(0, (0, 1, 2, 3))]


def test_a_device_is_asked_for_so_many_parts_right_or_wrong_and_no_more():
    machine = opened_of_arrivals()
    assert not machine.uploads.asked(FLEET[0].id)
    offered(machine, 0)
    wrong = msgspec.structs.replace(big(0)[1][0], data=b"")
    for _ in range(4):
        assert machine.uploads.asked(FLEET[0].id)
        assert kit.refused(says(machine, FLEET[0], wrong)) == ["bad_part"]
    assert not machine.uploads.asked(FLEET[0].id)
    for piece in big(0)[1]:  # the right ones still count
        out = says(machine, FLEET[0], piece)
    assert kit.acks(out) == [("held", "")] and not machine.uploads.asked(FLEET[0].id)


def test_the_last_part_again_and_again_is_refused_and_asks_for_nothing():
    machine = opened_of_arrivals()
    offered(machine, 0)
    first, *_, last = big(0)[1]
    assert machine.uploads.asked(FLEET[0].id) == (1, 4)
    for _ in range(50):
        out = says(machine, FLEET[0], last)
        assert kit.refused(out) == ["out_of_turn"] and needs(out) == []
    says(machine, FLEET[0], first)  # what counts is followed by one request, and by no more
    asked = [need for _ in range(50) for need in needs(says(machine, FLEET[0], last))]
    assert asked == [(0, (1, 2, 3))] and machine.uploads.credit.holds(FLEET[0].id)
    for piece in big(0)[1][1:]:
        out = says(machine, FLEET[0], piece)
    assert kit.acks(out) == [("held", "")]


PATIENCE_S = 5.0


def credit(limit_bytes=1000):
    return Credit(limit_bytes, PATIENCE_S)


def test_however_many_are_slow_the_others_have_most_of_the_credit():
    it = credit()
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
    it, now_s = credit(), 0.0
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
