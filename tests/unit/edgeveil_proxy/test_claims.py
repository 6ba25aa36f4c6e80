"""One-time claims: each admits one box, once, under its name, and says nothing to others."""

import json
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edgeveil.claim import (
    MESSAGE_BYTES,
    ClaimAnswer,
    ClaimRequest,
    claimed_key_id,
    key_id,
)
from edgeveil.crypto.authorities import Authority, new_key
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil_proxy.claims import ClaimBook, ClaimBookError, ClaimDesk
from edgeveil_proxy.registry import Registry

PROXY = SigningKey.generate()
HOUR_S = 3600.0


class Box:
    """A box with keys of its own."""

    def __init__(self):
        self.signing = SigningKey.generate()
        self.enrolment = Enrolment.make(self.signing, OpeningKey.generate())
        self.id = self.enrolment.device_id
        self.key = new_key().public_key()
        self.point = self.key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def asks(self, claim):
        return ClaimRequest.make(claim, self.enrolment, self.point).to_bytes()


class Clock:
    now_s = 1_000_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def registry(tmp_path):
    found = Registry(tmp_path / "registry.sqlite", limit=3)
    yield found
    found.close()


@pytest.fixture
def book(tmp_path, clock):
    found = ClaimBook(tmp_path / "claims.sqlite", clock)
    yield found
    found.close()


@pytest.fixture
def authority():
    return Authority.make("claims")


@pytest.fixture
def make_desk(book, registry, authority, clock):
    def made(**changes):
        settings = {"certificate_days": 9, "approved_by_operator": False, "per_minute": 100}
        settings |= changes
        return ClaimDesk(book, registry, authority, lambda: PROXY, clock=clock, **settings)

    return made


def ask(desk, raw, sender=None):
    """What the proxy's connection does with a request."""
    sender = claimed_key_id(raw) if sender is None else sender
    desk.look()
    return desk.answer(sender, raw) if desk.takes(sender, raw) else None


def said(raw):
    return ClaimAnswer.from_bytes(raw, PROXY.public())


def claim_of(book, name="ward-1", valid_s=HOUR_S):
    ((_, key),) = book.add([name], valid_s)
    return key


def test_a_claim_admits_a_box_under_its_name_and_gives_it_a_certificate(
    book, registry, authority, make_desk
):
    box, claim = Box(), claim_of(book)
    answer = said(ask(make_desk(), box.asks(claim)))
    assert (answer.verdict, answer.device_id) == ("admitted", box.id)
    shown = x509.load_pem_x509_certificate(answer.certificate.encode())
    shown.verify_directly_issued_by(authority.certificate)
    assert shown.public_key() == box.key
    assert shown.subject.rfc4514_string() == f"CN={box.id}"
    assert [(one.device_id, one.note) for one in registry.devices()] == [(box.id, "ward-1")]


def test_the_same_box_may_ask_again_and_no_other(book, make_desk):
    box, other, claim = Box(), Box(), claim_of(book)
    desk = make_desk()
    first = said(ask(desk, box.asks(claim)))
    box.point = new_key().public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    second = said(ask(desk, box.asks(claim)))
    serials = {
        x509.load_pem_x509_certificate(one.certificate.encode()).serial_number
        for one in (first, second)
    }
    assert len(serials) == 2
    refused = said(ask(desk, other.asks(claim)))
    assert (refused.verdict, refused.why) == ("refused", "the claim was used by another device")
    assert refused.certificate == ""


def test_expired_withdrawn_and_unknown_claims_are_refused(book, clock, registry, make_desk):
    desk = make_desk()
    late, gone = claim_of(book, "late"), claim_of(book, "gone")
    book.withdraw("gone")
    clock.now_s += HOUR_S
    told = [said(ask(desk, Box().asks(key))).why for key in (late, gone, SigningKey.generate())]
    assert told == ["the claim has expired", "the claim is unknown", "the claim is unknown"]
    assert registry.devices() == ()
    assert desk.refused == 3


def test_a_new_claim_of_a_name_ends_the_one_before_but_no_used_one(book, make_desk):
    desk = make_desk()
    first, second = claim_of(book), claim_of(book)
    assert said(ask(desk, Box().asks(first))).verdict == "refused"
    box = Box()
    assert said(ask(desk, box.asks(second))).verdict == "admitted"
    with pytest.raises(ClaimBookError, match=f"is device {box.id} already"):
        book.add(["ward-9", "ward-1"], HOUR_S)
    assert [one.name for one in book.all()] == ["ward-1"], "all or none"
    with pytest.raises(ClaimBookError, match="no unused claim"):
        book.withdraw("ward-1")


def test_the_operator_may_have_the_last_word(book, registry, make_desk):
    box, claim = Box(), claim_of(book)
    desk = make_desk(approved_by_operator=True)
    assert said(ask(desk, box.asks(claim))).verdict == "waiting"
    assert registry.devices() == ()
    assert said(ask(desk, Box().asks(claim))).verdict == "refused", "it is the first one's"
    book.approve("ward-1")
    assert said(ask(desk, box.asks(claim))).verdict == "admitted"
    book.disapprove(box.id)  # taken out: an earlier word admits nobody
    assert said(ask(desk, box.asks(claim))).verdict == "waiting"


def test_what_is_not_signed_gets_no_answer(book, make_desk):
    desk, claim, box = make_desk(), claim_of(book), Box()
    request = ClaimRequest.from_bytes(box.asks(claim))
    other = Box()
    plain = json.loads(request.to_bytes())
    for raw in (
        replace(request, tls_key=other.point).to_bytes(),
        replace(request, enrolment=other.enrolment).to_bytes(),
        replace(request, claim=SigningKey.generate().public()).to_bytes(),
        b"",
        b"{}",
        b"[" * 5000,
        b"x" * (MESSAGE_BYTES + 1),
        json.dumps(plain | {"tls_key": "00"}).encode(),
        json.dumps(plain | {"claim": 3}).encode(),
        json.dumps(plain | {"enrolment": []}).encode(),
    ):
        assert ask(desk, raw) is None
    assert (desk.refused, desk.dropped) == (9, 1), "one is too long to be looked at"
    assert all(one.device is None for one in book.all())


def junk(number):
    return [b"j", b"junk" * 2049, Box().asks(SigningKey.generate())][number % 3]


def test_strangers_take_nothing_from_who_is_known(book, clock, make_desk):
    """However much comes under keys that nobody gave out, claims and devices are answered."""
    desk, claim, box = make_desk(per_minute=2), claim_of(book), Box()
    for number in range(60):
        ask(desk, junk(number))
    assert desk.dropped >= 57
    assert said(ask(desk, box.asks(claim))).verdict == "admitted"
    assert said(ask(desk, renewal(box), box.id)).verdict == "admitted"
    ((who, count),) = [(one["sender"], one["dropped"]) for one in desk.dropped_by_sender()]
    assert (who, count) == ("", desk.dropped)


def test_one_sender_s_flood_takes_nothing_from_another_and_is_counted_under_its_name(
    book, clock, make_desk
):
    desk, first, second = make_desk(), Box(), Box()
    claims = claim_of(book, "loud"), claim_of(book, "quiet")
    assert said(ask(desk, first.asks(claims[0]))).verdict == "admitted"
    for _ in range(100):  # a valid renewal, over and over, and a byte, on the topic of its own
        ask(desk, renewal(first), first.id)
        ask(desk, b"x", first.id)
    assert said(ask(desk, second.asks(claims[1]))).verdict == "admitted"
    assert said(ask(desk, renewal(second), second.id)).verdict == "admitted"
    assert desk.dropped_by_sender() == [{"sender": first.id, "dropped": 194}]
    clock.now_s += 5
    assert said(ask(desk, renewal(first), first.id)).verdict == "admitted", "it is not shut out"


def test_nobody_asks_on_the_topic_of_another(book, make_desk):
    desk, box, other = make_desk(), Box(), Box()
    claim = claim_of(book)
    assert ask(desk, box.asks(claim), key_id(SigningKey.generate().public())) is None
    assert ask(desk, box.asks(claim), box.id) is None, "a claim comes under its own key"
    assert all(one.device is None for one in book.all())
    assert said(ask(desk, box.asks(claim))).verdict == "admitted"
    assert ask(desk, renewal(box), other.id) is None
    assert desk.refused == 3


def test_the_same_request_gets_the_certificate_that_was_made_for_it(
    book, clock, registry, make_desk
):
    """Or certificates, and their numbers, would run on with what is only repeated."""
    box, claim, desk = Box(), claim_of(book), make_desk()
    first = said(ask(desk, box.asks(claim)))
    again = said(ask(desk, box.asks(claim)))
    assert again == first and [one.issued for one in book.all()] == [1]
    clock.now_s += HOUR_S
    later = said(ask(desk, box.asks(claim)))
    assert later.certificate != first.certificate and later.verdict == "admitted"
    registry.revoke(box.id)
    assert said(ask(desk, box.asks(claim))).why == "the device was revoked"


def renewal(box):
    return ClaimRequest.make(box.signing, box.enrolment, box.point).to_bytes()


def test_a_device_that_used_a_claim_renews_its_certificate_in_its_own_name(
    book, clock, registry, make_desk
):
    box, claim, desk = Box(), claim_of(book), make_desk()
    first = said(ask(desk, box.asks(claim)))
    clock.now_s += 400 * 24 * HOUR_S
    second = said(ask(desk, renewal(box)))
    shown = [x509.load_pem_x509_certificate(one.certificate.encode()) for one in (first, second)]
    assert shown[0].serial_number != shown[1].serial_number
    assert shown[1].public_key() == box.key
    registry.revoke(box.id)
    assert said(ask(desk, renewal(box))).why == "the device was revoked"


def test_nobody_renews_without_having_claimed(book, registry, make_desk):
    box = Box()
    assert said(ask(make_desk(), renewal(box))).why == "the device has used no claim"
    registry.admit(box.enrolment)
    assert said(ask(make_desk(), renewal(box))).verdict == "refused"


@pytest.mark.parametrize("renews", [True, False])
def test_after_a_registry_was_lost_a_used_claim_admits_by_the_operator_s_word_alone(
    book, registry, authority, make_desk, tmp_path, clock, renews
):
    box, claim = Box(), claim_of(book)
    assert said(ask(make_desk(), box.asks(claim))).verdict == "admitted"
    again = renewal(box) if renews else box.asks(claim)
    empty = Registry(tmp_path / "rebuilt.sqlite", limit=3)
    settings = {"certificate_days": 9, "approved_by_operator": False, "per_minute": 100}
    desk = ClaimDesk(book, empty, authority, lambda: PROXY, clock=clock, **settings)
    assert said(ask(desk, again)).verdict == "waiting" and empty.devices() == ()
    book.approve("ward-1")
    assert said(ask(desk, again)).verdict == "admitted"
    assert [one.device_id for one in empty.devices()] == [box.id]
    empty.close()
