"""Topics name their speaker; a session routes one link into one runtime, and asks after silence."""

import asyncio
from itertools import pairwise

import pytest

from edgeveil.config.links import BrokerLink
from edgeveil.errors import BrokerError, EdgeVeilError, UsageError
from edgeveil.protocol import effects as fx
from edgeveil.transport import mqtt_link
from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import (
    LinkSettings,
    MessageFilter,
    MessageHandler,
    StateHandler,
    Topics,
)
from edgeveil.transport.mqtt_link import (
    LONGEST_SILENCE_S,
    RuntimeLink,
    SilenceMonitor,
    link_settings,
)

TOPICS = Topics()
ID = "0123456789abcdef"


@pytest.mark.parametrize(
    ("topic", "sender"),
    [
        (TOPICS.cloud_out, fx.CloudAddress()),
        (TOPICS.device_up(ID), fx.DeviceAddress(ID)),
        (TOPICS.device_down(ID), fx.ProxyAddress()),
        (TOPICS.all_down, fx.ProxyAddress()),
        (TOPICS.cloud_in, fx.ProxyAddress()),
        ("", None),
        ("edgeveil/v1/cloud/outer", None),
        ("edgeveil/v1/d/0123456789ABCDEF/up", None),
        ("edgeveil/v1/d/0123/up", None),
        (f"edgeveil/v1/d/{ID}/up/more", None),
        (f"edgeveil/v1/d/{ID}/up\n", None),
        (f"x/edgeveil/v1/d/{ID}/up", None),
        ("edgeveil/v2/all/down", None),
        ("edgeveil/v1x/all/down", None),
        ("edgeveil/v1/d/kitchen-box/down", None),
        ("edgeveil/v1/other/in", None),
    ],
)
def test_each_topic_has_one_speaker_and_a_foreign_one_none(topic, sender):
    assert TOPICS.sender_of(topic) == sender


def broker(**changes):
    return BrokerLink.model_validate({"url": "mqtt://127.0.0.1:1", **changes})


def test_settings_take_the_first_line_of_the_password_file(tmp_path):
    path = tmp_path / "password"
    path.write_text("pässword with spaces \nsecond line\n", encoding="utf-8")
    path.chmod(0o600)
    settings = link_settings(broker(username="u", password_file=path), "cloud", 8192)
    assert (settings.username, settings.password) == ("u", "pässword with spaces ")
    assert "pässword" not in repr(settings)
    assert settings.packet_bytes == 8192


@pytest.mark.parametrize("profile", ["aws_iot", "event_grid"])
def test_a_service_that_knows_clients_by_their_id_sees_the_same_at_each_start(profile):
    same = broker(profile=profile, keepalive_s=60)
    every = [link_settings(same, "cloud", 8192) for _ in range(2)]
    assert {(one.client_id, one.client_suffix) for one in every} == {("cloud", "")}


@pytest.mark.parametrize(
    ("content", "exit_code"), [(b"", 1), (b"\nsecret\n", 2), (b"caf\xe9\n", 2), (None, 2)]
)
def test_an_unusable_password_file_is_named_with_the_fix(tmp_path, content, exit_code):
    """One that nothing is written in yet ends a process so that its unit tries again."""
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(EdgeVeilError) as caught:
        link_settings(broker(username="u", password_file=path), "cloud", 8192)
    assert (caught.value.where, bool(caught.value.fix)) == (str(path), True)
    assert caught.value.exit_code == exit_code
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644])
def test_a_password_file_that_others_may_read_is_refused(tmp_path, mode):
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(mode)
    with pytest.raises(UsageError, match="other users") as caught:
        link_settings(broker(username="u", password_file=path), "cloud", 8192)
    assert caught.value.fix == f"chmod 600 {path}"
    assert "secret" not in str(caught.value)
    path.chmod(0o600)
    assert link_settings(broker(username="u", password_file=path), "cloud", 8192).password


@pytest.mark.parametrize("apart", [True, False], ids=["key_file", "key-in-cert_file"])
def test_a_tls_key_that_others_may_read_is_refused(tmp_path, apart):
    certificate, key = tmp_path / "own.crt", tmp_path / "own.key"
    for path in (certificate, key):
        path.write_text("no PEM\n")
        path.chmod(0o644)
    holder = key if apart else certificate
    with pytest.raises(BrokerError, match="other users") as caught:
        client_context(None, certificate, key if apart else None)
    assert caught.value.fix == f"chmod 600 {holder}"
    holder.chmod(0o600)
    with pytest.raises(BrokerError, match="do not fit together"):  # read now, and no key
        client_context(None, certificate, key if apart else None)


class Wire:
    """A link without a broker."""

    takes: MessageFilter
    on_message: MessageHandler
    on_state: StateHandler
    connected = True

    def __init__(self):
        self.over = asyncio.Event()
        self.renewed = []
        self.topics = []
        self.sent = []

    def subscribe(self, topics):
        self.topics += topics

    async def publish(self, topic, payload, qos=1):
        self.sent.append((topic, payload))

    async def run_forever(self):
        await self.over.wait()

    def renew(self, reason):
        self.renewed.append(reason)
        self.over.set()


class Ear:
    """What a runtime would hear."""

    def __init__(self):
        self.heard = []

    def takes(self, sender, frame):
        return sender is not None and frame != b"flood"

    async def receive(self, sender, frame):
        self.heard.append((sender, frame))

    def post(self, event):
        self.heard.append(event)


async def test_a_link_routes_what_is_taken_states_and_publications():
    session = RuntimeLink(
        LinkSettings("mqtt://127.0.0.1:1", "x"),
        [TOPICS.cloud_in],
        fx.ProxyAddress(),
        TOPICS.of_proxy,
        TOPICS.sender_of,
    )
    wire, ear = Wire(), Ear()
    session.links = [wire]
    states = []
    await session.attach(ear, lambda up, why: states.append((up, why)))
    wire.on_state(True, "")
    device = TOPICS.device_up(ID)
    for topic, frame in ((TOPICS.cloud_out, b"12345"), ("strange", b"1"), (device, b"flood")):
        if wire.takes(topic, frame):
            await wire.on_message(topic, frame)
    wire.connected = False
    wire.on_state(False, "gone")
    await session.publish(fx.DeviceAddress(ID), b"123")
    assert wire.topics == [TOPICS.cloud_in]
    assert ear.heard == [
        fx.PeerConnected(fx.ProxyAddress()),
        (fx.CloudAddress(), b"12345"),
        fx.PeerLost(fx.ProxyAddress()),
    ]
    assert states == [(True, ""), (False, "gone")]
    assert wire.sent == [(TOPICS.device_down(ID), b"123")]
    assert session.bytes == {"in": 11, "out": 3}


@pytest.mark.parametrize("answers", [True, False])
async def test_a_link_that_hears_nothing_asks_and_is_made_anew_without_an_answer(
    monkeypatch, answers
):
    monkeypatch.setattr(mqtt_link, "_LISTEN_S", 0.01)
    settings = LinkSettings("mqtt://127.0.0.1:1", "x", silence_s=0.2)
    session = RuntimeLink(
        settings, [TOPICS.cloud_in], fx.ProxyAddress(), TOPICS.of_proxy, TOPICS.sender_of
    )
    wire = Wire()
    session.links = [wire]

    class Asked(Ear):
        def post(self, event):
            super().post(event)
            if isinstance(event, fx.PeerSilent):
                tasks.append(asyncio.ensure_future(session.publish(fx.CloudAddress(), b"here")))
                if answers:
                    wire.takes(TOPICS.cloud_out, b"roster")
                if answers and len(tasks) == 3:
                    wire.over.set()

    ear, tasks = Asked(), list[asyncio.Future[None]]()
    await session.attach(ear, lambda up, why: None)
    wire.on_state(True, "")
    wire.takes(TOPICS.cloud_out, b"the first word")
    await asyncio.wait_for(session.run(), 60)
    assert ear.heard.count(fx.PeerSilent(fx.ProxyAddress())) == (3 if answers else 1)
    assert wire.renewed == ([] if answers else ["nothing comes by this connection"])


SILENCE_S = 600.0
SOON_S = SILENCE_S / 10


@pytest.fixture
def link():
    """One that has heard a word at second 0."""
    made = SilenceMonitor(SILENCE_S, lambda low, _high: low)
    made.received(0.0)
    return made


def renewals(link, until_s, answers=False):
    """When it would be made anew, where whatever asks says something."""
    found = []
    for now_s in range(until_s):
        due = link.due(now_s)
        if due == "ask":
            link.sent(now_s, b"a word")
            if answers:
                link.received(now_s)
        elif due == "renew":
            found.append(now_s)
            link.connected(now_s)
            link.sent(now_s, b"a word")
    return found


def test_what_is_repeated_without_an_answer_is_looked_after_sooner(link):
    for now_s in (90.0, 100.0, 110.0):
        link.sent(now_s, b"a question")
    assert link.due(100.0 + SOON_S - 1) is None
    assert link.due(100.0 + SOON_S) == "ask"


def test_what_is_said_again_after_a_word_was_heard_is_no_repetition(link):
    link.sent(10.0, b"the same answer")
    link.received(20.0)
    link.sent(20.0, b"the same answer")
    assert link.due(SILENCE_S) is None
    assert link.due(20.0 + SILENCE_S) == "ask"


def test_an_answer_in_time_is_all_that_is_wanted(link):
    assert renewals(link, 86_400, answers=True) == []


def test_who_says_nothing_is_owed_no_answer(link):
    assert [due for now_s in range(86_400) if (due := link.due(now_s)) == "renew"] == []


def test_a_peer_that_is_away_costs_ever_fewer_connections(link):
    times = renewals(link, 86_400)
    waits = [later - before for before, later in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_SILENCE_S / 10
    link.received(86_400)
    assert link.due(86_400 + SILENCE_S) == "ask"  # as at first


def test_a_fleet_does_not_come_at_once():
    first, last = (
        SilenceMonitor(SILENCE_S, lambda low, high, at=at: (low, high)[at]) for at in (0, 1)
    )
    for link in (first, last):
        link.received(0.0)
    assert first.due(SILENCE_S) == "ask"
    assert last.due(SILENCE_S) is None
    assert last.due(2 * SILENCE_S) == "ask"
