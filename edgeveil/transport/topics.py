"""Topics of the two broker domains. A device's topics carry its id, never its name.

At most seven levels, no retained message, no wildcard subscription by a device.
"""

from __future__ import annotations

import re

from edgeveil.protocol.effects import Address, AllDevices, Cloud, Device, Proxy

ROOT = "edgeveil/v1"
ALL_DOWN = f"{ROOT}/all/down"
DEVICES_UP = f"{ROOT}/d/+/up"
CLOUD_OUT = f"{ROOT}/cloud/out"
CLOUD_IN = f"{ROOT}/cloud/in"
_UP = re.compile(rf"{ROOT}/d/([0-9a-f]{{16}})/up")
_BY_PROXY = re.compile(rf"{ALL_DOWN}|{CLOUD_IN}|{ROOT}/d/[0-9a-f]{{16}}/down")


def device_up(device: str) -> str:
    """Where this device speaks."""
    return f"{ROOT}/d/{device}/up"


def device_down(device: str) -> str:
    """Where this device alone listens."""
    return f"{ROOT}/d/{device}/down"


def sender_of(topic: str) -> Address | None:
    """Who may publish here, by the brokers' access lists; None for a foreign topic."""
    if topic == CLOUD_OUT:
        return Cloud()
    match = _UP.fullmatch(topic)
    if match:
        return Device(match[1])
    return Proxy() if _BY_PROXY.fullmatch(topic) else None


def proxy_topic(to: Address) -> str:
    """Where the proxy publishes for this address."""
    if isinstance(to, AllDevices):
        return ALL_DOWN
    return device_down(to.id) if isinstance(to, Device) else CLOUD_IN
