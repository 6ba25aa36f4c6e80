import hashlib
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from edgeveil.crypto.keys import STATE_BYTES, LedgerKey
from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import ClaimedEvent, UnprotectedEvent
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace_event, softmax_event
from edgeveil.privacy.ledger import Ledger, Receipt, decrypted_state, encrypted_state, read_ledger
from edgeveil.privacy.policy import INFER, JobRequest, Limits, price

LINEAR = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
SOFTMAX = softmax_event(10, 4.0)
WIDE = Limits(20, 50, 1e-4, 100)
CLAIM = ClaimedEvent(what="wishart", unit="record", claimed_epsilon=1.0)
KEY = LedgerKey.generate().state_key()


def request(job="j1", rounds=3, softmax=0, extra=(), delta=1e-5):
    return JobRequest(job, delta, (*[LINEAR] * rounds, *[SOFTMAX] * softmax, *extra))


def test_a_retry_returns_the_first_payload_and_costs_nothing(ledger):
    ledger.open_job(request(), WIDE)
    first = ledger.commit("j1", 3, [LINEAR], b"noised")
    spent = ledger.spent("j1")
    drawn = b"drawn again"
    again = ledger.commit("j1", 3, [LINEAR], drawn)
    assert again == first
    assert not again.covers(drawn)
    assert ledger.recall("j1", 3) == (first, b"noised")
    assert ledger.spent("j1") == spent
    assert ledger.recall("j1", 4) is None


def test_a_payload_is_hashed_once_from_the_ledger_to_its_seal(ledger, monkeypatch):
    hashed = []
    monkeypatch.setattr(
        "edgeveil.privacy.ledger._digest",
        lambda payload: hashed.append(payload) or hashlib.sha256(payload).digest(),
    )
    ledger.open_job(request(), WIDE)
    first, other = bytes(8), bytearray(8)
    receipt = ledger.commit("j1", 3, [LINEAR], first)
    assert receipt.covers(first)
    assert hashed == [first]
    again, stored = ledger.recall("j1", 3)
    assert again.covers(stored)
    assert hashed == [first, stored]
    altered = replace(receipt, hashed=other)
    other[0] = 1
    assert not altered.covers(other)  # bytes that can change are hashed each time


def test_what_was_committed_survives_a_new_process(path, ledger):
    ledger.open_job(request(), WIDE)
    receipt = ledger.commit("j1", 1, [LINEAR], b"noised")
    other = Ledger(path, "digits")
    assert other.recall("j1", 1) == (receipt, b"noised")
    assert other.spent().epsilon == ledger.spent().epsilon > 0
    of_another_data_set = Ledger(path, "letters")
    assert of_another_data_set.spent().epsilon == 0
    assert of_another_data_set.recall("j1", 1) is None


def test_the_release_past_the_reserved_participations_is_refused(ledger):
    ledger.open_job(request(rounds=2), WIDE)
    for number in (1, 2):
        ledger.commit("j1", number, [LINEAR], b"a")
    for refused in (
        lambda: ledger.admit("j1", [LINEAR]),
        lambda: ledger.commit("j1", 3, [LINEAR], b"c"),
        lambda: ledger.commit("j1", 3, [replace(LINEAR, what="more")], b"c"),
        lambda: ledger.commit("j2", 1, [LINEAR], b"c"),
        lambda: ledger.open_job(request(rounds=3), WIDE),  # another job under its name
    ):
        with pytest.raises(PrivacyError):
            refused()
    assert ledger.recall("j1", 3) is None
    ledger.open_job(request(rounds=2), WIDE)
    assert len(ledger._account()["j1"].answers) == 2


def test_a_receipt_comes_only_from_the_ledger():
    with pytest.raises(PrivacyError, match="ledger"):
        Receipt("digits", "j1", 1, (LINEAR,), b"", object())


@pytest.mark.parametrize(
    ("limit", "asked"),
    [
        ("max_epsilon_per_job", request(rounds=3)),
        ("lifetime_epsilon", request(rounds=3)),
        ("lifetime_delta", request(rounds=1)),
        ("max_inference_epsilon", request(softmax=2)),
    ],
)
def test_each_limit_refuses_by_its_own_name_and_leaves_no_trace(ledger, limit, asked):
    with pytest.raises(PrivacyError, match=f"policy.{limit}"):
        ledger.open_job(asked, replace(WIDE, **{limit: 1e-6}))
    with pytest.raises(PrivacyError, match="not open"):
        ledger.commit("j1", 1, [LINEAR], b"")
    assert ledger.open_job(asked, WIDE).training.epsilon > 0


def test_an_open_job_holds_its_reservation_and_a_closed_one_without_releases_nothing(ledger):
    whole = ledger.open_job(request("j1"), WIDE).training.epsilon
    limits = replace(WIDE, lifetime_epsilon=1.2 * whole)  # two cost about √2 times as much
    with pytest.raises(PrivacyError, match="lifetime_epsilon"):
        ledger.open_job(request("j2"), limits)
    ledger.close_job("j1")
    assert (ledger.spent().epsilon, ledger.spent().delta) == (0, 0)
    ledger.open_job(request("j2"), limits)
    with pytest.raises(PrivacyError, match="closed"):
        ledger.open_job(request("j1"), WIDE)


def test_a_job_closed_early_counts_its_whole_training_price_for_good(ledger):
    """Its end may follow from what was released: the smaller price would then not hold."""
    whole = ledger.open_job(request("j1", rounds=25, softmax=3), WIDE).training
    ledger.commit("j1", 1, [LINEAR, SOFTMAX], b"")
    assert ledger.spent("j1") == whole
    ledger.close_job("j1")
    assert ledger.spent("j1") == ledger.spent() == whole
    assert ledger.spent("j1", INFER).epsilon == pytest.approx(4)  # pure ε: as released
    with pytest.raises(PrivacyError, match="lifetime_epsilon"):
        ledger.open_job(request("j2", 25), replace(WIDE, lifetime_epsilon=1.1 * whole.epsilon))
    ledger.open_job(request("j2", rounds=0, softmax=1), replace(WIDE, max_inference_epsilon=8.1))


def test_of_several_kinds_of_noise_the_pure_ones_alone_count_as_released(ledger):
    sums = laplace_event("sum", 1, 1, Fraction(1, 2), 1, 0)
    for job in ("pure", "both"):
        ledger.open_job(request(job, rounds=3, extra=(sums,) * 4), WIDE)
        ledger.commit(job, 1, [sums], b"")
        assert ledger.spent(job) == price([sums], 1e-5).training
    ledger.commit("both", 2, [LINEAR], b"")
    for job in ("pure", "both"):
        ledger.close_job(job)
    assert ledger.spent("pure") == price([sums], 1e-5).training
    assert ledger.spent("both") == price([LINEAR] * 3 + [sums] * 4, 1e-5).training


def test_a_planned_claim_that_was_never_released_leaves_the_guarantee(ledger):
    ledger.open_job(request(extra=(CLAIM,)), replace(WIDE, accept_unproven=True))
    ledger.commit("j1", 2, [LINEAR], b"")
    assert ledger.spent() == price([LINEAR] * 3, 1e-5).training
    ledger.commit("j1", 1, [CLAIM], b"")
    assert not ledger.spent("j1").proven


def test_noise_that_hides_a_device_from_none_is_priced_anew_for_a_record_among_others(ledger):
    """With and without one record a device's update may be C either way, 2C apart."""
    wide = replace(WIDE, max_epsilon_per_job=100, lifetime_epsilon=100)
    whole = gaussian_event("update", 2**24, 0.5, 30, grid_bits=24, unit="device")
    apart = gaussian_event("update", 2**24, 1.0, 30, grid_bits=24)
    for job, event in (("updates", whole), ("sums", LINEAR)):
        ledger.open_job(JobRequest(job, 1e-5, (event,)), wide)
        ledger.commit(job, 1, [event], b"")
    alone = ledger.spent("updates")
    assert (alone.unit, alone.epsilon) == ("device", pytest.approx(ledger.spent("sums").epsilon))
    assert alone.record_epsilon == pytest.approx(price([apart], 1e-5).training.epsilon)
    both = ledger.spent()
    assert both.unit == "record"
    assert both.epsilon == pytest.approx(price([apart, LINEAR], 2e-5).training.epsilon, rel=0.01)
    assert ledger.spent("updates").record_epsilon > 2 * alone.epsilon
    with pytest.raises(PrivacyError, match="would take"):
        ledger.check(request("next", rounds=1), replace(wide, lifetime_epsilon=both.epsilon))


def test_unproven_events_need_consent_and_taint_the_data_set_for_good(ledger):
    raw = UnprotectedEvent(what="softmax", unit="device", purpose="infer")
    for job, event, key in (("c", CLAIM, "accept_unproven"), ("r", raw, "accept_unprotected")):
        asked = JobRequest(job, 1e-5, (event,))
        with pytest.raises(PrivacyError, match=key):
            ledger.open_job(asked, WIDE)
        ledger.open_job(asked, replace(WIDE, **{key: True}))
        ledger.commit(job, 1, [event], b"")
        ledger.close_job(job)
    ledger.open_job(request("clean"), WIDE)
    ledger.commit("clean", 1, [LINEAR], b"")
    assert ledger.spent("clean").proven
    assert ledger.spent().status == "none"
    assert not ledger.spent(purpose=INFER).proven
    assert ledger.spent(purpose=INFER).epsilon == math.inf


# --- jobs that a copy of the device answered, by the encrypted state that comes with answers ---


def answered(ledger, job):
    ledger.open_job(request(job, softmax=1), WIDE)
    ledger.commit(job, 1, [LINEAR], b"noised")
    return ledger.encrypted_state(job)


def test_an_encrypted_state_has_one_size_and_only_its_ledger_reads_it(ledger):
    states = answered(ledger, "j1"), ledger.encrypted_state(), ledger.encrypted_state("unknown")
    assert {*map(len, states)} == {STATE_BYTES}
    assert ledger.encrypted_state("j1") != ledger.encrypted_state("j1")
    state, other = encrypted_state(KEY, request()), LedgerKey.generate().state_key()
    assert decrypted_state(KEY, state) == request()
    assert decrypted_state(KEY, encrypted_state(KEY, None)) is None
    for key, raw in ((other, state), (KEY, state[:-1] + b"!"), (KEY, b""), (KEY, b"short")):
        with pytest.raises(PrivacyError):
            decrypted_state(key, raw)
    # A request that does not fit is unreadable, and not forgotten.
    events = tuple(UnprotectedEvent(what=f"{n:x}" * 9, unit="record") for n in range(4000))
    state = encrypted_state(KEY, JobRequest("j1", 1e-5, events))
    assert len(state) == STATE_BYTES
    with pytest.raises(PrivacyError):
        decrypted_state(KEY, state)


def test_a_job_that_a_copy_answered_counts_with_all_that_it_reserved(ledger, path):
    elsewhere = request("elsewhere", softmax=1)
    state = encrypted_state(ledger._chain.key.state_key(), elsewhere)
    ledger.count_answer_of_copy("elsewhere", state)
    whole = price(elsewhere.events, 1e-5)
    assert ledger.spent() == whole.training
    assert ledger.spent(purpose=INFER) == whole.inference
    with pytest.raises(PrivacyError, match="closed on this device"):
        ledger.open_job(elsewhere, WIDE)
    account = read_ledger(path).account("digits")
    assert account["elsewhere"].elsewhere and not account["elsewhere"].answers


def test_a_known_job_counts_once_and_whole_and_goes_no_further(ledger):
    ledger.count_answer_of_copy("j1", ledger.encrypted_state())  # a dummy's
    assert ledger.spent().epsilon == 0 and "j1" not in ledger._account()
    state = answered(ledger, "j1")
    before = ledger.spent("j1", INFER).epsilon
    for _ in range(2):
        ledger.count_answer_of_copy("j1", state)
    assert ledger.spent("j1") == price(request("j1", softmax=1).events, 1e-5).training
    assert ledger.spent("j1", INFER).epsilon > before == 0
    with pytest.raises(PrivacyError, match="not open"):
        ledger.admit("j1", [LINEAR])
    with pytest.raises(PrivacyError, match="released and forgotten"):
        ledger.recall("j1", 1)


@pytest.mark.parametrize("damaged", [True, False])
def test_after_answers_that_nobody_knows_nothing_is_left(ledger, path, damaged):
    if damaged:
        ledger.count_answer_of_copy("j1", bytes(STATE_BYTES))
    else:
        ledger.count_unknown_answers()
        ledger.count_unknown_answers()
    assert not ledger.spent().proven and not ledger.spent(purpose=INFER).proven
    with pytest.raises(PrivacyError, match="are unknown, so nothing is left"):
        ledger.open_job(request("next"), WIDE)
    assert read_ledger(path).links == 1
