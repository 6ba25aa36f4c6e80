"""A job without a proven guarantee over a whole fleet: consent, course and what is printed."""

import pytest

from edgeveil.config.policy import Policy
from edgeveil.privacy.ledger import read_ledger
from tests.kits.fleet import Fleet, committed, small_job

CONSENTING = Policy(accept_unproven=True, allowed_methods=("fm_paper",))


def claimed_job():
    return small_job(
        train={"method": "fm_paper", "rounds": 3},
        features=(
            {"name": "identity", "input_scale": 16.0, "shift": -0.3},
            {"name": "ldp_fpca", "keep": 0.125},
        ),
        privacy={"epsilon": 8.0, "delta": 1e-5, "accept_unproven": True},
    )


def test_it_runs_to_its_end_and_every_total_says_that_nothing_is_proven(tmp_path):
    fleet = Fleet(tmp_path, 6, policy=CONSENTING)
    job = fleet.submit(claimed_job())
    assert fleet.finish(job) == "completed"
    events = fleet.store.events_after(0, job)
    rounds = committed(fleet, job)
    assert [r["phase"] for r in rounds] == ["covariance", "train", "train", "train"]
    assert [r["uploads"] for r in rounds] == [6] * 4
    printed = events[-1].data["privacy"]["training"]
    assert printed["status"] == "claimed"
    assert not any(node.refused for node in fleet.net.nodes.values())
    fleet.net.run(lambda: False, fleet.net.now_s + 5)
    for box in fleet.devices:
        assert str(box.ledger.spent()) == "no proven guarantee"
        assert box.ledger.spent().epsilon == pytest.approx(8.0, rel=0.02)
        # opened, four releases, closed
        assert read_ledger(box.site.state_dir / "ledger.sqlite").links == 6
