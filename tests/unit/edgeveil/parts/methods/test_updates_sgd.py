"""Local SGD by hand; updates of which only sums are seen; a clip norm that follows a quantile."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.sgd import Steps
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.models.network import Network
from edgeveil.parts.round import KEPT, TRAIN, PlannedRound
from edgeveil.parts.stage import CLIP_NORM, USUAL_GRID, WITHIN, AdaptiveClip, FixedPoint
from edgeveil.parts.stages.noise import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.update import Pipeline, UpdateCloud
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import SharedGaussian, as_single, as_summed
from edgeveil.privacy.gaussian_mechanism import LEAST_SHARE_BITS, clipped_steps
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_regression import CONTEXT, ONE, ROUND, ZERO, answer


def test_one_step_from_zero_is_the_mean_gradient_by_hand():
    # p = (½, ½), so the gradient of the logits is (-½, ½) and that of W is xᵀ times it.
    update = answer("sgd", learning_rate=0.1).segments
    np.testing.assert_allclose(update["output.weight"], [[0.05, -0.05], [0.1, -0.1]], atol=1e-7)
    np.testing.assert_allclose(update["output.bias"], [0.05, -0.05], atol=1e-7)
    both = Records(np.array([[1.0, 2.0], [3.0, 0.0]], np.float32), np.array([0, 1]))
    update = answer("sgd", both, learning_rate=0.1, batch_size=2).segments
    np.testing.assert_allclose(update["output.weight"], [[-0.05, 0.05], [0.05, -0.05]], atol=1e-7)


def test_fedprox_pulls_the_second_step_back_by_mu():
    free = answer("sgd", learning_rate=0.1, local_epochs=2).segments["output.bias"]
    held = answer("fedprox", learning_rate=0.1, local_epochs=2, mu=0.5).segments["output.bias"]
    # After the first step, w − w_t = (0.05, −0.05): the pull is lr·μ times that.
    np.testing.assert_allclose(free - held, [0.1 * 0.5 * 0.05, -0.1 * 0.5 * 0.05], atol=1e-7)


def test_unusable_records_are_left_out_and_none_at_all_change_nothing():
    odd = Records(
        np.array([[1.0, 2.0], [np.nan, 0.0], [5.0, 5.0]], np.float32), np.array([0, 0, 7])
    )
    kept, alone = answer("sgd", odd), answer("sgd", ONE)
    for name, value in alone.segments.items():
        np.testing.assert_array_equal(kept.segments[name], value)
    nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    assert not any(np.any(value) for value in answer("sgd", nobody).segments.values())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_they_are_pytorchs(momentum):
    def trained(optimiser):
        torch.manual_seed(3)
        w = [torch.randn(4, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
        theirs = optimiser and torch.optim.SGD(w, 0.3, momentum=momentum)
        take = Steps(w, 0.3, momentum).take
        for _ in range(5):
            x, y = torch.randn(3, 4), torch.tensor([0, 1, 1])
            loss = torch.nn.functional.cross_entropy(x @ w[0] + w[1], y)
            if theirs:
                theirs.zero_grad()
                loss.backward()
                theirs.step()
            else:
                take(loss)
        return w

    assert all(map(torch.equal, trained(False), trained(True)))


DEVICES = 20
SUMMED = replace(CONTEXT, summed=DEVICES, devices=DEVICES)
STEP = 2.0**-20


def noised(context=SUMMED, clip_norm=1.0):
    stage = GradientGaussian(GradientGaussianParameters(clip_norm=clip_norm), context)
    return replace(context, stages=(stage,)), stage


def cloud(context):
    return UpdateCloud(METHODS["sgd"].made(rounds=2), context)


def row(segments):
    return np.concatenate([array.ravel() for array in segments.values()])


def test_an_update_is_the_nearest_whole_steps_of_the_one_that_is_not_summed():
    plain, steps = answer("sgd").segments, answer("sgd", context=SUMMED).segments
    assert plain.keys() == steps.keys()
    for name, values in plain.items():
        assert steps[name].dtype == np.int64
        np.testing.assert_array_equal(steps[name], np.rint(values.astype(np.float64) / STEP))


def test_no_sum_of_the_largest_leaves_the_ring():
    for context in (SUMMED, noised()[0], noised(replace(SUMMED, honest=16))[0]):
        grid = Pipeline(context).grid
        for spec in cloud(context).segments(ROUND):
            assert DEVICES * grid.largest < 2 ** (spec.bits - 1) <= 4 * DEVICES * grid.largest


def test_what_is_too_large_is_cut_off():
    far = {name: np.full_like(value, 3e38) for name, value in ZERO.items()}
    steps = answer("sgd", context=SUMMED, weights=far, learning_rate=100.0, local_epochs=3)
    assert all(np.abs(one).max() <= USUAL_GRID.largest for one in steps.segments.values())
    grid = FixedPoint(2, 5)
    assert grid.steps(np.array([-9.0, -0.6, 0.3, 9.0])).tolist() == [-5, -2, 1, 5]


def test_noised_integers_travel_as_they_are_and_cost_what_is_priced():
    context, stage = noised()
    made, event = answer("sgd", context=context), stage.event
    assert made.events == stage.price(ROUND) == (event,)
    values = row(answer("sgd").segments).astype(np.float64)  # without noise
    noise = row(made.segments) - clipped_steps(values, event.sensitivity_steps, event.grid_bits)
    assert 0 < np.abs(noise).max() < 12 * event.sigma_steps
    assert np.any(noise & 1) and np.any(~noise & 1)  # no grid but the steps' own


@pytest.mark.parametrize("honest", [1, 7, 20])
def test_shared_noise_adds_up_to_the_budget_and_each_part_is_priced_alone(honest):
    alone, _ = noised()
    context, stage = noised(replace(SUMMED, honest=honest))
    (event,) = answer("sgd", context=context).events
    assert isinstance(event, SharedGaussian) and event.honest == honest
    together, own = as_summed(event), as_single(event)
    assert together.sigma_squared >= alone.stages[0].event.sigma_squared
    assert together.sigma_squared == honest * own.sigma_squared
    assert own.sigma_squared >= 4**LEAST_SHARE_BITS
    assert epsilon([together] * 2, CONTEXT.delta).epsilon <= CONTEXT.epsilon
    if honest > 1:
        assert epsilon([own] * 2, CONTEXT.delta).epsilon > CONTEXT.epsilon
    assert stage.grid.largest == event.own.sensitivity_steps + np.ceil(12 * own.sigma_squared**0.5)


def test_the_noise_of_parts_has_the_variance_that_was_promised():
    context, stage = noised(replace(SUMMED, honest=4))
    entry = METHODS["sgd"]
    device = entry.device(entry.made(rounds=2), context)
    nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    drawn = [row(device.answer(ROUND, ZERO, nobody, SeededRandom(k)).segments) for k in range(600)]
    found = np.mean(np.array(drawn, np.float64) ** 2)
    # 3,600 squares of a normal variable: one standard deviation of their mean is 2.4 %.
    assert found == pytest.approx(stage.event.sigma_squared, rel=0.12)


CLIP_STEPS = 1 << 18
STAGE = GradientGaussian(GradientGaussianParameters(clip_norm=2.0, quantile=0.5), SUMMED)
ADAPTIVE = replace(SUMMED, stages=(STAGE,))
CLIP = AdaptiveClip(first=1.0, quantile=0.5, sensitivity_steps=CLIP_STEPS)


def test_one_device_moves_the_sum_by_the_sensitivity_at_most():
    """Against none, whose part is 0: the norm of everything it sends, for any update."""
    rng = np.random.default_rng(1)
    for _ in range(900):
        size = int(rng.integers(1, 200))
        values = rng.normal(size=size) * 10.0 ** rng.uniform(-8, 30)
        total = CLIP.steps(values, float(10.0 ** rng.uniform(-6, 6)))
        assert total.dtype == np.int64 and len(total) == size + 1
        assert int((total**2).sum()) <= CLIP_STEPS**2
    tight = CLIP.steps(np.array([3.0, 4.0]), 1.0)
    assert np.sqrt(float((tight**2).sum())) > 0.999 * CLIP_STEPS  # and nothing of it is wasted


def test_an_update_within_arrives_as_it_is_and_a_larger_one_at_the_norm():
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


def test_the_bit_has_a_segment_of_its_own_and_noise_without_records_too():
    nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    start = ZERO | {CLIP_NORM: np.array([2.0])}
    specs = UpdateCloud(METHODS["sgd"].made(rounds=2), ADAPTIVE).segments(ROUND)
    for records in (ONE, nobody):
        sent = answer("sgd", records, context=ADAPTIVE, weights=start)
        assert [s.name for s in specs] == [*ZERO, WITHIN] == list(sent.segments)
        assert sent.events == STAGE.price(ROUND)
        assert STAGE.event.coordinates == 7  # six weights and the bit
        assert abs(int(sent.segments[WITHIN][0])) != STAGE.clip.bit_steps
    flat = np.concatenate([array.ravel() for array in sent.segments.values()])
    assert 0 < np.abs(flat).max() < 12 * STAGE.event.sigma_steps


@pytest.mark.parametrize(
    "norm",
    [None, np.array([0.0]), np.array([np.nan]), np.array([np.inf]), np.ones(2), np.float32([1])],
)
def test_a_package_with_no_norm_that_can_be_is_refused(norm):
    tensors = ZERO if norm is None else ZERO | {CLIP_NORM: norm}
    with pytest.raises(ProtocolError, match=CLIP_NORM):
        answer("sgd", context=ADAPTIVE, weights=tensors)


HIDDEN = build_network(NetworkParameters(hidden=(32,)), (8, 8), 10)
OF_DIGITS = replace(CONTEXT, network=HIDDEN, classes=10, input_shape=(8, 8))


TOGETHER = {
    "sgd": ({}, {}),
    "momentum": ({"momentum": 0.9, "local_epochs": 2}, {}),
    "adam": ({"optimizer": {"name": "adamw", "weight_decay": 0.01}}, {}),
    "fedprox": ({"mu": 0.5}, {}),
    "weighed": ({"label_smoothing": 0.1, "class_weights": [1, 5] * 5}, {"summed": 12}),
}
ALONE = {  # else the first stack would stand for later ones that differ by device
    "clipped": ({"gradient_clip": 3.0}, {}),
    "fedbn": ({"local": ["output.*"]}, {"local": ("output.weight", "output.bias")}),
    "output_perturbation": ({}, {}),
}


def played(name, ahead, seen=()):
    """All bytes of twelve devices in three rounds, and the sizes of passes through the network."""
    (options, more), start = (TOGETHER | ALONE)[name], len(seen)
    method, chance = METHODS.get(name) or METHODS["sgd"], np.random.default_rng(5)
    made = method.made(batch_size=16, rounds=3, learning_rate=0.3, **options)
    device = method.device(made, replace(OF_DIGITS, **more))
    x = [chance.normal(size=(n, 8, 8)).astype(np.float32) for n in [40] * 8 + [33, 7, 0, 41]]
    x[-1][3, 0, 0] = np.nan  # so that 40 are left
    records = [Records(one, chance.integers(0, 10, len(one))) for one in x]
    noise, kept, found = [SeededRandom(k) for k in range(12)], [{}] * 12, []
    for number in (1, 2, 3):
        weights = {name: number * array for name, array in HIDDEN.initial().items()}
        own = [weights | {KEPT + name: array for name, array in one.items()} for one in kept]
        asked = list(zip(own, records, noise, strict=True))
        if ahead:
            device.train_ahead(PlannedRound(number, TRAIN, number), asked, "cpu")
        answers = [device.answer(PlannedRound(number, TRAIN, number), *a, "cpu") for a in asked]
        kept = [one.kept for one in answers]
        found += [a.tobytes() for o in answers for a in (*o.segments.values(), *o.kept.values())]
    return found, seen[start:]


@pytest.fixture
def passes(monkeypatch):
    seen, plain = [], Network.logits
    monkeypatch.setattr(Network, "logits", lambda *a: (seen.append(len(a[2])), plain(*a))[1])
    return seen


@pytest.mark.parametrize("name", [*TOGETHER, *ALONE])
def test_devices_that_train_together_send_the_bits_of_each_alone(name, passes):
    alone, one_by_one = played(name, ahead=False, seen=passes)
    found, sizes = played(name, ahead=True, seen=passes)
    assert found == alone and len(set(alone)) > 100 and max(one_by_one) == 16
    assert (max(sizes) == 9 * 16) == (name in TOGETHER)


def test_a_library_that_adds_a_stack_up_in_another_order_trains_one_by_one(monkeypatch, passes):
    (alone, _), plain = played("sgd", ahead=False), torch.baddbmm
    monkeypatch.setattr(torch, "baddbmm", lambda *given: plain(*given) * (1 + 2**-23))
    found, sizes = played("sgd", ahead=True, seen=passes)
    assert found == alone
    assert sum(size > 16 for size in sizes) == 3  # one epoch of the first stack
