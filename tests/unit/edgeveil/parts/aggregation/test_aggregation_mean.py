from fractions import Fraction

import numpy as np
import pytest

from edgeveil.errors import JobFailed
from edgeveil.parts.aggregation.mean import mean


def test_takes_the_plain_mean_per_segment():
    result = mean({"a": [np.array([1, 2]), np.array([3, 5])], "b": [np.array([[0.5]], np.float32)]})
    np.testing.assert_array_equal(result["a"], [2.0, 3.5])
    np.testing.assert_array_equal(result["b"], [[0.5]])
    assert result["a"].dtype == np.float64


def test_integers_are_summed_exactly():
    big = np.array([2**60 + 1])
    assert mean({"a": [big, -big, np.array([3])]})["a"][0] == 1.0


def test_the_order_of_arrival_changes_no_bit():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=5).astype(np.float32) * 10.0**k for k in range(9)]
    expected = mean({"a": arrays})["a"]
    for _ in range(5):
        shuffled = [arrays[i] for i in rng.permutation(9)]
        np.testing.assert_array_equal(mean({"a": shuffled})["a"], expected)


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 0.0])
def test_floats_of_any_size_are_summed_exactly(scale):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=4) * 10.0 ** rng.integers(-6, 6) * scale for _ in range(300)]
    exact = [float(sum(Fraction(float(a[k])) for a in arrays)) / 300 for k in range(4)]
    np.testing.assert_array_equal(mean({"a": arrays})["a"], exact)


def test_a_long_segment_is_summed_in_blocks(monkeypatch):
    arrays = [np.arange(7, dtype=np.float32) * k for k in range(3)]
    whole = mean({"a": arrays})["a"]
    monkeypatch.setattr("edgeveil.parts.aggregation.mean.BLOCK_VALUES", 3)
    np.testing.assert_array_equal(mean({"a": arrays})["a"], whole)


def test_no_upload_is_no_mean():
    with pytest.raises(JobFailed, match="head"):
        mean({"head": []})
