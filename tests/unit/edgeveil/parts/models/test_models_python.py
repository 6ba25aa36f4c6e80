"""A user's own module as a job's model: named, rehearsed, refused with its reason, and trained."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from edgeveil.data.records import Records
from edgeveil.errors import ConfigError, DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs import Job, Plan, compile_job, load_job
from edgeveil.parts.method_context import network_of
from edgeveil.parts.methods.own_code import check_own_code
from edgeveil.parts.models import python_model
from edgeveil.privacy.sampler import SeededRandom

pytestmark = pytest.mark.usefixtures("own_process_here")

HERE = __name__
JOB = """
job: own_model
data: {{source: digits, classes: 3, input_shape: {shape}, nominal_records: 8}}
model: {{name: python, function: "{function}", input_scale: 4}}
train: {{method: {method}, rounds: 1}}
privacy: {{epsilon: 8, delta: 1.0e-5, accept_unproven: true}}
"""
PAGE = (Path(__file__).parents[5] / "docs" / "models.md").read_text("utf-8")


class Net(torch.nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.x = torch.nn.Conv2d(1, 4, 3, padding=1)  # named like the graph's input
        self.norm = torch.nn.GroupNorm(2, 4)
        self.update = torch.nn.Linear(4 * 36, classes)

    def forward(self, x):
        y = torch.relu(self.norm(self.x(x)))
        return self.update((y + 0.5 * torch.tanh(x)).flatten(1))


def failing():
    raise OSError("no weights file")


four, nothing = partial(Net, classes=4), dict


class Batched(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.BatchNorm2d(1, momentum=None), torch.nn.Flatten())


class Sound(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Shifted(Sound):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x):
        return super().forward(x + self.shift)


def own(forward):
    return type("Own", (Sound,), {"forward": forward})


of = Sound.forward
Cut = own(lambda m, x: m.last(m.first(x).detach()))
Mixing = own(lambda m, x: m.last(m.first(x) - m.first(x).mean(0)))
Branching = own(lambda m, x: of(m, x) if x.sum() > 0 else of(m, 2 * x - 1))
# One record's gradient has no place in `item`, a batch's has.
Together = own(lambda m, x: of(m, x) * (1 + 0 * x.detach().abs().max().item()))


def job_of(tmp_path, function="Net", method="sgd", shape=(1, 6, 6)):
    function = function if not function.isidentifier() else f"{HERE}:{function}"
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(function=function, method=method, shape=list(shape)))
    return load_job(path)


def check_own_model(plan):
    check_own_code(network_of(plan.context), plan.job.train)


def small(tmp_path, function, method="sgd"):
    return compile_job(job_of(tmp_path, function, method, (8,)))


def test_a_job_from_the_wire_is_read_and_priced_without_running_the_code(tmp_path, monkeypatch):
    raw = job_of(tmp_path).canonical()
    monkeypatch.setattr(python_model, "loaded", lambda _: pytest.fail("ran"))
    plan = compile_job(Job.from_canonical(raw))
    assert plan.request("j").events
    assert plan.groups(plan.all_rounds[0])[0].name == "module.x.weight"
    with pytest.raises(pytest.fail.Exception):
        plan.graph()


def test_onnx_runtime_and_torch_agree(tmp_path):
    job = job_of(tmp_path)
    assert dict(job.model.weights) == {
        name: tuple(value.shape) for name, value in Net().named_parameters()
    }
    network = compile_job(job).context.network
    weights, graph = network.initial(), network.graph()
    x = np.random.default_rng(0).uniform(-4, 4, (5, 1, 6, 6)).astype(np.float32)
    check_graph(graph)
    model = OnnxModel(graph)
    assert model.weight_names == set(weights) == {w.name for w in network.weights}
    tensors = {name: torch.as_tensor(array) for name, array in weights.items()}
    expected = network.logits(tensors, torch.as_tensor(x)).softmax(1)
    np.testing.assert_allclose(model.probabilities(x, weights), expected, atol=1e-6)
    assert np.ptp(expected.numpy(), axis=0).min() > 0.01


def test_its_first_weights_are_the_modules_and_the_same_everywhere(tmp_path):
    network, found = compile_job(job_of(tmp_path)).context.network, []
    before = torch.random.get_rng_state()
    for _ in range(2):
        python_model.loaded.cache_clear()
        found.append(network.initial())
    first, again = found
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    np.testing.assert_array_equal(first["module.norm.weight"], np.ones(4))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("no.such.module:Net", "install the module"),
        ("failing", "raised OSError"),
        ("sys:exit", "raised SystemExit"),
        ("nothing", "torch.nn.Module"),
        ("Batched", "momentum"),
        ("torch.nn:ReLU", "no parameters"),
        ("os.", "must be text of the form"),
    ],
)
def test_what_is_no_such_module_is_told_where_the_file_is_read(tmp_path, function, why):
    with pytest.raises(ConfigError, match=why):
        job_of(tmp_path, function)


@pytest.mark.parametrize(
    ("model", "method", "why"),
    [
        ("Cut", "sgd", "cannot be differentiated"),
        ("Mixing", "sgd", "other values as an ONNX graph"),
        ("Branching", "sgd", "other values as an ONNX graph"),
        ("Together", "dp_sgd", "'dp_sgd' needs"),
    ],
)
def test_what_the_method_cannot_train_is_refused(tmp_path, model, method, why):
    with pytest.raises(DataError, match=why) as caught:
        check_own_model(small(tmp_path, model, method))
    assert caught.value.where == "model.function"
    if model == "Together":  # a batch may do what a record cannot
        check_own_model(small(tmp_path, model))


def test_a_buffer_is_a_constant_of_the_graph(tmp_path):
    plan = small(tmp_path, "Shifted", "dp_sgd")
    check_own_model(plan)
    network = plan.context.network
    weights, x = network.initial(), np.ones((2, 8), np.float32)
    module = Shifted()
    module.load_state_dict(
        {n.partition(".")[2]: torch.tensor(a) for n, a in weights.items()}, False
    )
    wanted = module(torch.tensor(x) / 4).softmax(1).detach()
    found = OnnxModel(network.graph()).probabilities(x, weights)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_another_form_than_the_jobs_and_another_version_are_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"gives \[4\] a record, not \[3\]"):
        compile_job(job_of(tmp_path, "four")).graph()
    job = job_of(tmp_path)
    data = job.data.model_copy(update={"input_shape": (36,)})
    with pytest.raises(DataError, match=r"does not take records of \[36\]"):
        Plan(job.model_copy(update={"data": data})).graph()
    with pytest.raises(ValueError, match="weights"):
        python_model.PythonParameters.model_validate({**job.model_dump()["model"], "weights": ()})
    network = compile_job(job).context.network
    monkeypatch.setattr(python_model, "loaded", lambda function: four())
    with pytest.raises(DataError, match="other weights here"):
        network.initial()


@pytest.mark.parametrize("method", ["dp_sgd", "pso_dp_sgd"])
def test_a_device_makes_the_module_before_gradients_of_records_are_taken(tmp_path, method):
    """A device has the job from the wire: its first use of the code is the training itself."""
    plan = small(tmp_path, "Sound", method)
    start = plan.cloud.package(plan.cloud.initial_state(), plan.all_rounds[0])
    records = Records(np.ones((8, 8), np.float32), np.arange(8) % 3)
    python_model.loaded.cache_clear()
    answer = plan.device.answer(plan.all_rounds[0], start, records, SeededRandom(1), "cpu")
    assert set(answer.segments) == set(start)


def test_devices_that_train_side_by_side_do_not_meet_in_the_module(tmp_path):
    plan = small(tmp_path, "Sound")
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


def test_the_example_of_an_own_model_on_the_page_can_be_trained(tmp_path, monkeypatch):
    own = PAGE[PAGE.index("## A model of your own") :]
    code = re.search(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / code[1]).parent.mkdir()
    (tmp_path / code[1]).write_text(code[2])
    monkeypatch.syspath_prepend(tmp_path)
    block = yaml.safe_load(re.search(r"```yaml\n(.*?)```", own, re.DOTALL)[1])
    job = JOB.format(function="", method="dp_sgd", shape=[64]).replace("classes: 3", "classes: 10")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**yaml.safe_load(job), **block}))
    check_own_model(compile_job(load_job(tmp_path / "job.yaml")))
