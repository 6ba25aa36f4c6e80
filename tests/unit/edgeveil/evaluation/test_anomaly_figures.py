"""Figures of scores, as scikit-learn has them, and what noised counts of them tell."""

import math

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

from edgeveil.evaluation.figures import (
    SCORE_BINS,
    anomaly_figures,
    leading,
    leading_text,
    score_bins,
)
from edgeveil.evaluation.record_counts import ScoreCounts

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
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)
    wanted = average_precision_score(labels, scores)
    assert found["average_precision"] == pytest.approx(wanted, abs=1e-6)
    assert found["detection_rate"] == pytest.approx(recall_score(labels, flagged), abs=1e-6)
    assert found["precision"] == pytest.approx(precision_score(labels, flagged), abs=1e-6)
    assert found["f1"] == pytest.approx(f1_score(labels, flagged), abs=1e-6)
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
    assert found["unusable"] == 2
    assert found["auc"] == pytest.approx(1 / 4)  # of four pairs one is in order
    assert found["detection_rate"] == 0.0
    assert found["false_alarm_rate"] == 0.5
    assert anomaly_figures(scores[4:], labels[4:], alarms=True) == {}


def test_of_one_kind_alone_there_is_no_order():
    found = anomaly_figures(np.array([1.0, 2.0]), np.array([0, 0]), alarms=False)
    assert found["auc"] is None
    assert found["average_precision"] is None
    assert "false_alarm_rate" not in found
    found = anomaly_figures(np.array([1.0, 2.0]), np.array([1, 3]), alarms=True)
    assert (found["auc"], found["average_precision"], found["false_alarm_rate"]) == (None,) * 3
    assert found["detection_rate"] == 0.5


def test_auc_leads_them():
    scores, labels = drawn()
    row = {"figures": anomaly_figures(scores, labels, alarms=False), "accuracy": None}
    name, value = leading(row)
    assert (name, value) == ("AUC", row["figures"]["auc"])
    assert leading_text(name, value) == f"{value:.3f}"


def test_bins_are_half_octaves():
    edges = 2.0 ** np.arange(-20, 20, 0.5)
    assert score_bins(edges * 1.0001).tolist() == list(range(BINS))
    assert score_bins(np.array([0.0, 1e-30, 1e30])).tolist() == [0, 0, BINS - 1]


def neighbours(seed):
    """Outputs and labels that may hold anything, and the same without one of the records."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    outputs = np.exp(rng.normal(0, 30, (count, 1)))
    odd = rng.random(count) < 0.3
    outputs[odd, 0] = rng.choice([np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308], odd.sum())
    labels = rng.integers(-3, 4, count)
    left = np.delete(np.arange(count), rng.integers(count))
    return (outputs, labels), (outputs[left], labels[left])


@pytest.mark.parametrize("seed", range(200))
def test_one_record_adds_one_to_one_count_at_most(seed):
    kind = ScoreCounts(0.05)
    (outputs, labels), fewer = neighbours(seed)
    change = kind.of(outputs, labels) - kind.of(*fewer)
    assert change.shape == (kind.cells,)
    assert change.min() >= 0
    assert change.max(initial=0) <= kind.largest
    assert int(np.square(change).sum()) <= kind.sensitivity_squared


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
