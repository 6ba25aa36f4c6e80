import math
from dataclasses import replace
from fractions import Fraction

import pytest

from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import ClaimedEvent, UnprotectedEvent
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace_event, softmax_event
from edgeveil.privacy.ledger import Ledger, Receipt
from edgeveil.privacy.policy import INFER, JobRequest, Limits, price

LINEAR = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
SOFTMAX = softmax_event(10, 4.0)
WIDE = Limits(20, 50, 1e-4, 100)


def request(job="j1", rounds=3, softmax=0, extra=(), delta=1e-5):
    return JobRequest(job, delta, (*[LINEAR] * rounds, *[SOFTMAX] * softmax, *extra))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    return Ledger(path, "digits")


def test_a_retry_returns_the_first_payload_and_costs_nothing(ledger):
    ledger.open_job(request(), WIDE)
    first = ledger.commit("j1", 3, [LINEAR], b"noised")
    spent = ledger.spent("j1")
    again = ledger.commit("j1", 3, [LINEAR], b"drawn again")
    assert again == first
    assert not again.covers(b"drawn again")
    assert ledger.recall("j1", 3) == (first, b"noised")
    assert ledger.spent("j1") == spent
    assert ledger.recall("j1", 4) is None


def test_what_was_committed_survives_a_new_process(path, ledger):
    ledger.open_job(request(), WIDE)
    receipt = ledger.commit("j1", 1, [LINEAR], b"noised")
    other = Ledger(path, "digits")
    assert other.recall("j1", 1) == (receipt, b"noised")
    assert other.spent().epsilon == ledger.spent().epsilon > 0


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
    limits = replace(WIDE, lifetime_epsilon=1.5 * whole)
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
        ledger.open_job(request("j2"), replace(WIDE, lifetime_epsilon=1.1 * whole.epsilon))
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
    claim = ClaimedEvent(what="wishart", unit="record", claimed_epsilon=1.0)
    ledger.open_job(request(extra=(claim,)), replace(WIDE, accept_unproven=True))
    ledger.commit("j1", 2, [LINEAR], b"")
    assert ledger.spent() == price([LINEAR] * 3, 1e-5).training
    ledger.commit("j1", 1, [claim], b"")
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
    assert both.epsilon == pytest.approx(alone.record_epsilon + ledger.spent("sums").epsilon)
    assert ledger.spent("updates").record_epsilon > 2 * alone.epsilon
    with pytest.raises(PrivacyError, match="would take"):
        ledger.check(request("next", rounds=1), replace(wide, lifetime_epsilon=both.epsilon + 1))


def test_unproven_events_need_consent_and_taint_the_data_set_for_good(ledger):
    claim = ClaimedEvent(what="wishart", unit="record", claimed_epsilon=1.0)
    raw = UnprotectedEvent(what="softmax", unit="device", purpose="infer")
    for job, event, key in (("c", claim, "accept_unproven"), ("r", raw, "accept_unprotected")):
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


def test_data_sets_are_kept_apart_by_name(path, ledger):
    ledger.open_job(request(), WIDE)
    ledger.commit("j1", 1, [LINEAR], b"")
    other = Ledger(path, "letters")
    assert other.spent().epsilon == 0
    assert other.recall("j1", 1) is None
