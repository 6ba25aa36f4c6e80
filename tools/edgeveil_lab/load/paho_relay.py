"""The bare relay as anybody would write it with paho: a yardstick that EdgeVeil's link cannot move.

Both parts run in processes of their own and end with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import LinkSettings, Topics

TOPICS = Topics()


def relay(edge: LinkSettings, cloud: LinkSettings, ready: Callable[[], None]) -> None:
    """Carry every upload from the edge broker to the cloud broker, until ended."""
    onwards = _client(cloud)

    def carry(_client: paho.Client, _data: object, upload: paho.MQTTMessage) -> None:
        onwards.publish(TOPICS.cloud_in, upload.payload, qos=1)

    incoming = _subscribed(edge, TOPICS.devices_up, ready)
    incoming.on_message = carry
    onwards.loop_start()
    incoming.loop_forever()


def sink(cloud: LinkSettings, counted: Any, ready: Callable[[], None]) -> None:
    """Count the bytes that reach the cloud's side in `counted`, until ended."""

    def count(_client: paho.Client, _data: object, upload: paho.MQTTMessage) -> None:
        counted.value += len(upload.payload)

    client = _subscribed(cloud, TOPICS.cloud_in, ready)
    client.on_message = count
    client.loop_forever()


def _subscribed(settings: LinkSettings, topic: str, ready: Callable[[], None]) -> paho.Client:
    client = _client(settings)
    client.on_connect = lambda *_: client.subscribe(topic, qos=1) and None
    client.on_subscribe = lambda *_: ready()
    return client


def _client(settings: LinkSettings) -> paho.Client:
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=settings.client_id,
        protocol=MQTTProtocolVersion(settings.protocol),
    )
    client.username_pw_set(settings.username, settings.password)
    address = settings.addresses[0]
    if address.tls:
        client.tls_set_context(
            client_context(settings.ca_file, settings.cert_file, settings.key_file)
        )
    client.max_inflight_messages_set(settings.window_messages)
    client.connect(address.host, address.port)
    return client
