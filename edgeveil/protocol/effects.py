"""Events given to machines, effects that they return, and tables of their states.

A machine decides but performs no I/O. Its host passes one event at a time with the current time and
executes the effects in order. Slow or random work is a `Work` whose result returns as `WorkDone`;
state that must survive the process is a `Persist`, durable before later effects. Equal events give
equal effects in tests, simulation and production. States are a `StateTable`: an event that is not
allowed raises and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import Message, RoundId, TrustMetadata


@dataclass(frozen=True)
class DeviceAddress:
    """One device, by the id derived from its identity key."""

    id: str


@dataclass(frozen=True)
class AllDevices:
    """All devices, by one publication."""


@dataclass(frozen=True)
class BucketAddress:
    """Devices of one bucket of `level` (`edgeveil.crypto.buckets`), by one publication."""

    level: int
    index: int


@dataclass(frozen=True)
class ProxyAddress:
    """Proxy of a cell, from either side; default: the fleet has no named cells."""

    cell: str = ""


@dataclass(frozen=True)
class CloudAddress:
    pass


Address = DeviceAddress | AllDevices | BucketAddress | ProxyAddress | CloudAddress


@dataclass(frozen=True)
class PeerConnected:
    peer: Address


@dataclass(frozen=True)
class PeerLost:
    peer: Address


@dataclass(frozen=True)
class PeerSigned:
    """The peer signed with its pinned key or, if not `known`, with another one."""

    peer: Address
    known: bool


@dataclass(frozen=True)
class PeerSilent:
    """The link to the peer is up but silent for long: request a sign of life."""

    peer: Address


@dataclass(frozen=True)
class MessageReceived:
    """Received message; `sender` is derived from the broker's topic and not yet verified."""

    sender: Address
    message: Message


@dataclass(frozen=True)
class Timer:
    name: str


@dataclass(frozen=True)
class WorkDone:
    """Completion of a `Work` task with its result or `WorkFailed`."""

    task: object
    result: object


@dataclass(frozen=True)
class WorkFailed:
    """Result of a failed `Work`; `reason` is a slug or a short sentence."""

    reason: str


@dataclass(frozen=True)
class Command:
    """Request of the process, e.g. submit, cancel or start."""

    request: object


LinkEvent = PeerConnected | PeerLost | PeerSilent | PeerSigned
Event = LinkEvent | MessageReceived | Timer | WorkDone | Command


@dataclass(frozen=True)
class Send:
    to: Address
    message: Message


@dataclass(frozen=True)
class TakeTrust:
    """Work: verify and adopt the root's metadata. Returns `PeerKeys` or `WorkFailed`."""

    metadata: TrustMetadata


@dataclass(frozen=True)
class SetTimer:
    """Fire `Timer(name)` after `delay_s`, replacing a timer of the same name."""

    name: str
    delay_s: float


@dataclass(frozen=True)
class CancelTimer:
    name: str


@dataclass(frozen=True)
class Persist:
    """Make `item` durable before the next effect runs."""

    item: object


@dataclass(frozen=True)
class Work:
    """Task that the host runs off the event loop; `at` is its round if there are several jobs."""

    task: object
    at: RoundId | None = None


@dataclass(frozen=True)
class Refuse:
    """Refused message, counted and logged by reason; `sender` if another party named it."""

    reason: str
    sender: Address | None = None


@dataclass(frozen=True)
class Report:
    """Information for operators, without secrets, samples or device names."""

    kind: str
    data: Mapping[str, object] = field(default_factory=dict)
    at: RoundId | None = None


Effect = Send | SetTimer | CancelTimer | Persist | Work | Refuse | Report
Effects = list[Effect]


class Machine(Protocol):
    """Sans-IO state machine: refused input returns `Refuse` effects and never raises."""

    @property
    def at(self) -> RoundId | None: ...

    def handle(self, event: Event, now_s: float) -> Effects: ...


S = TypeVar("S", bound=Enum)


class StateTable(Generic[S]):
    """Transitions as `(state, event) -> next state`."""

    def __init__(self, start: S, table: Mapping[tuple[S, str], S]) -> None:
        self.start, self.table = start, dict(table)

    def step(self, state: S, happened: str) -> S:
        """Return the next state. Raises ProtocolError `illegal_transition`."""
        try:
            return self.table[state, happened]
        except KeyError:
            raise ProtocolError(
                "illegal_transition", f"'{happened}' cannot happen in state '{state.value}'"
            ) from None

    def allows(self, state: S, happened: str) -> bool:
        return (state, happened) in self.table
