"""Local optimisers beside PyTorch's, schedules by hand, and losses of classes."""

import numpy as np
import pytest
import torch

from edgeveil.config.base import ImpossibleMixError
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.optimizers import OptimizerParameters, Steps
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.server_optimizers import ScheduleParameters
from tests.kits.softmax_regression import CONTEXT, ONE, ROUND, answer

OPTIMISERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_are_those_of_pytorch(name, clip, decay):
    kind, more = OPTIMISERS[name]

    def trained(ours):
        torch.manual_seed(3)
        w = [torch.randn(4, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
        theirs = kind(w, 0.1, weight_decay=decay, **more)
        given = OptimizerParameters(name=name, weight_decay=decay)
        steps = Steps(w, 0.1, more.get("momentum", 0.0), given, clip)
        for _ in range(6):
            x, y = torch.randn(3, 4), torch.tensor([0, 1, 1])
            loss = torch.nn.functional.cross_entropy(x @ w[0] + w[1], y)
            if ours:
                steps.take(loss)
                continue
            theirs.zero_grad()
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(w, clip)
            theirs.step()
        return w

    for ours, theirs in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ({"name": "linear", "final": 0.2}, [1, 0.84, 0.68, 0.52, 0.36]),
        ({"name": "cosine"}, [1, 0.904508, 0.654508, 0.345492, 0.095492]),
        ({"name": "step", "every_rounds": 2, "factor": 0.1}, [1, 1, 0.1, 0.1, 0.01]),
        ({"name": "linear", "warmup_rounds": 2}, [1 / 3, 2 / 3, 1, 2 / 3, 1 / 3]),
        ({"name": "constant", "warmup_rounds": 1}, [0.5, 1, 1, 1, 1]),
    ],
)
def test_the_learning_rate_of_each_round_is_known_before_the_first(given, shares):
    schedule = ScheduleParameters(**given)
    found = [schedule.share(number, 5) for number in range(1, 6)]
    np.testing.assert_allclose(found, shares, atol=1e-6)
    assert min(found) > 0  # a round without steps would be paid for nothing
    train = METHODS["sgd"].made(rounds=5, learning_rate=2.0, schedule=given)
    np.testing.assert_allclose(train.rate(PlannedRound(4, "train", 4)), 2 * shares[3], atol=1e-6)


def test_class_weights_scale_a_records_loss_and_smoothing_moves_its_target():
    plain = answer("sgd", ONE, learning_rate=0.1).segments["output.bias"]  # label 0 of two
    heavy = answer("sgd", ONE, learning_rate=0.1, class_weights=(3, 1)).segments["output.bias"]
    np.testing.assert_allclose(heavy, 3 * plain, atol=1e-7)
    # p = (½, ½); the target is (1 − s/2, s/2), so the gradient of the bias is (s − 1)/2 · (1, −1).
    smooth = answer("sgd", ONE, learning_rate=0.1, label_smoothing=0.4).segments["output.bias"]
    np.testing.assert_allclose(smooth, 0.6 * plain, atol=1e-7)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_noised_steps_take_adam_at_the_same_price(name):
    made = METHODS["dp_sgd"].made(rounds=1, optimizer={"name": name}, learning_rate=0.01)
    plain = METHODS["dp_sgd"].made(rounds=1)
    prices = [METHODS["dp_sgd"].device(one, CONTEXT).price(ROUND) for one in (made, plain)]
    assert prices[0] == prices[1]
    moved = answer("dp_sgd", ONE, optimizer={"name": name}, learning_rate=0.01, local_steps=1)
    # Adam's first step moves each weight by the learning rate, whatever its gradient.
    assert np.allclose(np.abs(moved.segments["output.weight"]), 0.01, rtol=1e-3)


SGD = {"method": "sgd", "rounds": 1}
PLAIN = {
    "job": "a",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "model": {"name": "mlp"},
    "privacy": {"accept_unproven": True},
}


@pytest.mark.parametrize(
    ("train", "key"),
    [
        ({"class_weights": [1, 2]}, "train.class_weights"),
        ({"momentum": 0.9, "optimizer": {"name": "adam"}}, "train.momentum"),
    ],
)
def test_keys_that_do_not_fit_are_found_before_anything_is_spent(train, key):
    with pytest.raises(ImpossibleMixError) as found:
        compile_job(Job.model_validate(PLAIN | {"train": SGD | train}))
    assert [mix.paths[0] for mix in found.value.mixes] == [key]


def test_earlier_jobs_keep_their_bytes_and_new_keys_are_read_back():
    plain = Job.model_validate(PLAIN | {"train": SGD})
    assert b"optimizer" not in plain.canonical() and b"schedule" not in plain.canonical()
    more = {
        "optimizer": {"name": "adamw"},
        "schedule": {"name": "cosine"},
        "class_weights": [1] * 10,
    }
    job = Job.model_validate(PLAIN | {"train": SGD | more})
    assert Job.from_canonical(job.canonical()) == job
