"""Devices that train as they should and lie about what they learned: which rules bear it."""

import numpy as np
import pytest

from edgeveil.config.policy import Policy
from edgeveil.jobs import Job
from edgeveil.protocol.device_round import ComputeAnswer
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil.testing import DIGITS, device_sites
from tests.kits.fleet import committed
from tests.kits.memory_fleet import MemoryFleet
from tests.sim.hostile import Attacker

pytestmark = pytest.mark.slow

DEVICES, LIARS = 10, 3


def turned(update):
    return -8 * update


def agreed(update):
    signs = np.random.default_rng(0).choice([-1.0, 1.0], update.shape)
    return 30 * np.sqrt(np.mean(update**2)) * signs


LIES = {"turned": turned, "agreed": agreed}
RULES = {
    "median": {"name": "median"},
    "trimmed_mean": {"name": "trimmed_mean", "share": 0.3},
    "krum": {"name": "krum", "malicious": LIARS, "k": 4},
}
POLICY = Policy(accept_unproven=True, accept_unprotected=True, allowed_methods=("sgd",))


class Liar(Attacker):
    """A device whose ledger holds what it learned, and whose upload is a lie about it."""

    def __init__(self, fleet, box, lie):
        super().__init__(fleet, box, self._lied)
        self._lie = lie

    def perform(self, task):
        if isinstance(task, ComputeAnswer):
            self._inner.perform(task)
        return super().perform(task)

    def _lied(self, manifest, group):
        held = self._box.ledger.recall(manifest.at.job_id.hex(), manifest.at.round)
        learned = unpack_tensors(held[1])[manifest.groups[group].name]
        return self._lie(learned).astype(np.float32).tobytes()


def job(rule):
    return Job.model_validate(
        {
            "job": "poisoned",
            "data": {
                "source": "digits",
                "classes": 10,
                "input_shape": (64,),
                "nominal_records": 120,
            },
            "model": {"name": "mlp", "hidden": (32,), "input_scale": 16.0},
            "train": {
                "method": "sgd",
                "rounds": 8,
                "local_epochs": 2,
                "batch_size": 16,
                "learning_rate": 0.3,
            },
            "privacy": {"epsilon": 8.0, "accept_unproven": True},
            "proxy": {"shuffle": "whole"},
            "round": {"min_batch": DEVICES},
            "aggregation": rule,
        }
    )


def accuracy(folder, rule, lie):
    devices = device_sites(DEVICES, policy=POLICY)
    fleet = MemoryFleet(folder, devices, test_data=DIGITS, packet_bytes=1 << 20)
    try:
        for box in fleet.devices[:LIARS] if lie else ():
            Liar(fleet, box, lie)
        number = fleet.submit(job(rule))
        fleet.net.run(lambda: fleet.store.job(number).ended, fleet.net.now_s + 3600)
        rounds = committed(fleet, number)
        assert [one["uploads"] for one in rounds] == [DEVICES] * 8
        assert not any(one.get("refused") for one in rounds)
        return rounds[-1]["accuracy"]
    finally:
        fleet.close()


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_mean_is_ruined_by_liars(tmp_path, lie):
    assert accuracy(tmp_path, {"name": "fedavg"}, lie) < 0.5


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_robust_rule_learns_among_liars(tmp_path, rule, lie):
    assert accuracy(tmp_path, rule, lie) > 0.85
