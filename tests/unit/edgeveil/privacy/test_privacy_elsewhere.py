"""What a copy of the device answered counts in its ledger, by what came with the answers."""

import pytest

from edgeveil.crypto.keys import DEPOSIT_BYTES, LedgerKey
from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import UnprotectedEvent
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import softmax_event
from edgeveil.privacy.ledger import Ledger, decrypted_state, encrypted_state, read_ledger
from edgeveil.privacy.policy import INFER, JobRequest, Limits, price

LINEAR = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
SOFTMAX = softmax_event(10, 4.0)
WIDE = Limits(20, 50, 1e-4, 100)
KEY = LedgerKey.generate().deposit_key()


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
    return ledger.deposit(job)


def test_a_deposit_has_one_size_whatever_it_holds_and_only_its_ledger_reads_it(ledger):
    sizes = {len(answered(ledger, "j1")), len(ledger.deposit()), len(ledger.deposit("unknown"))}
    assert sizes == {DEPOSIT_BYTES}
    assert ledger.deposit("j1") != ledger.deposit("j1")
    deposit, other = encrypted_state(KEY, request("j1")), LedgerKey.generate().deposit_key()
    assert decrypted_state(KEY, deposit) == request("j1")
    assert decrypted_state(KEY, encrypted_state(KEY, None)) is None
    for key, raw in ((other, deposit), (KEY, deposit[:-1] + b"!"), (KEY, b""), (KEY, b"short")):
        with pytest.raises(PrivacyError):
            decrypted_state(key, raw)


def test_a_request_that_does_not_fit_is_unreadable_and_not_forgotten():
    events = tuple(UnprotectedEvent(what=f"{n:x}" * 9, unit="record") for n in range(4000))
    deposit = encrypted_state(KEY, JobRequest("j1", 1e-5, events))
    assert len(deposit) == DEPOSIT_BYTES
    with pytest.raises(PrivacyError):
        decrypted_state(KEY, deposit)


def test_a_job_that_a_copy_answered_counts_with_all_that_it_reserved(ledger, path):
    deposit = encrypted_state(ledger._chain.key.deposit_key(), request("elsewhere"))
    ledger.count_elsewhere("elsewhere", deposit)
    whole = price(request("elsewhere").events, 1e-5)
    assert ledger.spent() == whole.training
    assert ledger.spent(purpose=INFER) == whole.inference
    with pytest.raises(PrivacyError, match="closed on this device"):
        ledger.open_job(request("elsewhere"), WIDE)
    account = read_ledger(path).account("digits")
    assert account["elsewhere"].elsewhere and not account["elsewhere"].answers


def test_a_known_job_counts_once_and_whole_and_goes_no_further(ledger):
    ledger.count_elsewhere("j1", ledger.deposit())  # a dummy's
    assert ledger.spent().epsilon == 0 and "j1" not in ledger._account()
    deposit = answered(ledger, "j1")
    before = ledger.spent("j1", INFER).epsilon
    for _ in range(2):
        ledger.count_elsewhere("j1", deposit)
    assert ledger.spent("j1") == price(request("j1").events, 1e-5).training
    assert ledger.spent("j1", INFER).epsilon > before == 0
    with pytest.raises(PrivacyError, match="not open"):
        ledger.admit("j1", [LINEAR])
    with pytest.raises(PrivacyError, match="released and forgotten"):
        ledger.recall("j1", 1)


@pytest.mark.parametrize("how", ["nobody knows", "damaged"])
def test_after_answers_that_nobody_knows_nothing_is_left(ledger, path, how):
    if how == "damaged":
        ledger.count_elsewhere("j1", bytes(DEPOSIT_BYTES))
    else:
        ledger.count_untold()
        ledger.count_untold()
    assert not ledger.spent().proven and not ledger.spent(purpose=INFER).proven
    with pytest.raises(PrivacyError, match="is not known, so nothing is left"):
        ledger.open_job(request("next"), WIDE)
    assert read_ledger(path).links == 1
