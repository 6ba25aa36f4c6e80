"""Before anything is started, each broker of a test that runs elsewhere is dialled once."""

from __future__ import annotations

import asyncio
import secrets
import time

from edgeveil.errors import BrokerError
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet, TargetSite

DIAL_S = 3.0
_AGAIN_S = 0.3


def dial_brokers(options: LoadOptions, password: str | None) -> None:
    """Dial the brokers that cloud and proxy of our own will use. Raises BrokerError."""
    for url in (options.broker, options.cloud_broker):
        if url is not None:
            dial(_settings(options, url, options.user, password), options.protocol)


def dial_site(
    options: LoadOptions, target: TargetSite, fleet: LoadFleet, password: str | None
) -> None:
    """Dial a running site's edge broker as its first device does. Raises BrokerError.

    A refusal is final after `DIAL_S` alone: the broker may not have read a new account yet.
    """
    user = options.user
    if user is None:
        user, password = fleet.members[0].enrolment().device_id, fleet.members[0].password
    settings = _settings(options, target.first.broker, user, password)
    end_s = time.monotonic() + DIAL_S
    while True:
        try:
            dial(settings, options.protocol)
            return
        except BrokerError:
            if options.site is None or time.monotonic() + _AGAIN_S >= end_s:
                raise
        time.sleep(_AGAIN_S)


def _settings(
    options: LoadOptions, url: str, user: str | None, password: str | None
) -> LinkSettings:
    return LinkSettings(
        url,
        f"load-{secrets.token_hex(4)}",
        username=user,
        password=password,
        ca_file=options.ca,
        cert_file=options.cert,
        key_file=options.key,
        protocol=options.protocol,
        packet_bytes=options.packet_bytes,
    )


def dial(settings: LinkSettings, protocol: int | None) -> int:
    """Connect once; the MQTT version that was spoken, 5 or 4.

    Raises BrokerError, also where another one than `protocol` is spoken.
    """
    return asyncio.run(_dial(settings, protocol))


async def _dial(settings: LinkSettings, protocol: int | None) -> int:
    link = MqttLink(settings)
    try:
        await link.connect_or_raise(DIAL_S)
        if protocol not in (None, link.protocol):
            raise BrokerError(
                "the broker speaks MQTT 3.1.1 alone",
                where=str(settings.addresses[0]),
                fix="add --protocol 4",
            )
        return link.protocol or settings.protocol
    finally:
        await link.close()
