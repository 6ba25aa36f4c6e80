"""What machines are told (events), what they answer (effects), and how their states follow.

Theory of operation. A machine holds all that one role decides, and does nothing itself. Its host
tells it one event after the other, each with the time, and carries out the effects in their order.
What is slow or random (opening, computing, shuffling) is a `Work` that comes back as `WorkDone`;
what must survive the process is a `Persist`, durable before the effects behind it. Time is what
timers and `now_s` say. So the same events give the same effects, in tests, in simulation and in a
process.

Where a role has states, they and their transitions are a `StateTable`: an event that it does not
allow raises and changes nothing, and the diagrams in the docs are drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import ExchangeId, Message, TrustMetadata

# --- addresses ---------------------------------------------------------------------------


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


# --- events ------------------------------------------------------------------------------


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
    """This peer signs with the key that is pinned for it again; or, with `known` false, with
    another: its state folder is another than it was, or somebody else speaks."""

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


Event = (
    PeerConnected
    | PeerLost
    | PeerSilent
    | PeerSigned
    | MessageReceived
    | Timer
    | WorkDone
    | Command
)


# --- effects ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Publish a message. Effects run in order, so a `Persist` before it is durable first."""

    to: Address
    message: Message


@dataclass(frozen=True)
class TakeTrust:
    """Work of any role: verify metadata of the root's, and go forward to it. Outcome `PeerKeys` or
    `WorkFailed`."""

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
    """Something slow or random, done by the host off the event loop; comes back as `WorkDone`.
    `at`: the round that it is about, where the machine has several jobs."""

    task: object
    at: ExchangeId | None = None


@dataclass(frozen=True)
class Refuse:
    """A message was refused: counted by reason, logged at most once a minute and reason. `sender`,
    where somebody else's word showed what is wrong with it."""

    reason: str
    sender: Address | None = None


@dataclass(frozen=True)
class Report:
    """Something a person may want to see. Never holds a secret, a sample or a device's name. `at`
    as in `Work`."""

    what: str
    data: Mapping[str, object] = field(default_factory=dict)
    at: ExchangeId | None = None


Effect = Send | SetTimer | CancelTimer | Persist | Work | Refuse | Report


class Machine(Protocol):
    """A sans-IO state machine."""

    @property
    def at(self) -> ExchangeId | None:
        """The job and round that it is about, if any; quick."""
        ...

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take an event; refused input gives `Refuse` effects, never an exception."""
        ...


# --- states ------------------------------------------------------------------------------


S = TypeVar("S", bound=Enum)


class StateTable(Generic[S]):
    """`(state, what happened) -> next state`, and the diagram drawn from it."""

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

    def diagram(self) -> str:
        """The table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.start.value}"]
        lines += [f"    {a.value} --> {b.value}: {how}" for (a, how), b in self.table.items()]
        return "\n".join(lines)
