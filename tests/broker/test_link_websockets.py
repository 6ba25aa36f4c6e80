"""MQTT over WebSockets, with and without TLS, against both brokers of ours."""

from dataclasses import replace

import pytest
from broker_harness import PASSWORDS, UP, linked, listener_tls, make_link

from edgeveil.errors import BrokerError
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec

HANG_S = 60  # only ends a test that hangs


@pytest.fixture(params=["ws-mosquitto", "ws-amqtt", "wss-amqtt"])
def ws_broker(request, pki):
    """A broker with a WebSocket listener, and the link settings that reach it."""
    scheme, engine = request.param.split("-")
    tls = listener_tls(pki) if scheme == "wss" else None
    plan = BrokerSpec(engine=engine, acl="edge", tls=tls, websockets_port=0)
    process = BrokerProcess(plan, pki / "broker", users=PASSWORDS)
    process.start()
    changes = {"url": process.websockets_url}
    if tls is not None:
        changes["ca_file"] = str(pki / "ca.crt")
    yield process, changes
    process.stop()


async def test_many_large_packets_cross_whole_and_in_order(ws_broker, protocol):
    broker, reach = ws_broker
    assert reach["url"].endswith("/mqtt")
    changes = {**reach, "protocol": protocol}
    async with (
        linked(broker, "proxy", [UP.format("+")], inbox_bytes=200_000, **changes) as (_, ear),
        linked(broker, "ada", **changes) as (ada, _),
    ):
        count = 60 if broker.engine == "amqtt" else 4  # mosquitto takes 0.7 s for each
        payloads = [bytes([number]) * (60000 - number) for number in range(count)]
        for payload in payloads:
            await ada.publish(UP.format("ada"), payload)
        assert [(await ear.message())[1] for _ in payloads] == payloads


async def test_a_packet_crosses_that_is_larger_than_what_a_broker_takes_in_one_frame(pki):
    spec = BrokerSpec(engine="amqtt", acl="edge", websockets_port=0, packet_bytes=8 << 20)
    broker = BrokerProcess(spec, pki / "broker", users=PASSWORDS)
    broker.start()
    changes = {"url": broker.websockets_url, "packet_bytes": 8 << 20}
    async with (
        linked(broker, "proxy", [UP.format("+")], **changes) as (_, ear),
        linked(broker, "ada", **changes) as (ada, _),
    ):
        await ada.publish(UP.format("ada"), bytes(1_500_000))
        assert len((await ear.message())[1]) == 1_500_000
    broker.stop()


async def test_both_listeners_are_one_broker(ws_broker, pki):
    broker, reach = ws_broker
    plain = {"ca_file": str(pki / "ca.crt")} if broker.url.startswith("mqtts") else {}
    async with (
        linked(broker, "proxy", [UP.format("+")], **plain) as (_, ear),
        linked(broker, "ada", **reach) as (ada, _),
    ):
        await ada.publish(UP.format("ada"), b"over")
        assert await ear.message() == (UP.format("ada"), b"over")


@pytest.mark.parametrize(
    ("shown", "ca", "what"),
    [
        ("elsewhere", "ca", "is not for '127.0.0.1'"),
        ("here", "stranger", "not signed by"),
    ],
)
async def test_tls_is_checked_as_for_mqtts(pki, shown, ca, what):
    spec = BrokerSpec(tls=listener_tls(pki, shown), websockets_port=0)
    broker = BrokerProcess(spec, pki / "broker", users=PASSWORDS)
    broker.start()
    reach = {"url": broker.websockets_url, "ca_file": str(pki / f"{ca}.crt")}
    try:
        with pytest.raises(BrokerError, match=what):
            await make_link(broker, "ada", **reach).connect_or_raise()
    finally:
        broker.stop()


def test_mosquitto_is_not_taken_for_what_it_stalls_with(pki):
    assert BrokerProcess(BrokerSpec(websockets_port=0), pki / "broker").engine == "amqtt"
    plan = BrokerSpec(tls=listener_tls(pki), websockets_port=0)
    assert BrokerProcess(plan, pki / "broker").engine == "amqtt"
    with pytest.raises(BrokerError, match="mosquitto stalls"):
        BrokerProcess(replace(plan, engine="mosquitto"), pki / "broker")
