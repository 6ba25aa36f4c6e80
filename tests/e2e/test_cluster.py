"""A job over a cluster of three NATS nodes, of which one is killed in a phase of a round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeveil.privacy.ledger import LEDGER_FILE
from edgeveil_lab.chaos import checks
from edgeveil_lab.chaos.evidence import collect, tap_ledger, tap_spool
from edgeveil_proxy.spool import SPOOL_FILE
from tests.kits.clustered_site import ClusteredSite
from tests.kits.live_site import wait_for

pytestmark = pytest.mark.slow
DEVICES = 5  # as many as the owners of a provisioned site ask for
JOB_LIMIT_S = 120.0  # with an attempt that fails by its deadline
ROUND = 2  # in which the kill comes


def being_broadcast(live: ClusteredSite, job: str) -> bool:
    """The cloud says the round, or is about to: the one before it is committed."""
    return live.committed(job) >= ROUND - 1


def uploads_come(live: ClusteredSite, job: str) -> bool:
    """The proxy has the first of the round's answers."""
    return _uploads(live) >= 1 or live.committed(job) >= ROUND


def handed_over(live: ClusteredSite, job: str) -> bool:
    """All answers are there: the proxy shuffles them and hands the batch over."""
    return _uploads(live) == DEVICES or live.committed(job) >= ROUND


def _uploads(live: ClusteredSite) -> int:
    """How many of the round's the proxy holds."""
    now = live.proxy_status().get("round") or {}
    return now["uploads"] if now.get("index") == ROUND else 0


@pytest.mark.parametrize(
    ("phase", "client"),  # at whose node the kill is aimed
    [(being_broadcast, "cloud"), (uploads_come, "edge-1"), (handed_over, "proxy cloud")],
)
def test_a_job_goes_on_when_a_node_is_killed(
    tmp_path: Path, phase: Callable[[ClusteredSite, str], bool], client: str
) -> None:
    with ClusteredSite(tmp_path, DEVICES) as live:
        live.begin()
        tap_spool(live.plan.folder / "state" / "proxy" / SPOOL_FILE)
        for number in range(1, DEVICES + 1):
            tap_ledger(live.plan.edge_state(number) / LEDGER_FILE)
        job = live.submit(rounds=2, every=0)
        wait_for(lambda: phase(live, job), phase.__name__, every_s=0.005)
        node = live.node_of(client)
        theirs = [one for one in live.clients() if live.node_of(one) == node]
        live.cluster.kill(node)
        # Not all of them: two of three nodes take a new subscription only after some tries.
        wait_for(lambda: any(live.node_of(one) != node for one in theirs), "a client elsewhere")
        live.cluster.start_node(node)
        live.cluster.wait_elected()
        wait_for(lambda: live.client.job(job)["ended_at"], "the job's end", JOB_LIMIT_S)
        live.wait_released()
        live.stop_all()
        found = collect(live.site, live.logs)
    assert [one.status for one in found.jobs] == ["completed"]
    kept = (
        checks.rounds_intact,
        checks.counted_once,
        checks.acknowledged_counted,
        checks.ledgers_exact,
        checks.models_same,
    )
    for check in kept:
        seen = checks.outcome(check, check(found, checks.ChaosFacts()))
        assert seen.looked, seen.name
        assert not seen.violations, (seen.name, seen.violations)
