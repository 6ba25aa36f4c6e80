"""The proxy's upload side: one complete, well-formed upload per admitted identity and round."""

from __future__ import annotations

import hashlib

import pytest
from protocol_kit import (
    PART_BYTES,
    SEALED_BYTES,
    at,
    bodies,
    commit_of,
    manifest,
    member,
    of,
    offer,
    parts_of,
    refused,
    reports,
    stored,
    upload_of,
)
from proxy_bench import FLEET, MODEL, cloud_says, open_round, proxy, says, to_cloud, upload

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Ack, Blob, Decline, Upload
from edgeveil.protocol.proxy_rounds import CollectionState, UploadKept
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.protocol.transfer import describe

BIG = manifest(MODEL, groups=(manifest(MODEL).groups[0].__class__("layer0", 4000),))


def acks(effects):
    return [(ack.status, ack.reason) for ack in bodies(effects, Ack)]


def opened(**settings):
    machine = proxy(**settings)
    open_round(machine, manifest(MODEL, selected=6, quorum=5))
    return machine


def collection(machine):
    return machine.rounds.collections[at(1, 1)]


def test_an_upload_is_durable_before_it_is_acknowledged():
    machine = opened()
    out = upload(machine, 0)
    kinds = [type(effect) for effect in out]
    assert kinds.index(fx.Persist) < kinds.index(fx.Send)
    part, item = stored(out)
    assert isinstance(part, UploadPart) and hashlib.sha256(part.data).digest() == item.held.digest
    assert isinstance(item, UploadKept) and item.device == FLEET[0].id
    assert of(out, fx.Send)[0].to == fx.DeviceAddress(FLEET[0].id)
    assert acks(out) == [("held", "")]
    assert reports(out)["answered"] == {
        "round": 1,
        "uploads": 1,
        "declined": 0,
        "causes": {},
        "selected": 6,
    }


def test_the_same_upload_again_is_acknowledged_again_and_counted_once():
    machine = opened()
    upload(machine, 0)
    out = upload(machine, 0)
    assert acks(out) == [("held", "")] and stored(out) == []
    assert len(collection(machine).uploads) == 1


def test_a_second_upload_of_one_identity_is_refused():
    machine = opened()
    upload(machine, 0)
    kept = dict(collection(machine).uploads)
    header, data = upload_of(at(), 77)
    out = says(machine, FLEET[0], offer(header, data, FLEET[0].signer))
    assert refused(out) == ["duplicate_upload"] and acks(out) == [("duplicate", "duplicate_upload")]
    assert collection(machine).uploads == kept


@pytest.mark.parametrize("groups", [(1, 0), (0, 0), (0, 1, 2, 3), (3,), (0, 2**31)])
def test_wrong_groups_are_refused(groups):
    machine = opened()
    blob = describe(bytes(sum(SEALED_BYTES)), PART_BYTES)
    out = says(machine, FLEET[0], offer(Upload(at(), groups, blob), b"", FLEET[0].signer))
    assert refused(out) == ["wrong_groups"] and acks(out) == [("refused", "wrong_groups")]


@pytest.mark.parametrize("extra", [-1, 1, 2**33])
def test_another_than_the_public_size_is_refused(extra):
    machine = opened()
    blob = Blob(b"x" * 32, SEALED_BYTES[0] + extra, PART_BYTES)
    out = says(machine, FLEET[0], offer(Upload(at(), (0,), blob), b"", FLEET[0].signer))
    assert refused(out) == ["wrong_size"] and acks(out) == [("refused", "wrong_size")]
    assert len(machine.uploads.arriving) == 0


def test_part_of_the_groups_is_an_upload_too():
    assert acks(upload(opened(), 0, groups=(0, 2))) == [("held", "")]


@pytest.mark.parametrize("where", [at(2), at(1, 2), at(job=b"K" * 16)])
def test_an_upload_for_a_round_that_is_not_open_is_refused(where):
    out = upload(opened(), 0, where=where)
    assert refused(out) == ["closed_round"] and acks(out) == [("closed", "closed_round")]


def test_an_upload_after_the_hand_over_is_refused_and_an_early_one_still_known():
    machine = proxy()
    open_round(machine, manifest(MODEL, selected=3))
    for number in range(3):
        upload(machine, number)
    assert collection(machine).state is CollectionState.HANDING_OVER
    assert acks(upload(machine, 3)) == [("closed", "closed_round")]
    assert acks(upload(machine, 2)) == [("held", "")]
    assert {held.digest for held in collection(machine).uploads.values()} == {b""}


def test_an_upload_under_another_s_name_is_refused():
    machine = opened()
    header, data = upload_of(at(), 1)
    signed_by_me = offer(header, data, FLEET[0].signer)
    assert refused(says(machine, FLEET[1], signed_by_me)) == ["unknown_signer"]
    stranger = member(99)
    out = says(machine, stranger, offer(header, data, stranger.signer))
    assert refused(out) == ["unknown_signer"] and bodies(out, Ack) == []
    assert collection(machine).uploads == {}


def test_a_large_upload_comes_in_parts_of_its_own_device_only():
    machine = proxy()
    open_round(machine, BIG)
    data = bytes(4048)
    header = Upload(at(), (0,), describe(data, PART_BYTES))
    says(machine, FLEET[0], offer(header, b"", FLEET[0].signer))
    pieces = parts_of(header, data)
    assert refused(says(machine, FLEET[1], pieces[0])) == ["unknown_blob"]
    for piece in pieces[:-1]:
        out = says(machine, FLEET[0], piece)
        assert of(out, fx.Send) == [] and len(stored(out)) == 1
    assert acks(says(machine, FLEET[0], pieces[-1])) == [("held", "")]
    assert machine.disk.uploads[at()] == data


def test_a_corrupt_upload_is_not_held_and_can_be_sent_again():
    machine = opened()
    header, data = upload_of(at(), 1)
    wrong = offer(header, data[:-1] + b"\xff", FLEET[0].signer)
    assert refused(says(machine, FLEET[0], wrong)) == ["bad_digest"]
    assert collection(machine).uploads == {}
    assert acks(upload(machine, 0)) == [("held", "")]


def test_an_upload_in_crumbs_is_refused():
    machine = opened()
    blob = Blob(b"x" * 32, SEALED_BYTES[0], 1)
    out = says(machine, FLEET[0], offer(Upload(at(), (0,), blob), b"", FLEET[0].signer))
    assert refused(out) == ["tiny_parts"] and acks(out) == [("refused", "tiny_parts")]


def test_an_upload_above_the_proxy_s_limit_is_refused_for_good():
    out = upload(opened(upload_bytes=sum(SEALED_BYTES) - 1), 0)
    assert acks(out) == [("refused", "oversized_blob")]


# --- decline ------------------------------------------------------------------------------


def decline(machine, number, where=None):
    who = FLEET[number]
    return says(machine, who, who.signer.note(Decline(where or at())))


def test_declining_counts_once_and_is_final():
    machine = opened()
    for _ in range(2):
        assert reports(decline(machine, 0))["answered"]["declined"] == 1
    assert acks(upload(machine, 0)) == [("closed", "closed_round")]


def test_an_upload_cannot_be_declined_afterwards():
    machine = opened()
    upload(machine, 0)
    assert refused(decline(machine, 0)) == ["closed_round"]
    assert collection(machine).declined == {}


def test_nobody_both_declines_and_uploads():
    """Declining between the first and the last part must not count a device twice."""
    machine = proxy()
    open_round(machine, BIG)
    data = bytes(4048)
    header = Upload(at(), (0,), describe(data, PART_BYTES))
    says(machine, FLEET[0], offer(header, b"", FLEET[0].signer))
    decline(machine, 0)
    for piece in parts_of(header, data):
        says(machine, FLEET[0], piece)
    assert collection(machine).uploads == {} and len(collection(machine).declined) == 1


@pytest.mark.parametrize("where", [at(2), at(job=b"K" * 16)])
def test_declining_a_round_that_is_not_open_is_refused(where):
    assert refused(decline(opened(), 0, where)) == ["closed_round"]


# --- the spool's bound ----------------------------------------------------------------------


def test_the_spool_has_a_bound():
    machine = opened(spool_bytes=2 * sum(SEALED_BYTES))
    for number in range(2):
        assert acks(upload(machine, number)) == [("held", "")]
    assert refused(upload(machine, 2)) == ["spool_full"]


def test_a_full_spool_is_no_answer_and_the_device_s_next_offer_may_find_room():
    machine = opened(spool_bytes=3 * sum(SEALED_BYTES))
    open_round(machine, manifest(MODEL, at(job=b"K" * 16)))
    for number in range(3):
        upload(machine, number)
    out = upload(machine, 0, where=at(job=b"K" * 16))
    assert refused(out) == ["spool_full"] and of(out, fx.Send) == []
    record, data = commit_of(at(), [])
    cloud_says(machine, offer(record, data))
    assert acks(upload(machine, 0, where=at(job=b"K" * 16))) == [("held", "")]


def test_uploads_under_way_reserve_their_place_with_their_first_part():
    machine = proxy(spool_bytes=2 * 4048)
    open_round(machine, BIG)
    header = Upload(at(), (0,), describe(bytes(4048), PART_BYTES))
    first, second, *_ = parts_of(header, bytes(4048))
    for who in FLEET[:4]:
        assert refused(says(machine, who, offer(header, b"", who.signer))) == []
    assert machine.spool_bytes == 0  # an offer alone keeps nobody out
    got = [refused(says(machine, who, first)) for who in FLEET[:3]]
    assert got == [[], [], ["spool_full"]]
    assert machine.spool_bytes == 2 * 4048
    assert refused(says(machine, FLEET[0], second)) == []  # its own place is not counted twice
    late = says(machine, FLEET[4], offer(header, b"", FLEET[4].signer))
    assert refused(late) == ["spool_full"] and of(late, fx.Send) == []


def test_offers_without_parts_do_not_fill_the_spool_before_the_others_uploads():
    machine = proxy(spool_bytes=3 * 4048)
    open_round(machine, BIG)
    data = bytes(4048)
    header = Upload(at(), (0,), describe(data, PART_BYTES))
    for who in FLEET:
        says(machine, who, offer(header, b"", who.signer))
    for who in FLEET[3:]:
        for piece in parts_of(header, data):
            out = says(machine, who, piece)
        assert acks(out) == [("held", "")]


def test_an_unfinished_upload_gives_its_place_back_when_the_round_ends():
    machine = proxy(spool_bytes=4048)
    open_round(machine, BIG)
    header = Upload(at(), (0,), describe(bytes(4048), PART_BYTES))
    says(machine, FLEET[0], offer(header, b"", FLEET[0].signer))
    record, data = commit_of(at(), [])
    cloud_says(machine, offer(record, data))
    open_round(machine, manifest(MODEL, at(2)))
    assert acks(upload(machine, 1, where=at(2))) == [("held", "")]


def test_nothing_about_an_upload_goes_to_the_cloud_while_the_round_is_open():
    machine = opened()
    for number in range(4):
        assert to_cloud(upload(machine, number)) == []
    assert to_cloud(decline(machine, 5)) == []
