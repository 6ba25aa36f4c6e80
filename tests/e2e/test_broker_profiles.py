"""A whole job over WebSockets, and through brokers that enforce a managed service's limits."""

from collections import Counter

import psutil
import pytest

from edgeveil.config.broker_profiles import PROFILES
from tests.kits.commands import changed
from tests.kits.live_site import LiveSite, wait_for
from tests.kits.profiled_broker import BEYOND_PROFILE

pytestmark = pytest.mark.slow


def played(live):
    live.start_all()
    done = live.finish(live.submit(rounds=1, every=0))
    assert done["status"] == "completed", done


MANY = 20  # devices, so that one step of the proxy has more than 10 messages


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(name, marks=[pytest.mark.drill] * (name != "hivemq_cloud"))
        for name in PROFILES
        if name != "default"
    ],
)
def test_a_job_keeps_to_the_profile(tmp_path, profile):
    devices = MANY if profile in ("emqx_serverless", "hivemq_cloud") else 5
    with LiveSite(tmp_path, devices, engine="amqtt", profile=profile) as live:
        played(live)
        for broker in live.brokers.values():
            assert BEYOND_PROFILE not in broker.log


@pytest.mark.parametrize("enforced", ["emqx_serverless", "hivemq_cloud"])
def test_a_job_whose_links_keep_to_no_profile_is_cut_off(tmp_path, enforced):
    with LiveSite(tmp_path, MANY, engine="amqtt", enforced=enforced) as live:
        live.start_servers()
        live.start("edge", *live.site.edges)
        wait_for(live.answers, "the cloud's start")  # links may be cut off before all hellos
        live.submit(rounds=1, every=0)
        wait_for(
            lambda: any(BEYOND_PROFILE in broker.log for broker in live.brokers.values()),
            "the cutting off",
        )
        wait_for(
            lambda: any("connection lost" in live.log(name) for name in ("cloud", "proxy", "edge")),
            "a lost link",
        )


@pytest.mark.parametrize(("engine", "tls"), [("mosquitto", False), ("amqtt", True)])
def test_a_job_over_websockets(tmp_path, engine, tls):
    with LiveSite(tmp_path, engine=engine, tls=tls, websockets=True) as live:
        played(live)
        for name in ("cloud", "proxy", "edge"):
            assert f"connected to {'wss' if tls else 'ws'}://127.0.0.1:" in live.log(name)


def test_a_job_over_several_connections_of_the_proxy(tmp_path):
    with LiveSite(tmp_path, engine="mosquitto") as live:
        with changed(live.site.proxy) as text:
            text["proxy"]["edge_broker"]["links"] = 3
            text["proxy"]["cloud_broker"]["links"] = 2
        played(live)
        ports = {live.spec.ports.edge: 3 + 1, live.spec.ports.cloud: 2}
        # Of the edge broker's, one listens for another proxy of the cell.
        open_to = Counter(
            link.raddr.port
            for link in psutil.Process(live.processes["proxy"].pid).net_connections("tcp")
            if link.status == psutil.CONN_ESTABLISHED and link.raddr.port in ports
        )
        assert open_to == ports
