"""Figures and counts: scikit-learn's, bounded by record, and what noised counts show."""

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from edgeveil.data.target import LABELS, TargetRange
from edgeveil.evaluation.figures import (
    anomaly_figures,
    classification_figures,
    federated_text,
    regression_figures,
)
from edgeveil.evaluation.record_counts import Confusion, Errors, Hits, ScoreCounts


def _drawn(seed, classes, n, coarse):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    logits = random.normal(size=(n, classes)) + 1.5 * (labels[:, None] == np.arange(classes))
    found = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return (np.round(found, 1) if coarse else found).astype(np.float32), labels


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(2, 6),
    n=st.integers(1, 60),
    coarse=st.booleans(),
)
def test_figures_are_those_of_scikit_learn(seed, classes, n, coarse):
    found, labels = _drawn(seed, classes, n, coarse)
    shown = classification_figures(found, labels)
    predicted, every = found.argmax(axis=1), list(range(classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        balanced = metrics.balanced_accuracy_score(labels, predicted)
        macro = metrics.f1_score(labels, predicted, average="macro", zero_division=0)
        each = metrics.precision_recall_fscore_support(
            labels, predicted, labels=every, zero_division=0
        )
    assert shown["balanced_accuracy"] == pytest.approx(balanced, abs=1e-6)
    assert shown["macro_f1"] == pytest.approx(macro, abs=1e-6)
    assert shown["confusion"] == metrics.confusion_matrix(labels, predicted, labels=every).tolist()
    for of, row in enumerate(shown["per_class"]):
        wanted = [one[of] for one in each]
        got = [row[key] or 0.0 for key in ("precision", "recall", "f1", "records")]
        assert got == pytest.approx(wanted, abs=1e-6)
    areas = [
        metrics.roc_auc_score(labels == of, found[:, of])
        for of in every
        if 0 < (labels == of).sum() < n
    ]
    if areas:
        assert shown["auc"] == pytest.approx(np.mean(areas), abs=1e-6)
    else:
        assert shown["auc"] is None
    json.dumps(shown, allow_nan=False)


def test_calibration_compares_confidence_with_accuracy():
    found = np.array([[0.95, 0.05]] * 8 + [[0.55, 0.45]] * 2, np.float32)
    shown = classification_figures(found, np.array([0] * 4 + [1] * 4 + [0, 0]))["calibration"]
    assert [(one["records"], one["accuracy"]) for one in shown["bins"]] == [(2, 1.0), (8, 0.5)]
    assert shown["error"] == pytest.approx(0.45, abs=1e-6)


def test_unusable_records_are_wrong_and_labels_of_no_class_are_left_out():
    found = np.array([[0.9, 0.1], [np.nan, 0.2], [0.2, 0.8], [0.1, 0.9]], np.float32)
    shown = classification_figures(found, np.array([0, 0, 1, 1]))
    first = shown["per_class"][0]
    assert (shown["unusable"], shown["confusion"]) == (1, [[1, 0], [0, 2]])
    assert (first["precision"], first["recall"], shown["auc"]) == (1.0, 0.5, pytest.approx(0.5))
    labelled = classification_figures(found[2:], np.array([1, 5]))
    assert labelled == classification_figures(found[2:3], np.array([1]))
    assert classification_figures(found, np.array([-1, 2, 9, 3])) == {}


TARGET = TargetRange(-50.0, 150.0)
RNG = np.random.default_rng(0)


def test_errors_are_those_of_scikit_learn_over_labelled_records():
    labels = RNG.integers(0, LABELS, 300)
    wanted = TARGET.values(labels)
    values = wanted + RNG.normal(0, 20, 300)
    found = regression_figures(values, labels, TARGET)
    theirs = {
        "mae": metrics.mean_absolute_error(wanted, values),
        "rmse": metrics.root_mean_squared_error(wanted, values),
        "r2": metrics.r2_score(wanted, values),
        "unusable": 0,
    }
    assert {name: found[name] for name in theirs} == pytest.approx(theirs, rel=1e-5)
    labels, values = np.array([4096, -1, LABELS, 4096]), np.array([50.0, 0, 0, np.nan])
    found = regression_figures(values, labels, TARGET)
    assert (found["mae"], found["unusable"], found["r2"]) == (100.0, 1, None)
    assert regression_figures(values[1:3], labels[1:3], TARGET) == {}


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
    wanted = {
        "auc": metrics.roc_auc_score(labels, scores),
        "average_precision": metrics.average_precision_score(labels, scores),
        "detection_rate": metrics.recall_score(labels, flagged),
        "precision": metrics.precision_score(labels, flagged),
        "f1": metrics.f1_score(labels, flagged),
        "false_alarm_rate": flagged[labels == 0].mean(),
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)
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
    shown = [
        kind.figures(noised(kind, scores, labels, deviation, k), deviation) for k in range(300)
    ]
    areas = np.array([one["auc"] for one in shown])
    stated = float(np.mean([one["auc_deviation"] for one in shown]))
    assert 0.7 < areas.std() / stated < 1.4
    exact = anomaly_figures(scores, labels, alarms=False)["auc"]
    assert areas.mean() == pytest.approx(exact, abs=0.01)
    reached = [(scores[labels == 0] > one["threshold"]).mean() for one in shown]
    assert np.mean(reached) == pytest.approx(0.1, abs=0.02)


def test_where_the_tail_is_lost_in_noise_it_continues_from_what_is_told():
    scores, labels = drawn(8000, share=0.0)
    kind, deviation = ScoreCounts(0.005), 60.0  # 40 of 8000 records: less than one cell's noise
    shown = [
        kind.figures(noised(kind, scores, labels, deviation, k), deviation) for k in range(100)
    ]
    assert all(one["far"] for one in shown)
    reached = np.array([(scores > one["threshold"]).mean() for one in shown])
    assert 0.001 < np.median(reached) < 0.02  # scores are a log-normal
    assert "auc" not in shown[0]  # no anomalous record is told from noise


def test_of_noise_alone_there_is_nothing():
    kind = ScoreCounts(0.05)
    rng = np.random.default_rng(0)
    assert kind.figures(np.zeros(kind.cells), 0.0) == {}
    assert kind.figures(np.zeros(kind.cells), 5.0) == {}
    found = [kind.figures(rng.normal(0, 10.0, kind.cells), 10.0) for _ in range(100)]
    assert sum(bool(one) for one in found) < 5
    assert all(math.isfinite(v) for one in found for v in one.values() if isinstance(v, float))


RANGE = TargetRange(-50.0, 150.0)
KINDS = [Confusion(3), Confusion(20), Hits(3), Hits(40), Errors(RANGE), ScoreCounts(0.05)]
ODD = [np.nan, np.inf, -np.inf, 0.0, 1e308, -1e308]


def records(kind, seed, count):
    chance = np.random.default_rng(seed)
    outputs = chance.normal(0, 200, (count, kind.outputs))
    odd = chance.random(outputs.shape) < 0.2
    outputs[odd] = chance.choice(ODD, odd.sum())
    most = LABELS if isinstance(kind, Errors) else kind.outputs
    return outputs, chance.integers(-2, most + 2, count)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 30), gone=st.integers(0, 29))
@settings(max_examples=60, deadline=None)
def test_one_record_changes_no_more_than_is_said(kind, seed, count, gone):
    outputs, labels = records(kind, seed, count)
    with_it = kind.of(outputs, labels)
    at = gone % count
    without = kind.of(np.delete(outputs, at, axis=0), np.delete(labels, at))
    changed = with_it - without
    assert with_it.dtype == np.int64
    assert with_it.shape == (kind.cells,)
    assert changed.min() >= 0
    assert changed.max() <= kind.largest
    assert int((changed**2).sum()) <= kind.sensitivity_squared
    assert np.array_equal(changed, kind.of(outputs[at : at + 1], labels[at : at + 1]))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_record_can_change_as_much_as_is_said(kind):
    outputs = np.zeros((1, kind.outputs))
    outputs[0, -1] = 1e6
    changed = kind.of(outputs, np.zeros(1, np.int64))
    assert int((changed**2).sum()) == kind.sensitivity_squared


@pytest.mark.parametrize("kind", [Confusion(4), Hits(4)], ids=str)
def test_figures_without_noise_are_those_of_the_records_themselves(kind):
    chance = np.random.default_rng(3)
    labels, outputs = chance.integers(0, 4, 300), chance.random((300, 4))
    outputs[np.arange(300), labels] += 0.4
    parts = [kind.of(outputs[k::3], labels[k::3]) for k in range(3)]  # of three devices
    found = kind.figures(np.sum(parts, axis=0).astype(np.float64), 0.0)
    wanted = classification_figures(outputs, labels)
    assert found["accuracy"] == pytest.approx((outputs.argmax(axis=1) == labels).mean(), abs=1e-6)
    assert (found["records"], found["accuracy_deviation"]) == (300, 0)
    for name in ("balanced_accuracy", "macro_f1"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-6)
    for shown, row in zip(found["per_class"], wanted["per_class"], strict=True):
        for name in ("precision", "recall", "f1", "records"):
            assert shown[name] == pytest.approx(row[name], abs=1e-6)
    assert not isinstance(kind, Confusion) or found["confusion"] == wanted["confusion"]


def test_errors_without_noise_are_those_of_the_records_themselves():
    chance, kind = np.random.default_rng(4), Errors(RANGE)
    labels = chance.integers(0, LABELS, 400)
    outputs = RANGE.values(labels) + chance.normal(0, 20, 400)
    found = kind.figures(kind.of(outputs[:, None], labels).astype(np.float64), 0.0)
    wanted = regression_figures(outputs, labels, RANGE)
    for name in ("rmse", "mae"):
        assert found[name] == pytest.approx(wanted[name], rel=2e-3)
    assert (found["records"], found["rmse_deviation"]) == (400, 0)


@pytest.mark.parametrize("kind", [Confusion(3), Hits(30), Errors(RANGE)], ids=str)
def test_the_deviation_said_is_that_of_the_noise(kind):
    chance = np.random.default_rng(5)
    if isinstance(kind, Errors):
        labels = chance.integers(0, LABELS, 2000)
        outputs = (RANGE.values(labels) + chance.normal(0, 30, 2000))[:, None]
    else:
        labels = chance.integers(0, kind.outputs, 2000)
        outputs = np.eye(kind.outputs)[np.where(chance.random(2000) < 0.8, labels, 0)]
    counts, deviation = kind.of(outputs, labels), 20.0 * kind.largest
    noised = counts + chance.normal(0, deviation, (1500, kind.cells))
    found = [kind.figures(row, deviation) for row in noised]
    name = found[0]["leading"]
    spread = np.std([one[name] for one in found])
    exact = kind.figures(counts.astype(np.float64), deviation)
    assert spread == pytest.approx(exact[f"{name}_deviation"], rel=0.06)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_but_noise_is_no_figure(kind):
    for counts in (np.zeros(kind.cells), np.full(kind.cells, -3.0)):
        found = kind.figures(counts, float(kind.largest))
        assert found == {}
        assert federated_text(found)


def test_counts_below_nothing_leave_shares_within_their_ends():
    chance, kind = np.random.default_rng(6), Confusion(4)
    for _ in range(200):
        counts = chance.normal(0, 40, kind.cells)
        counts[:2] += 100
        found = kind.figures(counts, 40.0)
        for row in found.get("per_class", ()):
            shares = (row["precision"], row["recall"], row["f1"])
            assert all(value is None or 0 <= value <= 1 for value in shares)
        assert all(0 <= (found.get(name) or 0) <= 1 for name in ("accuracy", "balanced_accuracy"))
