"""Several jobs on one ledger: what they reserve and spend together never passes the limits."""

import os
import threading
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeveil.errors import PrivacyError
from edgeveil.privacy.laplace_mechanism import laplace_event
from edgeveil.privacy.ledger import Ledger, read_ledger
from edgeveil.privacy.ledger_chain import next_refusal
from edgeveil.privacy.policy import JobRequest, Limits

JOBS = ("j1", "j2", "j3")
ROUND = laplace_event("sum", 1, 1, Fraction(1, 2), 1, 0)
EPSILON = ROUND.epsilon  # 1/2: pure, so that what was not released is free again
PLANNED = {"j1": 4, "j2": 6, "j3": 3}  # releases; 2, 3 and 1.5 of ε
RELEASES = 40
LIFETIME = Fraction(17, 4)  # not all three fit at once; no sum of them meets it exactly


def limits(max_jobs=None):
    return Limits(10, float(LIFETIME), 1e-4, 10, max_jobs=max_jobs)


def request(job):
    return JobRequest(job, 1e-6, (ROUND,) * PLANNED[job])


def test_what_will_no_longer_fit_is_known_one_job_ahead(path, ledger):
    allowed = Limits(10, 5.5, 1e-4, 10)
    assert ledger.next_refusal(allowed) is None  # nothing is known of what comes
    ledger.open_job(request("j1"), allowed)  # 2 of 5.5, and another 2 fit
    assert ledger.next_refusal(allowed) is None
    ledger.open_job(request("j2"), allowed)  # 5 of 5.5
    refusal = ledger.next_refusal(allowed)
    assert refusal is not None and refusal.where == "policy.lifetime_epsilon"
    with pytest.raises(PrivacyError):  # and it is so
        ledger.open_job(JobRequest("j4", 1e-6, (ROUND,) * PLANNED["j2"]), allowed)
    ledger.close_job("j2")  # it released nothing, so all of it is free again
    assert ledger.next_refusal(allowed) is None
    assert next_refusal(read_ledger(path).accounts["digits"], allowed) is None


class Model:
    """What the ledger must hold: by job how many releases, and whether it is open."""

    def __init__(self):
        self.released, self.open = {}, set()

    @property
    def taken(self):
        counted = (PLANNED[job] if job in self.open else n for job, n in self.released.items())
        return EPSILON * sum(counted)

    def allows(self, step, job, max_jobs):
        if step == "spend":
            return job in self.open and self.released[job] < PLANNED[job]
        if step == "end" or job in self.released:
            return step == "end" or job in self.open
        fits = self.taken + EPSILON * PLANNED[job] <= LIFETIME
        return fits and len(self.open) < max_jobs

    def note(self, step, job):
        if step == "consent":
            self.open.add(job)
            self.released.setdefault(job, 0)
        elif step == "spend":
            self.released[job] += 1
        else:
            self.open.discard(job)


class CrashError(Exception):
    """The process ends here."""


@contextmanager
def crash_before_the_end(ledger):
    """A process that is killed before its transaction is durable."""
    append = ledger._chain.append

    def cut(*given):
        append(*given)
        raise CrashError

    ledger._chain.append = cut
    try:
        with suppress(CrashError):
            yield
    finally:
        ledger._chain.append = append


steps = st.lists(
    st.tuples(st.sampled_from(("consent", "spend", "end")), st.sampled_from(JOBS), st.booleans()),
    max_size=24,
)


@given(steps, st.integers(1, 3))
@example([("consent", job, False) for job in JOBS], 3)  # the second does not fit
@settings(deadline=None, max_examples=25)
def test_whatever_the_order_no_more_is_reserved_or_spent_than_the_owner_allows(plan, max_jobs):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger, model = Ledger(path, "digits"), Model()
        for step, job, crashes in plan:
            if crashes:
                with crash_before_the_end(ledger), suppress(PrivacyError):
                    take(ledger, step, job, max_jobs, model.released.get(job, 0))
                ledger.close()
                ledger = Ledger(path, "digits")
            elif take(ledger, step, job, max_jobs, model.released.get(job, 0)):
                assert model.allows(step, job, max_jobs)
                model.note(step, job)
            else:
                assert not model.allows(step, job, max_jobs)
            holds(path, ledger, model)
        ledger.close()


def take(ledger, step, job, max_jobs, released):
    try:
        if step == "consent":
            ledger.open_job(request(job), limits(max_jobs))
        elif step == "spend":
            ledger.commit(job, released + 1, [ROUND], os.urandom(8))
        else:
            ledger.close_job(job)
    except PrivacyError:
        return False
    return True


def holds(path, ledger, model):
    account = read_ledger(path).account("digits")
    assert {job for job, entry in account.items() if entry.is_open} == model.open
    assert {job: len(entry.answers) for job, entry in account.items()} == model.released
    spent = EPSILON * sum(model.released.values())
    assert ledger.spent().epsilon == pytest.approx(float(spent), abs=1e-12)
    counted = sum(len(entry.counting.events) for entry in account.values())
    assert counted * EPSILON == model.taken <= LIFETIME


@pytest.mark.parametrize("several_files", [False, True])
def test_of_jobs_that_ask_at_once_one_takes_the_last_of_the_budget(path, ledger, several_files):
    """Threads of one device, or processes on one file: each has a connection of its own then."""
    ledgers = [Ledger(path, "digits") if several_files else ledger for _ in range(8)]
    ready, opened = threading.Barrier(8), list[int]()

    def ask(number):
        ready.wait()
        with suppress(PrivacyError):
            ledgers[number].open_job(JobRequest(f"job{number}", 1e-6, (ROUND,) * 3), limits())
            opened.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2  # 1.5 of ε each, and 4.25 in all
    held = read_ledger(path).account("digits")
    assert {job for job, one in held.items() if one.is_open} == {f"job{n}" for n in opened}


def test_threads_read_what_others_write(path, ledger):
    """A link is taken in once, whoever sees it first."""
    ledger.open_job(JobRequest("j1", 1e-6, (ROUND,) * RELEASES), Limits(50, 50, 1e-4, 10))
    faults, done = list[BaseException](), threading.Event()

    def read():
        try:
            while not done.is_set():
                assert ledger.spent("j1").epsilon < 20.5
                ledger.encrypted_state("j1")
        except BaseException as error:
            faults.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    other = Ledger(path, "digits")
    for number in range(RELEASES):
        other.commit("j1", number, [ROUND], b"noised")
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert ledger.spent("j1").epsilon == pytest.approx(20.0)
