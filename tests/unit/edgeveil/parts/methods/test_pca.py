"""Federated PCA: the covariance, the basis made of it, and the projection, by hand and in whole."""

import numpy as np
import pytest
from fm_kit import DIGITS, context
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.records import Records
from edgeveil.parts.features import PcaParameters
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import (
    FmParameters,
    Rows,
    as_weights,
    own_weights,
    projected,
    symmetric,
    top_basis,
    upper,
)

FPCA = PcaParameters(name="ldp_fpca", keep=0.5)
LOCAL = PcaParameters(name="local_pca", keep=0.5)


def covariance(seed, d=12, n=200):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * np.linspace(3, 0.1, d) @ rotation
    return upper(rows.T @ rows)


def test_one_record_by_hand():
    """x = (3, 4): φ = (0.6, 0.8), of which the first axis is kept."""
    bare, chosen = FmParameters(intercept=False), context(projection=FPCA)
    device, cloud = FmDevice(bare, chosen), FmCloud(bare, chosen)
    first, centre, quadratic = cloud.plan()[:3]
    record = Records(np.array([[3, 4]], np.float32), np.array([0]))
    total = device.sums(first, {}, record)
    assert total.tolist() == [16 * 2457 * 2457, 16 * 2457 * 3276, 16 * 3276 * 3276]
    package = cloud.package(cloud.initial_state(), centre)
    assert package["basis"].tolist() == [[16384], [0]]
    assert device.sums(centre, package, record).tolist() == [16 * 10066329]  # ⌊0.6·2^24⌋
    package = cloud.package(cloud.initial_state(), quadratic)
    assert device.sums(quadratic, package, record).tolist() == [16 * 3510 * 3510]  # ⌊4096·0.6/0.7⌋


def test_the_basis_is_orthonormal_and_spans_the_leading_directions_of_finite_values():
    triangle = covariance(1)
    kept = np.linalg.eigh(symmetric(triangle, 12))[1][:, 7:]
    basis = as_weights(top_basis(triangle, 12, 5)).astype(float)
    np.testing.assert_allclose(basis.T @ basis, np.eye(5), atol=5e-4)
    np.testing.assert_allclose(kept @ (kept.T @ basis), basis, atol=5e-4)
    spoilt = triangle.copy()
    spoilt[[3, 9, 20]], triangle[[3, 9, 20]] = [np.nan, np.inf, -np.inf], 0
    np.testing.assert_array_equal(top_basis(spoilt, 12, 5), top_basis(triangle, 12, 5))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_parties_with_nearly_one_covariance_have_nearly_one_basis(scale):
    one, two = (top_basis(covariance(seed, n=20_000) * scale, 12, 5) for seed in (1, 2))
    assert np.abs(as_weights(one) - as_weights(two)).max() < 0.1


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2**7, 2**14, 2**15 - 1]))
@settings(max_examples=50, deadline=None)
def test_no_matrix_makes_a_projected_record_longer_than_one(seed, reach):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(70, 6))
    rows = np.trunc(rows / np.linalg.norm(rows, axis=1, keepdims=True) * (2**24 - 4))
    phi = Rows(rows.astype(np.int32), np.zeros(70, np.int64))
    basis = rng.integers(-reach - 1, reach + 1, (6, 4)).astype(np.int16)
    steps = projected(phi, basis).steps.astype(object)
    assert ((steps**2).sum(axis=1) <= 2**48).all()


def test_own_weights_are_for_local_pca_alone():
    x = np.random.default_rng(0).normal(size=(200, 8, 8)).astype(np.float32)
    test = Records(x, np.zeros(200, np.int64))
    of = {one and one.name: context(**DIGITS, projection=one) for one in (None, FPCA, LOCAL)}
    for name, records in (("ldp_fpca", test), (None, test), ("local_pca", None)):
        assert own_weights(of[name], records) == {}
    basis = own_weights(of["local_pca"], test)["basis"]
    assert (basis.shape, basis.dtype) == ((64, 32), np.float32)
    phi = of[None].features(test.x)
    leading = np.linalg.eigh(phi.T @ phi)[1][:, 32:]
    np.testing.assert_allclose(leading @ (leading.T @ basis), basis, atol=5e-3)
