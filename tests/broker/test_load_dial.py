"""A running site's broker is dialled before a load test starts anything."""

from __future__ import annotations

import pytest
from broker_harness import PASSWORDS

from edgeveil.errors import BrokerError
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet, TargetCell, dial_site
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess, choose_engine, free_port


def test_an_unreachable_broker_and_a_refused_account_are_named(tmp_path):
    broker = BrokerProcess(
        BrokerPlan(engine=choose_engine(), acl=None), tmp_path / "broker", users=PASSWORDS
    )

    def dial(url: str, user: str | None) -> None:
        cell = TargetCell(url, b"", b"", password=PASSWORDS["ada"])
        dial_site(LoadOptions.model_construct(user=user), cell, LoadFleet.make(1))

    nowhere = f"mqtt://127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match="nothing listens on this port"):
        dial(nowhere, "ada")
    broker.start()
    try:
        dial(broker.url, "ada")
        with pytest.raises(BrokerError, match="wrong user name or password"):
            dial(broker.url, None)  # the fleet's own account
    finally:
        broker.stop()
