"""What one record may change, measured in integer steps before any noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_core.algorithms.base import TRAIN, Exchange, Records
from fl_core.algorithms.fm import FmDevice, FmParameters
from fl_core.algorithms.setting import Setting
from fl_core.features import IdentityParameters, build_features

D, CLASSES = 4, 3
PHASES = (Exchange(1, "centre", 0), Exchange(2, "quadratic", 0), Exchange(3, TRAIN, 1))
ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)
VALUES = ANY | st.floats(-2, 2, width=32) | st.sampled_from([0.0, 3e38, 1e-45])


def device(clip=0.6, radius=0.7, shift=0.0):
    setting = Setting(
        epsilon=8.0,
        delta=1e-5,
        max_participations=15,
        classes=CLASSES,
        input_shape=(D,),
        features=build_features([IdentityParameters(shift=shift)]),
        nominal_records=4,
        devices=5,
    )
    return FmDevice(FmParameters(clip=clip, radius=radius), setting)


@st.composite
def records(draw, least=0, most=70):
    n = draw(st.integers(least, most))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)).astype(np.float32)
    y = rng.integers(-1, CLASSES + 1, n)
    return Records(x, y)


@st.composite
def packages(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    centre = draw(hnp.arrays(np.float32, D, elements=st.floats(-1, 1, width=32) | ANY))
    reach = draw(st.sampled_from([0, 100, 2**20, 2**31 - 1]))
    iterate = rng.integers(-reach, reach + 1, (D, CLASSES)).astype(np.int32)
    return {"centre": centre, "iterate": iterate}


def change(exchange, before, after):
    """Squared L2 change in steps; Frobenius for the upper triangle."""
    difference = (after - before).astype(object)
    if exchange.phase != "quadratic":
        return int((difference**2).sum())
    rows, columns = np.triu_indices(D)
    weights = np.where(rows == columns, 1, 2).astype(object)
    return int((weights * difference**2).sum())


@given(
    records(),
    hnp.arrays(np.float32, (1, D), elements=VALUES),
    st.integers(-2, CLASSES + 1),
    packages(),
    st.sampled_from([0.05, 0.6, 1.0, 2.0]),
)
@settings(max_examples=150, deadline=None)
def test_one_record_changes_no_sum_by_more_than_its_event_says(others, x, label, package, clip):
    method = device(clip=clip)
    extended = Records(np.concatenate([x, others.x]), np.append(label, others.y))
    for exchange in PHASES:
        (event,) = method.price(exchange)
        before = method.sums(exchange, package, others)
        after = method.sums(exchange, package, extended)
        assert change(exchange, before, after) <= event.sensitivity_steps**2


def test_the_stated_sensitivity_is_nearly_reached():
    method = device(clip=0.6)
    package = {"centre": np.zeros(D, np.float32), "iterate": np.zeros((D, CLASSES), np.int32)}
    none = Records(np.zeros((0, D), np.float32), np.zeros(0, np.int64))
    one = Records(np.array([[1, 1, 1, 1]], np.float32), np.array([0]))
    for exchange in PHASES:
        (event,) = method.price(exchange)
        found = change(
            exchange, method.sums(exchange, package, none), method.sums(exchange, package, one)
        )
        assert found > 0.99**2 * event.sensitivity_steps**2


@given(records(least=1), packages())
@settings(max_examples=50, deadline=None)
def test_a_sum_is_exactly_the_sum_of_its_records_alone_in_any_order(all_records, package):
    method = device(shift=-0.3)
    order = np.random.default_rng(len(all_records)).permutation(len(all_records))
    for exchange in PHASES:
        together = method.sums(exchange, package, all_records)
        shuffled = Records(all_records.x[order], all_records.y[order])
        alone = sum(
            method.sums(
                exchange, package, Records(all_records.x[i : i + 1], all_records.y[i : i + 1])
            )
            for i in range(len(all_records))
        )
        np.testing.assert_array_equal(together, alone)
        np.testing.assert_array_equal(together, method.sums(exchange, package, shuffled))


@pytest.mark.parametrize(
    ("x", "y"),
    [([np.nan, 0, 0, 0], 0), ([0, np.inf, 0, 0], 0), ([1, 0, 0, 0], -1), ([1, 0, 0, 0], CLASSES)],
)
def test_an_invalid_record_contributes_nothing(x, y):
    method = device()
    package = {"centre": np.zeros(D, np.float32), "iterate": np.zeros((D, CLASSES), np.int32)}
    bad = Records(np.array([x], np.float32), np.array([y]))
    for exchange in PHASES:
        assert not method.sums(exchange, package, bad).any()
