"""One-time claims: each admits one box, once, under its name, and says nothing to others."""

import json
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edgeveil.claim import MESSAGE_BYTES, ClaimAnswer, ClaimRequest, claimed_key_id, key_id
from edgeveil.crypto.authorities import Authority, new_key
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil_proxy.claims import ClaimBook, ClaimBookError, ClaimDesk
from edgeveil_proxy.registry import Registry

PROXY = SigningKey.generate()
HOUR_S = 3600.0
REFUSED, WAITING, ADMITTED = "refused", "waiting", "admitted"


class Box:
    def __init__(self):
        self.signing = SigningKey.generate()
        self.enrolment = Enrolment.make(self.signing, OpeningKey.generate())
        self.id = self.enrolment.device_id
        self.new_key()

    def new_key(self):
        self.key = new_key().public_key()
        self.point = self.key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def asks(self, claim):
        return ClaimRequest.make(claim, self.enrolment, self.point).to_bytes()

    def renews(self):
        return self.asks(self.signing)


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
    def made(registry=registry, **changes):
        settings = {"certificate_days": 9, "approved_by_operator": False, "per_minute": 100}
        settings |= changes
        return ClaimDesk(book, registry, authority, lambda: PROXY, clock=clock, **settings)

    return made


@pytest.fixture
def desk(make_desk):
    return make_desk()


def ask(desk, raw, sender=None):
    sender = claimed_key_id(raw) if sender is None else sender
    desk.look()
    return desk.answer(sender, raw) if desk.takes(sender, raw) else None


def said(desk, raw, sender=None):
    return ClaimAnswer.from_bytes(ask(desk, raw, sender), PROXY.public())


def verdict(desk, raw, sender=None):
    return said(desk, raw, sender).verdict


def certificate(answer):
    return x509.load_pem_x509_certificate(answer.certificate.encode())


def claim_of(book, name="ward-1", valid_s=HOUR_S):
    ((_, key),) = book.add([name], valid_s)
    return key


def test_a_claim_admits_one_box_under_its_name_and_gives_it_certificates(
    book, registry, authority, desk
):
    box, claim = Box(), claim_of(book)
    answer = said(desk, box.asks(claim))
    assert (answer.verdict, answer.device_id) == (ADMITTED, box.id)
    shown = certificate(answer)
    shown.verify_directly_issued_by(authority.certificate)
    assert shown.public_key() == box.key
    assert shown.subject.rfc4514_string() == f"CN={box.id}"
    assert [(one.device_id, one.note) for one in registry.devices()] == [(box.id, "ward-1")]
    box.new_key()
    assert certificate(said(desk, box.asks(claim))).serial_number != shown.serial_number
    refused = said(desk, Box().asks(claim))
    assert (refused.verdict, refused.certificate) == (REFUSED, "")


def test_expired_withdrawn_unknown_and_replaced_claims_are_refused(book, clock, registry, desk):
    late, gone, replaced = (claim_of(book, name) for name in ("late", "gone", "twice"))
    book.withdraw("gone")
    claim_of(book, "twice")
    for key in (gone, replaced, SigningKey.generate()):
        assert verdict(desk, Box().asks(key)) == REFUSED
    clock.now_s += HOUR_S
    assert verdict(desk, Box().asks(late)) == REFUSED
    assert registry.devices() == () and desk.refused == 4


def test_no_claim_is_made_or_withdrawn_for_a_name_that_a_device_has(book, desk):
    assert verdict(desk, Box().asks(claim_of(book))) == ADMITTED
    with pytest.raises(ClaimBookError):
        book.add(["ward-9", "ward-1"], HOUR_S)
    assert [one.name for one in book.all()] == ["ward-1"], "all or none"
    with pytest.raises(ClaimBookError):
        book.withdraw("ward-1")


def test_the_operator_may_have_the_last_word(book, registry, make_desk):
    box, claim = Box(), claim_of(book)
    desk = make_desk(approved_by_operator=True)
    assert verdict(desk, box.asks(claim)) == WAITING
    assert registry.devices() == ()
    assert verdict(desk, Box().asks(claim)) == REFUSED, "it is the first one's"
    book.approve("ward-1")
    assert verdict(desk, box.asks(claim)) == ADMITTED
    book.disapprove(box.id)  # taken out: an earlier word admits nobody
    assert verdict(desk, box.asks(claim)) == WAITING


def test_what_is_not_signed_gets_no_answer(book, desk):
    claim, box, other = claim_of(book), Box(), Box()
    request = ClaimRequest.from_bytes(box.asks(claim))
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


def test_strangers_take_nothing_from_who_is_known(book, make_desk):
    """However much comes under keys that nobody gave out, claims and devices are answered."""
    desk, claim, box = make_desk(per_minute=2), claim_of(book), Box()
    for number in range(60):
        ask(desk, junk(number))
    assert desk.dropped >= 57
    assert verdict(desk, box.asks(claim)) == ADMITTED
    assert verdict(desk, box.renews(), box.id) == ADMITTED
    assert desk.dropped_by_sender() == [{"sender": "", "dropped": desk.dropped}]


def test_nobody_asks_on_the_topic_of_another_or_renews_without_a_claim(book, registry, desk):
    box, other, claim = Box(), Box(), claim_of(book)
    assert ask(desk, box.asks(claim), key_id(SigningKey.generate().public())) is None
    assert ask(desk, box.asks(claim), box.id) is None, "a claim comes under its own key"
    assert all(one.device is None for one in book.all())
    assert verdict(desk, box.asks(claim)) == ADMITTED
    assert ask(desk, box.renews(), other.id) is None
    assert desk.refused == 3
    assert verdict(desk, other.renews()) == REFUSED, "it has claimed nothing"
    registry.admit(other.enrolment)
    assert verdict(desk, other.renews()) == REFUSED


def test_the_same_request_gets_its_certificate_again_and_a_later_one_or_a_renewal_another(
    book, clock, registry, desk
):
    """Or certificates, and their numbers, would run on with what is only repeated."""
    box, claim = Box(), claim_of(book)
    first = said(desk, box.asks(claim))
    assert said(desk, box.asks(claim)) == first and [one.issued for one in book.all()] == [1]
    clock.now_s += HOUR_S
    assert certificate(said(desk, box.asks(claim))) != certificate(first)
    clock.now_s += 400 * 24 * HOUR_S
    renewed = certificate(said(desk, box.renews()))
    assert renewed.serial_number != certificate(first).serial_number
    assert renewed.public_key() == box.key
    registry.revoke(box.id)
    assert verdict(desk, box.asks(claim)) == verdict(desk, box.renews()) == REFUSED


@pytest.mark.parametrize("renews", [True, False])
def test_after_a_registry_was_lost_a_used_claim_admits_by_the_operator_s_word_alone(
    book, desk, make_desk, tmp_path, renews
):
    box, claim = Box(), claim_of(book)
    assert verdict(desk, box.asks(claim)) == ADMITTED
    again = box.renews() if renews else box.asks(claim)
    empty = Registry(tmp_path / "rebuilt.sqlite", limit=3)
    desk = make_desk(empty)
    assert verdict(desk, again) == WAITING and empty.devices() == ()
    book.approve("ward-1")
    assert verdict(desk, again) == ADMITTED
    assert [one.device_id for one in empty.devices()] == [box.id]
    empty.close()
