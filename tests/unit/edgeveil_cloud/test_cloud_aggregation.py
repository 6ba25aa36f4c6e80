"""A round's uploads under a job's rule: who counts, what is scored, what fails."""

import numpy as np
import pytest
from round_kit import CloudRound, job

from edgeveil.data.records import Records
from edgeveil.errors import JobFailed
from edgeveil.jobs import compile_job
from edgeveil.jobs.round_context import RoundContext
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_cloud.broadcasts import TooFewDevices
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.evaluation import Evaluation

UPDATE = "update"


def plan(rule, **changes):
    return compile_job(
        job(
            **{
                "features": (),
                "model": {"name": "mlp", "hidden": (4,)},
                "train": {"method": "sgd", "rounds": 2},
                "privacy": {"epsilon": 4.0, "accept_unproven": True},
                "proxy": {"shuffle": "whole"},
                "unsupervised": {"every_rounds": 0},
                "aggregation": rule,
                **changes,
            }
        )
    )


def uploaded(of, values):
    """A round whose devices move every weight by their value."""
    at = CloudRound(index=1, plan=of)
    return at, at.opened([[at.segment(0, at.array(0, value)) for value in values]])


def moved(of, values, **options):
    """By how much the first bias moved, and the uploads told."""
    at, opened = uploaded(of, values)
    state, uploads = aggregate(at.context, at.state, opened, **options)
    bias = next(name for name in state if name.endswith("bias"))
    return float(np.asarray(state[bias])[0] - np.asarray(at.state[bias])[0]), uploads


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"name": "fedavg"}, 10.5),
        ({"name": "median"}, 0.75),
        ({"name": "trimmed_mean", "share": 0.25}, 0.75),
        ({"name": "krum", "k": 3, "malicious": 0}, 2 / 3),
    ],
)
def test_the_jobs_rule_moves_the_model(rule, expected):
    assert moved(plan(rule), [0.5, 0.5, 1.0, 40.0]) == (pytest.approx(expected), 4)


def test_the_least_divergent_is_measured_against_the_global_weights():
    rule = {"name": "min_divergence", "k": 1, "sampling": "top_k"}
    assert moved(plan(rule), [-1.0, 0.0, 40.0]) == (0.0, 3)  # both others turn signs


def test_preparatory_sums_are_averaged_where_the_rule_is_for_updates():
    of = compile_job(
        job(
            features=({"name": "identity"}, {"name": "ldp_fpca", "keep": 0.5}),
            train={"method": "fm_paper", "rounds": 2},
            privacy={"epsilon": 4.0, "accept_unproven": True},
            aggregation={"name": "min_divergence", "k": 4},
        )
    )
    at = CloudRound(index=1, plan=of)
    (group,) = at.honest(3)
    assert at.round.number == 0
    assert aggregate(at.context, at.state, at.opened([group]))[1] == 3
    at = CloudRound(index=2, plan=of)
    with pytest.raises(TooFewDevices):
        aggregate(at.context, at.state, at.opened(at.honest(3)))


# --- scores ------------------------------------------------------------------------------------

SCORED = {"name": "secprobe", "k": 1, "sampling": "top_k", "validation_records": 6}
RECORDS = Records(np.eye(4, dtype=np.float32)[np.arange(10) % 4], np.arange(10) % 3)


def test_an_upload_is_scored_by_the_model_it_makes_on_the_first_records():
    of = plan(SCORED)
    at, _ = uploaded(of, [0.0])
    graph, evaluation = of.graph(), Evaluation(RECORDS)
    score = evaluation.score(at.context, graph, at.state)
    assert score is not None
    update = np.random.default_rng(0).normal(size=at.array(0, 0).shape).astype(np.float32)
    state = of.cloud.absorb(at.state, at.round, {UPDATE: update}, 1)
    plain, first = plan({"name": "fedavg"}), Records(RECORDS.x[:6], RECORDS.y[:6])
    expected = Evaluation(first).tested(RoundContext.of(plain, 1), graph, state)
    assert score({UPDATE: update}) == pytest.approx(6 * expected.accuracy)


def test_accuracy_is_measured_on_the_records_that_score_nothing():
    of, plain = plan(SCORED), plan({"name": "fedavg"})
    at, _ = uploaded(of, [0.0])
    graph, rest = of.graph(), Records(RECORDS.x[6:], RECORDS.y[6:])
    for seed in range(5):
        update = np.random.default_rng(seed).normal(size=at.array(0, 0).shape)
        state = of.cloud.absorb(at.state, at.round, {UPDATE: update}, 1)
        found = Evaluation(RECORDS).tested(at.context, graph, state)
        assert found == Evaluation(rest).tested(RoundContext.of(plain, 1), graph, state)


def test_the_upload_that_does_best_counts():
    right = {0.25: 1, 0.5: 5, 1.0: 3}
    score = lambda segments: right[float(segments[UPDATE][0])]  # noqa: E731
    change, _ = moved(plan(SCORED), list(right), random_bytes=SeededRandom(0), score=score)
    assert change == 0.5


@pytest.mark.parametrize("test", [None, Records(RECORDS.x[:6], RECORDS.y[:6])])
def test_without_records_to_score_on_a_job_does_not_begin(test):
    with pytest.raises(JobFailed, match="scores uploads on 6") as caught:
        Evaluation(test).check(plan(SCORED))
    assert caught.value.where == "aggregation.validation_records"
    Evaluation(test).check(plan({"name": "fedavg"}))
    Evaluation(RECORDS).check(plan(SCORED))
