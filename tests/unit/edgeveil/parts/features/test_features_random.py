import hashlib

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.parts.features import build_features
from edgeveil.parts.features.random_relu import STEPS, RandomParameters, projection


def test_the_projection_is_the_same_everywhere():
    assert projection(7, 3, 4).tolist() == [[-1, 4, -3, 2], [3, 2, 4, 1], [-3, -5, -3, 4]]
    bits = hashlib.shake_256(b"edgeveil/v1/random-features/7/3/4").digest(8)
    assert sum(byte.bit_count() for byte in bits) - 32 == -1


def test_its_entries_are_nearly_normal_with_deviation_4():
    entries = projection(0, 784, 512).astype(np.float64) / 4
    assert abs(entries.mean()) < 0.01
    assert abs(entries.var() - 1) < 0.01
    assert abs((entries**4).mean() - (3 - 2 / 64)) < 0.05


def test_another_seed_gives_another_projection():
    assert not np.array_equal(projection(0, 9, 9), projection(1, 9, 9))


def test_features_are_the_rectified_products_at_unit_norm():
    phi = build_features([RandomParameters(name="random", dimension=4, seed=7, input_scale=2.0)])
    found = phi(np.array([[1.0, 2.0, -1.0]], np.float32))[0]
    whole = np.array([0.5, 1.0, -0.5]) @ projection(7, 3, 4)
    np.testing.assert_allclose(found, np.maximum(whole, 0) / np.linalg.norm(np.maximum(whole, 0)))


def test_products_are_exact():
    """Against Python's own integers, with inputs that use all their bits."""
    p = RandomParameters(name="random", dimension=5, seed=1)
    x = np.random.default_rng(0).uniform(-1, 1, (3, 300)).astype(np.float32)
    steps = [[round(float(v) * STEPS) for v in row] for row in x]
    matrix = projection(1, 300, 5).tolist()
    columns = list(zip(*matrix, strict=True))
    wanted = np.array(
        [[max(0, sum(a * b for a, b in zip(r, c, strict=True))) for c in columns] for r in steps]
    )
    unit = wanted / np.sqrt((wanted.astype(np.float64) ** 2).sum(1, keepdims=True))
    np.testing.assert_allclose(build_features([p])(x), unit, rtol=1e-14)


def test_values_out_of_range_count_as_the_end_of_it():
    phi = build_features([RandomParameters(name="random", dimension=9)])
    far = np.array([[5.0, -1e30, 0.5]], np.float32)
    np.testing.assert_array_equal(phi(far), phi(np.array([[1.0, -1.0, 0.5]], np.float32)))


def test_a_matrix_that_would_not_fit_is_refused():
    phi = build_features([RandomParameters(name="random", dimension=1 << 14)])
    with pytest.raises(DataError, match="too large") as caught:
        phi.output_dim((1025, 1))
    assert "at most 16368" in caught.value.fix
