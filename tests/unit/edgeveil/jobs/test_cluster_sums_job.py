"""Cluster scores from sums in a job's plan: where they stand, their price, who cannot ask."""

import numpy as np
import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.errors import ProtocolError
from edgeveil.evaluation.cluster_sums import ONE
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.federated_evaluation import ABOUT, CENTROIDS, COUNTS
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.round import CLUSTER, EVALUATE
from edgeveil.privacy.events import event_from_dict, to_dict
from edgeveil.privacy.policy import price
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_cloud.evaluation import cluster_figures

ASKED = {"upload": "sums", "epsilon": 1.0, "every_rounds": 2}
PLAIN = {
    "job": "clustered",
    "data": {"source": "s", "classes": 3, "input_shape": (5,), "nominal_records": 40},
    "features": ({"name": "identity"},),
    "train": {"method": "fm", "rounds": 6},
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "unsupervised": ASKED,
}
SECURE = {"aggregation": {"name": "fedavg", "secure": True}, "selection": {"devices": 20}}
BOTH = {"federated_evaluation": {"epsilon": 1.0, "every_rounds": 4}}


def plan_of(**changes):
    return compile_job(Job.model_validate({**PLAIN, **changes}))


def asking(**changes):
    return {"unsupervised": {**ASKED, **changes}}


def at(plan, phase):
    return [e.number for e in plan.all_rounds if e.phase == phase]


def test_sums_are_asked_for_after_every_so_manyth_round_and_nothing_in_it():
    plan = plan_of()
    assert at(plan, CLUSTER) == [2, 4, 6]
    assert at(plan_of(**asking(every_rounds=4)), CLUSTER) == [4]
    assert not any(e.infer for e in plan.all_rounds)
    assert (plan.rounds, len(plan.of_method)) == (6, 8)
    assert at(plan_of(**asking(every_rounds=0)), CLUSTER) == []
    assert at(plan_of(**asking(eval_type="NOT_EVAL")), CLUSTER) == []


def test_both_kinds_of_evaluation_stand_after_one_round_counts_last():
    plan = plan_of(**BOTH)
    assert [(e.phase, e.number) for e in plan.all_rounds if e.evaluates] == [
        *((CLUSTER, 2), (CLUSTER, 4), (EVALUATE, 4), (CLUSTER, 6), (EVALUATE, 6))
    ]
    assert [e.index for e in plan.all_rounds] == list(range(1, len(plan.all_rounds) + 1))
    together = plan.quote().inference
    assert 1 < together.epsilon < 2  # of the same records: one guarantee, by its Gaussian law
    assert together.unit == "record"


@pytest.mark.parametrize("every", [1, 2, 6])
def test_all_sums_together_cost_what_the_job_says(every):
    plan = plan_of(**asking(every_rounds=every))
    quote = plan.quote()
    assert 0.99 < quote.inference.epsilon <= 1
    assert (quote.inference.unit, quote.inference.delta) == ("record", 1e-5)
    assert quote.training.epsilon == pytest.approx(4, rel=1e-4)
    assert set(plan.events(trains=False)) == {plan.cluster_sums.event}
    assert len(plan.events(trains=False)) == len(at(plan, CLUSTER))
    assert event_from_dict(to_dict(plan.cluster_sums.event)) == plan.cluster_sums.event


def test_the_event_covers_what_one_record_adds():
    for changes in ({}, SECURE, {"data": {**PLAIN["data"], "classes": 40}}):
        own = plan_of(**changes).cluster_sums
        steps = own.event.sensitivity_steps
        wanted = own.counts.sensitivity_squared << 2 * own.event.grid_bits
        assert (steps - 1) ** 2 < wanted <= steps**2


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 24.0])
@pytest.mark.parametrize("devices", [20, 16_000])
def test_sums_fit_their_ring_at_every_epsilon(epsilon, devices):
    """16,000 devices with local noise each: the most that a job may sum."""
    changes = {**SECURE, "selection": {"devices": devices}, **asking(epsilon=epsilon)}
    plan = plan_of(**changes)
    round = next(e for e in plan.all_rounds if e.phase == CLUSTER)
    (group,) = plan.masked(round)
    assert group.count == plan.cluster_sums.counts.cells
    assert price([plan.cluster_sums.event] * 3, 1e-5).inference.epsilon <= epsilon
    counts = np.full(group.count, 10**15)
    noised = plan.cluster_sums.noised(counts, SeededRandom(1)).segments[COUNTS]
    assert int(np.abs(noised).max()) * devices < 2 ** (group.bits - 1)


def test_the_package_has_corners_first_and_then_the_means_of_the_last_sums():
    plan = plan_of(**asking(epsilon=30))
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
    trained = plan.next_state(after, train, {s.name: np.zeros(s.shape) for s in
                                             plan.segments(train)}, 20)  # fmt: skip
    assert np.array_equal(trained[CENTROIDS], after[CENTROIDS])
    found = cluster_figures(RoundContext.of(plan, first.index), after, uploads, 60)
    assert found is not None
    assert (found["eval_type"], found["upload"]) == ("SILHOUETTE_SCORE", "sums")
    assert found["score"] == found["silhouette"]
    assert cluster_figures(RoundContext.of(plan, train.index), after, [], 1) is None


@pytest.mark.parametrize("tensors", [{}, {CENTROIDS: np.eye(3)}], ids=["none", "floats"])
def test_a_device_answers_no_package_without_sound_centroids(tensors):
    with pytest.raises(ProtocolError):
        plan_of().cluster_sums.about(tensors)


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        (asking(epsilon=None), "unsupervised.epsilon", "needs the ε"),
        (
            {"unsupervised": {"epsilon": 1.0, "every_rounds": 0}},
            "unsupervised.epsilon",
            "is of upl",
        ),
        (asking(every_rounds=7), "unsupervised.every_rounds", "more than the 6 rounds"),
        (asking(eval_type="MEAN_SOFTMAX"), "unsupervised.eval_type", "leave upload out"),
        ({"encrypt": {"laplace_eval": {"laplace_eval_eps": 2.0}}}, "encrypt", "in its place"),
        ({"data": {**PLAIN["data"], "classes": 600}}, "unsupervised.upload", "values a device"),
        (asking(epsilon=701), "unsupervised.epsilon", "be met"),
        ({"train": {"method": "pca_residual"}}, "unsupervised.eval_type", "what is normal"),
    ],
)
def test_impossible_jobs_are_refused_by_name(changes, key, what):
    with pytest.raises(ImpossibleMixError) as caught:
        plan_of(**changes)
    found = [(mix.paths, mix.text) for mix in caught.value.mixes]
    assert any(key in paths and what in text for paths, text in found), found
