"""A metric of a user's own, in a separate process: its number, or why there is none."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from edgeveil.evaluation import figures
from edgeveil.evaluation.figures import METRIC, leading_text, own_metric

KIT = "tests.kits.own_metrics"
LABELS = np.arange(30) % 3
OUTPUTS = np.random.default_rng(0).dirichlet(np.ones(3), 30).astype(np.float32)


def test_a_metric_is_its_function_of_labels_and_outputs():
    found = own_metric("sklearn.metrics:log_loss", labels=LABELS, outputs=OUTPUTS)
    assert found == pytest.approx(log_loss(LABELS, OUTPUTS), rel=1e-5)
    assert leading_text("accuracy", 0.5, {METRIC: 0.25}) == "0.500, test metric 0.25"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("numpy:searchsorted", "shape (30, 3)"),
        ("math:gcd", "TypeError"),
        ("math:absent", "no attribute 'absent'"),
        (f"{KIT}:nothing", "returned nan"),
        (f"{KIT}:hoards", "MemoryError"),
        (f"{KIT}:ends", "SIGABRT"),
        (f"{KIT}:waits", "did not end within 3 s"),
    ],
)
def test_a_metric_without_a_number_is_named_and_raises_nothing(monkeypatch, name, why):
    monkeypatch.setattr(figures, "METRIC_S", 3.0 if "waits" in name else 120.0)
    found = own_metric(name, labels=LABELS, outputs=OUTPUTS)
    assert found.startswith("failed: ") and why in found
