"""Both halves of `fm` by hand, its local steps, and what is refused before a record is read."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from fm_kit import context
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError, ProtocolError, UsageError
from edgeveil.parts.methods import local_steps
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_paper import FmPaperDevice, FmPaperParameters
from edgeveil.parts.methods.fm_sums import FmParameters, Rows, linear_sum, projected
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


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 1), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_local_steps_are_linear_so_averaging_devices_is_exact(seed, low, steps):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    a = (basis * np.linspace(low, 1.0, 5)) @ basis.T
    parts = rng.normal(size=(3, 5, 2))
    mean_of_steps = np.mean([minimise_quadratic(p, a, (low, 1.0), steps) for p in parts], axis=0)
    step_of_mean = minimise_quadratic(parts.mean(axis=0), a, (low, 1.0), steps)
    np.testing.assert_allclose(mean_of_steps, step_of_mean, atol=1e-5 / low)


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


def test_torch_is_asked_for_a_gpu_only_where_one_is_in_sight(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(local_steps, "DEVICE_FILES", tmp_path)
    monkeypatch.setattr(local_steps, "chosen_processor", lambda one: asked.append(one) or "cpu")
    for file, wanted, expected in (
        ("nvme0", "auto", []),  # a disk
        ("nvidia0", "cpu", []),
        ("nvidia0", "auto", ["auto"]),
    ):
        (tmp_path / file).touch()
        minimise_quadratic(*quadratic(8, 2), 20, wanted)
        assert asked == expected


def test_a_budget_that_the_grid_cannot_meet_is_refused():
    with pytest.raises(PrivacyError):
        FmDevice(FmParameters(), context(epsilon=60.0, delta=1e-12, input_shape=(784,)))


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


BARE = {"rounds": 1, "centre": False, "quadratic": "never", "radius": 1.0}


@pytest.mark.parametrize("value", [2**31 - 1, 2**22 + 1, -(2**22) - 1])
def test_weights_beyond_their_limit_are_refused_whatever_the_record_is(value):
    parameters, chosen = FmParameters(**BARE), context(input_shape=(1100, 1100), nominal_records=10)
    cloud = FmCloud(parameters, chosen)
    (round,) = cloud.plan()
    tensors = cloud.package(cloud.initial_state(), round)
    tensors["iterate"][0, 0] = value
    for x in (np.ones(1100 * 1100), np.eye(1, 1100 * 1100)):  # alike everywhere, or one large
        one = Records(x.reshape(1, 1100, 1100).astype(np.float32), np.zeros(1, np.int64))
        with pytest.raises(ProtocolError, match="'iterate'"):
            FmDevice(parameters, chosen).answer(round, tensors, one)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_weights_of_an_honest_cloud_are_taken_up_to_the_limit(sign):
    parameters, chosen = FmParameters(**BARE), context(nominal_records=10)
    cloud = FmCloud(parameters, chosen)
    round = cloud.plan()[-1]
    (segment,) = cloud.segments(round)
    mean = {segment.name: np.full(segment.shape, sign * 1e9)}
    state = cloud.absorb(cloud.initial_state(), round, mean, 1)
    assert abs(state["iterate"]).min() == 1024 * 4096
    one = Records(np.ones((1, 2), np.float32), np.zeros(1, np.int64))
    device = FmDevice(parameters, chosen)
    answer = device.answer(round, cloud.package(state, round), one, SeededRandom(0))
    assert np.isfinite(answer.segments["head.weight"]).all()


@pytest.mark.parametrize(
    ("sizes", "where"),
    [
        ({"input_shape": (LARGEST_DIMENSION + 1,)}, "features"),
        ({"classes": LARGEST_DIMENSION + 1}, "data.classes"),
    ],
)
@pytest.mark.parametrize("half", [FmDevice, FmCloud, FmPaperDevice])
def test_sizes_that_could_overflow_are_refused_before_there_is_a_price(sizes, where, half):
    parameters = FmPaperParameters(rounds=1) if half is FmPaperDevice else FmParameters(**BARE)
    with pytest.raises(PrivacyError) as caught:
        half(parameters, context(**sizes, nominal_records=10))
    assert caught.value.where == where


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
