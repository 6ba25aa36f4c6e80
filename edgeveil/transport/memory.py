"""Network of a whole fleet in one process and virtual time, for simulation and tests.

Deterministic: events run in order of time, then of creation. `faults` returns the delays of a
frame's arrivals (empty: lost).
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.messages import Message, decode, encode
from edgeveil.transport.runtime import Host, perform

Faults = Callable[[fx.Address, fx.Address, bytes], list[float]]
LATENCY_S = 0.001


def no_faults(_sender: fx.Address, _to: fx.Address, _frame: bytes) -> list[float]:
    """Deliver every frame once, in order."""
    return [LATENCY_S]


@dataclass
class Node:
    net: MemoryNet
    address: fx.Address
    machine: fx.Machine
    host: Host
    up: bool = True
    refused: Counter[str] = field(default_factory=Counter)
    blamed: Counter[tuple[fx.Address, str]] = field(default_factory=Counter)  # reported by others
    timers: dict[str, int] = field(default_factory=dict)  # name -> number of the live timer

    def post(self, event: fx.Event) -> None:
        self.net.post(self, event)


class MemoryNet:
    """Network of nodes in virtual time; `work_s(task)` is a task's duration."""

    def __init__(
        self,
        faults: Faults = no_faults,
        work_s: Callable[[object], float] = lambda _task: 0.01,
        packet_bytes: int = 65536,
    ) -> None:
        self.now_s = 0.0
        self.nodes: dict[fx.Address, Node] = {}
        self.faults, self.work_s, self.packet_bytes = faults, work_s, packet_bytes
        self.wire: list[tuple[fx.Address, fx.Address, bytes]] | None = None  # set to record
        self._queue: list[tuple[float, int, Node, fx.Event, int]] = []
        self._order = itertools.count()
        self._log = logging.getLogger("edgeveil.memory")

    def add(self, address: fx.Address, machine: fx.Machine, host: Host) -> Node:
        """Add a machine; `connect` reports its links."""
        node = self.nodes[address] = Node(self, address, machine, host)
        return node

    def connect(self, node: Node) -> None:
        peers: list[fx.Address] = [fx.ProxyAddress()]
        if isinstance(node.address, fx.ProxyAddress):
            peers = [fx.CloudAddress(), fx.AllDevices()]
        for peer in peers:
            self.post(node, fx.PeerConnected(peer))

    def post(self, node: Node, event: fx.Event, delay_s: float = 0.0, timer: int = 0) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), node, event, timer))

    def run(self, until: Callable[[], bool], limit_s: float = 3600.0) -> bool:
        """Run until the condition holds; return False if idle or past `limit_s`."""
        while not until():
            if not self._queue or self._queue[0][0] > limit_s:
                return until()
            self.now_s, _, node, event, timer = heapq.heappop(self._queue)
            if isinstance(event, fx.Timer):
                if node.timers.get(event.name) != timer:
                    continue
                del node.timers[event.name]
            if node.up:
                self._step(node, event)
        return True

    def _step(self, node: Node, event: fx.Event) -> None:
        for effect in node.machine.handle(event, self.now_s):
            self._execute(node, effect)

    def _execute(self, node: Node, effect: fx.Effect) -> None:
        match effect:
            case fx.Send(to=to, message=message):
                self._send(node.address, to, encode(message))
            case fx.SetTimer(name=name, delay_s=delay_s):
                number = next(self._order)
                node.timers[name] = number
                self.post(node, fx.Timer(name), delay_s, number)
            case fx.CancelTimer(name=name):
                node.timers.pop(name, None)
            case fx.Persist(item=item):
                node.host.store(item)
            case fx.Work(task=task):
                done = fx.WorkDone(task, perform(node.host, task, self._log))
                self.post(node, done, self.work_s(task))
            case fx.Refuse(reason=reason, sender=sender):
                node.refused[reason] += 1
                if sender is not None:
                    node.blamed[sender, reason] += 1
            case fx.Report() as report:
                node.host.report(report)

    def _send(self, sender: fx.Address, to: fx.Address, frame: bytes) -> None:
        if isinstance(to, fx.AllDevices | fx.BucketAddress):
            targets = [node for node in self.nodes.values() if _listens(node, to)]
        else:
            targets = [self.nodes[to]] if to in self.nodes else []
        message = self._decoded(frame)
        for node in targets:
            if self.wire is not None:
                self.wire.append((sender, node.address, frame))
            for delay_s in self.faults(sender, node.address, frame):
                if isinstance(message, ProtocolError):
                    node.refused[message.reason] += 1
                else:
                    self.post(node, fx.MessageReceived(sender, message), delay_s)

    def _decoded(self, frame: bytes) -> Message | ProtocolError:
        try:
            return decode(frame, self.packet_bytes)
        except ProtocolError as error:
            return error


def _listens(node: Node, to: fx.AllDevices | fx.BucketAddress) -> bool:
    if not isinstance(node.address, fx.DeviceAddress):
        return False
    if isinstance(to, fx.AllDevices):
        return True
    return isinstance(node.machine, DeviceMachine) and node.machine.subscribes_to(to)
