"""`preset: NAME`: what it fills in, what the file keeps, and where problems are said to be."""

import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import compile_job, parse_job
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


@pytest.mark.parametrize("name", PRESETS.names())
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


TEXTS = {
    "delm_basic": {"aggregation.name": "fedavg"},
    "delm_enhanced": {
        "features.1.keep": 0.5,
        "features.1.noise": "wishart",
        "features.1.share": 1 / 3,
        "train.rounds": 250,
        "privacy.epsilon": 1.0,
        "aggregation.k": 50,
        "aggregation.sampling": "exponential",
    },
    "delm_top_k": {"aggregation.sampling": "top_k"},
    "anonymous_fl": {
        "update.0.name": "download_random",  # λ_d before training
        "update.1.name": "gradient_gaussian",  # then noise, and of the noised values the largest
        "update.2.name": "upload_top_k",
    },
    "laplace_inference": {
        "encrypt.laplace_eval.laplace_eval_eps": 230260,
        "unsupervised.cluster_client_num": 1000,
        "infer_every": 1,
    },
    "pso_dp_fl": {"model.name": "mlp_300_100"},
    "ldp_fl": {"update.0.composition": "parallel", "proxy.shuffle": "split"},
    "fedavg": {"aggregation.name": "fedavg", "update": ()},
    "fedprox": {"train.mu": 0.01},
    "secprobe": {
        "aggregation.name": "secprobe",
        "aggregation.k": 50,
        "aggregation.sampling": "exponential",
        "proxy.shuffle": "whole",
    },
    "stc": {"update.0.share": 0.01},
}


@pytest.mark.parametrize("name", PRESETS.names())
def test_a_preset_has_the_parameters_of_its_text(name):
    found = {}
    for path in TEXTS[name]:
        at = job(name)
        for key in path.split("."):
            at = at[int(key)] if key.isdigit() else getattr(at, key)
        found[path] = at
    assert found == TEXTS[name]


def test_what_the_file_says_comes_first():
    found = job(
        "delm_enhanced", "train: {rounds: 3}\naggregation: {k: 7}\nfeatures:\n- name: gabor"
    )
    assert (found.train.rounds, found.train.method) == (3, "fm_paper")
    assert (found.aggregation.name, found.aggregation.k) == ("min_divergence", 7)
    assert [entry.name for entry in found.features] == ["gabor"]


def test_problems_are_shown_at_their_line_or_at_the_preset():
    assert [one.split(":")[1] for one in problems("fedavgg")] == ["2 preset"]
    (said,) = problems("delm_enhanced", "aggregation: {kk: 3}\n")
    assert said.startswith("x.yaml:5 aggregation.kk: ")
    (said,) = problems("delm_basic", head=HEAD.replace("privacy: {{accept_unproven: true}}\n", ""))
    assert said.startswith("x.yaml:2 features: ")
