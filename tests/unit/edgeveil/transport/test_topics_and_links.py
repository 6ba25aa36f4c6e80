"""Topics name their speaker; a session routes one link into one runtime, and asks after silence."""

import asyncio
import gc
from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.config.addresses import place, split_place
from edgeveil.config.links import BrokerLink
from edgeveil.errors import BrokerError, EdgeVeilError, UsageError
from edgeveil.protocol import effects as fx
from edgeveil.transport import mqtt_link
from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import BrokerAddress, LinkSettings, SendWindow, Topics
from edgeveil.transport.mqtt_link import (
    LONGEST_SILENCE_S,
    RuntimeLink,
    SilenceMonitor,
    link_settings,
)

TOPICS = Topics()
ID = "0123456789abcdef"


def test_each_topic_has_one_speaker_and_a_foreign_one_none():
    for topic, sender in (
        (TOPICS.cloud_out, fx.CloudAddress()),
        (TOPICS.device_up(ID), fx.DeviceAddress(ID)),
        (TOPICS.device_down(ID), fx.ProxyAddress()),
        (TOPICS.all_down, fx.ProxyAddress()),
        (TOPICS.cloud_in, fx.ProxyAddress()),
    ):
        assert TOPICS.sender_of(topic) == sender
    up = f"edgeveil/v1/d/{ID}/up"
    for foreign in (
        *("", "edgeveil/v1/cloud/outer", "edgeveil/v1/d/0123456789ABCDEF/up"),
        *("edgeveil/v1/d/0123/up", f"{up}/more", f"{up}\n", f"x/{up}", "edgeveil/v2/all/down"),
        *("edgeveil/v1x/all/down", "edgeveil/v1/d/kitchen-box/down", "edgeveil/v1/other/in"),
    ):
        assert TOPICS.sender_of(foreign) is None


def broker(**changes):
    return BrokerLink.model_validate({"url": "mqtt://127.0.0.1:1", **changes})


def test_a_service_that_knows_clients_by_their_id_sees_the_same_at_each_start():
    same = broker(profile="aws_iot", keepalive_s=60)
    every = [link_settings(same, "cloud", 8192) for _ in range(2)]
    assert {(one.client_id, one.client_suffix) for one in every} == {("cloud", "")}


@pytest.mark.parametrize(
    ("content", "mode", "exit_code"),
    [
        ("pässword with spaces \nsecond line\n".encode(), 0o600, None),
        (b"", 0o600, 1),  # nothing is written in it yet: its unit tries again
        (b"\nsecret\n", 0o600, 2),
        (b"secret caf\xe9\n", 0o600, 2),
        (None, None, 2),
        *((b"secret\n", mode, 2) for mode in (0o640, 0o604, 0o660)),
    ],
)
def test_a_password_is_its_files_first_line_and_an_unusable_file_is_named(
    tmp_path, content, mode, exit_code
):
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    link = broker(username="u", password_file=path)
    if exit_code is None:
        found = link_settings(link, "cloud", 8192)
        assert (found.username, found.password) == ("u", "pässword with spaces ")
        assert "pässword" not in repr(found)
        return
    with pytest.raises(EdgeVeilError) as caught:
        link_settings(link, "cloud", 8192)
    assert (caught.value.where, caught.value.exit_code) == (str(path), exit_code)
    assert caught.value.fix and "secret" not in str(caught.value)


@pytest.mark.parametrize("apart", [True, False], ids=["key_file", "key-in-cert_file"])
def test_a_tls_key_that_others_may_read_is_refused(tmp_path, apart):
    certificate, key = tmp_path / "own.crt", tmp_path / "own.key"
    for path in (certificate, key):
        path.write_text("no PEM\n")
        path.chmod(0o644)
    holder = key if apart else certificate
    for fix in (f"chmod 600 {holder}", None):
        with pytest.raises(BrokerError) as caught:
            client_context(None, certificate, key if apart else None)
        assert (caught.value.fix == fix) is (fix is not None)
        holder.chmod(0o600)  # read now, and no key


class Wire:
    """A link without a broker, whose `takes`, `on_message` and `on_state` are set from outside."""

    connected = True

    def __init__(self):
        self.over, self.renewed = asyncio.Event(), 0

    def subscribe(self, topics):
        pass

    async def publish(self, topic, payload, qos=1):
        pass

    async def run_forever(self):
        await self.over.wait()

    def renew(self, reason):
        self.renewed += 1
        self.over.set()


async def test_a_cancelled_link_leaves_no_exception_behind():
    settings = LinkSettings("mqtt://127.0.0.1:1", "x")
    roles = fx.ProxyAddress(), TOPICS.of_proxy, TOPICS.sender_of
    session, unretrieved = RuntimeLink(settings, [TOPICS.cloud_in], *roles), []
    session.links = [Wire()]
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.run(), 0.01)
    gc.collect()
    assert unretrieved == []


@pytest.mark.parametrize("answers", [True, False])
async def test_a_silent_link_asks_and_is_made_anew_without_an_answer(monkeypatch, answers):
    monkeypatch.setattr(mqtt_link, "_LISTEN_S", 0.01)
    wire, asked = Wire(), []
    session = RuntimeLink(
        LinkSettings("mqtt://127.0.0.1:1", "x", silence_s=0.2),
        [TOPICS.cloud_in],
        fx.ProxyAddress(),
        TOPICS.of_proxy,
        TOPICS.sender_of,
    )
    session.links = [wire]

    def post(event):
        if event != fx.PeerSilent(fx.ProxyAddress()):
            return
        asked.append(asyncio.ensure_future(session.publish(fx.CloudAddress(), b"here")))
        if answers:
            wire.takes(TOPICS.cloud_out, b"roster")
        if answers and len(asked) == 3:
            wire.over.set()

    await session.attach(Mock(post=post), lambda up, why: None)
    wire.on_state(True, "")
    wire.takes(TOPICS.cloud_out, b"first")
    await asyncio.wait_for(session.run(), 60)
    assert (len(asked), wire.renewed) == ((3, 0) if answers else (1, 1))


SILENCE_S = 600.0
SOON_S = SILENCE_S / 10


@pytest.fixture
def link():
    """One that has received something at second 0."""
    made = SilenceMonitor(SILENCE_S, lambda low, _high: low)
    made.received(0.0)
    return made


def renewals(link, until_s=86_400, answers=False):
    """When it would be made anew, where whatever asks sends something."""
    found = []
    for now_s in range(until_s):
        due = link.due(now_s)
        if due == "ask":
            link.sent(now_s, b"x")
            if answers:
                link.received(now_s)
        elif due == "renew":
            found.append(now_s)
            link.connected(now_s)
            link.sent(now_s, b"x")
    return found


def test_what_is_repeated_without_an_answer_is_followed_up_sooner(link):
    link.sent(10.0, b"the same answer")
    link.received(20.0)
    link.sent(20.0, b"the same answer")  # to another question: no repetition
    assert link.due(SILENCE_S) is None
    assert link.due(20.0 + SILENCE_S) == "ask"
    link.received(1000.0)
    for now_s in (1090.0, 1100.0, 1110.0):
        link.sent(now_s, b"a question")
    assert link.due(1100.0 + SOON_S - 1) is None
    assert link.due(1100.0 + SOON_S) == "ask"


def test_a_peer_that_is_away_costs_ever_fewer_connections_and_one_that_answers_none(link):
    times = renewals(link)
    waits = [later - before for before, later in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_SILENCE_S / 10
    link.received(86_400)
    assert link.due(86_400 + SILENCE_S) == "ask"  # as at first
    link = SilenceMonitor(SILENCE_S, lambda low, _high: low)
    link.received(0.0)
    assert all(link.due(now_s) != "renew" for now_s in range(86_400))  # nothing was sent
    assert renewals(link, answers=True) == []


def test_a_fleet_does_not_come_at_once():
    for drawn, at_s in ((min, SILENCE_S), (max, 2 * SILENCE_S)):
        link = SilenceMonitor(SILENCE_S, drawn)
        link.received(0.0)
        assert link.due(at_s - 1) is None
        assert link.due(at_s) == "ask"


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    messages=st.integers(1, 5),
    size_bytes=st.integers(1, 40),
    drops=st.sets(st.integers(0, 29)),
)
@settings(max_examples=60, deadline=None)
def test_a_window_keeps_its_bounds_and_order_whoever_gives_up(sizes, messages, size_bytes, drops):
    async def play():
        window, held, served = SendWindow(messages, size_bytes), [], []

        async def sender(number):
            await window.acquire(sizes[number])
            held.append(number)
            served.append(number)

        tasks = [asyncio.create_task(sender(number)) for number in range(len(sizes))]
        await settle()
        cancelled = {n for n in drops if n < len(sizes) and not tasks[n].done()}
        for number in cancelled:
            tasks[number].cancel()
        await settle()
        while held:
            total = sum(sizes[number] for number in held)
            assert len(held) <= messages
            assert total <= size_bytes or len(held) == 1
            assert window.messages == len(held)
            window.release(sizes[held.pop(0)])
            await settle()
        assert served == [number for number in range(len(sizes)) if number not in cancelled]
        await asyncio.wait_for(window.idle(), 5)

    asyncio.run(play())


async def test_a_late_cancel_gives_its_room_in_the_window_back():
    window = SendWindow(1, 10)
    await window.acquire(1)
    late = asyncio.create_task(window.acquire(1))
    await settle()
    window.release(1)  # its turn comes, and in the same step it is cancelled
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert window.messages == 0


def test_addresses():
    for url, host, port, tls in (
        ("mqtt://box", "box", 1883, False),
        ("mqtts://box", "box", 8883, True),
        ("mqtt://10.0.0.1:2000/", "10.0.0.1", 2000, False),
        ("ws://box", "box", 80, False),
        ("wss://box/", "box", 443, True),
        ("wss://[::1]:9000/a/b?c=d", "::1", 9000, True),
    ):
        address = BrokerAddress.parse(url)
        assert (address.host, address.port, address.tls) == (host, port, tls)
        assert BrokerAddress.parse(address.url) == address
        assert (address.path is None) == url.startswith("mqtt")
        assert address.path in (None, "/mqtt", "/a/b?c=d")
        assert "?" not in str(address)


def test_what_is_no_address_is_refused_and_a_password_is_never_shown():
    for url in (
        *("", "box:1883", "http://box", "mqtt://", "mqtt://:1883", "mqtt://box:0"),
        *("mqtt://box:65536", "mqtt://box:x", "mqtt://box/path", "mqtt://box?x=1", "mqtt://[::1"),
        *("ws://", "ws://box/a#b", "ws://box/a b", "wss://box/caf\xe9", "mqtt://ada:hush@box"),
    ):
        with pytest.raises(UsageError) as caught:
            BrokerAddress.parse(url)
        assert "hush" not in str(caught.value)
    assert "hush" not in repr(LinkSettings("mqtt://box", "x", username="ada", password="hush"))


def test_an_ipv6_address_is_told_from_its_port_by_brackets():
    for text, found in (
        ("broker.example:8883", ("broker.example", 8883)),
        ("[2001:db8::1]:1", ("2001:db8::1", 1)),
    ):
        assert split_place(text) == found and place(*found) == text
    for text in ("2001:db8::1:1", "[::1]", "[broker]:1", ":1", "a:0", "1", "a:65536", "a:1²", ""):
        assert split_place(text) is None
