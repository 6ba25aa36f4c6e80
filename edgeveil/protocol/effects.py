"""What machines are told (events), what they answer (effects), and how their states follow.

Theory of operation. A machine decides and does nothing itself. Its host hands it one event after
the other, each with the time, and carries out the effects in order. What is slow or random is a
`Work` that comes back as `WorkDone`; what must survive the process is a `Persist`, durable before
the effects behind it. The same events give the same effects, in tests, simulation and process.
States are a `StateTable`: an event that it does not allow raises and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import Message, RoundId, TrustMetadata


@dataclass(frozen=True)
class DeviceAddress:
    """One device, by the id that its identity key gives it."""

    id: str


@dataclass(frozen=True)
class AllDevices:
    """Every device, by one publication."""


@dataclass(frozen=True)
class BucketAddress:
    """The devices of one bucket of `level` (`edgeveil.crypto.buckets`), by one publication."""

    level: int
    index: int


@dataclass(frozen=True)
class ProxyAddress:
    """The proxy of a cell, from either side; `cell` is empty where the fleet has no named cells."""

    cell: str = ""


@dataclass(frozen=True)
class CloudAddress:
    """The cloud."""


Address = DeviceAddress | AllDevices | BucketAddress | ProxyAddress | CloudAddress


@dataclass(frozen=True)
class PeerConnected:
    """The link towards this peer is up (again)."""

    peer: Address


@dataclass(frozen=True)
class PeerLost:
    """The link towards this peer is down."""

    peer: Address


@dataclass(frozen=True)
class PeerSigned:
    """This peer signs with its pinned key again, or (`known` false) with another one."""

    peer: Address
    known: bool


@dataclass(frozen=True)
class PeerSilent:
    """The link towards this peer is up, and nothing came by it for long: ask for a sign."""

    peer: Address


@dataclass(frozen=True)
class MessageReceived:
    """A message came; `sender` is what the broker's topic says, not yet proven."""

    sender: Address
    message: Message


@dataclass(frozen=True)
class Timer:
    """A timer that the machine set has run out."""

    name: str


@dataclass(frozen=True)
class WorkDone:
    """The host finished a `Work`; `result` is its outcome, or `WorkFailed`."""

    task: object
    result: object


@dataclass(frozen=True)
class WorkFailed:
    """The result of a `Work` that could not be done; `reason` is a slug or a short sentence."""

    reason: str


@dataclass(frozen=True)
class Command:
    """The process asks for something (submit, cancel, start)."""

    what: object


LinkEvent = PeerConnected | PeerLost | PeerSilent | PeerSigned
Event = LinkEvent | MessageReceived | Timer | WorkDone | Command


@dataclass(frozen=True)
class Send:
    """Publish a message. Effects run in order, so a `Persist` before it is durable first."""

    to: Address
    message: Message


@dataclass(frozen=True)
class TakeTrust:
    """Work: verify the root's metadata and adopt it. Result `PeerKeys` or `WorkFailed`."""

    metadata: TrustMetadata


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
class Persist:
    """Make `item` durable before the next effect runs."""

    item: object


@dataclass(frozen=True)
class Work:
    """Done by the host off the event loop. `at`: its round, where the machine has several jobs."""

    task: object
    at: RoundId | None = None


@dataclass(frozen=True)
class Refuse:
    """A refused message, counted and logged by reason; `sender`, where another party named it."""

    reason: str
    sender: Address | None = None


@dataclass(frozen=True)
class Report:
    """Something a person may want to see: no secret, no sample, no device's name."""

    what: str
    data: Mapping[str, object] = field(default_factory=dict)
    at: RoundId | None = None


Effect = Send | SetTimer | CancelTimer | Persist | Work | Refuse | Report


class Machine(Protocol):
    """A sans-IO state machine: refused input gives `Refuse` effects, never an exception."""

    @property
    def at(self) -> RoundId | None: ...

    def handle(self, event: Event, now_s: float) -> list[Effect]: ...


S = TypeVar("S", bound=Enum)


class StateTable(Generic[S]):
    """`(state, what happened) -> next state`."""

    def __init__(self, start: S, table: Mapping[tuple[S, str], S]) -> None:
        self.start, self.table = start, dict(table)

    def step(self, state: S, happened: str) -> S:
        """The next state; raises ProtocolError `illegal_transition`."""
        try:
            return self.table[state, happened]
        except KeyError:
            raise ProtocolError(
                "illegal_transition", f"'{happened}' cannot happen in state '{state.value}'"
            ) from None

    def allows(self, state: S, happened: str) -> bool:
        """Whether `step` would not raise."""
        return (state, happened) in self.table
