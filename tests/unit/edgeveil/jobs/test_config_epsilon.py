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
    "noise_only": {"train": {"method": "noise_only", "rounds": 2}},
}
NOISED = {
    "fm": {"train": {"method": "fm"}, "features": [{"name": "identity"}]},
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
def test_a_job_without_noise_states_no_epsilon_and_one_that_does_is_noted(parts):
    found = job(parts)
    assert found.privacy.epsilon is None
    assert not compile_job(found).adds_noise and compile_job(found).notes == ()
    assert Job.from_canonical(found.canonical()) == found
    assert job(parts, epsilon=None).digest() == found.digest()
    plan = compile_job(job(parts, epsilon=8))
    assert plan.notes[0].startswith("privacy.epsilon: ")
    assert plan.quote() == compile_job(found).quote()


@pytest.mark.parametrize("parts", NOISED.values(), ids=NOISED)
def test_where_noise_is_added_it_is_asked_for(parts):
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: is missing and.*epsilon: 8"):
        job(parts)
    assert compile_job(job(parts, epsilon=8)).adds_noise


NOISE, TOP, STC = {"name": "gradient_gaussian"}, {"name": "upload_top_k"}, {"name": "stc"}
TWO, OWN = {"name": "ldp_fl"}, {"name": "download_random"}


@pytest.mark.parametrize("update", [(NOISE,), (OWN, NOISE, TOP), (NOISE, STC), (TWO, TOP)])
def test_one_stage_of_noise_makes_a_job_proven_per_device(update):
    parts = {**NOISELESS["sgd"], "update": [*update]}
    training = compile_job(job(parts, epsilon=4, accept_unproven=False)).quote().training
    assert (training.proven, training.unit) == (True, "device")
    assert 3.99 < training.epsilon <= 4


@pytest.mark.parametrize(
    ("update", "status"),
    [((), "none"), ((OWN, STC), "none"), (({**TWO, "composition": "parallel"},), "claimed")],
)
def test_other_updates_have_no_proven_guarantee_and_need_consent(update, status):
    parts = {**NOISELESS["sgd"], "update": [*update]}
    assert compile_job(job(parts, epsilon=4)).quote().training.status == status
    with pytest.raises(ConfigError):
        job(parts, epsilon=4, accept_unproven=False)
