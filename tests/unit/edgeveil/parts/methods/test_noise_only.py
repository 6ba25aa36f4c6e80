"""`noise_only`: public sizes, no record, no price, and a state that stays small."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeveil.errors import ProtocolError
from edgeveil.jobs import parse_plan
from edgeveil.parts.methods.noise_only import NOISE, PACKAGE, NoiseOnlyParameters, uniform
from edgeveil.parts.methods.noise_only import NoiseOnlyCloud as Cloud
from edgeveil.parts.methods.noise_only import NoiseOnlyDevice as Device
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context

JOB = Path("configs/jobs/link_test.yaml")
PARAMETERS = NoiseOnlyParameters(rounds=2, values=16_384, package_values=6)
SETTING = context(epsilon=1.0)


def answered(seed):
    cloud, device = Cloud(PARAMETERS, SETTING), Device(PARAMETERS, SETTING)
    exchange = cloud.plan()[0]
    package = cloud.package(cloud.initial_state(), exchange)
    return device.answer(exchange, package, None, SeededRandom(seed))


def test_the_noise_is_uniform_between_minus_one_and_one_and_64_kib():
    noise = answered(1).segments[NOISE]
    assert (noise.shape, noise.dtype, noise.nbytes) == ((16_384,), np.float32, 65_536)
    assert -1 <= noise.min() < -0.99 and 0.99 < noise.max() <= 1
    assert abs(noise.mean()) < 0.03 and abs(noise.var() - 1 / 3) < 0.02


def test_each_four_random_bytes_make_one_value():
    words = np.array([0, -(2**31), 2**31 - 1, 2**30, -3 * 2**29], "<i4").tobytes()
    np.testing.assert_array_equal(uniform(5, lambda n: words[:n]), [0, -1, 1, 0.5, -0.75])


def test_a_package_of_another_size_or_type_is_refused():
    device, exchange = Device(PARAMETERS, SETTING), Cloud(PARAMETERS, SETTING).plan()[0]
    for package in (np.zeros(5, np.float32), np.zeros(6), None):
        with pytest.raises(ProtocolError, match="package"):
            device.answer(exchange, {} if package is None else {PACKAGE: package}, None)


def test_the_state_counts_uploads_and_keeps_the_mean_of_all():
    cloud = Cloud(PARAMETERS, SETTING)
    one, two = cloud.plan()
    state = cloud.absorb(cloud.initial_state(), one, {NOISE: np.full(16_384, 0.5)}, 3)
    state = cloud.absorb(state, two, {NOISE: np.full(16_384, -0.5)}, 1)
    assert state["uploads"].tolist() == [4]
    assert state["mean"].tolist() == [0.25]
    assert sum(array.nbytes for array in state.values()) == 16


def test_the_shipped_job_costs_nothing_and_fills_64_kib():
    plan = parse_plan(JOB.read_text())
    assert plan.events() == ()
    assert plan.quote().training.epsilon == 0
    assert plan.quote().training.status == "proven"
    assert plan.segments(plan.exchanges[0])[0].byte_count == 65_536


def test_a_device_needs_no_torch_for_it():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from edgeveil.parts.methods.noise_only import *\n"
        "from edgeveil.parts.methods import METHODS\n"
        "assert METHODS['noise_only'].device(NoiseOnlyParameters(), None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
