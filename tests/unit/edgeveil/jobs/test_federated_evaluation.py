"""Federated evaluation in a job's plan: where it stands, its price, which jobs cannot have it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.data.target import TargetRange
from edgeveil.errors import PrivacyError
from edgeveil.evaluation.record_counts import Confusion, Errors, Hits
from edgeveil.jobs import Job, buffered_rounds, compile_job
from edgeveil.jobs.buffered_rounds import late_rounds
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.round import EVALUATE
from edgeveil.privacy.events import SharedGaussian, as_summed
from edgeveil.privacy.gaussian_mechanism import counts_event
from edgeveil.privacy.policy import Limits, check_job, price
from edgeveil.privacy.sampler import SeededRandom

PLAIN = {
    "job": "evaluated",
    "data": {"source": "s", "classes": 3, "input_shape": (5,), "nominal_records": 40},
    "features": ({"name": "identity"},),
    "train": {"method": "fm", "rounds": 6},
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "federated_evaluation": {"epsilon": 1.0, "every_rounds": 2},
}
SECURE = {"aggregation": {"name": "fedavg", "secure": True}, "selection": {"devices": 20}}
SHARED = {
    **SECURE,
    "privacy": {"epsilon": 4.0, "delta": 1e-5, "noise": "shared"},
    "round": {"min_batch": 10},
}
BUFFERED = {
    "features": (),
    "model": {"name": "mlp", "hidden": ()},
    "train": {"method": "sgd", "rounds": 6},
    "update": ({"name": "gradient_gaussian"},),
    "round": {"mode": "buffered", "buffer": 6, "min_batch": 3},
}


def plan_of(**changes):
    return compile_job(Job.model_validate({**PLAIN, **changes}))


def evaluated(plan):
    return [e.number for e in plan.all_rounds if e.phase == EVALUATE]


def test_each_evaluation_follows_its_round_and_indices_count_on():
    plan = plan_of()
    assert [e.label for e in plan.all_rounds[:6]] == [
        *("centre", "quadratic", "round 1", "round 2", "evaluation of round 2", "round 3")
    ]
    assert [e.index for e in plan.all_rounds] == list(range(1, len(plan.all_rounds) + 1))
    assert evaluated(plan) == [2, 4, 6]
    assert (plan.rounds, len(plan.of_method)) == (6, 8)


def test_the_last_model_is_always_evaluated():
    assert evaluated(plan_of(federated_evaluation={"epsilon": 1})) == [6]
    assert evaluated(plan_of(federated_evaluation={"epsilon": 1, "every_rounds": 4})) == [4, 6]


def test_inferences_read_the_same_records_so_both_are_one_price():
    asked = {"encrypt": {"laplace_eval": {"laplace_eval_eps": 2.0}}}
    plan = plan_of(**asked, unsupervised={"every_rounds": 3})
    found = plan.quote().inference
    assert found.unit == "record"
    # Two mean softmax uploads of 2 a device, over 4 nominal records: 2/5 each for a record.
    assert 0.8 < found.epsilon <= 1.81
    assert plan.epsilon_per_inference is None
    rows = {"every_rounds": 3, "upload": "per_sample"}
    assert 4 < plan_of(**asked, unsupervised=rows).quote().inference.epsilon <= 5


def test_shared_noise_is_shared_by_all_of_one_sum():
    plan = plan_of(**SHARED)
    event = plan.evaluation.event
    assert isinstance(event, SharedGaussian)
    assert event.honest == 8  # of 10 uploads, 0.8
    alone = plan_of(**SECURE).evaluation.event
    assert as_summed(event).mu == pytest.approx(as_summed(alone).mu, rel=1e-3)
    found = plan.quote().inference
    assert found.epsilon <= 1 < (found.if_colluding or 0)
    groups = {"name": "trimmed_mean", "secure": True, "groups": 5}
    of_groups = plan_of(**{**SHARED, "aggregation": groups})
    dealt = RoundContext.of(of_groups, of_groups.all_rounds[-1].index)
    assert (dealt.sets, of_groups.evaluation.event.honest) == (1, 8)


@pytest.mark.parametrize("changes", [{}, SECURE, SHARED])
def test_noised_counts_come_out_again(changes):
    plan = plan_of(**{**changes, "federated_evaluation": {"epsilon": 30}})
    own = plan.evaluation
    outputs = np.eye(3)[[0, 1, 2, 0]]
    counts = own.counts.of(outputs, np.array([0, 1, 2, 1]))
    answers = [own.noised(counts, SeededRandom(k)) for k in range(20)]
    assert {answer.events for answer in answers} == {(own.event,)}
    found = own.figures([answer.segments["counts"] for answer in answers], 20)
    assert found["records"] == pytest.approx(80, abs=6 * found["count_deviation"])
    assert found["accuracy"] == pytest.approx(0.75, abs=6 * found["accuracy_deviation"])
    assert found["uploads"] == 20


def test_a_device_counts_no_more_than_there_is_room_for():
    own = plan_of(**SECURE, federated_evaluation={"epsilon": 30}).evaluation
    counts = np.full(own.counts.cells, 10**12)
    noised = own.noised(counts, SeededRandom(1)).segments["counts"]
    assert int(np.abs(noised).max()) * 20 < 2 ** (own.spec.bits - 1)


@pytest.mark.parametrize("honest", [0, 800])
@pytest.mark.parametrize("kind", [Confusion(10), Hits(100), Errors(TargetRange(0, 1))])
def test_a_large_epsilon_is_met_as_far_as_noise_can_be_drawn(kind, honest):
    """Steps as fine as the sampler has them, and no finer, whatever one record adds."""
    said = "evaluation counts", kind.sensitivity_squared, kind.cells
    event = counts_event(*said, 24.0, 1e-6, 10, honest)
    assert 23 < price([event] * 10, 1e-6).inference.epsilon <= 24
    with pytest.raises(PrivacyError, match="lower epsilon or raise delta"):
        counts_event(*said, 64.0, 1e-6, 10, honest)


def test_the_noise_of_one_count_is_what_the_accountant_asks_for():
    own = plan_of(federated_evaluation={"epsilon": 1.0}).evaluation
    event = own.event
    draws = [
        own.noised(np.zeros(own.counts.cells, np.int64)).segments["counts"] for _ in range(400)
    ]
    assert np.std(draws) == pytest.approx(math.sqrt(event.sigma_squared), rel=0.05)
    steps = event.sensitivity_steps
    assert steps**2 >= own.counts.sensitivity_squared << 2 * event.grid_bits


def test_late_updates_pass_an_evaluation_by(monkeypatch):
    monkeypatch.setattr(buffered_rounds, "MAX_STALENESS", 3)
    plan = plan_of(**BUFFERED)
    by_label = {e.label: e.index for e in plan.all_rounds}
    assert not list(late_rounds(plan, by_label["evaluation of round 4"]))
    late = [e.number for e in late_rounds(plan, by_label["round 5"])]
    assert late == [4, 3, 2]  # three rounds late at most, whatever stands between them
    assert RoundContext.of(plan, by_label["evaluation of round 4"]).closing.mode == "sync"
    assert RoundContext.of(plan, by_label["round 5"]).closing.mode == "buffered"


def test_the_owners_limits_count_evaluations():
    little = {**SHARED, "privacy": {"epsilon": 0.3, "delta": 1e-5, "noise": "shared"}}
    request = plan_of(**little).request("j")
    most = Limits(5.0, 50.0, 1e-4, 2.0, max_collusion_epsilon_per_job=1e3)
    most = replace(most, lifetime_collusion_epsilon=1e3)
    quote = check_job(request, most, ())
    training, inference = quote.training.if_colluding, quote.inference.if_colluding
    assert quote.inference.epsilon <= 1 and training < inference
    for key, value, before in (
        ("max_inference_epsilon", 0.5, []),
        ("lifetime_collusion_epsilon", (training + inference) / 2, []),
        ("lifetime_delta", 1e-6, []),
        ("max_inference_epsilon", 2.0, [price(request.events, request.delta)] * 2),
    ):
        with pytest.raises(PrivacyError) as caught:
            check_job(request, replace(most, **{key: value}), before)
        assert caught.value.where == f"policy.{key}"


LOCAL_PCA = ({"name": "identity"}, {"name": "local_pca"})
KEY = "federated_evaluation"
LARGE = {
    **SECURE,
    "data": {**PLAIN["data"], "nominal_records": 10**8},
    "privacy": {"epsilon": 4.0, "delta": 1e-12},
    "selection": {"devices": 10**6},
}
NOTHING = {"features": (), "train": {"method": "noise_only", "rounds": 6}, "unsupervised": {}}


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        ({KEY: {"epsilon": 1, "every_rounds": 7}}, f"{KEY}.every_rounds", "more than the 6 rounds"),
        ({"data": {**PLAIN["data"], "evaluation_share": 0}}, "data.evaluation_share", "no records"),
        ({KEY: {"epsilon": 701}}, f"{KEY}.epsilon", "be met"),
        (LARGE, f"{KEY}.epsilon", "largest ring"),
        (NOTHING, KEY, "learns nothing"),
        ({"features": LOCAL_PCA}, KEY, "no basis"),
    ],
)
def test_impossible_jobs_are_refused_by_name(changes, key, what):
    with pytest.raises(ImpossibleMixError) as caught:
        plan_of(**changes)
    found = [(mix.paths, mix.text) for mix in caught.value.mixes]
    assert any(key in paths and what in text for paths, text in found), found
