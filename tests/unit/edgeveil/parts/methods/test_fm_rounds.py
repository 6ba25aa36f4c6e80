"""Both halves of `fm`, its local steps and its PCA, by hand and against what is sent."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from fm_kit import DIGITS, context

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError, ProtocolError, UsageError
from edgeveil.parts.features import PcaParameters
from edgeveil.parts.methods import local_steps
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_paper import FmPaperDevice, FmPaperParameters
from edgeveil.parts.methods.fm_sums import (
    FmParameters,
    Rows,
    as_weights,
    linear_sum,
    own_weights,
    projected,
    symmetric,
    top_basis,
    upper,
)
from edgeveil.parts.methods.local_steps import minimise_quadratic
from edgeveil.privacy.grid import LARGEST_DIMENSION
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_tools.local.reference import noise_free_reference


def test_a_step_is_rounded_bounded_and_averaged_over_the_tail():
    cloud = FmCloud(FmParameters(intercept=False), context())
    mean = {"head.weight": np.array([[np.nan, 1e300], [-np.inf, -787.5 / 4096]])}
    state = cloud.absorb(cloud.initial_state(), cloud.plan()[2], mean, 1)
    assert state["iterate"].tolist() == [[0, 1024 << 12], [-1024 << 12, -788]]  # to even
    cloud = FmCloud(FmParameters(rounds=4, average_from=0.5, intercept=False), context())
    state = cloud.initial_state()
    for round in cloud.plan()[2:]:
        state = cloud.absorb(state, round, {"head.weight": np.ones((2, 2))}, 1)
    np.testing.assert_array_equal(cloud.model(state)["weight"], np.full((2, 2), 3.5))


def test_the_ridge_comes_from_the_noise_not_from_the_data():
    cloud = FmCloud(FmParameters(intercept=False), context())
    round = cloud.plan()[1]
    for values in ([0, 0, 0], [-(2**28), 0, -(2**28)]):
        state = cloud.absorb(cloud.initial_state(), round, {"quadratic": np.array(values)}, 4)
        ridge = np.float32(cloud.ridge_level(4))
        np.testing.assert_allclose(state["curvature"], [ridge, 0, ridge], rtol=1e-6, atol=1e-9)
    assert cloud.ridge_level(4) == pytest.approx(cloud.ridge_level(1) / 2)


def quadratic(d, classes, low=0.1):
    """(linear (d, c), curvature (d, d) float32, its spectrum)."""
    rng = np.random.default_rng(d)
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    a = (basis * np.linspace(low, 1.0, d)) @ basis.T
    return rng.normal(size=(d, classes)), a.astype(np.float32), (low, 1.0)


@pytest.mark.parametrize("d", [1, 64, 300])
def test_steps_in_numpy_and_in_torch_come_to_the_same(d, monkeypatch, recwarn):
    problem, steps, played = quadratic(d, 10), local_steps._chebyshev, []

    def watched(residual, *rest):
        played.append(type(residual).__module__)
        return steps(residual, *rest)

    monkeypatch.setattr(local_steps, "_chebyshev", watched)
    here = minimise_quadratic(*problem, 20, "cpu")
    # torch as on a GPU, with the processor that every machine has
    monkeypatch.setattr(local_steps, "_processor", lambda _wanted: "cpu:0")
    there = minimise_quadratic(*problem, 20)
    assert (here.dtype, here.shape) == (there.dtype, there.shape) == (np.float32, (d, 10))
    assert played == ["numpy", "torch"]  # on some processors the same to the last bit
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-6 * np.abs(there).max())
    wild = np.full((d, d), 3e38, np.float32)  # a curvature from anybody ends no round
    assert not np.isfinite(minimise_quadratic(problem[0], wild, problem[2], 20, "cpu")).all()
    assert not recwarn.list


def test_without_torch_steps_run_on_the_cpu_alone(monkeypatch):
    problem = quadratic(8, 2)
    expected = minimise_quadratic(*problem, 20, "cpu")
    monkeypatch.setitem(sys.modules, "torch", None)
    for seen in (False, True):
        monkeypatch.setattr(local_steps, "gpu_in_sight", lambda seen=seen: seen)
        np.testing.assert_array_equal(minimise_quadratic(*problem, 20), expected)
    with pytest.raises(UsageError):
        minimise_quadratic(*problem, 20, "cuda")


def test_the_reference_is_not_cut_off_at_the_room_of_one_device_under_masks():
    rng = np.random.default_rng(0)
    records = Records(rng.normal(size=(400, 8)).astype(np.float32), rng.integers(0, 2, 400))
    plain = context(input_shape=(8,), nominal_records=4, devices=20)
    parameters, masked = FmParameters(rounds=3), replace(plain, summed=20)
    cloud = FmCloud(parameters, masked)
    last, package = cloud.plan()[-1], cloud.package(cloud.initial_state(), cloud.plan()[-1])
    sums = [FmDevice(parameters, one).sums(last, package, records) for one in (plain, masked)]
    assert np.abs(sums[0]).max() > np.abs(sums[1]).max()  # what one device would cut off
    one, other = (noise_free_reference(parameters, x, records, records) for x in (plain, masked))
    assert one == other


TOO_MANY = LARGEST_DIMENSION + 1
BARE = {"rounds": 1, "centre": False, "quadratic": "never", "radius": 1.0}


@pytest.mark.parametrize(
    ("value", "side"), [(2**22 + 1, 1100), (-(2**22) - 1, 1100), (2**22, 2), (-(2**22), 2)]
)
def test_weights_beyond_their_limit_are_refused_whatever_the_record_is(value, side):
    parameters, chosen = FmParameters(**BARE), context(input_shape=(side, side), nominal_records=10)
    device, cloud = FmDevice(parameters, chosen), FmCloud(parameters, chosen)
    (round,) = cloud.plan()
    tensors = cloud.package(cloud.initial_state(), round)
    tensors["iterate"][0, 0] = value
    for x in (np.ones(side * side), np.eye(1, side * side)):  # alike everywhere, or one large
        one = Records(x.reshape(1, side, side).astype(np.float32), np.zeros(1, np.int64))
        if side == 2:  # the most that an honest cloud sends: see above
            sent = device.answer(round, tensors, one, SeededRandom(0)).segments
            assert np.isfinite(sent["head.weight"]).all()
            continue
        with pytest.raises(ProtocolError, match="'iterate'"):
            device.answer(round, tensors, one)


@pytest.mark.parametrize("size", [{"input_shape": (TOO_MANY,)}, {"classes": TOO_MANY}])
@pytest.mark.parametrize("half", [FmDevice, FmCloud, FmPaperDevice])
def test_sizes_that_could_overflow_are_refused_before_there_is_a_price(size, half):
    parameters = FmPaperParameters(rounds=1) if half is FmPaperDevice else FmParameters(**BARE)
    with pytest.raises(PrivacyError):
        half(parameters, context(**size, nominal_records=10))


def test_at_the_largest_size_the_widest_weights_and_basis_do_not_overflow():
    d, place = LARGEST_DIMENSION, np.arange(LARGEST_DIMENSION)[None] == 5
    FmDevice(FmParameters(**BARE), context(input_shape=(d,)))
    z = Rows((place * (1 << 12)).astype(np.int16), np.array([1]))
    found = linear_sum(z, np.full((d, 1), 2**16 << 12) * np.array([[1, -1]]), 2.0)
    assert found[5].tolist() == pytest.approx([2**24, -(2**24)], rel=1e-3)
    assert np.count_nonzero(found) == 2
    phi = Rows((place * -(1 << 24)).astype(np.int32), np.zeros(1, np.int64))
    found = projected(phi, np.full((d, 1), -(1 << 15), np.int16)).steps
    assert found.tolist() == [[(1 << 24) - 1]]


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


def test_parties_with_nearly_one_covariance_have_nearly_one_basis():
    one, two = (top_basis(covariance(seed, n=20_000) * 1e12, 12, 5) for seed in (1, 2))
    assert np.abs(as_weights(one) - as_weights(two)).max() < 0.1


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
