"""Jobs over clusters of three nodes, NATS's and RabbitMQ's, that lose one or two on the way."""

import pytest

from tests.chaos import checks
from tests.chaos.evidence import collect, tap_site
from tests.kits.clustered_site import ClusteredSite
from tests.kits.live_site import wait_for
from tests.kits.nats_cluster import NatsCluster
from tests.kits.rabbitmq_cluster import RabbitCluster

pytestmark = pytest.mark.drill
DEVICES = 5  # as many as the owners of a provisioned site ask for
JOB_LIMIT_S = 150.0  # with attempts that fail by their deadline
SILENCE_S = 30.0  # a tenth of it where an answer is owed, and longer with each try
ELSEWHERE_S = 125.0  # 20 s at each of the other two nodes, then 40 s, and pauses
ROUND = 2  # in which the kill comes
ROUNDS_FOR_TWO = 10  # three to six of them pass until a node is back


def being_broadcast(live, job):
    """The cloud says the round, or is about to: the one before it is committed."""
    return live.committed(job) >= ROUND - 1


def uploads_come(live, job, number=ROUND):
    return _uploads(live, number) >= 1 or live.committed(job) >= number


def handed_over(live, job):
    return _uploads(live, ROUND) == DEVICES or live.committed(job) >= ROUND


def _uploads(live, number):
    now = live.proxy_status().get("round") or {}
    return now["uploads"] if now.get("index") == number else 0


@pytest.mark.parametrize(
    ("phase", "client"),  # at whose node the kill is aimed
    [(being_broadcast, "cloud"), (uploads_come, "edge-1"), (handed_over, "proxy cloud")],
)
def test_a_job_goes_on_when_a_node_is_killed(tmp_path, phase, client):
    with ClusteredSite(tmp_path, DEVICES) as live:
        job = begun(live, rounds=2)
        wait_for(lambda: phase(live, job), phase.__name__, every_s=0.005)
        node = live.node_of(client)
        theirs = [one for one in live.clients() if live.node_of(one) == node]
        live.cluster.kill(node)
        # Not all of them: two of three nodes take a new subscription only after some tries.
        wait_for(
            lambda: any(live.node_of(one) != node for one in theirs),
            "a client elsewhere",
            ELSEWHERE_S,
        )
        live.cluster.start_node(node)
        live.cluster.wait_ready()
        ended_in_order(live, job)


@pytest.mark.parametrize("cluster", [NatsCluster, RabbitCluster])
def test_a_job_ends_on_two_nodes_once_another_came_back_and_a_second_is_lost(tmp_path, cluster):
    """NATS: what lasted since before the first loss hears nothing then, on links that are up.
    RabbitMQ: a queue of before is at home on the lost node, and its client is refused."""
    with ClusteredSite(tmp_path, DEVICES, cluster, silence_s=SILENCE_S) as live:
        job = begun(live, ROUNDS_FOR_TWO)
        wait_for(lambda: uploads_come(live, job), "uploads", every_s=0.005)
        first, second = (live.node_of(one) for one in ("cloud", "edge-1"))
        assert first != second
        live.cluster.kill(first)
        live.cluster.start_node(first)
        live.cluster.wait_ready()
        wait_for(lambda: live.committed(job) >= ROUND, "the round's end", JOB_LIMIT_S)
        number = min(live.committed(job) + 1, ROUNDS_FOR_TWO)
        wait_for(lambda: uploads_come(live, job, number), "uploads again", JOB_LIMIT_S, 0.005)
        live.cluster.kill(second)
        ended_in_order(live, job)
        assert second not in {live.node_of(one) for one in live.clients()}


def begun(live, rounds):
    live.start_each()
    tap_site(live.spec)
    return live.submit(rounds=rounds, every=0)


def ended_in_order(live, job):
    wait_for(lambda: live.client.job(job)["ended_at"], "the job's end", JOB_LIMIT_S)
    live.wait_released()
    live.stop_all()
    found = collect(live.site, live.logs)
    assert [one.status for one in found.jobs] == ["completed"]
    checks.all_hold(found, *checks.KEPT)
