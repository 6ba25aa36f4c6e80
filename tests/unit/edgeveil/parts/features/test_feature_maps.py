"""Values as they are, random projections, and maps side by side."""

import hashlib

import numpy as np
import pytest
from pydantic import ValidationError

from edgeveil.errors import ConfigError, DataError
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.features import IdentityParameters, PcaParameters, build_features, projection_of
from edgeveil.parts.features.values import STEPS, projection


def test_each_value_is_brought_from_its_own_range_and_clipped():
    phi = build_features([IdentityParameters(ranges=((0.0, 10.0), (-1.0, 1.0)))])
    found = phi(np.array([[10, 0], [5, 1], [99, -7], [np.nan, 0]], np.float32))
    half = 0.5**0.5
    assert np.allclose(found, [[1, 0], [0, 1], [half, -half], [0, 0]])
    with pytest.raises(DataError, match="2 ranges, a record has 3 values"):
        phi.output_dim((3,))


def test_ranges_that_cannot_be_are_refused():
    for wrong in ({"ranges": ((1.0, 0.0),)}, {"ranges": ((0.0, 1.0),), "input_scale": 3.0}):
        with pytest.raises(ValidationError):
            IdentityParameters(**wrong)


def test_bounded_keeps_how_large_a_record_is():
    features = build_features([IdentityParameters(norm="bounded", input_scale=2.0)])
    x = np.array([[1, 1, 1, 1], [2, 2, 2, 2], [9, -9, 0, 0], [np.nan, 0, 0, 0]], np.float32)
    found = features(x)
    wanted = [[0.25] * 4, [0.5] * 4, [0.5, -0.5, 0, 0], [0] * 4]
    np.testing.assert_array_equal(found, wanted)
    assert (np.linalg.norm(found, axis=1) <= 1).all()
    assert "norm" not in IdentityParameters().model_dump()  # earlier jobs keep their bytes


ONE = IdentityParameters(input_scale=2.0, weight=3.0)
TWO = IdentityParameters(name="random", dimension=5, weight=1.0)
PCA = PcaParameters(name="ldp_pca")
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def test_maps_stand_side_by_side_by_the_roots_of_their_weights():
    both = build_features([ONE, TWO])
    found = both(X)
    assert both.output_dim((4,)) == found.shape[1] == 9
    np.testing.assert_allclose(found[:, :4], np.sqrt(0.75) * build_features([ONE])(X), rtol=1e-15)
    np.testing.assert_allclose(found[:, 4:], np.sqrt(0.25) * build_features([TWO])(X), rtol=1e-15)


@pytest.mark.parametrize("order", [(PCA,), (PCA, ONE), (ONE, PCA, TWO), (ONE, PCA, PCA)])
def test_a_pca_is_no_map_but_a_projection_and_refused_elsewhere(order):
    np.testing.assert_array_equal(build_features([ONE, PCA])(X), build_features([ONE])(X))
    assert (projection_of([ONE, PCA]), projection_of([ONE, TWO])) == (PCA, None)
    data = {"source": "digits", "classes": 3, "input_shape": (4,), "nominal_records": 50}
    job = {"job": "mix", "data": data, "features": order, "privacy": {"epsilon": 8.0}}
    with pytest.raises(ConfigError, match="put it last"):
        compile_job(Job.model_validate({**job, "train": {"method": "fm", "rounds": 1}}))


def test_the_projection_is_the_same_everywhere():
    assert projection(7, 3, 4).tolist() == [[-1, 4, -3, 2], [3, 2, 4, 1], [-3, -5, -3, 4]]
    bits = hashlib.shake_256(b"edgeveil/v1/random-features/7/3/4").digest(8)
    assert sum(byte.bit_count() for byte in bits) - 32 == -1


def test_products_are_exact():
    """Against Python's own integers, with inputs that use all their bits."""
    p = IdentityParameters(name="random", dimension=5, seed=1)
    x = np.random.default_rng(0).uniform(-1, 1, (3, 300)).astype(np.float32)
    steps = [[round(float(v) * STEPS) for v in row] for row in x]
    matrix = projection(1, 300, 5).tolist()
    columns = list(zip(*matrix, strict=True))
    wanted = np.array(
        [[max(0, sum(a * b for a, b in zip(r, c, strict=True))) for c in columns] for r in steps]
    )
    unit = wanted / np.sqrt((wanted.astype(np.float64) ** 2).sum(1, keepdims=True))
    np.testing.assert_allclose(build_features([p])(x), unit, rtol=1e-14)


def test_a_matrix_that_would_not_fit_is_refused():
    phi = build_features([IdentityParameters(name="random", dimension=1 << 14)])
    with pytest.raises(DataError, match="too large"):
        phi.output_dim((1025, 1))
