"""A clip norm that follows a quantile: its sensitivity, where it goes, and what travels with it."""

from dataclasses import replace

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.parts.methods import METHODS
from edgeveil.parts.stage import CLIP_NORM, WITHIN, AdaptiveClip
from edgeveil.parts.stages.noise import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.update import UpdateCloud
from tests.kits.softmax_regression import CONTEXT, ROUND, ZERO, answer

STEPS = 1 << 18
SUMMED = replace(CONTEXT, summed=20, devices=20)
STAGE = GradientGaussian(GradientGaussianParameters(clip_norm=2.0, quantile=0.5), SUMMED)
ADAPTIVE = replace(SUMMED, stages=(STAGE,))
CLIP = AdaptiveClip(first=1.0, quantile=0.5, sensitivity_steps=STEPS)


def test_one_device_moves_the_sum_by_the_sensitivity_at_most():
    """Against none, whose part is 0: the norm of everything it sends, for any update."""
    rng = np.random.default_rng(1)
    for _ in range(900):
        size = int(rng.integers(1, 200))
        values = rng.normal(size=size) * 10.0 ** rng.uniform(-8, 30)
        total = CLIP.steps(values, float(10.0 ** rng.uniform(-6, 6)))
        assert total.dtype == np.int64 and len(total) == size + 1
        assert int((total**2).sum()) <= STEPS**2
    tight = CLIP.steps(np.array([3.0, 4.0]), 1.0)
    assert np.sqrt(float((tight**2).sum())) > 0.999 * STEPS  # and nothing of it is wasted


def test_an_update_within_arrives_as_it_is_and_a_larger_one_at_the_norm():
    """And the bit states which of the two."""
    values = np.array([0.3, -0.4])
    for norm, arrives, bit in ((2.0, values, 1), (0.5, values, 1), (0.05, values / 10, -1)):
        *arrived, sent = CLIP.steps(values, norm)
        np.testing.assert_allclose(np.array(arrived) * CLIP.step(norm), arrives, atol=0.001)
        assert sent == bit * CLIP.bit_steps


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_norm_comes_to_the_quantile_of_the_norms(quantile):
    norms = np.random.default_rng(2).lognormal(1.0, 0.5, 400)
    clip, norm = replace(CLIP, quantile=quantile), 0.1
    for _ in range(300):
        bits = np.where(norms <= norm, clip.bit_steps, -clip.bit_steps)
        norm = clip.next_norm(norm, float(bits.mean()))
    assert abs(np.mean(norms <= norm) - quantile) < 0.02


def test_the_bit_has_a_segment_of_its_own_and_the_noise_of_all():
    made = answer("sgd", context=ADAPTIVE, weights=ZERO | {CLIP_NORM: np.array([2.0])})
    specs = UpdateCloud(METHODS["sgd"].made(rounds=2), ADAPTIVE).segments(ROUND)
    assert [s.name for s in specs] == [*ZERO, WITHIN] == list(made.segments)
    assert made.events == STAGE.price(ROUND)
    assert STAGE.event.coordinates == 7  # six weights and the bit
    assert made.segments[WITHIN].shape == (1,)
    assert abs(int(made.segments[WITHIN][0])) != STAGE.clip.bit_steps


def test_the_cloud_moves_weights_and_norm_by_what_was_summed():
    cloud, clip = UpdateCloud(METHODS["sgd"].made(rounds=2), ADAPTIVE), STAGE.clip
    first = cloud.initial_state()
    assert cloud.package(first, ROUND)[CLIP_NORM].tolist() == [2.0]
    assert set(cloud.model(first)) == set(ZERO)
    mean = {name: np.full(array.shape, clip.update_steps / 4) for name, array in ZERO.items()}
    moved = cloud.absorb(first, ROUND, mean | {WITHIN: np.array([clip.bit_steps])}, 20)
    for name in ZERO:
        np.testing.assert_allclose(moved[name] - first[name], 0.5, rtol=1e-6)
    assert moved[CLIP_NORM][0] == pytest.approx(2 * np.exp(-0.2 * 0.5))


@pytest.mark.parametrize(
    "norm",
    [None, np.array([0.0]), np.array([np.nan]), np.array([np.inf]), np.ones(2), np.float32([1])],
)
def test_a_package_with_no_norm_that_can_be_is_refused(norm):
    tensors = ZERO if norm is None else ZERO | {CLIP_NORM: norm}
    with pytest.raises(ProtocolError, match=CLIP_NORM):
        answer("sgd", context=ADAPTIVE, weights=tensors)


def test_a_device_without_records_sends_no_bit_either():
    nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    start = ZERO | {CLIP_NORM: np.array([1.0])}
    sent = answer("sgd", nobody, context=ADAPTIVE, weights=start).segments
    flat = np.concatenate([array.ravel() for array in sent.values()])
    assert 0 < np.abs(flat).max() < 12 * STAGE.event.sigma_steps
