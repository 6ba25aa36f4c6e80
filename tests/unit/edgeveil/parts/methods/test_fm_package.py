"""What a device refuses before it reads a record, so that no record makes it fail afterwards."""

import numpy as np
import pytest
from fm_kit import setting

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_budget import FmParameters
from edgeveil.parts.methods.fm_paper import FmPaperDevice, FmPaperParameters
from edgeveil.parts.methods.fm_sums import Bounded, Features, linear_sum, projected
from edgeveil.privacy.grid import LARGEST_DIMENSION
from edgeveil.privacy.sampler import SeededRandom

BARE = {"rounds": 1, "centre": False, "quadratic": "never", "radius": 1.0}
LARGEST_WEIGHT = 2**16  # of all that a job may set as max_weight


def package(parameters, chosen, value):
    """The first training round's broadcast with one weight of `value` steps."""
    cloud = FmCloud(parameters, chosen)
    exchange = cloud.plan()[-1]
    tensors = cloud.package(cloud.initial_state(), exchange)
    tensors["iterate"] = tensors["iterate"].copy()
    tensors["iterate"][0, 0] = value
    return exchange, tensors


def record(spread):
    """One record of 1100 × 1100 values: alike everywhere, or with one that is large."""
    x = np.full((1, 1100, 1100), 1.0 if spread else 0.0, np.float32)
    x[0, 3, 3] = 1.0
    return Records(x, np.zeros(1, np.int64))


@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1, 2**22 + 1, -(2**22) - 1])
def test_weights_beyond_their_limit_are_refused_whatever_the_record_is(value, spread):
    parameters, chosen = FmParameters(**BARE), setting(input_shape=(1100, 1100), nominal_records=10)
    exchange, tensors = package(parameters, chosen, value)
    with pytest.raises(ProtocolError, match="'iterate' goes beyond 4194304 steps"):
        FmDevice(parameters, chosen).answer(exchange, tensors, record(spread))


@pytest.mark.parametrize("max_weight", [0.3, 1.0, 1024.0, LARGEST_WEIGHT])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_weights_of_an_honest_cloud_are_taken_up_to_the_limit(max_weight, sign):
    parameters, chosen = FmParameters(**BARE, max_weight=max_weight), setting(nominal_records=10)
    cloud = FmCloud(parameters, chosen)
    exchange = cloud.plan()[-1]
    (segment,) = cloud.segments(exchange)
    mean = {segment.name: np.full(segment.shape, sign * 1e9)}
    state = cloud.absorb(cloud.initial_state(), exchange, mean, 1)
    assert abs(state["iterate"]).min() == np.rint(max_weight * 4096)
    one = Records(np.ones((1, 2), np.float32), np.zeros(1, np.int64))
    device = FmDevice(parameters, chosen)
    answer = device.answer(exchange, cloud.package(state, exchange), one, SeededRandom(0))
    assert np.isfinite(answer.segments["head.weight"]).all()


@pytest.mark.parametrize(
    ("sizes", "where"),
    [
        ({"input_shape": (LARGEST_DIMENSION + 1,)}, "features"),
        ({"classes": LARGEST_DIMENSION + 1}, "data.classes"),
    ],
)
def test_sizes_that_could_overflow_are_refused_before_there_is_a_price(sizes, where):
    chosen = setting(**sizes, nominal_records=10)
    for build in (
        lambda: FmDevice(FmParameters(**BARE), chosen),
        lambda: FmCloud(FmParameters(**BARE), chosen),
        lambda: FmPaperDevice(FmPaperParameters(rounds=1), chosen),
    ):
        with pytest.raises(PrivacyError, match="do not fit exact integers") as caught:
            build()
        assert caught.value.where == where


def test_at_the_largest_size_and_weight_the_widest_record_does_not_overflow():
    d, weight = LARGEST_DIMENSION, LARGEST_WEIGHT << 12
    FmDevice(FmParameters(**BARE), setting(input_shape=(d,)))
    steps = np.zeros((1, d), np.int16)
    steps[0, 5] = 1 << 12
    z = Bounded(steps, np.array([1 << 24]), np.array([1]))
    weights = np.full((d, 1), weight) * np.array([[1, -1]])
    found = linear_sum(z, weights, 2.0)
    assert found[5].tolist() == pytest.approx([2**24, -(2**24)], rel=1e-3)
    assert np.count_nonzero(found) == 2


def test_at_the_largest_size_the_widest_basis_does_not_overflow():
    steps = np.zeros((1, LARGEST_DIMENSION), np.int32)
    steps[0, 5] = -(1 << 24)
    basis = np.full((LARGEST_DIMENSION, 1), -(1 << 15), np.int16)
    found = projected(Features(steps, np.zeros(1, np.int64)), basis).steps
    assert found.tolist() == [[(1 << 24) - 1]]
