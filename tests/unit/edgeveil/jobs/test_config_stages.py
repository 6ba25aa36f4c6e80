"""Update stages in a job file: what is taken, what is refused, and the reason that is read."""

import pytest
import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs import compile_job
from edgeveil_tools.local.local_run import parse_local_job

PLAIN = {
    "job": "stages",
    "data": {"source": "npz", "classes": 3, "input_shape": [4], "nominal_records": 30},
    "model": {"name": "mlp", "hidden": []},
    "train": {"method": "sgd", "rounds": 2},
    "privacy": {"epsilon": 4.0},
}
TOP, STC, OWN = {"name": "upload_top_k"}, {"name": "stc"}, {"name": "download_random"}
NOISE, TWO = {"name": "gradient_gaussian"}, {"name": "ldp_fl"}
PARALLEL = {**TWO, "composition": "parallel"}


def job(*update, unproven=False, **changes):
    privacy = {**PLAIN["privacy"], "accept_unproven": unproven}
    plain = {**PLAIN, "update": [dict(entry) for entry in update], "privacy": privacy, **changes}
    return parse_local_job(yaml.safe_dump(plain), "j.yaml")[0].alone


def refused(*update, **changes):
    with pytest.raises(ConfigError) as caught:
        job(*update, **changes)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("update", [(NOISE,), (OWN, NOISE, TOP), (NOISE, STC), (TWO, TOP)])
def test_one_stage_of_noise_makes_the_job_proven_per_device(update):
    training = compile_job(job(*update)).quote().training
    assert (training.proven, training.unit) == (True, "device")
    assert 3.99 < training.epsilon <= 4


@pytest.mark.parametrize("update", [(), (TOP,), (OWN, STC)])
def test_without_noise_a_job_says_that_it_accepts_it(update):
    assert "update without noise" in refused(*update)
    assert not compile_job(job(*update, unproven=True)).quote().training.proven


def test_the_text_s_composition_of_ldp_fl_is_claimed():
    assert "ε counted once for all of them" in refused(PARALLEL)
    assert compile_job(job(PARALLEL, unproven=True)).quote().training.status == "claimed"
