"""A whole job over WebSockets, and through brokers that enforce a managed service's limits."""

import pytest

from edgeveil.sites.broker_profiles import PROFILES
from edgeveil_tools.site.broker_amqtt import BEYOND_PROFILE
from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.slow


def played(live):
    live.start_all()
    done = live.finish(live.submit(rounds=1, every=0))
    assert done["status"] == "completed", done


MANY = 20  # devices, so that one step of the proxy speaks to more than 10


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "default"])
def test_a_job_keeps_to_the_profile(tmp_path, profile):
    devices = MANY if profile == "emqx_serverless" else 5
    with LiveSite(tmp_path, devices, engine="amqtt", profile=profile) as live:
        played(live)
        for broker in live.brokers.values():
            assert BEYOND_PROFILE not in broker.log


def test_a_job_that_does_not_pace_is_cut_off(tmp_path):
    with LiveSite(tmp_path, MANY, engine="amqtt", enforced="emqx_serverless") as live:
        live.start_all()
        live.submit(rounds=1, every=0)
        wait_for(
            lambda: any(BEYOND_PROFILE in broker.log for broker in live.brokers.values()),
            "the cutting off",
        )
        wait_for(
            lambda: any("connection lost" in live.log(name) for name in ("cloud", "proxy", "edge")),
            "a lost link",
        )


@pytest.mark.parametrize("engine", ["mosquitto", "amqtt"])
def test_a_job_over_websockets(tmp_path, engine):
    with LiveSite(tmp_path, engine=engine, websockets=True) as live:
        played(live)
        for name in ("cloud", "proxy", "edge"):
            assert "connected to ws://127.0.0.1:" in live.log(name)
