"""A user's own module as a job's model."""

import numpy as np
import pytest
import torch

from edgeveil.errors import ConfigError, DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs import Job, Plan, compile_job, load_job
from edgeveil.parts.models import python_model
from tests.kits.own_models import check_own_model

pytestmark = pytest.mark.usefixtures("own_process_here")

HERE = __name__
JOB = """
job: own_model
data: {{source: digits, classes: 3, input_shape: [1, 6, 6], nominal_records: 8}}
model: {{name: python, function: "{function}", input_scale: 4}}
train: {{method: sgd, rounds: 1, batch_size: 4}}
privacy: {{epsilon: 1, accept_unproven: true}}
"""


class Net(torch.nn.Module):
    """Convolution, normalisation, a skip, a sum over two ways and a dense layer."""

    def __init__(self, classes=3):
        super().__init__()
        self.x = torch.nn.Conv2d(1, 4, 3, padding=1)  # named like the graph's input
        self.norm = torch.nn.GroupNorm(2, 4)
        self.update = torch.nn.Linear(4 * 36, classes)

    def forward(self, x):
        y = torch.relu(self.norm(self.x(x)))
        return self.update((y + 0.5 * torch.tanh(x)).flatten(1))


class Sloped(torch.nn.Module):
    """With a slope of its own for each channel, and a square."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.slope = torch.nn.PReLU(4)
        self.update = torch.nn.Linear(4 * 36, 3)
        with torch.no_grad():
            self.slope.weight.copy_(torch.tensor([0.5, -1.5, 0.1, 2.0]))

    def forward(self, x):
        return self.update((self.slope(self.x(x)) ** 2).flatten(1))


class Rooted(Sloped):
    """Takes a root in the form of a power."""

    def forward(self, x):
        return super().forward(torch.relu(x) ** 0.5)


class Batched(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten())

    def forward(self, x):
        return self.layers(x)


def four():
    return Net(classes=4)


def failing():
    raise OSError("no weights file")


def nothing():
    return None


def job_of(tmp_path, function=f"{HERE}:Net"):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(function=function))
    return load_job(path)


def test_the_job_says_names_and_shapes_of_its_weights(tmp_path):
    model = job_of(tmp_path).model
    assert dict(model.weights) == {
        name: tuple(value.shape) for name, value in Net().named_parameters()
    }


def test_a_job_from_the_wire_is_read_and_priced_without_running_the_code(tmp_path, monkeypatch):
    raw = job_of(tmp_path).canonical()

    def never(function):
        raise DataError("ran")

    monkeypatch.setattr(python_model, "loaded", never)
    job = Job.from_canonical(raw)
    plan = compile_job(job)
    assert plan.request("j").events
    assert plan.groups(plan.all_rounds[0])[0].name == "module.x.weight"
    with pytest.raises(DataError, match="ran"):
        plan.graph()


def test_onnx_runtime_and_torch_agree(tmp_path):
    network = compile_job(job_of(tmp_path)).context.network
    weights = network.initial()
    x = np.random.default_rng(0).uniform(-4, 4, (5, 1, 6, 6)).astype(np.float32)
    graph = network.graph()
    check_graph(graph)
    model = OnnxModel(graph)
    assert model.weight_names == set(weights) == {w.name for w in network.weights}
    tensors = {name: torch.as_tensor(array) for name, array in weights.items()}
    expected = network.logits(tensors, torch.as_tensor(x)).softmax(1)
    np.testing.assert_allclose(model.probabilities(x, weights), expected, atol=1e-6)
    assert np.ptp(expected.numpy(), axis=0).min() > 0.01


def test_its_first_weights_are_the_modules_and_the_same_everywhere(tmp_path):
    network = compile_job(job_of(tmp_path)).context.network
    before = torch.random.get_rng_state()
    first = network.initial()
    python_model.loaded.cache_clear()
    again = network.initial()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    np.testing.assert_array_equal(first["module.norm.weight"], np.ones(4))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("no.such.module:Net", "install the module"),
        (f"{HERE}:Missing", "install the module"),
        (f"{HERE}:failing", "raised OSError"),
        ("sys:exit", "raised SystemExit"),
        (f"{HERE}:nothing", "torch.nn.Module"),
        (f"{HERE}:Batched", "GroupNorm"),
        ("torch.nn:ReLU", "no parameters"),
        ("os", "must be text of the form"),
        (".os:getcwd", "must be text of the form"),
    ],
)
def test_what_is_no_such_module_is_told_where_the_file_is_read(tmp_path, function, why):
    with pytest.raises(ConfigError, match=why):
        job_of(tmp_path, function)


def test_another_number_of_classes_and_another_version_are_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"gives \[4\] a record, not \[3\]"):
        compile_job(job_of(tmp_path, f"{HERE}:four")).graph()
    network = compile_job(job_of(tmp_path)).context.network
    monkeypatch.setattr(python_model, "loaded", lambda function: four())
    with pytest.raises(DataError, match="other weights here"):
        network.initial()


def test_records_of_another_shape_are_refused_with_the_reason(tmp_path):
    job = job_of(tmp_path)
    data = job.data.model_copy(update={"input_shape": (36,)})
    with pytest.raises(DataError, match=r"does not take records of \[36\]"):
        Plan(job.model_copy(update={"data": data})).graph()


def test_a_job_without_its_weights_is_refused(tmp_path):
    raw = job_of(tmp_path).model_dump()["model"]
    with pytest.raises(ValueError, match="submit it with edgeveil job submit"):
        python_model.PythonParameters.model_validate({**raw, "weights": ()})


def test_an_operator_that_devices_do_not_run_is_told_before_a_job_is_taken(tmp_path):
    plan = compile_job(job_of(tmp_path, f"{HERE}:Rooted"))
    with pytest.raises(DataError, match="another power than 2 or 3") as refusal:
        check_own_model(plan)
    assert "Sqrt" in refusal.value.fix
    check_own_model(compile_job(job_of(tmp_path, f"{HERE}:Sloped")))
