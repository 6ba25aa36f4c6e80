"""docs/models.md says what the models are; its example of a user's own model works as it stands."""

import math
import re
from pathlib import Path

import pytest
import yaml

from edgeveil.jobs import load_plan
from edgeveil.parts.models import MODELS, build_network
from tests.kits.own_models import check_own_model

PAGE = (Path(__file__).parents[5] / "docs" / "models.md").read_text("utf-8")
SHAPES = {"alexnet": (3, 32, 32), "resnet20": (3, 32, 32)}
JOB = """
job: own
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
train: {method: dp_sgd}
privacy: {epsilon: 8, delta: 1.0e-5}
"""


@pytest.mark.parametrize("name", [name for name in MODELS if name != "python"])
def test_the_size_of_an_update_is_that_of_the_page(name):
    parameters = MODELS[name].parameters(name=name)
    network = build_network(parameters, SHAPES.get(name, (28, 28)), 10)
    size = sum(math.prod(weight.shape) for weight in network.weights)
    row = re.search(rf"^\| `{name}` \|[^|]*\| ([\d,]+) \|", PAGE, re.MULTILINE)
    assert row and row[1] == f"{size:,}"


def test_the_example_of_an_own_model_can_be_trained(tmp_path, monkeypatch):
    code = re.search(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / code[1]).parent.mkdir()
    (tmp_path / code[1]).write_text(code[2])
    monkeypatch.syspath_prepend(tmp_path)
    own = PAGE[PAGE.index("## A model of your own") :]
    model = yaml.safe_load(re.search(r"```yaml\n(.*?)```", own, re.DOTALL)[1])
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(JOB), **model}))
    check_own_model(load_plan(path))
