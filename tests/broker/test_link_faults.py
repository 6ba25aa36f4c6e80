"""Each way of not getting through is told by its name, with the place and the next step."""

import asyncio
import socket

import pytest
from broker_harness import PASSWORDS, UP, linked, listener_tls, make_link

from edgeveil.errors import BrokerError
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec

HANG_S = 30  # only ends a test that hangs


def fault(url, *, timeout_s=10.0, **changes):
    """The BrokerError of connecting to `url`."""

    async def play():
        link = MqttLink(LinkSettings(url=url, client_id="x", **changes))
        try:
            await asyncio.wait_for(link.connect_or_raise(timeout_s), HANG_S)
        finally:
            await link.close()

    with pytest.raises(BrokerError) as caught:
        asyncio.run(play())
    assert caught.value.fix
    return caught.value


@pytest.fixture
def tls_broker(engine, pki):
    """Starts brokers with TLS and stops them all."""
    started = []

    def start(name="here", **changes):
        plan = BrokerSpec(engine=engine, acl="edge", tls=listener_tls(pki, name, **changes))
        started.append(BrokerProcess(plan, pki / f"broker-{name}", users=PASSWORDS))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.stop()


ADA = {"username": "ada", "password": PASSWORDS["ada"]}


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("websockets", [False, True])
async def test_a_broker_listens_on_an_ipv6_address(engine, tmp_path, websockets):
    if websockets and engine == "mosquitto":
        pytest.skip("a listener more of the same kind")
    plan = BrokerSpec(engine=engine, acl="edge", host="::1", websockets_port=0)
    process = BrokerProcess(plan, tmp_path / "six", users=PASSWORDS)
    process.start()
    try:
        url = process.websockets_url if websockets else process.url
        async with linked(process, "ada", url=url):
            assert "[::1]" in url
    finally:
        process.stop()


@pytest.mark.parametrize("changes", [{"password": "hush"}, {"username": None}])
def test_wrong_credentials(broker, protocol, changes):
    told = fault(broker.url, **(ADA | {"protocol": protocol} | changes))
    assert "wrong user name or password" in told.what
    assert told.where == f"127.0.0.1:{broker.port}" and "hush" not in str(told)


async def test_tls_with_the_right_ca_carries_many_large_packets(tls_broker, pki, protocol):
    broker = tls_broker()
    changes = {"ca_file": str(pki / "ca.crt"), "protocol": protocol}
    async with (
        linked(broker, "proxy", [UP.format("+")], inbox_bytes=200_000, **changes) as (_, ear),
        linked(broker, "ada", **changes) as (ada, _),
    ):
        payloads = [bytes([number]) * 60000 for number in range(40)]
        for payload in payloads:
            await ada.publish(UP.format("ada"), payload)
        assert [(await ear.message())[1] for _ in payloads] == payloads


@pytest.mark.parametrize(
    ("shown", "ca", "what"),
    [
        ("here", "stranger", "not signed by the trusted CA"),
        ("here", None, "not signed by the trusted CA"),  # the system's roots
        ("elsewhere", "ca", "certificate is not for '127.0.0.1'"),
    ],
)
def test_a_broker_that_nobody_of_ours_vouches_for_is_refused(tls_broker, pki, shown, ca, what):
    ca_file = ca and str(pki / f"{ca}.crt")
    assert what in fault(tls_broker(shown).url, ca_file=ca_file, **ADA).what


async def test_mosquitto_can_demand_a_client_certificate_and_amqtt_says_that_it_cannot(
    engine, tls_broker, pki
):
    if engine == "amqtt":
        with pytest.raises(BrokerError, match="cannot demand client certificates"):
            tls_broker(ca=True)
        return
    broker, ca_file = tls_broker(ca=True), str(pki / "ca.crt")
    told = await asyncio.to_thread(fault, broker.url, ca_file=ca_file, **ADA)
    assert "client certificate" in told.fix
    files = {"cert_file": str(pki / "ada.crt"), "key_file": str(pki / "ada.key")}
    link = make_link(broker, "ada", ca_file=ca_file, **files)
    await link.connect_or_raise()
    assert link.connected
    await link.close()
