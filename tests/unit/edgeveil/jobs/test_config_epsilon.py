"""`privacy.epsilon`: needed where training adds noise, and only there."""

import pytest
import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs import compile_job, parse_job
from edgeveil.jobs.job import Job

PLAIN = {
    "job": "j",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "privacy": {"accept_unproven": True},
}
MLP = {"name": "mlp", "input_scale": 16}
NOISELESS = {
    "sgd": {"model": MLP, "train": {"method": "sgd", "rounds": 2}},
    "fedprox": {"model": MLP, "train": {"method": "fedprox", "rounds": 2}},
    "preset fedavg": {"preset": "fedavg"},
    "preset fedprox": {"preset": "fedprox"},
    "preset stc": {"preset": "stc"},
    "noise_only": {"train": {"method": "noise_only", "rounds": 2}},
}
NOISED = {
    "fm": {"train": {"method": "fm"}, "features": [{"name": "identity"}]},
    "dp_sgd": {"model": MLP, "train": {"method": "dp_sgd"}},
    "a stage": {
        "model": MLP,
        "train": {"method": "sgd", "rounds": 2},
        "update": [{"name": "gradient_gaussian"}],
    },
    "a claimed method": {"train": {"method": "fm_paper"}, "features": [{"name": "identity"}]},
}


def job(parts, **privacy):
    plain = {**PLAIN, **parts, "privacy": {**PLAIN["privacy"], **privacy}}
    return parse_job(yaml.safe_dump(plain), "j.yaml")


@pytest.mark.parametrize("parts", NOISELESS.values(), ids=NOISELESS)
def test_a_job_without_noise_states_none(parts):
    found = job(parts)
    assert found.privacy.epsilon is None
    assert not compile_job(found).adds_noise and compile_job(found).notes == ()
    assert Job.from_canonical(found.canonical()) == found
    assert job(parts, epsilon=None).digest() == found.digest()


@pytest.mark.parametrize("parts", NOISELESS.values(), ids=NOISELESS)
def test_an_epsilon_that_means_nothing_is_noted_and_changes_no_guarantee(parts):
    plan = compile_job(job(parts, epsilon=8))
    assert plan.notes[0].startswith("privacy.epsilon: 8 means nothing here")
    assert plan.quote() == compile_job(job(parts)).quote()


@pytest.mark.parametrize("parts", NOISED.values(), ids=NOISED)
def test_where_noise_is_added_it_is_asked_for(parts):
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: is missing and.*epsilon: 8"):
        job(parts)
    assert compile_job(job(parts, epsilon=8)).adds_noise
