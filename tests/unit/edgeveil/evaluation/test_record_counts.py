"""What devices count: bounded by record, and as scikit-learn has it where there is no noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.target import LABELS, TargetRange
from edgeveil.evaluation.figures import classification_figures, federated_text, regression_figures
from edgeveil.evaluation.record_counts import Confusion, Errors, Hits, ScoreCounts

RANGE = TargetRange(-50.0, 150.0)
KINDS = [Confusion(3), Confusion(20), Hits(3), Hits(40), Errors(RANGE), ScoreCounts(0.05)]
ODD = [np.nan, np.inf, -np.inf, 0.0, 1e308, -1e308]


def records(kind, seed, count):
    """Outputs and labels of whatever kind: sound ones, and all that may be wrong with them."""
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
    """Which are scikit-learn's (`test_figures.py`)."""
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
    for told, row in zip(found["per_class"], wanted["per_class"], strict=True):
        for name in ("precision", "recall", "f1", "records"):
            assert told[name] == pytest.approx(row[name], abs=1e-6)
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
    noised = counts + chance.normal(0, deviation, (4000, kind.cells))
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
