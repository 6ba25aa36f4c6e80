"""`noise_only`: public sizes, no record, no price, and a state that stays small."""

import numpy as np

from edgeveil.parts.methods.noise_only import NOISE, NoiseOnlyParameters, uniform
from edgeveil.parts.methods.noise_only import NoiseOnlyCloud as Cloud
from tests.kits.method_context import context

PARAMETERS = NoiseOnlyParameters(rounds=2, values=16_384, package_values=6)
CONTEXT = context(epsilon=1.0)


def test_each_four_random_bytes_make_one_value():
    words = np.array([0, -(2**31), 2**31 - 1, 2**30, -3 * 2**29], "<i4").tobytes()
    np.testing.assert_array_equal(uniform(5, lambda n: words[:n]), [0, -1, 1, 0.5, -0.75])


def test_the_state_counts_uploads_and_keeps_the_mean_of_all():
    cloud = Cloud(PARAMETERS, CONTEXT)
    one, two = cloud.plan()
    state = cloud.absorb(cloud.initial_state(), one, {NOISE: np.full(16_384, 0.5)}, 3)
    state = cloud.absorb(state, two, {NOISE: np.full(16_384, -0.5)}, 1)
    assert state["uploads"].tolist() == [4]
    assert state["mean"].tolist() == [0.25]
    assert sum(array.nbytes for array in state.values()) == 16
