"""The two halves by hand, the local steps, the budget, and the accuracy they reach.

What a device refuses before it reads a record, so that no record makes it fail afterwards.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest
from fm_kit import context, digits, digits_context, pooled
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError, ProtocolError, UsageError
from edgeveil.parts.methods import local_steps
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_paper import FmPaperDevice, FmPaperParameters
from edgeveil.parts.methods.fm_sums import FmParameters, Rows, linear_sum, projected
from edgeveil.parts.methods.local_steps import minimise_quadratic
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.grid import LARGEST_DIMENSION
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_tools.local.reference import noise_free_reference

LAST = PlannedRound(5, TRAIN, 3)


def test_one_record_by_hand():
    """x = (5, 12), label 1: φ = (5/13, 12/13), W = 0, so p - y = (½, -½)."""
    parameters = FmParameters(clip=1.0, radius=1.0, rounds=2, average_from=0.5, intercept=False)
    device, cloud = FmDevice(parameters, context()), FmCloud(parameters, context())
    centre, quadratic, first, second = cloud.plan()
    record = Records(np.array([[5, 12]], np.float32), np.array([1]))
    # φ = (⌊2^24·5/13⌋, ⌊2^24·12/13⌋)
    assert device.sums(centre, {}, record).tolist() == [16 * 6452775, 16 * 15486660]

    state = cloud.initial_state()
    package = cloud.package(state, quadratic)
    # z = (⌊4096·5/13⌋, ⌊4096·12/13⌋) = (1575, 3780); products on 2^-24, sums on 2^-28
    expected = [16 * 1575 * 1575, 16 * 1575 * 3780, 16 * 3780 * 3780]
    assert device.sums(quadratic, package, record).tolist() == expected

    package = cloud.package(state, first)
    total = device.sums(first, package, record)
    step = np.array([[16 * 1575 * 2048], [16 * 3780 * 2048]])
    np.testing.assert_array_equal(total, np.hstack([step, -step]))

    # unit curvature: ΔW is minus the linear coefficients
    segments = device.finish(first, package, total)
    np.testing.assert_allclose(segments["head.weight"], -total / 2.0**28, rtol=1e-6)
    state = cloud.absorb(state, first, segments, 1)
    assert state["iterate"].tolist() == [[-788, 788], [-1890, 1890]]  # -787.5 rounds to even
    np.testing.assert_array_equal(cloud.model(state)["weight"], state["iterate"] / 4096)
    after = cloud.absorb(state, second, {"head.weight": np.zeros((2, 2))}, 1)
    np.testing.assert_array_equal(cloud.model(after)["weight"], state["iterate"] / 4096)


def test_a_step_that_is_not_finite_or_too_large_is_bounded():
    cloud = FmCloud(FmParameters(intercept=False), context())
    mean = {"head.weight": np.array([[np.nan, 1e300], [-np.inf, 0.5]])}
    state = cloud.absorb(cloud.initial_state(), cloud.plan()[2], mean, 1)
    assert (state["iterate"] / 4096).tolist() == [[0.0, 1024.0], [-1024.0, 0.5]]


def test_the_tail_average_starts_after_its_share_of_the_rounds():
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
def test_steps_in_numpy_and_in_torch_come_to_the_same(d, monkeypatch):
    linear, a, spectrum = quadratic(d, 10)
    steps, played = local_steps._chebyshev, []

    def watched(residual, *problem):
        played.append(type(residual).__module__)
        return steps(residual, *problem)

    monkeypatch.setattr(local_steps, "_chebyshev", watched)
    here = minimise_quadratic(linear, a, spectrum, 20, "cpu")
    # torch as on a GPU, with the processor that every machine has
    monkeypatch.setattr(local_steps, "_processor", lambda _wanted: "cpu:0")
    there = minimise_quadratic(linear, a, spectrum, 20)
    assert (here.dtype, here.shape) == (there.dtype, there.shape) == (np.float32, (d, 10))
    assert played == ["numpy", "torch"]  # on some processors the same to the last bit
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-6 * np.abs(there).max())


def test_without_torch_steps_run_on_the_cpu_alone(monkeypatch):
    problem = quadratic(8, 2)
    expected = minimise_quadratic(*problem, 20, "cpu")
    monkeypatch.setitem(sys.modules, "torch", None)
    for seen in (False, True):
        monkeypatch.setattr(local_steps, "gpu_in_sight", lambda seen=seen: seen)
        np.testing.assert_array_equal(minimise_quadratic(*problem, 20), expected)
    with pytest.raises(UsageError, match="torch, which is not installed, finds no cuda"):
        minimise_quadratic(*problem, 20, "cuda")


def test_torch_is_asked_for_a_gpu_only_where_one_is_in_sight(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(local_steps, "DEVICE_FILES", tmp_path)
    monkeypatch.setattr(local_steps, "chosen_processor", lambda one: asked.append(one) or "cpu")
    (tmp_path / "nvme0").touch()  # a disk
    minimise_quadratic(*quadratic(8, 2), 20)
    assert asked == []
    (tmp_path / "nvidia0").touch()
    minimise_quadratic(*quadratic(8, 2), 20, "cpu")
    assert asked == []
    minimise_quadratic(*quadratic(8, 2), 20)
    assert asked == ["auto"]


def test_a_curvature_from_anybody_ends_no_round(recwarn):
    linear, _, spectrum = quadratic(8, 2)
    wild = np.full((8, 8), 3e38, np.float32)
    assert not np.isfinite(minimise_quadratic(linear, wild, spectrum, 20, "cpu")).all()
    assert not recwarn.list


def test_a_budget_that_the_grid_cannot_meet_is_refused():
    with pytest.raises(PrivacyError):
        FmDevice(FmParameters(), context(epsilon=60.0, delta=1e-12, input_shape=(784,)))


def test_the_reference_is_not_cut_off_at_the_room_of_one_device_under_masks():
    shards, test = digits(1)
    parameters, plain = FmParameters(rounds=3), replace(digits_context(), nominal_records=4)
    records, masked = pooled(shards), replace(plain, summed=20)
    package = FmCloud(parameters, masked).package(FmCloud(parameters, masked).initial_state(), LAST)
    sums = [FmDevice(parameters, one).sums(LAST, package, records) for one in (plain, masked)]
    assert np.abs(sums[0]).max() > np.abs(sums[1]).max()  # what one device would cut off
    assert noise_free_reference(parameters, masked, records, test) == noise_free_reference(
        parameters, plain, records, test
    )


BARE = {"rounds": 1, "centre": False, "quadratic": "never", "radius": 1.0}


def package(parameters, chosen, value):
    """The first training round's broadcast with one weight of `value` steps."""
    cloud = FmCloud(parameters, chosen)
    round = cloud.plan()[-1]
    tensors = cloud.package(cloud.initial_state(), round)
    tensors["iterate"] = tensors["iterate"].copy()
    tensors["iterate"][0, 0] = value
    return round, tensors


def record(spread):
    """One record of 1100 × 1100 values: alike everywhere, or with one that is large."""
    x = np.full((1, 1100, 1100), 1.0 if spread else 0.0, np.float32)
    x[0, 3, 3] = 1.0
    return Records(x, np.zeros(1, np.int64))


@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1, 2**22 + 1, -(2**22) - 1])
def test_weights_beyond_their_limit_are_refused_whatever_the_record_is(value, spread):
    parameters, chosen = FmParameters(**BARE), context(input_shape=(1100, 1100), nominal_records=10)
    round, tensors = package(parameters, chosen, value)
    with pytest.raises(ProtocolError, match="'iterate' goes beyond 4194304 steps"):
        FmDevice(parameters, chosen).answer(round, tensors, record(spread))


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
def test_sizes_that_could_overflow_are_refused_before_there_is_a_price(sizes, where):
    chosen = context(**sizes, nominal_records=10)
    for build in (
        lambda: FmDevice(FmParameters(**BARE), chosen),
        lambda: FmCloud(FmParameters(**BARE), chosen),
        lambda: FmPaperDevice(FmPaperParameters(rounds=1), chosen),
    ):
        with pytest.raises(PrivacyError, match="do not fit exact integers") as caught:
            build()
        assert caught.value.where == where


def test_at_the_largest_size_and_weight_the_widest_record_does_not_overflow():
    d, weight = LARGEST_DIMENSION, 2**16 << 12
    FmDevice(FmParameters(**BARE), context(input_shape=(d,)))
    steps = np.zeros((1, d), np.int16)
    steps[0, 5] = 1 << 12
    z = Rows(steps, np.array([1]))
    weights = np.full((d, 1), weight) * np.array([[1, -1]])
    found = linear_sum(z, weights, 2.0)
    assert found[5].tolist() == pytest.approx([2**24, -(2**24)], rel=1e-3)
    assert np.count_nonzero(found) == 2


def test_at_the_largest_size_the_widest_basis_does_not_overflow():
    steps = np.zeros((1, LARGEST_DIMENSION), np.int32)
    steps[0, 5] = -(1 << 24)
    basis = np.full((LARGEST_DIMENSION, 1), -(1 << 15), np.int16)
    found = projected(Rows(steps, np.zeros(1, np.int64)), basis).steps
    assert found.tolist() == [[(1 << 24) - 1]]
