"""Whose work is done next: shares by what each job has had."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

from edgeveil.protocol.cloud_job import SealJob
from edgeveil_cloud.job_turns import JobTurns

HEAVY, LIGHT = b"H" * 16, b"L" * 16


class ByHand(Executor):
    """Does one thing when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append((fn, args))
        return Future()

    def go(self) -> bool:
        if not self.calls:
            return False
        fn, args = self.calls.pop(0)
        fn(*args)
        return True


class Bench:
    """Work that takes as many seconds as it says."""

    def __init__(self, weights: dict[bytes, float] | None = None) -> None:
        self.now_s, self.done, self.worker = 0.0, list[bytes](), ByHand()
        weight_of = (weights or {}).get
        self.turns = JobTurns(self.worker, lambda job: weight_of(job, 1.0), lambda: self.now_s)

    def add(self, job: bytes, seconds: float) -> Future[Any]:
        def work() -> bytes:
            self.now_s += seconds
            self.done.append(job)
            return job

        return self.turns.of(SealJob(job)).submit(work)

    def all(self) -> bytes:
        while self.worker.go():
            pass
        return b"".join(job[:1] for job in self.done)


def test_one_is_done_at_a_time_and_its_outcome_told():
    bench = Bench()
    first, second = bench.add(HEAVY, 1), bench.add(LIGHT, 1)
    assert len(bench.worker.calls) == 1
    bench.all()
    assert (first.result(0), second.result(0)) == (HEAVY, LIGHT)


def test_a_job_of_long_work_delays_the_other_by_one_task_alone():
    bench = Bench()
    for _ in range(4):
        bench.add(HEAVY, 60)
    for _ in range(4):
        bench.add(LIGHT, 1)
    assert bench.all() == b"HLLLLHHH"


def test_of_equal_work_the_more_urgent_gets_its_share():
    bench = Bench({HEAVY: 4.0, LIGHT: 1.0})
    for _ in range(8):
        bench.add(HEAVY, 1)
        bench.add(LIGHT, 1)
    assert bench.all()[:10].count(b"H") == 8


def test_who_had_nothing_to_do_gains_no_claim_on_that_time():
    bench = Bench()
    for _ in range(10):
        bench.add(HEAVY, 1)
    bench.all()
    bench.done.clear()
    for _ in range(4):
        bench.add(HEAVY, 1)
        bench.add(LIGHT, 1)
    assert bench.all()[:4].count(b"H") == 2


def test_what_fails_is_told_and_the_next_one_done():
    bench = Bench()

    def fails() -> None:
        raise ValueError("no")

    failed, after = bench.turns.of(SealJob(HEAVY)).submit(fails), bench.add(LIGHT, 1)
    bench.all()
    assert isinstance(failed.exception(0), ValueError) and after.result(0) == LIGHT
