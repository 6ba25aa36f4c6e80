"""`fm` on a label that is a number: its sums by hand, and least squares where there is no noise."""

import math

import numpy as np
import pytest
from fm_kit import context

from edgeveil.data.records import Records
from edgeveil.data.target import LABELS, TargetRange
from edgeveil.parts.methods.fm import PART, FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters
from edgeveil_tools.local.reference import noise_free_reference

FINE = 2.0**-28
TARGET = TargetRange(10.0, 30.0)


def of_numbers(**changes):
    return context(**{"classes": LABELS, "regression": True, **changes})


def test_one_record_by_hand():
    parameters = FmParameters(centre=False, radius=1.0, clip=2.0)
    device, cloud = FmDevice(parameters, of_numbers()), FmCloud(parameters, of_numbers())
    record = Records(np.array([[3, 4]], np.float32), np.array([3 * (LABELS // 4)]))  # t = 0.5
    state = cloud.initial_state()
    state["iterate"] = np.array([[4096], [0], [-8192]], np.int32)  # W = (1, 0, -2)
    quadratic, first = cloud.plan()[:2]
    # φ = (0.6, 0.8), so z = (√3/2·0.6, √3/2·0.8, 1/2) and Wᵀz = √3/2·0.6 - 1
    z = np.array([math.sqrt(0.75) * 0.6, math.sqrt(0.75) * 0.8, 0.5])
    found = device.sums(quadratic, cloud.package(state, quadratic), record) * FINE
    np.testing.assert_allclose(found, np.outer(z, z)[np.triu_indices(3)], atol=2e-3)
    found = device.sums(first, cloud.package(state, first), record) * FINE
    difference = math.sqrt(0.75) * 0.6 - 1 - 0.5
    assert found.shape == (3, 1)
    np.testing.assert_allclose(found[:, 0], z * difference, atol=2e-3)


def linear_records(count, seed):
    """Numbers that are a linear function of z, and no noise."""
    x = np.random.default_rng(seed).normal(size=(count, 4))
    t = x / np.linalg.norm(x, axis=1)[:, None] @ np.array([0.4, -0.3, 0.2, 0.0]) + 0.25
    return Records(x.astype(np.float32), np.rint((t + 1) * (LABELS // 2)).astype(np.int64)), t


def test_without_noise_it_is_least_squares():
    (train, _), (test, t) = linear_records(600, 0), linear_records(200, 1)
    chosen = of_numbers(input_shape=(4,), nominal_records=600, max_participations=2)
    parameters = FmParameters(
        rounds=2, centre=False, clip=2.0, local_steps=1000, ridge=1e-6, average_from=0.5
    )
    first, second = noise_free_reference(parameters, chosen, train, test, target=TARGET)
    spread = TARGET.half * float(np.std(t))
    assert spread > 2
    assert first < 0.01 * spread  # one expansion is the whole loss: the second finds nothing new
    assert second == pytest.approx(first, abs=0.005 * spread)


def test_a_curvature_of_its_own_is_refused():
    for parameters, given, keys in (
        (FmParameters(), of_numbers(), []),
        (FmParameters(curvature=0.2), context(), []),
        (FmParameters(curvature=0.2), of_numbers(), ["train.curvature"]),
    ):
        assert [where[0] for where, _ in PART.refuses(parameters, given)] == keys
