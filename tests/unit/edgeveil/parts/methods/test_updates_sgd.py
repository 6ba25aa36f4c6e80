"""Local SGD and FedProx against steps computed by hand, PyTorch's optimiser, and what travels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.errors import UsageError
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.sgd import Steps
from edgeveil.parts.update import WHOLE, segments_of, update_of
from tests.kits.softmax_regression import CONTEXT, NETWORK, ONE, ROUND, answer


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


def test_whole_updates_are_one_segment_and_come_apart_again():
    whole = answer("sgd", context=replace(CONTEXT, whole=True)).segments
    assert list(whole) == [WHOLE] and whole[WHOLE].shape == (6,)
    split = answer("sgd").segments
    for name, value in update_of(NETWORK, whole).items():
        np.testing.assert_array_equal(value, split[name])
    again = segments_of(NETWORK, split, whole=True)
    np.testing.assert_array_equal(again[WHOLE], whole[WHOLE])


def test_the_cloud_adds_the_mean_update_to_the_weights():
    entry = METHODS["sgd"]
    cloud = entry.cloud(entry.made(rounds=2), CONTEXT)
    state = cloud.initial_state()
    mean = {"output.weight": np.full((2, 2), 0.25), "output.bias": np.array([1.0, -1.0])}
    new = cloud.absorb(state, ROUND, mean, 5)
    np.testing.assert_allclose(new["output.weight"], state["output.weight"] + 0.25, rtol=1e-6)
    np.testing.assert_allclose(new["output.bias"], [1.0, -1.0])


def test_a_method_without_its_model_is_refused():
    with pytest.raises(UsageError):
        answer("sgd", context=replace(CONTEXT, network=None))


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
