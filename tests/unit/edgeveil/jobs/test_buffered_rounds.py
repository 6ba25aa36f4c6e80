"""Buffered rounds: what late updates weigh, when a round closes, which jobs cannot have them."""

import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.buffered_rounds import (
    closing_uploads,
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


BUFFER = Round(mode="buffered", buffer=6, min_batch=3)


@pytest.mark.parametrize(
    ("round", "selected", "closes"),
    [
        *((BUFFER, (20,), [6]), (BUFFER, (10, 10), [3, 3]), (BUFFER, (15, 5), [5, 3])),
        (BUFFER, (4,), [4]),
        (Round(mode="buffered", quorum=0.5), (20,), [10]),
        (Round(), (20,), [16]),
    ],
)
def test_the_buffer_is_shared_among_cells_and_without_one_the_quorum_closes(
    round, selected, closes
):
    found = [closing_uploads(round, one, sum(selected)) for one in selected]
    assert found == closes


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
        ({"round": {"buffer": 6}}, "round.buffer", "is only for buffered rounds"),
        ({"round": {**BUFFERED, "buffer": 2}}, "round.buffer", "hands over 3 or more"),
        ({"selection": {"devices": 5}}, "round.buffer", "only 5 devices are selected"),
        ({"aggregation": {"name": "fedavg", "secure": True}}, "round.mode", "leave secure out"),
        ({"aggregation": {"name": "median"}}, "round.mode", "'median' would treat"),
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
