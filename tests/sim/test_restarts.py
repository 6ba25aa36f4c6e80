"""What an optimiser remembers, at the cloud and on devices, outlives a restart of either."""

import numpy as np
import pytest
from safetensors.numpy import load

from edgeveil.config.policy import Policy
from tests.kits.fleet import Fleet, small_job

pytestmark = pytest.mark.slow

ALLOWED = dict.fromkeys(["accept_unprotected", "accept_unproven", "allow_record_counts"], True)
OWNERS = Policy(allowed_methods=("scaffold",), min_devices=3, **ALLOWED)
JOB = small_job(
    features=(),
    model={"name": "mlp", "hidden": (), "input_scale": 16.0},
    # one batch a pass: nothing is left to chance
    train={"method": "scaffold", "rounds": 3, "batch_size": 4096, "local_epochs": 2},
    aggregation={"name": "fedavg", "server_optimizer": {"name": "fedadam"}},
    privacy={"accept_unproven": True},
    encrypt={"privacy_eval_type": "NOT_ENCRYPT"},
    unsupervised={"eval_type": "NOT_EVAL"},
)


def learned(folder, *, restarted=False):
    fleet = Fleet(folder, 3, policy=OWNERS)
    job, box = fleet.submit(JOB), fleet.devices[0]
    if restarted:
        fleet.net.run(lambda: len(fleet.store.rounds(job)) == 1)
        fleet.cloud.runner.up = box.runner.up = False
        fleet.start_cloud()
        for party in (fleet.cloud, fleet.start_device(1)):
            fleet.net.connect(party.runner)
        fleet.cloud.control.start(fleet.store.job(job))
    assert fleet.finish(job) == "completed", fleet.store.job(job).reason
    return load(fleet.store.release(job).safetensors)


def test_a_restart_of_cloud_and_device_changes_nothing_that_is_learned(tmp_path):
    whole, again = learned(tmp_path / "whole"), learned(tmp_path / "again", restarted=True)
    for name, array in whole.items():
        np.testing.assert_allclose(again[name], array, atol=1e-5)
