"""Blocks whose `name` or `method` says which keys belong there: what is told of a wrong one."""

import pytest
import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job

JOB = {
    "job": "named",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "model": {"name": "mlp"},
    "train": {"method": "sgd"},
    "update": [{"name": "stc"}],
    "privacy": {"epsilon": 8, "accept_unproven": True},
    "aggregation": {"name": "fedavg"},
}


def told(**changes):
    with pytest.raises(ConfigError) as caught:
        parse_job(yaml.safe_dump({**JOB, **changes}), "j.yaml")
    (line,) = caught.value.problems
    return line.split(" ", 1)[1]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"train": {"method": "dpsgd"}},
            "train.method: unknown name 'dpsgd', did you mean 'dp_sgd'?",
        ),
        (
            {"model": {"name": "resnet"}},
            "model.name: unknown name 'resnet', did you mean 'resnet20'?",
        ),
        (
            {"update": [{"name": "top_k"}]},
            "update[0].name: unknown name 'top_k', did you mean 'upload_top_k'?",
        ),
        (
            {"aggregation": {"name": "trimmedmean"}},
            "aggregation.name: unknown name 'trimmedmean', did you mean 'trimmed_mean'?",
        ),
        (
            {"features": [{"name": "gabour"}]},
            "features[0].name: unknown name 'gabour', did you mean 'gabor'?",
        ),
    ],
)
def test_an_unknown_name_suggests_the_nearest(changes, line):
    assert told(**changes) == line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": {"name": "mlp", "code": 2}}, "model.code: unknown key here, it belongs to"),
        (
            {"train": {"method": "sgd", "mu": 0.1}},
            "train.mu: unknown key here, it belongs to fedprox",
        ),
        (
            {"update": [{"name": "stc", "clip_norm": 1}]},
            "update[0].clip_norm: unknown key here, it belongs to gradient_gaussian",
        ),
        (
            {"update": [{"name": "stc", "shares": 1}]},
            "update[0].shares: unknown key, did you mean 'share'?",
        ),
        (
            {"aggregation": {"name": "fedavg", "malicious": 1}},
            "aggregation.malicious: unknown key here, it belongs to krum",
        ),
    ],
)
def test_a_key_of_another_name_says_whose_it_is(changes, line):
    assert told(**changes).startswith(line)


def test_a_missing_name_lists_all():
    assert "mlp_300_100 or python" in told(model={"hidden": [8]})
