"""The proxy's upload side: one complete, well-formed upload per admitted identity and round."""

import hashlib
import zlib

import msgspec
import protocol_kit as kit
from hypothesis import given
from hypothesis import strategies as st
from proxy_bench import FLEET, MODEL, cloud_says, hello, open_round, proxy, says, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_rounds import UploadKept
from edgeveil.protocol.proxy_uploads import SLOW_SHARE, Credit, UploadPart
from edgeveil.protocol.transfer import NEED_LIMIT, describe

BIG = kit.manifest(MODEL, groups=(m.Group("layer0", 4000),))
BIG_BYTES = bytes(4048)
BIG_UPLOAD = m.Upload(kit.at(), (0,), describe(BIG_BYTES, kit.PART_BYTES))


def opened(**settings):
    machine = proxy(**settings)
    open_round(machine, kit.manifest(MODEL, selected=6, quorum=5))
    return machine


def collection(machine):
    return machine.rounds.collections[kit.at(1, 1)]


def test_an_upload_is_durable_before_it_is_acknowledged():
    out = upload(opened(), 0)
    kinds = [type(effect) for effect in out]
    assert kinds.index(fx.Persist) < kinds.index(fx.Send)
    part, item = kit.stored(out)
    assert isinstance(part, UploadPart) and hashlib.sha256(part.data).digest() == item.held.digest
    assert isinstance(item, UploadKept) and item.device == FLEET[0].id
    assert kit.of(out, fx.Send)[0].to == fx.DeviceAddress(FLEET[0].id)
    assert kit.acks(out) == [("held", "")]
    told = {"round": 1, "uploads": 1, "declined": 0, "causes": {}, "selected": 6}
    assert kit.reports(out)["answered"] == told


def test_a_second_upload_of_one_identity_or_one_with_wrong_groups_is_refused():
    machine = opened()
    upload(machine, 0)
    kept = dict(collection(machine).uploads)
    out = says(machine, FLEET[0], kit.offer(*kit.upload_of(kit.at(), 77), FLEET[0].signer))
    assert kit.refused(out) == ["duplicate_upload"]
    assert kit.acks(out) == [("duplicate", "duplicate_upload")]
    blob = describe(bytes(sum(kit.SEALED_BYTES)), kit.PART_BYTES)
    for groups in ((1, 0), (0, 0), (0, 1, 2, 3), (3,), (0, 2**31)):
        header = m.Upload(kit.at(), groups, blob)
        out = says(machine, FLEET[1], kit.offer(header, b"", FLEET[1].signer))
        assert kit.refused(out) == ["wrong_groups"]
        assert kit.acks(out) == [("refused", "wrong_groups")]
    assert collection(machine).uploads == kept


def test_an_upload_under_another_s_name_is_refused():
    machine = opened()
    header, data = kit.upload_of(kit.at(), 1)
    signed_by_me = kit.offer(header, data, FLEET[0].signer)
    assert kit.refused(says(machine, FLEET[1], signed_by_me)) == ["unknown_signer"]
    stranger = kit.member(99)
    out = says(machine, stranger, kit.offer(header, data, stranger.signer))
    assert kit.refused(out) == ["unknown_signer"] and kit.bodies(out, m.Ack) == []
    assert collection(machine).uploads == {}


def offer_big(machine, who=FLEET[0]):
    return says(machine, who, kit.offer(BIG_UPLOAD, b"", who.signer))


def test_a_large_upload_comes_in_parts_of_its_own_device_only():
    machine = proxy()
    open_round(machine, BIG)
    offer_big(machine)
    *pieces, last = kit.parts_of(BIG_UPLOAD, BIG_BYTES)
    assert kit.refused(says(machine, FLEET[1], pieces[0])) == ["unknown_blob"]
    for piece in pieces:
        out = says(machine, FLEET[0], piece)
        assert kit.of(out, fx.Send) == [] and len(kit.stored(out)) == 1
    assert kit.acks(says(machine, FLEET[0], last)) == [("held", "")]
    assert machine.disk.uploads[kit.at()] == BIG_BYTES


def test_an_upload_above_the_proxy_s_limit_is_refused_for_good():
    out = upload(opened(upload_bytes=sum(kit.SEALED_BYTES) - 1), 0)
    assert kit.acks(out) == [("refused", "oversized_blob")]


def decline(machine, number):
    return says(machine, FLEET[number], FLEET[number].signer.note(m.Decline(kit.at())))


def test_nobody_both_declines_and_uploads():
    """Declining between the first and the last part must not count a device twice."""
    machine = proxy()
    open_round(machine, BIG)
    offer_big(machine)
    decline(machine, 0)
    for piece in kit.parts_of(BIG_UPLOAD, BIG_BYTES):
        says(machine, FLEET[0], piece)
    assert collection(machine).uploads == {} and len(collection(machine).declined) == 1


def test_a_full_spool_is_no_answer_and_the_device_s_next_offer_may_find_room():
    machine, other = opened(spool_bytes=3 * sum(kit.SEALED_BYTES)), kit.at(job=b"K" * 16)
    open_round(machine, kit.manifest(MODEL, other))
    for number in range(3):
        upload(machine, number)
    out = upload(machine, 0, where=other)
    assert kit.refused(out) == ["spool_full"] and kit.of(out, fx.Send) == []
    cloud_says(machine, kit.offer(*kit.commit_of(kit.at(), [])))
    assert kit.acks(upload(machine, 0, where=other)) == [("held", "")]


def test_uploads_under_way_reserve_their_place_with_their_first_part():
    machine = proxy(spool_bytes=2 * 4048)
    open_round(machine, BIG)
    first, second, *_ = kit.parts_of(BIG_UPLOAD, BIG_BYTES)
    assert [kit.refused(offer_big(machine, who)) for who in FLEET[:4]] == [[]] * 4
    assert machine.rounds.spooled_bytes == 0  # an offer alone keeps nobody out
    got = [kit.refused(says(machine, who, first)) for who in FLEET[:3]]
    assert got == [[], [], ["spool_full"]]
    assert machine.rounds.spooled_bytes == 2 * 4048
    assert kit.refused(says(machine, FLEET[0], second)) == []  # its own place is not counted twice
    late = offer_big(machine, FLEET[4])
    assert kit.refused(late) == ["spool_full"] and kit.of(late, fx.Send) == []
    cloud_says(machine, kit.offer(*kit.commit_of(kit.at(), [])))  # they give their places back
    open_round(machine, kit.manifest(MODEL, kit.at(2)))
    assert kit.acks(upload(machine, 1, where=kit.at(2))) == [("held", "")]


SEALED = 4048


def opened_of_arrivals(sealed=SEALED, **settings):
    """Where there is room for one upload at a time, unless `settings` say more."""
    machine = proxy(**{"credit_bytes": 4 * kit.PART_BYTES, "credit_patience_s": 5.0} | settings)
    group = m.Group("layer0", sealed - m.SEAL_OVERHEAD_BYTES)
    open_round(machine, kit.manifest(MODEL, groups=(group,), selected=6, quorum=6))
    return machine


def come(machine, number, pieces, now_s=0.0):
    """These parts, one after the other; all that follows."""
    return [e for piece in pieces for e in says(machine, FLEET[number], piece, now_s)]


def big(number, size=SEALED):
    data = hashlib.shake_256(bytes([number])).digest(size)
    header = m.Upload(kit.at(), (0,), describe(data, kit.PART_BYTES))
    return header, kit.parts_of(header, data), data


def offered(machine, number, now_s=0.0, size=SEALED):
    header, _, _ = big(number, size)
    return says(machine, FLEET[number], kit.offer(header, b"", FLEET[number].signer), now_s)


def needs(effects):
    """(device number, indices) of every request."""
    numbers = {who.id: number for number, who in enumerate(FLEET)}
    sends = [e for e in kit.of(effects, fx.Send) if isinstance(e.message, m.Need)]
    return [(numbers[send.to.id], send.message.indices) for send in sends]


def test_a_repeated_offer_changes_nothing_while_it_waits_or_comes():
    machine, (first, *rest) = opened_of_arrivals(), big(0)[1]
    offered(machine, 0)
    come(machine, 0, [first])
    offered(machine, 1)
    assert offered(machine, 0) == offered(machine, 1) == []
    assert kit.acks(come(machine, 0, rest)) == [("held", "")]


def test_a_silent_device_gives_its_place_to_others_and_is_asked_again():
    machine = opened_of_arrivals()
    offered(machine, 0)
    offered(machine, 1)
    out = machine.handle(fx.Timer("credit"), 5.0)
    assert (1, (0, 1, 2, 3)) in needs(out)
    out += come(machine, 1, big(1)[1], 6.0)
    assert (0, (0,)) in needs(out)  # and for less, among the slow


def test_a_device_that_comes_back_is_asked_again_at_once_and_keeps_what_it_sent():
    machine, (first, *rest) = opened_of_arrivals(), big(0)[1]
    offered(machine, 0)
    come(machine, 0, [first])
    assert needs(hello(machine, FLEET[0])) == [(0, (1, 2, 3))]
    assert machine.uploads.credit.granted_bytes == SEALED - kit.PART_BYTES
    assert kit.acks(come(machine, 0, rest)) == [("held", "")]
    assert machine.uploads.credit.granted_bytes == 0


def test_an_upload_that_is_not_its_digest_begins_anew_behind_the_others():
    machine = opened_of_arrivals()
    offered(machine, 0)
    offered(machine, 1)
    *rest, last = big(0)[1]
    wrong = bytes(len(last.data))
    lie = msgspec.structs.replace(last, data=wrong, crc=zlib.crc32(wrong))
    out = come(machine, 0, (*rest, lie))
    assert kit.refused(out) == ["bad_digest"] and kit.acks(out) == []
    assert needs(out) == [(1, (0, 1, 2, 3))]
    assert needs(come(machine, 1, big(1)[1])) == [(0, (0, 1, 2, 3))]
    assert kit.acks(come(machine, 0, (*rest, last))) == [("held", "")]


def test_another_upload_of_the_device_takes_the_place_of_one_under_way():
    machine = opened_of_arrivals()
    offered(machine, 0)
    come(machine, 0, big(0)[1][:1])
    header, pieces, data = big(9)
    out = says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer))
    assert needs(out) == [(0, (0, 1, 2, 3))] and machine.rounds.spooled_bytes == SEALED
    assert kit.acks(come(machine, 0, pieces)) == [("held", "")]
    assert machine.disk.uploads[kit.at()] == data


def test_neither_a_hello_nor_another_offer_makes_a_slow_device_brisk():
    for another in (True, False):
        machine = opened_of_arrivals()
        offered(machine, 0)
        machine.handle(fx.Timer("credit"), 5.0)
        if another:
            says(machine, FLEET[0], kit.offer(big(9)[0], b"", FLEET[0].signer), 6.0)
        else:
            hello(machine, FLEET[0], 6.0)
        credit = machine.uploads.credit
        assert credit.holds(FLEET[0].id) and credit.revoke(12.0) == []


def test_an_upload_in_parts_that_no_packet_carries_is_refused():
    machine = opened_of_arrivals()
    for claimed in (kit.PART_BYTES + 1, SEALED, 10 * SEALED):
        header = m.Upload(kit.at(), (0,), describe(big(0)[2], claimed))
        out = says(machine, FLEET[0], kit.offer(header, b"", FLEET[0].signer))
        assert kit.refused(out) == ["large_parts"]
        assert kit.acks(out) == [("refused", "large_parts")]
        assert machine.uploads.credit.granted_bytes == machine.rounds.spooled_bytes == 0


def test_a_slow_device_is_asked_for_a_quarter_of_the_credit_at_most():
    size = kit.PART_BYTES * NEED_LIMIT
    machine = opened_of_arrivals(size, credit_bytes=size)
    assert needs(offered(machine, 0, size=size)) == [(0, tuple(range(NEED_LIMIT)))]
    assert needs(machine.handle(fx.Timer("credit"), 5.0)) == [(0, (0, 1, 2, 3))]


def test_a_device_is_asked_for_so_many_parts_right_or_wrong_and_no_more():
    machine, pieces = opened_of_arrivals(), big(0)[1]
    assert not machine.uploads.open_request(FLEET[0].id)
    offered(machine, 0)
    wrong = msgspec.structs.replace(pieces[0], data=b"")
    for _ in range(4):
        assert machine.uploads.open_request(FLEET[0].id)
        assert kit.refused(says(machine, FLEET[0], wrong)) == ["bad_part"]
    assert not machine.uploads.open_request(FLEET[0].id)
    assert kit.acks(come(machine, 0, pieces)) == [("held", "")]  # the right ones still count
    assert not machine.uploads.open_request(FLEET[0].id)


def test_the_last_part_again_and_again_is_refused_and_asks_for_nothing():
    machine, (first, *rest) = opened_of_arrivals(), big(0)[1]
    offered(machine, 0)
    assert machine.uploads.open_request(FLEET[0].id) == (1, 4)
    for _ in range(50):
        out = says(machine, FLEET[0], rest[-1])
        assert kit.refused(out) == ["out_of_turn"] and needs(out) == []
    come(machine, 0, [first])  # what counts is followed by one request, and by no more
    assert needs(come(machine, 0, rest[-1:] * 50)) == [(0, (1, 2, 3))]
    assert machine.uploads.credit.holds(FLEET[0].id)
    assert kit.acks(come(machine, 0, rest)) == [("held", "")]


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
