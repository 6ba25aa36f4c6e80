"""What the spool keeps of devices' answers, for those that lost count of them."""

from dataclasses import replace

from spool_kit import CLOUD, DEVICES, JOB, OTHER, at, reopened, upload

from edgeveil.protocol.messages import Close, JobDeposit
from edgeveil.protocol.proxy import AnswersFrom, FindAnswered
from edgeveil.protocol.proxy_broadcasts import JobEnded
from edgeveil_proxy import spool as spool_module

FIRST = DEVICES[0]


def answer(spool, number, job, device=FIRST):
    item = upload(spool, 1, at(number, job=job))
    spool.store(replace(item, device=device, number=number, deposit=b"d%d" % number))


def asked(spool, since, most=64, known=99):
    return spool.answered(FindAnswered(FIRST, b"", since, known, most))


def test_each_job_answered_since_is_told_once_with_its_newest_deposit(spool):
    spool.store(AnswersFrom(FIRST, 2))
    for number, job in ((3, JOB), (4, OTHER), (5, JOB)):
        answer(spool, number, job)
    answer(spool, 6, b"L" * 16, DEVICES[2])
    found = asked(spool, 3)
    assert found.jobs == (JobDeposit(OTHER, b"d4"), JobDeposit(JOB, b"d5"))
    assert (found.number, found.whole) == (99, True)
    assert asked(spool, 5).jobs == ()


def test_more_jobs_than_fit_are_told_in_turn(spool):
    spool.store(AnswersFrom(FIRST, 0))
    for number in range(1, 6):
        answer(spool, number, bytes((number,)) * 16)
    found = asked(spool, 0, most=2)
    assert [job.deposit for job in found.jobs] == [b"d1", b"d2"] and found.number == 2
    assert [job.deposit for job in asked(spool, 2, most=3).jobs] == [b"d3", b"d4", b"d5"]


def test_what_was_answered_before_it_began_to_count_is_not_known(spool):
    spool.store(AnswersFrom(FIRST, 4))
    answer(spool, 5, JOB)
    assert not asked(spool, 3).whole
    assert asked(spool, 4).whole


def test_it_outlives_the_job_and_the_process(spool, path):
    spool.store(AnswersFrom(FIRST, 0))
    answer(spool, 1, JOB)
    spool.store(JobEnded(JOB, CLOUD.note(Close(JOB, "completed"))))
    assert reopened(path).answered == {FIRST: 1}
    assert asked(spool, 0).jobs == (JobDeposit(JOB, b"d1"),)


def test_of_many_jobs_the_latest_are_kept(spool, monkeypatch):
    monkeypatch.setattr(spool_module, "ANSWERED_JOBS_KEPT", 3)
    spool.store(AnswersFrom(FIRST, 0))
    for number in range(1, 6):
        answer(spool, number, bytes((number,)) * 16)
    assert [job.deposit for job in asked(spool, 2).jobs] == [b"d3", b"d4", b"d5"]
    assert asked(spool, 2).whole and not asked(spool, 1).whole
