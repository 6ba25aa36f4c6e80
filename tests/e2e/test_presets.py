"""Every published system that a job may name, from its YAML to its model, over MQTT."""

import numpy as np
import pytest

from edgeveil.config.policy import Policy
from edgeveil.evaluation.onnx_session import open_session
from edgeveil.jobs import parse_plan
from edgeveil.jobs.presets import PRESETS
from edgeveil.parts.methods import METHODS
from edgeveil.parts.sources.digits import load_digits_split
from tests.kits.live_site import LiveSite

pytestmark = pytest.mark.slow

DEVICES = 6
GENEROUS = Policy(
    max_epsilon_per_job=1e3,
    lifetime_epsilon=1e6,
    lifetime_delta=0.5,
    max_inference_epsilon=1e9,
    accept_unproven=True,
    accept_unprotected=True,
    allowed_methods=tuple(METHODS),
)
FEATURES = """features:
- {name: identity, input_scale: 16}
- {name: ldp_fpca, keep: 0.5, share: 0.333, noise: wishart}
"""
TRAINED = "model: {input_scale: 16}\n"
CHOOSING = "aggregation: {k: 4}\n"
TOY = {
    "delm_basic": FEATURES,
    "delm_enhanced": FEATURES + CHOOSING,
    "delm_top_k": FEATURES + CHOOSING,
    "anonymous_fl": TRAINED,
    "laplace_inference": "features: [{name: identity, input_scale: 16}]\n",
    "pso_dp_fl": TRAINED,
    "ldp_fl": TRAINED,
    "fedavg": TRAINED,
    "fedprox": TRAINED,
    "secprobe": TRAINED + CHOOSING,
    "stc": TRAINED,
}
"""Of each preset what digits and six devices ask for; the rest stays as it is published."""
HEAD = """job: {name}
preset: {name}
data: {{source: digits, classes: 10, input_shape: [64], nominal_records: 215}}
train: {{rounds: 2}}
privacy: {{accept_unproven: true}}
round: {{deadline_s: 60, budget_s: 2, quorum: 1, min_batch: {devices}}}
selection: {{min_devices: {devices}}}
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with LiveSite(tmp_path_factory.mktemp("presets"), DEVICES, policy=GENEROUS) as site:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")  # six devices train in one process
            site.start_all()
        yield site


def test_every_preset_is_here():
    assert set(TOY) == set(PRESETS)


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_runs_from_its_yaml_to_the_model(live, name):
    text = (HEAD.format(name=name, devices=DEVICES) + TOY[name]).encode()
    plan = parse_plan(text)
    ended = live.completed(live.client.submit_yaml(text))
    assert [one["uploads"] for one in ended["exchanges"]] == [DEVICES] * len(plan.all_rounds)
    test, scored = load_digits_split()[1], plan.rule.validation_records
    model = open_session(live.client.model(ended["id"]))
    right = model.run(["label"], {"x": test.x})[0] == test.y
    assert np.mean(right[scored:]) == pytest.approx(ended["exchanges"][-1]["accuracy"])
