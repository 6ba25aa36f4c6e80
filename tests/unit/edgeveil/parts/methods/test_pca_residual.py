"""`pca_residual`: its sums by hand, what one record moves, and what is unusual by them."""

import math

import numpy as np
import pytest
from fm_kit import context

from edgeveil.data.records import Records
from edgeveil.evaluation.figures import anomaly_figures
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import SCORE, OnnxModel
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.methods.fm_sums import CENTRE, symmetric
from edgeveil.parts.methods.pca_residual import (
    PRODUCTS,
    PcaResidualCloud,
    PcaResidualDevice,
    PcaResidualParameters,
)
from edgeveil.parts.models.heads import bake, no_threshold, residual_graph, residual_scores
from edgeveil.parts.round import TRAIN
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import as_single, as_summed
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.windows import windows

FINE = 2.0**-28
BOUNDED = build_features([IdentityParameters(norm="bounded")])


def halves(parameters=None, **changes):
    given = {"anomaly": True, "features": BOUNDED, **changes}
    parameters, chosen = parameters or PcaResidualParameters(), context(**given)
    return PcaResidualDevice(parameters, chosen), PcaResidualCloud(parameters, chosen)


def test_one_record_by_hand():
    device, cloud = halves(PcaResidualParameters(radius=0.5))
    record = Records(np.array([[0.6, -0.8]], np.float32), np.array([0]))
    first, second = cloud.plan()
    phi = np.array([0.6, -0.8]) / math.sqrt(2)
    found = device.sums(first, {}, record) * FINE
    np.testing.assert_allclose(found, phi, atol=1e-6)
    centre = np.array([0.1, 0.1], np.float32)
    found = device.sums(second, {CENTRE: centre}, record) * FINE
    away = phi - centre
    z = away / max(1, np.linalg.norm(away) / 0.5) / 0.5  # of norm 0.75, so cut to 0.5
    assert np.linalg.norm(away) > 0.5
    np.testing.assert_allclose(found, np.outer(z, z)[np.triu_indices(2)], atol=2e-3)


@pytest.mark.parametrize("summed", [0, 8])
def test_one_record_moves_a_sum_by_no_more_than_its_event_says(summed):
    honest = 5 if summed else 0
    device, cloud = halves(input_shape=(3,), summed=summed, honest=honest, nominal_records=4)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 12))
        x = (rng.normal(size=(count, 3)) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
        x[rng.random(count) < 0.2] = rng.choice([np.nan, np.inf, 3e38, -3e38])
        records = Records(x, rng.integers(-3, 3, count))
        left = records.at(np.delete(np.arange(count), rng.integers(count)))
        centre = rng.normal(size=3).astype(np.float32) * 10.0 ** rng.integers(-2, 3)
        for round in cloud.plan():
            tensors = {CENTRE: centre} if round.phase == TRAIN else {}
            change = device.sums(round, tensors, records) - device.sums(round, tensors, left)
            event = as_single(device.budget.events[round.phase])
            matrix = symmetric(change, 3) if round.phase == TRAIN else change.astype(np.float64)
            assert math.sqrt(float(np.square(matrix).sum())) <= event.sensitivity_steps


def test_anomalous_records_are_in_no_sum_and_those_without_a_label_are():
    device, cloud = halves(input_shape=(3,))
    x = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32)
    x[5] = np.nan
    every = Records(x, np.array([0, -1, 1, 4, -2, 0]))
    learned = Records(x[:2], np.array([0, 0]))
    for round in cloud.plan():
        tensors = {CENTRE: np.zeros(3, np.float32)}
        found, wanted = (device.sums(round, tensors, one) for one in (every, learned))
        np.testing.assert_array_equal(found, wanted)
        assert wanted.any() and not device.sums(round, tensors, every.at([2, 3])).any()


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_whole_job_costs_what_was_asked(rounds):
    parameters = PcaResidualParameters(rounds=rounds)
    device, cloud = halves(parameters, epsilon=2.0, nominal_records=50, max_participations=2)
    events = device.budget.job_events()
    assert len(events) == 1 + min(rounds, 2)
    assert 0.98 * 2 < epsilon([as_summed(event) for event in events], 1e-5).epsilon <= 2
    assert [round.number for round in cloud.plan()] == [0, *range(1, rounds + 1)]


def fleet(parameters, devices=10, noise=True, **changes):
    """(model, test scores, labels) of windows dealt to devices."""
    given = {"input_shape": (8,), "nominal_records": 200, "devices": devices, **changes}
    device, cloud = halves(parameters, **given)
    x, labels = windows(devices * 200 + 2000)
    codes = {"ok": 0, "leak": 1, "stall": 1}
    y = np.array([codes.get(one, -1) for one in labels])
    x = np.clip(x / 2, -1, 1).astype(np.float32)
    state = cloud.initial_state()
    for round in cloud.plan():
        package, sent = cloud.package(state, round), []
        for k in range(devices):
            part = Records(x[k * 200 : (k + 1) * 200], y[k * 200 : (k + 1) * 200])
            if noise:
                sent.append(device.answer(round, package, part, SeededRandom(k)).segments)
            else:
                sent.append(device.finish(round, package, device.sums(round, package, part)))
        mean = {name: np.mean([one[name] for one in sent], axis=0) for name in sent[0]}
        state = cloud.absorb(state, round, mean, devices)
    model, test = cloud.model(state), x[devices * 200 :]
    scores = residual_scores(BOUNDED(test), {**no_threshold(), **model})
    return model, test, scores, y[devices * 200 :]


@pytest.mark.parametrize(
    ("keep", "least", "changes"),
    [
        (None, 0.97, {"noise": False}),
        (1, 0.95, {"epsilon": 8.0}),
        (0.25, 0.9, {"epsilon": 1.0, "summed": 10, "honest": 8}),
    ],
)
def test_what_is_unusual_scores_higher(keep, least, changes):
    _, _, scores, labels = fleet(PcaResidualParameters(keep=keep), **changes)
    assert anomaly_figures(scores, labels, alarms=False)["auc"] > least


def test_several_rounds_add_up_to_one_of_them_all():
    one = fleet(PcaResidualParameters(keep=1), noise=False)[0]
    three = fleet(PcaResidualParameters(rounds=3, keep=1), noise=False)[0]
    np.testing.assert_array_equal(one["centre"], three["centre"])
    np.testing.assert_allclose(one["residual"], three["residual"], atol=0.02)


def test_a_hostile_mean_leaves_the_model_finite():
    _, cloud = halves(PcaResidualParameters(), input_shape=(3,))
    train = cloud.plan()[1]
    for value in (np.nan, np.inf, 1e300):
        state = cloud.absorb(cloud.initial_state(), train, {PRODUCTS: np.full(6, value)}, 3)
        assert all(np.isfinite(one).all() for one in cloud.model(state).values())


def test_the_released_graph_computes_the_same():
    model, test, scores, _ = fleet(PcaResidualParameters(), noise=False)
    graph = residual_graph(BOUNDED, (8,))
    check_graph(graph)
    onnx = bake(graph, {**model, "threshold": np.array([0.01], np.float32)}, {})
    check_graph(onnx, released=True)
    session = OnnxModel(onnx)
    assert session.output == SCORE
    found = session.answers(test, {})
    np.testing.assert_allclose(found, scores[:, None] / 0.01, rtol=2e-3, atol=1e-4)
    far = session.answers(np.array([[1e30] * 8, [np.nan] * 8], np.float32), {})
    assert np.isfinite(far[:, 0]).tolist() == [True, False]
