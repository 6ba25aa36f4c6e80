"""A proxy's machine with a small fleet, brought to the state that a test is about."""

from __future__ import annotations

from typing import Any

from protocol_kit import (
    CLOUD_KEY,
    PACKET_BYTES,
    PROXY,
    FakeRegistry,
    Member,
    at,
    manifest,
    member,
    offer,
    upload_of,
)

from fl_core.protocol import effects as fx
from fl_core.protocol.collection import Shuffle
from fl_core.protocol.messages import Manifest, Message
from fl_core.protocol.proxy import ProxyMachine
from fl_core.protocol.proxy_tasks import ProxyMemory, ProxySettings

FLEET = [member(number) for number in range(6)]
MODEL = b"sealed model"


def keep_order(_items: list[bytes]) -> None:
    """No shuffle at all, so that a test sees what was put in."""


def proxy(
    memory: ProxyMemory | None = None, shuffle: Shuffle = keep_order, **settings: Any
) -> ProxyMachine:
    registry = FakeRegistry({m.id: m.key for m in FLEET})
    bounds = ProxySettings(**({"packet_bytes": PACKET_BYTES} | settings))
    return ProxyMachine(PROXY, CLOUD_KEY, registry, shuffle, memory, bounds)


def cloud_says(machine: ProxyMachine, message: Message) -> list[fx.Effect]:
    return machine.handle(fx.Received(fx.Cloud(), message), 0.0)


def says(machine: ProxyMachine, who: Member, message: Message) -> list[fx.Effect]:
    return machine.handle(fx.Received(fx.Device(who.id), message), 0.0)


def fire(machine: ProxyMachine, what: str, number: int = 1, attempt: int = 1) -> list[fx.Effect]:
    name = f"{what}:{at().job_id.hex()}:{number}:{attempt}"
    return machine.handle(fx.Timer(name), 0.0)


def open_round(machine: ProxyMachine, header: Manifest | None = None) -> list[fx.Effect]:
    return cloud_says(machine, offer(header or manifest(MODEL), MODEL))


def upload(machine: ProxyMachine, number: int, **changes: Any) -> list[fx.Effect]:
    """Device `number` uploads; its segments are filled with its number."""
    header, data = upload_of(changes.pop("where", at()), number + 1, **changes)
    return says(machine, FLEET[number], offer(header, data, FLEET[number].signer))


def to_devices(effects: list[fx.Effect]) -> list[Any]:
    """What went to all devices at once."""
    return [e.message for e in effects if isinstance(e, fx.Send) and e.to == fx.AllDevices()]


def to_cloud(effects: list[fx.Effect]) -> list[Any]:
    return [e.message for e in effects if isinstance(e, fx.Send) and e.to == fx.Cloud()]
