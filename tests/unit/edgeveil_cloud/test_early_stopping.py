"""When a job ends early, and which round's model it releases."""

import json

import numpy as np
import pytest
from safetensors.numpy import load

from edgeveil.config.base import ImpossibleMixError
from edgeveil.config.policy import Policy
from edgeveil.errors import JobFailed
from edgeveil.evaluation.figures import METRIC
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.models.heads import THRESHOLD
from edgeveil.protocol.effects import CloudAddress
from edgeveil.protocol.tensors import tensor_views
from edgeveil.testing import DIGITS, device_sites
from edgeveil_cloud.early_stopping import BEST, is_newest, is_over, judged, released, shown
from edgeveil_cloud.evaluation import FEDERATED, Evaluation
from edgeveil_cloud.store_tables import RoundRecord
from tests.kits.memory_fleet import MemoryFleet

JOB = {
    "job": "a",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "model": {"name": "mlp", "hidden": []},
    "train": {"method": "sgd", "rounds": 9},
    "privacy": {"accept_unproven": True},
}


def plan(**changes):
    return compile_job(Job.model_validate_json(json.dumps(JOB | changes)))


def record(number, phase="train", **figures):
    return RoundRecord(number, phase, number, 1, 5, **figures)


def played(of, records):
    """(state after each record, over after each); the model of round k is all k."""
    state, states, over = {}, [], []
    for one in records:
        model = of.cloud.initial_state()
        after = {name: np.full_like(array, one.number) for name, array in model.items()}
        state = judged(of, state, after, one)
        states.append(state)
        over.append(is_over(of, state))
    return states, over


def value(of, state):
    return float(of.cloud.model(released(of, state))["output.bias"][0])


@pytest.mark.parametrize(
    ("asked", "figures", "over", "best"),
    [
        ({"patience": 2}, [0.5, 0.6, 0.55, 0.6], [0, 0, 0, 1], 2),
        ({"patience": 2, "min_delta": 0.2}, [0.5, 0.6, 0.65], [0, 0, 1], 1),
        ({"patience": 2, "min_delta": 0.2}, [0.0, 0.1, 0.15], [0, 0, 1], 1),
        ({"patience": 2, "release": "last"}, [0.5, 0.4, 0.3], [0, 0, 1], 3),
        ({}, [0.5, 0.4, 0.3, 0.2], [0, 0, 0, 0], 1),
    ],
)
def test_patience_counts_from_the_best_figure_whose_round_is_released(asked, figures, over, best):
    of = plan(early_stopping=asked)
    records = [record(k, accuracy=one, loss=1.0) for k, one in enumerate(figures, start=1)]
    states, found = played(of, records)
    assert found == list(map(bool, over))
    assert value(of, states[-1]) == best
    assert is_newest(of, states[-1]) == (best == len(figures))


def test_a_figure_that_is_no_number_is_none():
    of = plan(early_stopping={"patience": 1})
    figures = [np.nan, 3.0, 1.0, np.nan]
    states, over = played(of, [record(k, loss=one) for k, one in enumerate(figures, start=1)])
    assert (value(of, states[-1]), any(over)) == (3, False)


def test_without_accuracy_the_least_loss_is_best_and_a_threshold_goes_with_its_round():
    of = plan(early_stopping={})
    states, _ = played(of, [record(k, loss=one) for k, one in enumerate([3.0, 1.0, 2.0], start=1)])
    assert value(of, states[-1]) == 2
    later = judged(of, states[-1], {**states[-1], THRESHOLD: np.ones(1)}, record(4, loss=9.0))
    assert THRESHOLD in later and THRESHOLD not in released(of, later)


def test_federated_figures_go_before_the_clouds_and_rounds_without_one_count_for_nothing():
    of = plan(
        early_stopping={"patience": 1}, federated_evaluation={"epsilon": 8, "every_rounds": 1}
    )
    scores = lambda a: {"eval_type": FEDERATED, "leading": "accuracy", "accuracy": a}  # noqa: E731
    evaluated = [record(k, "evaluate", scores=scores(a)) for k, a in ((2, 0.9), (4, 0.8))]
    tests = [record(k, accuracy=a, loss=1.0) for k, a in ((1, 0.1), (3, 0.99))]
    states, over = played(of, [tests[0], evaluated[0], tests[1], evaluated[1]])
    assert over == [False, False, False, True]
    facts = shown(of, states[-1])["early_stopping"]
    assert (facts["best_round"], facts["judged_by"]) == (2, "federated evaluation")
    noise = record(6, "evaluate", scores={"eval_type": FEDERATED})
    assert shown(of, judged(of, states[1], states[1], noise)) == shown(of, states[1])


@pytest.mark.parametrize(("mode", "best", "ends"), [("max", 2, 4), ("min", 3, 5)])
def test_an_own_metric_has_a_direction_and_may_be_absent_in_a_round(mode, best, ends):
    of = plan(test_metric="m:f", early_stopping={"mode": mode, "patience": 2})
    own = enumerate([5.0, 9.0, 1.0, "failed: m:f", 5.0, 5.0], start=1)
    states, over = played(of, [record(k, accuracy=k / 9, scores={METRIC: one}) for k, one in own])
    assert (value(of, states[-1]), over.index(True)) == (best, ends)


@pytest.mark.parametrize(
    "more", [{}, {"test_metric": "m:f", "federated_evaluation": {"epsilon": 8, "every_rounds": 1}}]
)
def test_a_direction_needs_a_metric_which_never_is_one_of_devices(more):
    with pytest.raises(ImpossibleMixError, match="no price on devices"):
        plan(early_stopping={"mode": "max"}, **more)


def test_a_job_that_does_not_ask_keeps_its_state_and_one_without_figures_is_refused():
    of = plan()
    assert list(played(of, [record(1, accuracy=0.5)])[0][0]) == list(of.cloud.initial_state())
    with pytest.raises(JobFailed) as failed:
        Evaluation(None).check(plan(early_stopping={}))
    assert failed.value.where == "early_stopping"
    with pytest.raises(ImpossibleMixError) as mixed:
        plan(early_stopping={}, federated_evaluation={"epsilon": 8})
    assert mixed.value.mixes[0].paths[0] == "federated_evaluation.every_rounds"


def test_a_cloud_that_ends_after_the_stopping_commit_only_releases_when_it_is_back(tmp_path):
    job = plan(early_stopping={"patience": 1, "min_delta": 0.9}, round={"min_batch": 3}).job
    policy = Policy(accept_unprotected=True, min_devices=1, allowed_methods=("sgd",))
    fleet = MemoryFleet(tmp_path, device_sites(5, policy=policy), test_data=DIGITS)
    job_id = fleet.submit(job)
    fleet.net.run(lambda: (last := fleet.store.last_commit(job_id)) and last.index == 2)
    state = dict(tensor_views(fleet.store.last_commit(job_id).state))
    fleet.cloud.close()
    fleet.start_cloud()
    fleet.net.connect(fleet.net.nodes[CloudAddress()])
    fleet.cloud.control.start(fleet.store.job(job_id))
    assert fleet.finish(job_id) == "completed"
    assert [one.number for one in fleet.store.rounds(job_id)] == [1, 2]
    weights = load(fleet.store.release(job_id).safetensors)
    np.testing.assert_array_equal(weights["output.bias"], state[BEST + "output.bias"])
    assert not np.array_equal(state[BEST + "output.bias"], state["output.bias"])
    fleet.close()
