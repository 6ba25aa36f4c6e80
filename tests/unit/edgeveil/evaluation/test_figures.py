"""Figures of classes, of a number and of scores: scikit-learn's, and what noised counts tell."""

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from edgeveil.data.target import LABELS, TargetRange
from edgeveil.evaluation.accuracy import HeldOutTest
from edgeveil.evaluation.figures import (
    SCORE_BINS,
    anomaly_figures,
    baselines,
    classification_figures,
    leading_text,
    regression_figures,
    score_bins,
)
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.evaluation.record_counts import ScoreCounts
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.models.heads import regression_graph


def _drawn(seed, classes, n, coarse):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    logits = random.normal(size=(n, classes)) + 1.5 * (labels[:, None] == np.arange(classes))
    found = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return (np.round(found, 1) if coarse else found).astype(np.float32), labels


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(2, 6),
    n=st.integers(1, 60),
    coarse=st.booleans(),
)
def test_figures_are_those_of_scikit_learn(seed, classes, n, coarse):
    found, labels = _drawn(seed, classes, n, coarse)
    told = classification_figures(found, labels)
    predicted, every = found.argmax(axis=1), list(range(classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        balanced = metrics.balanced_accuracy_score(labels, predicted)
        macro = metrics.f1_score(labels, predicted, average="macro", zero_division=0)
        each = metrics.precision_recall_fscore_support(
            labels, predicted, labels=every, zero_division=0
        )
    assert told["balanced_accuracy"] == pytest.approx(balanced, abs=1e-6)
    assert told["macro_f1"] == pytest.approx(macro, abs=1e-6)
    assert told["confusion"] == metrics.confusion_matrix(labels, predicted, labels=every).tolist()
    for of, row in enumerate(told["per_class"]):
        wanted = [one[of] for one in each]
        got = [row[key] or 0.0 for key in ("precision", "recall", "f1", "records")]
        assert got == pytest.approx(wanted, abs=1e-6)
    areas = [
        metrics.roc_auc_score(labels == of, found[:, of])
        for of in every
        if 0 < (labels == of).sum() < n
    ]
    if areas:
        assert told["auc"] == pytest.approx(np.mean(areas), abs=1e-6)
    else:
        assert told["auc"] is None
    json.dumps(told, allow_nan=False)


def test_calibration_compares_confidence_with_accuracy():
    found = np.array([[0.95, 0.05]] * 8 + [[0.55, 0.45]] * 2, np.float32)
    told = classification_figures(found, np.array([0] * 4 + [1] * 4 + [0, 0]))["calibration"]
    assert [(one["records"], one["accuracy"]) for one in told["bins"]] == [(2, 1.0), (8, 0.5)]
    assert told["error"] == pytest.approx(0.45, abs=1e-6)


def test_unusable_records_are_wrong_and_labels_of_no_class_are_left_out():
    found = np.array([[0.9, 0.1], [np.nan, 0.2], [0.2, 0.8], [0.1, 0.9]], np.float32)
    told = classification_figures(found, np.array([0, 0, 1, 1]))
    first = told["per_class"][0]
    assert (told["unusable"], told["confusion"]) == (1, [[1, 0], [0, 2]])
    assert (first["precision"], first["recall"], first["records"]) == (1.0, 0.5, 2)
    assert told["auc"] == pytest.approx(1 / 2)
    labelled = classification_figures(found[2:], np.array([1, 5]))
    assert labelled == classification_figures(found[2:3], np.array([1]))
    assert classification_figures(found, np.array([-1, 2, 9, 3])) == {}


def test_an_rmse_stands_beside_always_saying_the_mean():
    target = TargetRange(0.0, 10.0)
    labels = np.array([0, 4096, 8192])  # 0, 5 and 10
    found = regression_figures(np.array([5.0, 5.0, 5.0]), labels, target)
    assert found["rmse"] == found["rmse_of_mean"] == pytest.approx(np.sqrt(50 / 3), rel=1e-5)
    worse = regression_figures(np.array([10.0, 5.0, 0.0]), labels, target)
    assert baselines(worse) == {"rmse_of_mean": found["rmse"]}
    assert "worse" in leading_text("RMSE", worse["rmse"], worse)
    assert "worse" not in leading_text("RMSE", found["rmse"], found)


TARGET = TargetRange(-50.0, 150.0)
RNG = np.random.default_rng(0)


def test_errors_are_those_of_scikit_learn_over_labelled_records():
    labels = RNG.integers(0, LABELS, 300)
    wanted = TARGET.values(labels)
    values = wanted + RNG.normal(0, 20, 300)
    found = regression_figures(values, labels, TARGET)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(wanted, values), rel=1e-5)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(wanted, values), rel=1e-5)
    assert found["r2"] == pytest.approx(metrics.r2_score(wanted, values), abs=1e-5)
    assert found["unusable"] == 0
    labels, values = np.array([4096, -1, LABELS, 4096]), np.array([50.0, 0, 0, np.nan])
    found = regression_figures(values, labels, TARGET)
    assert (found["mae"], found["unusable"], found["r2"]) == (100.0, 1, None)
    assert regression_figures(values[1:3], labels[1:3], TARGET) == {}


def test_a_model_is_tested_in_the_labels_unit():
    features = build_features([IdentityParameters()])
    graph = regression_graph(features, (3,), TARGET)
    weights = {
        "centre": np.zeros(3, np.float32),
        "radius": np.ones(1, np.float32),
        "weight": np.array([[0.5], [-0.2], [0.1]], np.float32),
        "bias": np.array([0.1], np.float32),
    }
    x, y = RNG.normal(size=(130, 3)).astype(np.float32), RNG.integers(0, LABELS, 130)
    tested = HeldOutTest(graph, x, y, TARGET).tested(weights)
    values = OnnxModel(graph).answers(x, weights)[:, 0]
    error = metrics.root_mean_squared_error(TARGET.values(y), values)
    assert tested.accuracy is None
    assert tested.figures["rmse"] == pytest.approx(error, rel=1e-5)
    assert tested.loss == pytest.approx((error / 100) ** 2, rel=1e-4)


BINS = SCORE_BINS[2]


def drawn(count=4000, seed=0, share=0.1):
    rng = np.random.default_rng(seed)
    labels = (rng.random(count) < share).astype(np.int64)
    scores = np.exp(rng.normal(-3, 0.5, count) + labels * rng.normal(1.5, 0.5, count))
    return scores, labels


@pytest.mark.parametrize("decimals", [1, 12])  # with many ties, and without
def test_they_are_as_scikit_learn_has_them(decimals):
    scores, labels = drawn()
    scores = np.round(scores * 10, decimals)
    found = anomaly_figures(scores, labels, alarms=True)
    flagged = scores > 1
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-6)
    wanted = metrics.average_precision_score(labels, scores)
    assert found["average_precision"] == pytest.approx(wanted, abs=1e-6)
    assert found["detection_rate"] == pytest.approx(metrics.recall_score(labels, flagged), abs=1e-6)
    assert found["precision"] == pytest.approx(metrics.precision_score(labels, flagged), abs=1e-6)
    assert found["f1"] == pytest.approx(metrics.f1_score(labels, flagged), abs=1e-6)
    assert found["false_alarm_rate"] == pytest.approx(flagged[labels == 0].mean(), abs=1e-6)
    assert (found["normal"], found["anomalous"]) == ((labels == 0).sum(), labels.sum())
    histogram = found["histogram"]
    assert sum(histogram["normal"]) == found["normal"]
    assert sum(histogram["anomalous"]) == found["anomalous"]
    assert len(histogram["normal"]) == 2 * (histogram["to"] - histogram["from"])


def test_what_has_no_label_is_left_out_and_what_has_no_score_is_wrong():
    scores = np.array([0.1, 0.2, np.nan, np.inf, 0.9, 5.0])
    labels = np.array([0, 1, 1, 0, -1, -2])
    found = anomaly_figures(scores, labels, alarms=True)
    shares = (found["detection_rate"], found["false_alarm_rate"])
    assert (found["unusable"], found["auc"], *shares) == (2, 1 / 4, 0.0, 0.5)  # of 4 pairs, 1
    assert anomaly_figures(scores[4:], labels[4:], alarms=True) == {}
    normal = anomaly_figures(np.array([1.0, 2.0]), np.array([0, 0]), alarms=False)
    assert (normal["auc"], normal["average_precision"]) == (None, None)
    assert "false_alarm_rate" not in normal
    odd = anomaly_figures(np.array([1.0, 2.0]), np.array([1, 3]), alarms=True)
    assert (odd["auc"], odd["false_alarm_rate"], odd["detection_rate"]) == (None, None, 0.5)


def test_a_record_counts_by_its_score_and_its_label():
    kind = ScoreCounts(0.05)
    found = kind.of(np.array([[1.1], [1.1], [1.1], [1.1], [np.nan]]), np.array([0, -1, 3, -2, 0]))
    at = score_bins(np.array([1.1]))[0]
    assert found[at] == 2  # normal, and without a label
    assert found[BINS + at] == 1
    assert found.sum() == 3


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_without_noise_the_threshold_is_the_quantile(rate):
    scores, labels = drawn(40_000)
    kind = ScoreCounts(rate)
    found = kind.figures(kind.of(scores[:, None], labels).astype(float), 0.0)
    assert not found["far"]
    reached = (scores[labels == 0] > found["threshold"]).mean()
    assert reached == pytest.approx(rate, rel=0.25)  # bins are half octaves
    assert found["false_alarm_rate"] == pytest.approx(rate, abs=1e-6)
    exact = anomaly_figures(scores, labels, alarms=False)["auc"]
    assert found["auc"] == pytest.approx(exact, abs=0.01)
    caught = (scores[labels == 1] > found["threshold"]).mean()
    assert found["detection_rate"] == pytest.approx(caught, abs=0.03)


def noised(kind, scores, labels, deviation, seed):
    counts = kind.of(scores[:, None], labels).astype(float)
    return counts + np.random.default_rng(seed).normal(0, deviation, kind.cells)


def test_its_deviations_are_those_over_many_draws_of_the_noise():
    scores, labels = drawn(20_000)
    kind, deviation = ScoreCounts(0.1), 15.0
    told = [kind.figures(noised(kind, scores, labels, deviation, k), deviation) for k in range(300)]
    areas = np.array([one["auc"] for one in told])
    stated = float(np.mean([one["auc_deviation"] for one in told]))
    assert 0.7 < areas.std() / stated < 1.4
    exact = anomaly_figures(scores, labels, alarms=False)["auc"]
    assert areas.mean() == pytest.approx(exact, abs=0.01)
    reached = [(scores[labels == 0] > one["threshold"]).mean() for one in told]
    assert np.mean(reached) == pytest.approx(0.1, abs=0.02)


def test_where_the_tail_is_lost_in_noise_it_continues_from_what_is_told():
    scores, labels = drawn(8000, share=0.0)
    kind, deviation = ScoreCounts(0.005), 60.0  # 40 of 8000 records: less than one cell's noise
    told = [kind.figures(noised(kind, scores, labels, deviation, k), deviation) for k in range(100)]
    assert all(one["far"] for one in told)
    reached = np.array([(scores > one["threshold"]).mean() for one in told])
    assert 0.001 < np.median(reached) < 0.02  # scores are a log-normal
    assert "auc" not in told[0]  # no anomalous record is told from noise


def test_of_noise_alone_there_is_nothing():
    kind = ScoreCounts(0.05)
    rng = np.random.default_rng(0)
    assert kind.figures(np.zeros(kind.cells), 0.0) == {}
    assert kind.figures(np.zeros(kind.cells), 5.0) == {}
    found = [kind.figures(rng.normal(0, 10.0, kind.cells), 10.0) for _ in range(100)]
    assert sum(bool(one) for one in found) < 5
    few = kind.of(np.full((30, 1), 0.1), np.zeros(30, np.int64)).astype(float)
    assert kind.figures(few + rng.normal(0, 10.0, kind.cells), 10.0) == {}
    assert all(math.isfinite(v) for one in found for v in one.values() if isinstance(v, float))
