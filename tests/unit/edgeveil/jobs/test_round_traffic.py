"""A round's traffic against what a managed broker carries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeveil.jobs.round_traffic import BrokerUse, RoundTraffic, misfits

PART = 10_000
ROUND = RoundTraffic(
    broadcast_bytes=400_000, upload_bytes=100_000, uploads=20, deadline_s=30.0, exchanges=10
)
EDGE = BrokerUse("proxy.edge_broker", "default", PART, links=1, devices=50)
CLOUD = BrokerUse("cloud.broker", "default", PART)


def told(use: BrokerUse, **changes: object) -> list[str]:
    return [what for what, _ in misfits(replace(ROUND, **changes), use)]


@pytest.mark.parametrize(
    ("profile", "devices", "fits"),
    [("hivemq_cloud", 98, True), ("hivemq_cloud", 99, False), ("emqx_serverless", 998, True)],
)
def test_connections_count_the_proxys_own(profile, devices: int, fits: bool) -> None:
    use = replace(EDGE, profile=profile, devices=devices)
    found = [what for what in told(use, deadline_s=1e9) if "connections" in what]
    assert (found == []) == fits
    if not fits:
        assert f"100 connections of an account, the fleet has {devices + 2}" in found[0]


@pytest.mark.parametrize(("deadline_s", "fits"), [(4.9, False), (5.1, True)])
def test_one_connections_messages_a_second_bound_a_round(deadline_s: float, fits: bool) -> None:
    # 40 messages down and 10 up, one after the other, at 10 a second: 5 s. For the account
    # 40 + 200 published, 2,000 + 200 delivered would be 2.4 s.
    use = replace(EDGE, profile="emqx_serverless")
    assert (told(use, deadline_s=deadline_s) == []) == fits


def test_the_clouds_side_carries_the_batch_by_one_link_or_more() -> None:
    one = replace(CLOUD, profile="emqx_serverless")
    changes = {"uploads": 40, "deadline_s": 35.0}  # 400 messages at 10 a second
    assert "needs 40 s" in told(one, **changes)[0]
    assert told(replace(one, links=2), **changes) == []


def test_traffic_of_a_month_counts_every_delivery_of_every_exchange() -> None:
    # down 0.4 MB, 50 times out; 2 MB in and out again: 24.4 MB a round
    use = replace(EDGE, profile="hivemq_cloud")
    assert told(use, exchanges=400) == []
    (what,) = told(use, exchanges=420)
    assert "moves 10.2 GB" in what and "10 GB a month" in what
