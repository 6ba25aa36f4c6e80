"""What is wrong with a user's own model is told before a device trains it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.jobs import load_plan
from edgeveil.parts.models import python_model
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.own_models import check_own_model

pytestmark = pytest.mark.usefixtures("own_process_here")

HERE = __name__
JOB = """
job: own_model
data: {{source: digits, classes: 3, input_shape: [8], nominal_records: 8}}
model: {{name: python, function: "{function}"}}
train: {{method: {method}, rounds: 1}}
privacy: {{epsilon: 8, delta: 1.0e-5, accept_unproven: true}}
"""


class Sound(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Cut(Sound):
    def forward(self, x):
        return self.last(self.first(x).detach())


class Chosen(Sound):
    def forward(self, x):
        hot = torch.nn.functional.one_hot(super().forward(x).argmax(1), 3)
        return hot.float()


class Mixing(Sound):
    def forward(self, x):
        inner = self.first(x)
        return self.last(inner - inner.mean(0))


class Branching(Sound):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(2 * x - 1)


class Together(Sound):
    """One record's gradient has no place in `item`, a batch's has."""

    def forward(self, x):
        return super().forward(x) * (1 + 0 * x.detach().abs().max().item())


class Strict(Sound):
    """Bears no batch of one."""

    def forward(self, x):
        if len(x) < 2:
            raise ValueError("one is no batch")
        return super().forward(x)


def plan_of(tmp_path, model, method="sgd"):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(function=f"{HERE}:{model}", method=method))
    return load_plan(path)


@pytest.mark.parametrize(
    ("model", "method", "why"),
    [
        ("Cut", "sgd", "cannot be differentiated"),
        ("Chosen", "dp_sgd", "uses the operator 'ArgMax'"),
        ("Mixing", "sgd", "other values as an ONNX graph"),
        ("Branching", "sgd", "other values as an ONNX graph"),
        ("Together", "dp_sgd", "'dp_sgd' needs"),
        ("Together", "pso_dp_sgd", "'pso_dp_sgd' needs"),
        ("Strict", "pso_dp_sgd", "'pso_dp_sgd' needs: one is no batch"),
    ],
)
def test_what_the_method_cannot_train_is_refused(tmp_path, model, method, why):
    with pytest.raises(DataError, match=why) as caught:
        check_own_model(plan_of(tmp_path, model, method))
    assert caught.value.where == "model.function"


def test_a_batch_may_do_what_a_record_cannot(tmp_path):
    check_own_model(plan_of(tmp_path, "Together", "sgd"))


@pytest.mark.parametrize("method", ["dp_sgd", "pso_dp_sgd"])
def test_a_device_makes_the_module_before_gradients_of_records_are_taken(tmp_path, method):
    """A device has the job from the wire: its first use of the code is the training itself."""
    plan = plan_of(tmp_path, "Sound", method)
    start = plan.cloud.package(plan.cloud.initial_state(), plan.all_rounds[0])
    records = Records(np.ones((8, 8), np.float32), np.arange(8) % 3)
    python_model.loaded.cache_clear()
    answer = plan.device.answer(plan.all_rounds[0], start, records, SeededRandom(1), "cpu")
    assert set(answer.segments) == set(start)


def test_devices_that_train_side_by_side_do_not_meet_in_the_module(tmp_path):
    plan = plan_of(tmp_path, "Sound")
    round = plan.all_rounds[0]
    start = plan.cloud.package(plan.cloud.initial_state(), round)

    def trained(seed):
        chance = np.random.default_rng(seed)
        records = Records(chance.random((200, 8), np.float32), chance.integers(0, 3, 200))
        return plan.device.answer(round, start, records, SeededRandom(seed), "cpu").segments

    alone = [trained(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(trained, range(8)))
    for one, other in zip(alone, together, strict=True):
        for name, change in one.items():
            np.testing.assert_array_equal(change, other[name])
