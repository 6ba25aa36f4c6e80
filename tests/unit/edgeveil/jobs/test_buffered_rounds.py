"""Buffered rounds: what late updates weigh, when a round closes, which jobs cannot have them."""

import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.jobs import Job, buffered_rounds, compile_job
from edgeveil.jobs.buffered_rounds import (
    closing_uploads,
    late_rounds,
    own_budget_s,
    staleness_weight,
)
from edgeveil.jobs.compile import KnownFleet
from edgeveil.jobs.job import Round

BUFFERED = {"mode": "buffered", "buffer": 6, "min_batch": 3}
PLAIN = {
    "job": "late",
    "data": {"source": "bench", "classes": 3, "input_shape": (4,), "nominal_records": 30},
    "model": {"name": "mlp", "hidden": ()},
    "train": {"method": "sgd", "rounds": 8},
    "update": ({"name": "gradient_gaussian"},),
    "privacy": {"epsilon": 2.0},
    "round": BUFFERED,
}


def plan_of(**changes):
    return compile_job(Job.model_validate({**PLAIN, **changes}))


def test_the_weight_is_fedbuffs():
    assert [staleness_weight(late) for late in (0, 3, 8)] == [1, 0.5, pytest.approx(1 / 3)]


def test_only_rounds_that_are_not_too_old_are_taken_up(monkeypatch):
    monkeypatch.setattr(buffered_rounds, "MAX_STALENESS", 3)
    plan = plan_of()
    assert [e.index for e in late_rounds(plan, 6)] == [5, 4, 3]
    assert [e.index for e in late_rounds(plan, 2)] == [1]
    assert not list(late_rounds(plan, 1))
    assert not list(late_rounds(plan_of(round={"min_batch": 3}), 6))


@pytest.mark.parametrize(
    ("asked", "in_all", "closes"),
    [((20,), 20, [6]), ((10, 10), 20, [3, 3]), ((15, 5), 20, [5, 3]), ((4,), 4, [4])],
)
def test_the_buffer_is_shared_among_cells(asked, in_all, closes):
    """Together they never close with fewer than the buffer, nor one with less than a batch."""
    round_ = Round(mode="buffered", buffer=6, min_batch=3)
    found = [closing_uploads(round_, one, in_all) for one in asked]
    assert found == closes
    assert sum(found) >= min(6, in_all)


def test_without_a_buffer_the_quorum_closes():
    assert closing_uploads(Round(mode="buffered", quorum=0.5), 20, 20) == 10
    assert closing_uploads(Round(), 20, 20) == 16


def test_a_fast_box_has_a_time_of_its_own():
    """It follows from the trial, stays within the job's, and is the job's where none is known."""
    round_ = Round(mode="buffered", budget_s=20, deadline_s=60)
    assert own_budget_s(round_, 3.0, 0.75) == 12.0
    assert own_budget_s(round_, 0.001, 0.75) == 1.0
    assert own_budget_s(round_, 60.0, 0.75) == 20.0
    assert own_budget_s(round_, 0.0, 0.75) == 20.0
    assert own_budget_s(Round(budget_s=20, deadline_s=60), 3.0, 0.75) == 20.0


ENCRYPT = {"laplace_eval": {"laplace_eval_eps": 1}}
INFERRING = {"unsupervised": {"every_rounds": 2}, "encrypt": ENCRYPT}
SUMS = {
    "model": None,
    "features": ({"name": "identity"},),
    "train": {"method": "fm"},
    "update": (),
}
PARALLEL = {
    "train": {"method": "sgd"},
    "update": ({"name": "ldp_fl", "composition": "parallel"},),
    "privacy": {"epsilon": 2.0, "accept_unproven": True},
}


@pytest.mark.parametrize(
    ("changes", "key", "why"),
    [
        ({"round": {"buffer": 6}}, "round.buffer", "is for buffered rounds alone"),
        ({"round": {**BUFFERED, "buffer": 2}}, "round.buffer", "hands over 3 or more"),
        ({"selection": {"devices": 5}}, "round.buffer", "only 5 devices are selected"),
        ({"aggregation": {"name": "fedavg", "secure": True}}, "round.mode", "leave secure out"),
        ({"aggregation": {"name": "median"}}, "round.mode", "'median' would take"),
        (INFERRING, "round.mode", "would be recognised"),
        (SUMS, "round.mode", "no change of a model"),
        (PARALLEL, "round.mode", "late ones are weighed"),
    ],
)
def test_what_cannot_be_buffered_is_refused_by_its_key(changes, key, why):
    with pytest.raises(ImpossibleMixError) as caught:
        plan_of(**changes)
    assert any(mix.paths[0] == key and why in mix.text for mix in caught.value.mixes)


def test_a_fleet_that_cannot_fill_the_buffers_is_told():
    """Each update counts once at most: 10 devices of 3 rounds are no 8 rounds of 6."""
    job = Job.model_validate({**PLAIN, "privacy": {"epsilon": 2.0, "max_participations": 3}})
    with pytest.raises(ImpossibleMixError, match="make 30 updates, and 8 rounds of 6 need 48"):
        compile_job(job, KnownFleet(10, 10, "bench", "local_run"))
    compile_job(job, KnownFleet(16, 16, "bench", "local_run"))
