"""Links, ears and certificates for these tests."""

import asyncio
from contextlib import asynccontextmanager

from edgeveil.config.broker import BrokerTls
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink

PASSWORDS = {"proxy": "proxy-word", "cloud": "cloud-word", "ada": "ada-word", "bob": "bob-word"}
UP, DOWN, ALL = "edgeveil/v1/d/{}/up", "edgeveil/v1/d/{}/down", "edgeveil/v1/all/down"
WAIT_S = 10


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


def listener_tls(folder, name="here", *, ca=False):
    return BrokerTls(
        cert_file=folder / f"{name}.crt",
        key_file=folder / f"{name}.key",
        ca_file=folder / "ca.crt" if ca else None,
    )
