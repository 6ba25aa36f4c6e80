"""Jobs under masks over real brokers, with every party a process of its own."""

from pathlib import Path

import pytest

from edgeveil.config.policy import Policy
from tests.chaos.checks import CHECKS, all_hold
from tests.chaos.evidence import collect, tap_site
from tests.kits.commands import edited
from tests.kits.live_site import LiveSite

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[2] / "configs" / "jobs"
DEVICES = 5


def smaller(name, min_batch):
    edits = {
        "rounds: 15": "rounds: 3",
        "selection: {devices: 20}": f"selection: {{devices: {DEVICES}}}",
        f"min_batch: {min_batch}": f"min_batch: {DEVICES}",
    }
    return edited((JOBS / name).read_text("utf-8"), edits).encode()


@pytest.mark.parametrize(
    ("name", "min_batch"), [("digits_secure.yaml", 5), ("digits_shared.yaml", 18)]
)
def test_the_model_is_that_of_the_exact_sums_of_what_devices_priced(tmp_path, name, min_batch):
    """Computed again from the ledgers of the devices whose uploads the commit records list."""
    policy = Policy(max_inference_epsilon=500, max_collusion_epsilon_per_job=100)
    with LiveSite(tmp_path, DEVICES, policy=policy) as live:
        live.start_all()
        tap_site(live.spec)
        job = live.completed(live.client.submit_yaml(smaller(name, min_batch)))
        assert [one["uploads"] for one in job["exchanges"]] == [DEVICES] * len(job["exchanges"])
        live.wait_released()
        for process in ("edge", "proxy", "cloud"):
            assert live.stop(process) == 0
            assert "Traceback" not in live.log(process)
    found = collect(live.site, live.logs)
    (only,) = found.jobs
    assert all(only.plan.masked(round) for round in only.plan.all_rounds)
    assert len(found.unmasked) == len(job["exchanges"])
    all_hold(found, *CHECKS[:8])  # the others are of faults
