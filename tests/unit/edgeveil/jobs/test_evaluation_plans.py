"""Federated evaluation and cluster scores in a plan: their rounds, prices, refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.data.target import TargetRange
from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.evaluation.cluster_sums import ONE
from edgeveil.evaluation.record_counts import Confusion, Errors, Hits
from edgeveil.jobs import Job, buffered_rounds, compile_job
from edgeveil.jobs.buffered_rounds import late_rounds
from edgeveil.jobs.federated_evaluation import ABOUT, CENTROIDS, COUNTS
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.round import CLUSTER, EVALUATE
from edgeveil.privacy.events import SharedGaussian, as_summed, event_from_dict, to_dict
from edgeveil.privacy.gaussian_mechanism import counts_event
from edgeveil.privacy.policy import Limits, check_job, price
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_cloud.evaluation import cluster_figures

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


def test_a_device_counts_no_more_than_there_is_room_for():
    own = plan_of(**SECURE, federated_evaluation={"epsilon": 30}).evaluation
    counts = np.full(own.counts.cells, 10**12)
    noised = own.noised(counts, SeededRandom(1)).segments["counts"]
    assert int(np.abs(noised).max()) * 20 < 2 ** (own.spec.bits - 1)


@pytest.mark.parametrize("honest", [0, 800])
@pytest.mark.parametrize("kind", [Confusion(10), Hits(100), Errors(TargetRange(0, 1))])
def test_a_large_epsilon_is_met_as_far_as_noise_can_be_drawn(kind, honest):
    counts = "evaluation counts", kind.sensitivity_squared, kind.cells
    event = counts_event(*counts, 24.0, 1e-6, 10, honest)
    assert 23 < price([event] * 10, 1e-6).inference.epsilon <= 24
    with pytest.raises(PrivacyError, match="lower epsilon or raise delta"):
        counts_event(*counts, 64.0, 1e-6, 10, honest)


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
        ("max_inference_epsilon", 1.2 * quote.inference.epsilon, [request] * 2),
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


ASKED = {"upload": "sums", "epsilon": 1.0, "every_rounds": 2}


def clustered(**changes):
    return plan_of(**{"federated_evaluation": None, "unsupervised": ASKED, **changes})


BOTH = {"federated_evaluation": {"epsilon": 1.0, "every_rounds": 4}}


def asking(**changes):
    return {"unsupervised": {**ASKED, **changes}}


def at(plan, phase):
    return [e.number for e in plan.all_rounds if e.phase == phase]


def test_evaluations_follow_their_round_with_counts_last_and_indices_count_on():
    plan = clustered(**BOTH)
    labels = [e.label for e in plan.all_rounds]
    assert labels[:4] == ["centre", "quadratic", "round 1", "round 2"]
    assert [(e.phase, e.number) for e in plan.all_rounds if e.evaluates] == [
        *((CLUSTER, 2), (CLUSTER, 4), (EVALUATE, 4), (CLUSTER, 6), (EVALUATE, 6))
    ]
    assert [e.index for e in plan.all_rounds] == list(range(1, len(plan.all_rounds) + 1))
    assert not any(e.infer for e in plan.all_rounds)
    together = plan.quote().inference
    assert 1 < together.epsilon < 2  # of the same records: one guarantee, by its Gaussian law
    assert together.unit == "record"
    assert at(plan_of(federated_evaluation={"epsilon": 1}), EVALUATE) == [6]  # the last model
    for none in (asking(every_rounds=0), asking(eval_type="NOT_EVAL")):
        assert at(clustered(**none), CLUSTER) == []


@pytest.mark.parametrize("every", [1, 2, 6])
def test_all_sums_together_cost_what_the_job_says(every):
    plan = clustered(**asking(every_rounds=every))
    quote = plan.quote()
    assert 0.99 < quote.inference.epsilon <= 1
    assert (quote.inference.unit, quote.inference.delta) == ("record", 1e-5)
    assert quote.training.epsilon == pytest.approx(4, rel=1e-4)
    assert set(plan.events(trains=False)) == {plan.cluster_sums.event}
    assert len(plan.events(trains=False)) == len(at(plan, CLUSTER))
    assert event_from_dict(to_dict(plan.cluster_sums.event)) == plan.cluster_sums.event


def test_the_event_covers_what_one_record_adds():
    for changes in ({}, SECURE, {"data": {**PLAIN["data"], "classes": 40}}):
        own = clustered(**changes).cluster_sums
        steps = own.event.sensitivity_steps
        wanted = own.counts.sensitivity_squared << 2 * own.event.grid_bits
        assert (steps - 1) ** 2 < wanted <= steps**2


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 24.0])
@pytest.mark.parametrize("devices", [20, 16_000])
def test_sums_fit_their_ring_at_every_epsilon(epsilon, devices):
    changes = {**SECURE, "selection": {"devices": devices}, **asking(epsilon=epsilon)}
    plan = clustered(**changes)
    round = next(e for e in plan.all_rounds if e.phase == CLUSTER)
    (group,) = plan.masked(round)
    assert group.count == plan.cluster_sums.counts.cells
    assert price([plan.cluster_sums.event] * 3, 1e-5).inference.epsilon <= epsilon
    counts = np.full(group.count, 10**15)
    noised = plan.cluster_sums.noised(counts, SeededRandom(1)).segments[COUNTS]
    assert int(np.abs(noised).max()) * devices < 2 ** (group.bits - 1)


def test_the_package_has_corners_first_and_then_the_means_of_the_last_sums():
    plan = clustered(**asking(epsilon=30))
    first, second = [e for e in plan.all_rounds if e.phase == CLUSTER][:2]
    train = next(e for e in plan.all_rounds if e.number == 3 and not e.evaluates)
    state = plan.cloud.initial_state()
    corners = plan.package(state, first)[CENTROIDS]
    assert np.array_equal(corners, np.eye(3) * ONE)
    own = plan.cluster_sums.about({CENTROIDS: corners})
    points = np.repeat([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.0, 0.1, 0.9]], 13, axis=0)
    exact = own.counts.of(points, np.zeros(0, np.int64))
    uploads = [own.noised(exact, SeededRandom(k)).segments[COUNTS] for k in range(60)]
    mean = {COUNTS: np.mean(uploads, axis=0)}
    after = plan.next_state(state, first, mean, len(uploads))
    assert np.array_equal(after[ABOUT], corners)
    moved = plan.package(after, second)[CENTROIDS] / ONE
    assert moved == pytest.approx(points[::13], abs=0.1)
    zeros = {segment.name: np.zeros(segment.shape) for segment in plan.segments(train)}
    trained = plan.next_state(after, train, zeros, 20)
    assert np.array_equal(trained[CENTROIDS], after[CENTROIDS])
    found = cluster_figures(RoundContext.of(plan, first.index), after, uploads, 60)
    assert found is not None
    assert (found["eval_type"], found["upload"]) == ("SILHOUETTE_SCORE", "sums")
    assert found["score"] == found["silhouette"]
    assert cluster_figures(RoundContext.of(plan, train.index), after, [], 1) is None


@pytest.mark.parametrize("tensors", [{}, {CENTROIDS: np.eye(3)}], ids=["none", "floats"])
def test_a_device_answers_no_package_without_sound_centroids(tensors):
    with pytest.raises(ProtocolError):
        clustered().cluster_sums.about(tensors)


@pytest.mark.parametrize(
    ("made", "changes", "key", "what"),
    [
        (
            plan_of,
            {KEY: {"epsilon": 1, "every_rounds": 7}},
            f"{KEY}.every_rounds",
            "more than the 6 rounds",
        ),
        (
            plan_of,
            {"data": {**PLAIN["data"], "evaluation_share": 0}},
            "data.evaluation_share",
            "no records",
        ),
        (plan_of, {KEY: {"epsilon": 701}}, f"{KEY}.epsilon", "be met"),
        (plan_of, LARGE, f"{KEY}.epsilon", "largest ring"),
        (plan_of, NOTHING, KEY, "learns nothing"),
        (plan_of, {"features": LOCAL_PCA}, KEY, "no basis"),
        (clustered, asking(epsilon=None), "unsupervised.epsilon", "needs the ε"),
        (clustered, {"unsupervised": {"epsilon": 1.0}}, "unsupervised.epsilon", "is of upl"),
        (clustered, asking(eval_type="MEAN_SOFTMAX"), "unsupervised.eval_type", "leave upload out"),
        (
            clustered,
            {"encrypt": {"laplace_eval": {"laplace_eval_eps": 2.0}}},
            "encrypt",
            "instead",
        ),
        (
            clustered,
            {"data": {**PLAIN["data"], "classes": 600}},
            "unsupervised.upload",
            "values a device",
        ),
        (clustered, asking(epsilon=701), "unsupervised.epsilon", "be met"),
        (
            clustered,
            {"train": {"method": "pca_residual"}},
            "unsupervised.eval_type",
            "normal records",
        ),
    ],
)
def test_impossible_jobs_are_refused_by_name(made, changes, key, what):
    with pytest.raises(ImpossibleMixError) as caught:
        made(**changes)
    found = [(mix.paths, mix.text) for mix in caught.value.mixes]
    assert any(key in paths and what in text for paths, text in found), found
