"""Ways to a broker: TLS, WebSockets, IPv6, limits of services; each fault by name and place."""

import asyncio
import socket

import pytest
from broker_harness import PASSWORDS, UP, carries, linked, listener_tls, users_file

from edgeveil.config.broker_profiles import PROFILES
from edgeveil.errors import BrokerError
from edgeveil.transport.link import LinkSettings, Topics
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_tools.site.brokers import BrokerSpec, free_port
from tests.kits.profiled_broker import BEYOND_PROFILE, ProfiledBroker

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
def tls_broker(engine, pki, start):
    """Starts a broker with TLS."""

    def begin(name="here", ca=False, **changes):
        return start(engine=engine, acl="edge", tls=listener_tls(pki, name, ca=ca), **changes)

    return begin


ADA = {"username": "ada", "password": PASSWORDS["ada"]}


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_a_broker_listens_on_an_ipv6_address(engine, start):
    broker = start(engine=engine, acl="edge", host="::1", websockets_port=0)
    for url in [broker.url, *[broker.websockets_url] * (engine == "amqtt")]:
        async with linked(broker, "ada", url=url):
            assert "[::1]" in url


@pytest.mark.parametrize("changes", [{"password": "hush"}, {"username": None}])
def test_wrong_credentials(broker, protocol, changes):
    changes = ADA | {"protocol": protocol} | changes
    found = fault(broker.url, **changes)
    assert "wrong user name or password" in found.what
    assert found.where == f"127.0.0.1:{broker.port}" and "hush" not in str(found)
    closed = free_port()
    found = str(fault((f"mqtt://127.0.0.1:{closed}", broker.url), **changes))
    for reason in (f":{closed}: nothing listens", f":{broker.port}: wrong user name"):
        assert reason in found  # of each address its own


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
@pytest.mark.parametrize(
    ("shown", "ca", "what"),
    [
        ("here", "stranger", "not signed by the trusted CA"),
        ("here", None, "not signed by the trusted CA"),  # the system's roots
        ("elsewhere", "ca", "certificate is not for '127.0.0.1'"),
    ],
)
def test_a_broker_that_nobody_of_ours_vouches_for_is_refused(
    engine, tls_broker, pki, scheme, shown, ca, what
):
    if (scheme, engine) == ("wss", "mosquitto"):
        pytest.skip("no WebSockets over TLS")
    broker = tls_broker(shown, websockets_port=0 if scheme == "wss" else None)
    url = broker.websockets_url if scheme == "wss" else broker.url
    assert what in fault(url, ca_file=ca and str(pki / f"{ca}.crt"), **ADA).what


def test_who_shows_no_certificate_is_refused_where_one_is_demanded(engine, tls_broker, pki):
    if engine == "amqtt":
        with pytest.raises(BrokerError, match="cannot demand client certificates"):
            tls_broker(ca=True)
        return
    found = fault(tls_broker(ca=True).url, ca_file=str(pki / "ca.crt"), **ADA)
    assert "client certificate" in found.fix


@pytest.fixture(params=["ws-mosquitto", "ws-amqtt", "wss-amqtt"])
def ws_broker(request, pki, start):
    """A broker with a WebSocket listener, and the link settings that reach it."""
    scheme, engine = request.param.split("-")
    tls = listener_tls(pki) if scheme == "wss" else None
    broker = start(engine=engine, acl="edge", tls=tls, websockets_port=0)
    ca = {"ca_file": str(pki / "ca.crt")} if tls else {}
    return broker, {"url": broker.websockets_url, **ca}, ca


async def test_large_packets_cross_and_both_listeners_are_one_broker(ws_broker):
    broker, reach, plain = ws_broker
    assert reach["url"].endswith("/mqtt")
    await carries(broker, 60 if broker.engine == "amqtt" else 2, **reach)  # mosquitto: 0.7 s each
    async with (
        linked(broker, "proxy", [UP.format("+")], **plain) as (_, ear),
        linked(broker, "ada", **reach) as (ada, _),
    ):
        await ada.publish(UP.format("ada"), b"over")
        assert await ear.message() == (UP.format("ada"), b"over")


async def test_a_packet_crosses_that_is_larger_than_what_a_broker_takes_in_one_frame(start):
    broker = start(engine="amqtt", acl="edge", websockets_port=0, packet_bytes=8 << 20)
    changes = {"url": broker.websockets_url, "packet_bytes": 8 << 20}
    async with (
        linked(broker, "proxy", [UP.format("+")], **changes) as (_, ear),
        linked(broker, "ada", **changes) as (ada, _),
    ):
        await ada.publish(UP.format("ada"), bytes(1_500_000))
        assert len((await ear.message())[1]) == 1_500_000


@pytest.mark.parametrize(
    ("profile", "count", "size"),
    [
        ("aws_iot", 150, 10),
        ("aws_iot", 20, 60_000),
        ("event_grid", 40, 60_000),
        ("emqx_serverless", 25, 10),
        ("hivemq_cloud", 100, 10),
    ],
)
async def test_who_keeps_to_the_profile_is_heard_in_full(tmp_path, profile, count, size):
    """Each of these, published as fast as it goes, is beyond one limit of the service."""
    plan = BrokerSpec("amqtt", acl="edge", packet_bytes=1 << 20)
    file = users_file(tmp_path / "users", PASSWORDS)
    broker = ProfiledBroker(plan, tmp_path / profile, profile, users_file=file)
    await asyncio.to_thread(broker.start)
    paced = {"packet_bytes": 1 << 20, "profile": PROFILES[profile]}
    async with (
        asyncio.timeout(HANG_S),
        linked(broker, "proxy", [UP.format("+")], inbox_bytes=1 << 26) as (_, ear),
        linked(broker, "ada", **paced) as (ada, _),
    ):
        for number in range(count):
            await ada.publish(UP.format("ada"), number.to_bytes(4, "big") + bytes(size))
        heard = [int.from_bytes((await ear.message())[1][:4], "big") for _ in range(count)]
    broker.stop()
    assert heard == list(range(count))
    assert BEYOND_PROFILE not in broker.log


@pytest.mark.parametrize("cell", ["", "a-cell-of-the-longest-name-there-i"[:32]])
def test_topics_of_ours_fit_every_profile(cell):
    own, device = Topics(cell), "0123456789abcdef"
    topics = [own.device_down(device), own.device_up(device)]
    for topic in (*topics, own.all_down, own.cloud_in, own.cloud_out):
        for profile in PROFILES.values():
            assert profile.topic_levels is None or topic.count("/") < profile.topic_levels
            assert profile.topic_bytes is None or len(topic) <= profile.topic_bytes
