"""`preset: NAME`, and `privacy.epsilon`: what is filled in, asked for or refused."""

import pytest
import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs import compile_job, parse_job
from edgeveil.jobs.job import Job
from edgeveil.jobs.presets import PRESETS
from edgeveil.privacy.events import ClaimedEvent, UnprotectedEvent
from edgeveil_tools.methods import PRESET_TEXTS as SAID

HEAD = """job: toy
preset: {name}
data: {{source: digits, classes: 10, input_shape: [8, 8], nominal_records: 64}}
privacy: {{accept_unproven: true}}
"""


def job(name, more=""):
    return parse_job(HEAD.format(name=name) + more)


def problems(name, more="", head=HEAD):
    with pytest.raises(ConfigError) as error:
        parse_job(head.format(name=name) + more, "x.yaml")
    return error.value.problems


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_a_whole_job_but_for_its_data(name):
    plan = compile_job(job(name))
    events = [event for round in plan.planned for event in plan.device.price(round)]
    found = "proven"
    if any(isinstance(event, ClaimedEvent) for event in events):
        found = "claimed"
    if any(isinstance(event, UnprotectedEvent) for event in events):
        found = "none"
    assert SAID[name][2] == found
    assert "accept_unproven" not in PRESETS[name].get("privacy", {})
    assert "local_run" not in PRESETS[name]


def test_what_the_file_says_comes_first():
    found = job(
        "delm_enhanced", "train: {rounds: 3}\naggregation: {k: 7}\nfeatures:\n- name: gabor"
    )
    assert (found.train.rounds, found.train.method) == (3, "fm_paper")
    assert (found.aggregation.name, found.aggregation.k) == ("min_divergence", 7)
    assert [entry.name for entry in found.features] == ["gabor"]


def test_problems_are_shown_at_their_line_or_at_the_preset():
    assert [one.split(":")[1] for one in problems("fedavgg")] == ["2 preset"]
    (line,) = problems("delm_enhanced", "aggregation: {kk: 3}\n")
    assert line.startswith("x.yaml:5 aggregation.kk: ")
    (line,) = problems("delm_basic", head=HEAD.replace("privacy: {{accept_unproven: true}}\n", ""))
    assert line.startswith("x.yaml:2 features: ")


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


def made(parts, **privacy):
    plain = {**PLAIN, **parts, "privacy": {**PLAIN["privacy"], **privacy}}
    return parse_job(yaml.safe_dump(plain), "j.yaml")


@pytest.mark.parametrize("parts", NOISELESS.values(), ids=NOISELESS)
def test_a_job_without_noise_states_no_epsilon_and_one_that_does_is_noted(parts):
    found = made(parts)
    assert found.privacy.epsilon is None
    assert not compile_job(found).adds_noise and compile_job(found).notes == ()
    assert Job.from_canonical(found.canonical()) == found
    assert made(parts, epsilon=None).digest() == found.digest()
    plan = compile_job(made(parts, epsilon=8))
    assert plan.notes[0].startswith("privacy.epsilon: ")
    assert plan.quote() == compile_job(found).quote()


@pytest.mark.parametrize("parts", NOISED.values(), ids=NOISED)
def test_where_noise_is_added_it_is_asked_for(parts):
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: is missing and.*epsilon: 8"):
        made(parts)
    assert compile_job(made(parts, epsilon=8)).adds_noise
