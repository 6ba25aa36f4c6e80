"""A job over a cluster of three NATS nodes, of which one is killed in each phase of a round."""

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
ROUND_LIMIT_S = 90.0  # one attempt that fails by its deadline, and the next


def being_broadcast(live: ClusteredSite, job: str, index: int) -> bool:
    """The cloud has begun to say the round, or is about to."""
    return f" round={index} kind=round" in live.log("cloud")


def uploads_come(live: ClusteredSite, job: str, index: int) -> bool:
    """The proxy has the first of the round's answers."""
    now = live.proxy_status().get("round") or {}
    return now.get("index") == index and now["uploads"] >= 1


def handed_over(live: ClusteredSite, job: str, index: int) -> bool:
    """All answers are there: the proxy shuffles them and hands the batch over."""
    now = live.proxy_status().get("round") or {}
    return now.get("index") == index and now["uploads"] == DEVICES


PHASES: tuple[tuple[Callable[[ClusteredSite, str, int], bool], str], ...] = (
    (being_broadcast, "cloud"),  # at whose node the kill is aimed
    (uploads_come, "edge-1"),
    (handed_over, "proxy cloud"),
)


def test_a_job_goes_on_when_a_node_is_killed_in_any_phase(tmp_path: Path) -> None:
    with ClusteredSite(tmp_path, DEVICES) as live:
        live.begin()
        spool = live.plan.folder / "state" / "proxy" / SPOOL_FILE
        tap_spool(spool)
        for number in range(1, DEVICES + 1):
            tap_ledger(live.plan.edge_state(number) / LEDGER_FILE)
        job = live.submit(rounds=6, every=0)
        for index, (phase, client) in enumerate(PHASES, start=2):
            wait_for(lambda p=phase, i=index: p(live, job, i), phase.__name__, ROUND_LIMIT_S)
            node = live.node_of(client)
            live.cluster.kill(node)
            wait_for(lambda c=client, n=node: live.node_of(c) != n, f"{client} at another node")
            wait_for(lambda i=index: live.committed(job) >= i, f"round {index}", ROUND_LIMIT_S)
            live.cluster.start_node(node)
            live.cluster.wait_elected()
        wait_for(lambda: live.client.job(job)["ended_at"], "the job's end", ROUND_LIMIT_S)
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
