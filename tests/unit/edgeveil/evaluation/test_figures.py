"""Figures of a classifier, held to scikit-learn's."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from edgeveil.data.target import TargetRange
from edgeveil.evaluation.figures import (
    MOST_CROSSED,
    classification_figures,
    guessing,
    leading_text,
    regression_figures,
    spread_of,
)


def _drawn(seed: int, classes: int, n: int, coarse: bool) -> tuple[np.ndarray, np.ndarray]:
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
def test_figures_are_those_of_scikit_learn(seed: int, classes: int, n: int, coarse: bool) -> None:
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


def test_calibration_tells_confidence_from_accuracy() -> None:
    found = np.array([[0.95, 0.05]] * 8 + [[0.55, 0.45]] * 2, np.float32)
    labels = np.array([0] * 4 + [1] * 4 + [0, 0])
    told = classification_figures(found, labels)["calibration"]
    assert [one["records"] for one in told["bins"]] == [2, 8]
    assert [one["accuracy"] for one in told["bins"]] == [1.0, 0.5]
    assert told["error"] == pytest.approx(0.2 * 0.45 + 0.8 * 0.45, abs=1e-6)


def test_a_record_whose_probabilities_are_not_finite_is_wrong_everywhere() -> None:
    found = np.array([[0.9, 0.1], [np.nan, 0.2], [0.2, 0.8], [0.1, 0.9]], np.float32)
    told = classification_figures(found, np.array([0, 0, 1, 1]))
    assert told["unusable"] == 1
    assert told["per_class"][0] == {
        "class": 0,
        "precision": 1.0,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3, abs=1e-6),
        "records": 2,
    }
    assert told["auc"] == pytest.approx(((1 + 0) / 2 + (1 + 0) / 2) / 2)
    assert told["confusion"] == [[1, 0], [0, 2]]


def test_labels_that_are_none_of_the_classes_are_left_out() -> None:
    found = np.array([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8]], np.float32)
    assert classification_figures(found, np.array([0, -1, 5])) == classification_figures(
        found[:1], np.array([0])
    )
    assert classification_figures(found, np.array([-1, 2, 9])) == {}


def test_a_confusion_of_many_classes_is_not_told() -> None:
    classes = MOST_CROSSED + 1
    found, labels = _drawn(1, classes, 200, coarse=False)
    told = classification_figures(found, labels)
    assert told["confusion"] is None
    assert len(told["per_class"]) == classes


def test_an_accuracy_stands_beside_always_saying_the_largest_class():
    labels = np.array([0] * 86 + [1] * 14)
    said = np.zeros((100, 2), np.float64)
    said[:, 0] = 1.0
    found = classification_figures(said, labels)
    assert found["largest_class_rate"] == 0.86
    assert guessing(found) == {"largest_class_rate": 0.86, "balanced_accuracy": 0.5}
    assert guessing(guessing(found)) == guessing(found)  # as a store keeps it
    told = leading_text("accuracy", 0.777, found)
    assert "0.860" in told
    assert "0.500" in told
    better = leading_text("accuracy", 0.96, found)
    assert "worse" in told
    assert "worse" not in better


@pytest.mark.parametrize(("largest", "records"), [(2, 3), (1, 3), (6, 7), (667, 1001)])
def test_who_always_says_the_largest_class_is_not_called_worse_than_that(largest, records):
    labels = np.maximum(np.arange(records) - largest + 1, 0)
    found = classification_figures(np.eye(records)[0 * labels], labels)
    assert "worse" not in leading_text("accuracy", largest / records, found)
    assert "worse" in leading_text("accuracy", (largest - 1) / records, found)


def test_classes_that_are_even_need_no_balanced_accuracy():
    labels = np.arange(100) % 4
    found = classification_figures(np.eye(4)[labels], labels)
    assert guessing(found) == {"largest_class_rate": 0.25}


def test_an_rmse_stands_beside_always_saying_the_mean():
    target = TargetRange(0.0, 10.0)
    labels = np.array([0, 4096, 8192])  # 0, 5 and 10
    found = regression_figures(np.array([5.0, 5.0, 5.0]), labels, target)
    assert found["rmse"] == found["rmse_of_mean"] == spread_of(labels, target)
    worse = regression_figures(np.array([10.0, 5.0, 0.0]), labels, target)
    assert guessing(worse) == {"rmse_of_mean": found["rmse"]}
    assert "worse" in leading_text("RMSE", worse["rmse"], worse)
    assert "worse" not in leading_text("RMSE", found["rmse"], found)


def test_nothing_is_said_of_what_is_not_known():
    assert guessing(None) == guessing({}) == {}
    assert leading_text("accuracy", 0.5, {"eval_type": "SILHOUETTE_SCORE"}) == "0.500"
    assert leading_text("AUC", 0.5, {"largest_class_rate": 0.9}) == "0.500"
