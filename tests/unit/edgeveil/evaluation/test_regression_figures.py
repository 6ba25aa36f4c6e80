"""Figures of a number are scikit-learn's, in the label's own unit."""

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from edgeveil.data.target import LABELS, TargetRange
from edgeveil.evaluation.accuracy import HeldOutTest
from edgeveil.evaluation.figures import leading, leading_text, regression_figures
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.models.heads import regression_graph

TARGET = TargetRange(-50.0, 150.0)
RNG = np.random.default_rng(0)


def test_they_are_those_of_scikit_learn():
    labels = RNG.integers(0, LABELS, 300)
    values = TARGET.values(labels) + RNG.normal(0, 20, 300)
    found = regression_figures(values, labels, TARGET)
    wanted = TARGET.values(labels)
    assert found["mae"] == pytest.approx(mean_absolute_error(wanted, values), rel=1e-5)
    assert found["rmse"] == pytest.approx(root_mean_squared_error(wanted, values), rel=1e-5)
    assert found["r2"] == pytest.approx(r2_score(wanted, values), abs=1e-5)
    assert found["unusable"] == 0


def test_records_without_a_label_are_left_out_and_an_unusable_value_is_far_off():
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
    error = root_mean_squared_error(TARGET.values(y), values)
    assert tested.accuracy is None
    assert tested.figures["rmse"] == pytest.approx(error, rel=1e-5)
    assert tested.loss == pytest.approx((error / 100) ** 2, rel=1e-4)


def test_what_leads_a_row():
    assert leading({"accuracy": 0.9, "figures": {"auc": 1}}) == ("accuracy", 0.9)
    assert leading({"accuracy": None, "figures": {"rmse": 48.6612}}) == ("RMSE", 48.6612)
    assert leading({}) == ("accuracy", None)
    assert leading_text("RMSE", 48.6612) == "48.66"
    assert leading_text("accuracy", 0.9) == "0.900"
    assert leading_text("accuracy", None) == "unknown"
