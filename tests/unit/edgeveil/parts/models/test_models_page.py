"""docs/models.md says what the models are; its example of a user's own model works as it stands."""

import re
from pathlib import Path

import yaml

from edgeveil.jobs import load_plan
from tests.kits.own_models import check_own_model

PAGE = (Path(__file__).parents[5] / "docs" / "models.md").read_text("utf-8")
JOB = """
job: own
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
train: {method: dp_sgd}
privacy: {epsilon: 8, delta: 1.0e-5}
"""


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
