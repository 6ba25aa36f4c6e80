"""What a copy of the device answered counts in its ledger, by what came with the answers."""

import pytest

from edgeveil.crypto.keys import STATE_BYTES, LedgerKey
from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import UnprotectedEvent
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import softmax_event
from edgeveil.privacy.ledger import Ledger, decrypted_state, encrypted_state, read_ledger
from edgeveil.privacy.policy import INFER, JobRequest, Limits, price

LINEAR = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
SOFTMAX = softmax_event(10, 4.0)
WIDE = Limits(20, 50, 1e-4, 100)
KEY = LedgerKey.generate().state_key()


def request(job, rounds=3):
    return JobRequest(job, 1e-5, (*[LINEAR] * rounds, SOFTMAX))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    ledger = Ledger(path, "digits")
    yield ledger
    ledger.close()


def answered(ledger, job):
    """One answer of a job, and its deposit."""
    ledger.open_job(request(job), WIDE)
    ledger.commit(job, 1, [LINEAR], b"noised")
    return ledger.encrypted_state(job)


def test_a_deposit_has_one_size_whatever_it_holds_and_only_its_ledger_reads_it(ledger):
    sizes = {
        len(answered(ledger, "j1")),
        len(ledger.encrypted_state()),
        len(ledger.encrypted_state("unknown")),
    }
    assert sizes == {STATE_BYTES}
    assert ledger.encrypted_state("j1") != ledger.encrypted_state("j1")
    state, other = encrypted_state(KEY, request("j1")), LedgerKey.generate().state_key()
    assert decrypted_state(KEY, state) == request("j1")
    assert decrypted_state(KEY, encrypted_state(KEY, None)) is None
    for key, raw in ((other, state), (KEY, state[:-1] + b"!"), (KEY, b""), (KEY, b"short")):
        with pytest.raises(PrivacyError):
            decrypted_state(key, raw)


def test_a_request_that_does_not_fit_is_unreadable_and_not_forgotten():
    events = tuple(UnprotectedEvent(what=f"{n:x}" * 9, unit="record") for n in range(4000))
    state = encrypted_state(KEY, JobRequest("j1", 1e-5, events))
    assert len(state) == STATE_BYTES
    with pytest.raises(PrivacyError):
        decrypted_state(KEY, state)


def test_a_job_that_a_copy_answered_counts_with_all_that_it_reserved(ledger, path):
    state = encrypted_state(ledger._chain.key.state_key(), request("elsewhere"))
    ledger.count_answer_of_copy("elsewhere", state)
    whole = price(request("elsewhere").events, 1e-5)
    assert ledger.spent() == whole.training
    assert ledger.spent(purpose=INFER) == whole.inference
    with pytest.raises(PrivacyError, match="closed on this device"):
        ledger.open_job(request("elsewhere"), WIDE)
    account = read_ledger(path).account("digits")
    assert account["elsewhere"].elsewhere and not account["elsewhere"].answers


def test_a_known_job_counts_once_and_whole_and_goes_no_further(ledger):
    ledger.count_answer_of_copy("j1", ledger.encrypted_state())  # a dummy's
    assert ledger.spent().epsilon == 0 and "j1" not in ledger._account()
    state = answered(ledger, "j1")
    before = ledger.spent("j1", INFER).epsilon
    for _ in range(2):
        ledger.count_answer_of_copy("j1", state)
    assert ledger.spent("j1") == price(request("j1").events, 1e-5).training
    assert ledger.spent("j1", INFER).epsilon > before == 0
    with pytest.raises(PrivacyError, match="not open"):
        ledger.admit("j1", [LINEAR])
    with pytest.raises(PrivacyError, match="released and forgotten"):
        ledger.recall("j1", 1)


@pytest.mark.parametrize("how", ["nobody knows", "damaged"])
def test_after_answers_that_nobody_knows_nothing_is_left(ledger, path, how):
    if how == "damaged":
        ledger.count_answer_of_copy("j1", bytes(STATE_BYTES))
    else:
        ledger.count_unknown_answers()
        ledger.count_unknown_answers()
    assert not ledger.spent().proven and not ledger.spent(purpose=INFER).proven
    with pytest.raises(PrivacyError, match="is not known, so nothing is left"):
        ledger.open_job(request("next"), WIDE)
    assert read_ledger(path).links == 1
