"""Inferences that are summed under masks with the updates: the mean is exact, and alone is seen."""

from fractions import Fraction

import numpy as np
import pytest

from edgeveil.evaluation.figures import GUESSING
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.privacy.laplace_mechanism import SOFTMAX_BITS
from edgeveil.protocol.messages import Manifest, Unmask
from tests.kits.fleet import committed
from tests.sim.test_pause import Mute
from tests.sim.test_secure_sums import DEVICES, LIMITS, books, completed, job, played, said

__all__ = ["books"]  # the fixture

pytestmark = pytest.mark.slow


def summed(**changes):
    """Two training rounds; devices infer in the second, the last of four rounds in all."""
    asked = {"every_rounds": 2, "eval_type": "MEAN_SOFTMAX"}
    return job(**{"unsupervised": asked, **changes})


def averages(fleet, done):
    rounds = committed(fleet, done)
    return {one["exchange"]: one["mean_softmax"] for one in rounds if one["mean_softmax"]}


def check_means(fleet, books, done, uploads):
    ((index, told),) = averages(fleet, done).items()
    released = {id(p): p for mark, p in books.released.items() if mark in books.counted[index]}
    rows = [p[SOFTMAX] for p in released.values()]
    assert len(rows) == told["uploads"] == uploads
    assert {row.dtype for row in rows} == {np.dtype(np.int64)}
    assert len({row.tobytes() for row in rows}) == uploads  # each has its own records and noise
    totals = [sum(map(int, column)) for column in zip(*rows, strict=True)]
    exact = [float(Fraction(total, uploads << SOFTMAX_BITS)) for total in totals]
    assert told["mean"] == pytest.approx(exact, rel=1e-15, abs=0)
    record = fleet.store.rounds(done)[index - 1]
    assert {k: v for k, v in record.scores.items() if k != GUESSING} == told
    return record


def check_alone(fleet, books):
    rounds = [m for m in said(fleet, Manifest) if m.kind == "round"]
    assert {SOFTMAX in [group.name for group in m.groups] for m in rounds} == {True, False}
    for manifest in rounds:
        assert [one.group for one in manifest.masked] == list(range(len(manifest.groups)))
    asked = {(question.at.round, question.chosen) for question in said(fleet, Unmask)}
    assert len(asked) == len(books.sums)


def test_the_cloud_learns_the_exact_mean_and_no_single_inference(tmp_path, books):
    fleet, done = played(tmp_path, summed())
    completed(fleet, done, books)
    check_means(fleet, books, done, DEVICES)
    check_alone(fleet, books)
    events = fleet.store.events_after(0, done)
    assert not any(event.data.get("clusters") for event in events)
    for box in fleet.devices:  # noise is local: who sees the sum alone changes no price
        assert box.ledger.spent(purpose="infer").epsilon == pytest.approx(20)


def test_a_round_that_is_asked_again_sums_what_was_released_at_first(tmp_path, books):
    fleet, done = played(tmp_path, summed(round={**LIMITS, "deadline_s": 5.0}))
    fleet.net.run(lambda: len(fleet.store.rounds(done)) == 3)
    spoken = [(box, box.runner.machine) for box in fleet.devices[:3]]
    for box, machine in spoken:
        box.runner.machine = Mute(machine)
    fleet.net.run(lambda: any(m.at.attempt == 2 for m in said(fleet, Manifest) if m.kind != "job"))
    first = {id(p): p[SOFTMAX] for p in books.released.values() if SOFTMAX in p}
    assert len(first) == 2
    for box, machine in spoken:
        box.runner.machine = machine
    completed(fleet, done, books)
    record = check_means(fleet, books, done, DEVICES)
    assert record.attempt == 2
    again = [p[SOFTMAX] for m, p in books.released.items() if m in books.counted[record.index]]
    assert all(any(np.array_equal(one, other) for other in again) for one in first.values())
    for box in fleet.devices:
        assert box.ledger.spent(purpose="infer").epsilon == pytest.approx(20)
