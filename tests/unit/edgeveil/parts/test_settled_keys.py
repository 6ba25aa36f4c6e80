"""Keys that became constants: a job's bytes keep them, a file may say them, no other value."""

import pytest
import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs import load_job
from edgeveil.jobs.job import Job

JOB = """\
job: former
data: {source: mnist, classes: 10, input_shape: [28, 28], nominal_records: 14}
privacy: {epsilon: 8, delta: 1.0e-5, accept_unproven: true}
"""
BLOCKS = {
    "swarm": {"train": {"method": "pso_dp_sgd", "c1": 1.0, "inertia": 0.1, "moves": 2}},
    "gep": {"train": {"method": "gep", "auxiliary": 64}},
    "alexnet": {"model": {"name": "alexnet", "dense": 1024}},
    "resnet20": {"model": {"name": "resnet20", "groups": 16}},
    "cast": {"train": {"method": "sgd"}, "update": [{"name": "cast", "dtype": "float16"}]},
}


def job(folder, blocks):
    plain = {"model": {"name": "mlp"}, "train": {"method": "dp_sgd"}}
    (folder / "job.yaml").write_text(JOB + yaml.safe_dump(plain | blocks))
    return load_job(folder / "job.yaml")


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=list(BLOCKS))
def test_a_former_key_keeps_its_place_in_a_jobs_bytes_and_its_value(tmp_path, blocks):
    raw = job(tmp_path, blocks).canonical()
    assert Job.from_canonical(raw).canonical() == raw
    key, block = list(blocks.items())[-1]
    former = block[0] if isinstance(block, list) else block
    name = list(former)[-1]
    assert f'"{name}":'.encode() in raw
    former[name] = 3
    with pytest.raises(ConfigError, match=rf"{key}.*{name}: is always .* by now; drop the key"):
        job(tmp_path, blocks)
