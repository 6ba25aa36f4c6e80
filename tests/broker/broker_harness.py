"""Links, ears and certificates for these tests."""

import asyncio
from contextlib import asynccontextmanager, suppress

from edgeveil.config.broker import BrokerTls
from edgeveil.crypto.authorities import certificate_pem, key_pem, new_key
from edgeveil.errors import BrokerError
from edgeveil.storage import write_durably
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_tools.site.broker_rules import users_text

PASSWORDS = {"proxy": "proxy-word", "cloud": "cloud-word", "ada": "ada-word", "bob": "bob-word"}
UP, DOWN, ALL = "edgeveil/v1/d/{}/up", "edgeveil/v1/d/{}/down", "edgeveil/v1/all/down"
WAIT_S = 10


def users_file(path, users):
    write_durably(path, users_text(users).encode(), mode=0o600)
    return path


class Ear:
    """Collects what a link hears and says."""

    def __init__(self):
        self.messages = asyncio.Queue()
        self.states = asyncio.Queue()

    def on_message(self, topic, payload):
        self.messages.put_nowait((topic, payload))

    def on_state(self, connected, reason):
        self.states.put_nowait((connected, reason))

    async def message(self):
        return await asyncio.wait_for(self.messages.get(), WAIT_S)

    async def state(self):
        return await asyncio.wait_for(self.states.get(), WAIT_S)


def make_link(broker, user, *, ear=None, client_id=None, **changes):
    ear = ear or Ear()
    settings = {"password": PASSWORDS.get(user), "username": user, "url": broker.url} | changes
    settings = LinkSettings(client_id=client_id or f"{user}-1", **settings)
    return MqttLink(settings, on_message=ear.on_message, on_state=ear.on_state)


@asynccontextmanager
async def linked(broker, user, topics=(), **changes):
    """A connected link and its ear."""
    ear = Ear()
    link = make_link(broker, user, ear=ear, **changes)
    link.subscribe(list(topics))
    await link.connect_or_raise()
    try:
        yield link, ear
    finally:
        await link.close()


async def carries(broker, count, **changes):
    """Large packets cross this broker whole and in order."""
    async with (
        linked(broker, "proxy", [UP.format("+")], inbox_bytes=200_000, **changes) as (_, ear),
        linked(broker, "ada", **changes) as (ada, _),
    ):
        payloads = [bytes([number]) * (60000 - number) for number in range(count)]
        for payload in payloads:
            await ada.publish(UP.format("ada"), payload)
        assert [(await ear.message())[1] for _ in payloads] == payloads


async def tries(link, *topics):
    """Subscribe to what it may not hear: refused, or never heard."""
    for topic in topics:
        with suppress(BrokerError):
            await link._session.subscribe([topic])


def certified(folder, authority, *names, issue=0):
    """Files of this authority, and of these users; one called broker is a server at 127.0.0.1."""
    authority.save(folder / "ca.crt", folder / "ca.key")
    for name in names:
        key = new_key()
        if name == "broker":
            shown = authority.server(name, key.public_key(), ["127.0.0.1"])
        else:
            shown = authority.client(name, key.public_key(), issue=issue)
        write_durably(folder / f"{name}.crt", certificate_pem(shown), mode=0o644)
        write_durably(folder / f"{name}.key", key_pem(key), mode=0o600)


def listener_tls(folder, name="here", *, ca=False):
    return BrokerTls(
        cert_file=folder / f"{name}.crt",
        key_file=folder / f"{name}.key",
        ca_file=folder / "ca.crt" if ca else None,
    )
