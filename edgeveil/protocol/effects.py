"""What machines are told (events) and what they answer (effects)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from edgeveil.protocol.messages import Exchanged, Message

# --- addresses ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """One device, by the id that its identity key gives it."""

    id: str


@dataclass(frozen=True)
class AllDevices:
    """Every device, by one publication."""


@dataclass(frozen=True)
class Proxy:
    """The proxy, from either side."""


@dataclass(frozen=True)
class Cloud:
    """The cloud."""


Address = Device | AllDevices | Proxy | Cloud


# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """The link towards this peer is up (again)."""

    peer: Address


@dataclass(frozen=True)
class Disconnected:
    """The link towards this peer is down."""

    peer: Address


@dataclass(frozen=True)
class Received:
    """A message came; `sender` is what the broker's topic says, not yet proven."""

    sender: Address
    message: Message


@dataclass(frozen=True)
class Timer:
    """A timer that the machine set has run out."""

    name: str


@dataclass(frozen=True)
class Done:
    """The host finished a `Work`; `result` is its outcome, or `Failed`."""

    task: object
    result: object


@dataclass(frozen=True)
class Failed:
    """The result of a `Work` that could not be done; `reason` is a slug or a short sentence."""

    reason: str


@dataclass(frozen=True)
class Command:
    """The process asks for something (submit, cancel, start)."""

    what: object


Event = Connected | Disconnected | Received | Timer | Done | Command


# --- effects ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Publish a message. Effects run in order, so a `Store` before it is durable first."""

    to: Address
    message: Message


@dataclass(frozen=True)
class SetTimer:
    """Fire `Timer(name)` after `delay_s`; replaces a timer of the same name."""

    name: str
    delay_s: float


@dataclass(frozen=True)
class CancelTimer:
    """Forget a timer."""

    name: str


@dataclass(frozen=True)
class Store:
    """Make `item` durable before the next effect runs."""

    item: object


@dataclass(frozen=True)
class Work:
    """Something slow or random, done by the host off the event loop; comes back as `Done`."""

    task: object


@dataclass(frozen=True)
class Refuse:
    """A message was refused: counted by reason, logged at most once a minute and reason."""

    reason: str


@dataclass(frozen=True)
class Report:
    """Something a person may want to see. Never holds a secret, a sample or a device's name."""

    what: str
    data: Mapping[str, object] = field(default_factory=dict)


Effect = Send | SetTimer | CancelTimer | Store | Work | Refuse | Report


class Machine(Protocol):
    """A sans-IO state machine."""

    @property
    def at(self) -> Exchanged | None:
        """The job and round that it is about, if any; quick."""
        ...

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take an event; refused input gives `Refuse` effects, never an exception."""
        ...
