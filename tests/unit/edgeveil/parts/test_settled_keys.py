"""Keys that became constants: a job's bytes keep them, a file may say them, no other value."""

import pytest
import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs import load_job
from edgeveil.jobs.job import Job
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import MODELS
from edgeveil.parts.stages import STAGES

JOB = """\
job: former
data: {source: mnist, classes: 10, input_shape: [28, 28], nominal_records: 14}
privacy: {epsilon: 8, delta: 1.0e-5, accept_unproven: true}
"""
FAMILIES = ((METHODS, "train", "method"), (MODELS, "model", "name"), (STAGES, "update", "name"))
FORMER = [
    (key, {tag: name, former: value})
    for table, key, tag in FAMILIES
    for name in table
    if name != "pate"  # whose job needs a public set: test_pate
    for former, value in table[name].settled.items()
]


def job(folder, key, block):
    plain = {"model": {"name": "mlp"}, "train": {"method": "sgd"}, key: block}
    if key == "train" and METHODS[block["method"]].learns_on != "model":
        del plain["model"]
        plain["features"] = [{"name": "identity"}]
    plain["update"] = [block] if key == "update" else []
    (folder / "job.yaml").write_text(JOB + yaml.safe_dump(plain))
    return load_job(folder / "job.yaml")


@pytest.mark.parametrize(("key", "block"), FORMER)
def test_a_former_key_keeps_its_place_in_a_jobs_bytes_and_its_value(tmp_path, key, block):
    raw = job(tmp_path, key, block).canonical()
    assert Job.from_canonical(raw).canonical() == raw
    name = list(block)[-1]
    assert f'"{name}":'.encode() in raw
    with pytest.raises(ConfigError, match=rf"{key}.*{name}: is always .* by now; drop the key"):
        job(tmp_path, key, {**block, name: 0.123})


def test_a_key_of_another_name_of_its_block_is_refused_with_its_owner(tmp_path):
    with pytest.raises(ConfigError, match="it belongs to fedprox"):
        job(tmp_path, "train", {"method": "sgd", "mu": 0.5})
