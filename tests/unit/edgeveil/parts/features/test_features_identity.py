import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from edgeveil.errors import DataError, UsageError
from edgeveil.parts.features import FEATURES, IdentityParameters, build_features, valid_records

ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)
DIGITS = IdentityParameters(input_scale=16.0, shift=-0.3)


def test_scales_shifts_and_brings_to_unit_norm():
    phi = build_features([IdentityParameters(input_scale=2.0, shift=1.0)])
    np.testing.assert_allclose(phi(np.array([[4.0, 6.0]], np.float32)), [[0.6, 0.8]])
    assert phi.output_dim((8, 8)) == 64


def test_a_zero_vector_stays_zero():
    phi = build_features([IdentityParameters()])
    assert (phi(np.zeros((2, 3), np.float32)) == 0).all()


@given(hnp.arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 5)), elements=ANY))
@settings(deadline=None)
def test_every_record_gives_finite_features_of_norm_at_most_one(x):
    phi = build_features([DIGITS])(x)
    assert np.isfinite(phi).all()
    assert (np.linalg.norm(phi, axis=1) <= 1 + 1e-12).all()


@given(st.integers(1, 200), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_features_do_not_depend_on_the_batch(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 7, 3)).astype(np.float32) * 100
    phi = build_features([DIGITS])
    i = int(rng.integers(n))
    together = phi(x)
    np.testing.assert_array_equal(phi(x[i : i + 1])[0], together[i])
    np.testing.assert_array_equal(phi(x[i:])[0], together[i])
    np.testing.assert_array_equal(phi(x[::-1]), together[::-1])


def test_invalid_records_are_named_one_by_one():
    x = np.zeros((5, 2, 2), np.float32)
    x[0, 1, 1], x[1, 0, 0] = np.nan, np.inf
    y = np.array([0, 0, -1, 3, 2])
    assert valid_records(x, y, 3).tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    "bad", [{"input_scale": 0}, {"shift": float("nan")}, {"scale": 2}, {"name": "gabor"}]
)
def test_impossible_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        IdentityParameters(**bad)


def test_an_unknown_map_is_answered_with_the_nearest_name():
    with pytest.raises(UsageError, match="identity"):
        FEATURES["identify"]


def test_each_value_is_brought_from_its_own_range_and_clipped():
    phi = build_features([IdentityParameters(ranges=((0.0, 10.0), (-1.0, 1.0)))])
    found = phi(np.array([[10, 0], [5, 1], [99, -7], [np.nan, 0]], np.float32))
    half = 0.5**0.5
    assert np.allclose(found, [[1, 0], [0, 1], [half, -half], [0, 0]])
    with pytest.raises(DataError, match="2 ranges, a record has 3 values"):
        phi.output_dim((3,))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ranges": ((1.0, 0.0),)}, "least and the greatest"),
        ({"ranges": ((0.0, 1.0),), "input_scale": 3.0}, "in place of input_scale"),
    ],
)
def test_ranges_that_cannot_be_are_refused(wrong, why):
    with pytest.raises(ValidationError, match=why):
        IdentityParameters(**wrong)


def test_bounded_keeps_how_large_a_record_is():
    features = build_features([IdentityParameters(norm="bounded", input_scale=2.0)])
    x = np.array([[1, 1, 1, 1], [2, 2, 2, 2], [9, -9, 0, 0], [np.nan, 0, 0, 0]], np.float32)
    found = features(x)
    wanted = [[0.25] * 4, [0.5] * 4, [0.5, -0.5, 0, 0], [0] * 4]
    np.testing.assert_array_equal(found, wanted)
    assert (np.linalg.norm(found, axis=1) <= 1).all()
    assert "norm" not in IdentityParameters().model_dump()  # earlier jobs keep their bytes
