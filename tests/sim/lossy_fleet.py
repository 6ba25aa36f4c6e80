"""Real machines, stores and sealing with hosts that only count, over a link that loses frames.

What a device uploads is its own number, so that the cloud's host can tell, after decryption,
whose segments a batch holds: that is what the laws of `test_lossy_fleet.py` are about.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine, RepeatEnd
from edgeveil.protocol.cloud_job import CloudSettings
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.device_round import DeviceSettings
from edgeveil.protocol.messages import Ack, Note, PeerKeys, Signer, Upload, decode, decode_body
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_rounds import ProxySettings
from edgeveil.protocol.sealed import seal_segment
from edgeveil.protocol.transfer import describe, part_bytes
from edgeveil.transport.memory import LATENCY_S, MemoryNet, Node, no_faults
from tests.sim.lossy_hosts import (
    FLOOR,
    GROUPS,
    JOB,
    CloudHost,
    Crash,
    Crashing,
    DeviceHost,
    ProxyHost,
    Sizes,
)


class FakeRegistry:
    """What the operator admitted."""

    def __init__(self, devices: list[DeviceHost]) -> None:
        self._keys = {d.id: d.identity.public() for d in devices}
        sealing = sorted(d.opening.public().to_bytes() for d in devices)
        self._roster = b"".join(sealing)

    def verify_key(self, device: str) -> VerifyKey | None:
        return self._keys.get(device)

    lineage = "5e" * 16

    def roster_expires_s(self) -> float:
        return 0.0

    def roster(self) -> tuple[int, bytes]:
        return 1, self._roster

    def admitted(self) -> list[str]:
        return list(self._keys)


def fates(tape: bytes) -> Iterator[list[float]]:
    """What becomes of one frame after the other; when the tape is over, nothing is lost."""
    for byte in tape:
        if byte < 128:
            yield [LATENCY_S]
        elif byte < 176:
            yield []
        elif byte < 208:
            yield [LATENCY_S, (byte - 170) / 4]
        else:
            yield [(byte - 200) / 8]
    while True:
        yield [LATENCY_S]


class LossyFleet:
    """`devices` boxes, of which `selected` are asked each round, one proxy, one cloud."""

    transport = MemoryNet

    def __init__(
        self,
        tape: bytes = b"",
        *,
        devices: int = 5,
        selected: int = 4,
        rounds: int = 2,
        declines: frozenset[int] = frozenset(),
        crashes: frozenset[tuple[int, int]] = frozenset(),
        sizes: Sizes | None = None,
    ) -> None:
        run = fates(tape)
        self.sizes = sizes or Sizes()
        self.net = self.transport(lambda *_: next(run), packet_bytes=self.sizes.packet_bytes)
        self.net.wire = []
        self._cloud_key, self._proxy_key = SigningKey.generate(), SigningKey.generate()

        def of(who: int) -> frozenset[int]:
            return frozenset(store for place, store in crashes if place == who)

        self.devices = [DeviceHost(n, n in declines, of(n)) for n in range(devices)]
        self.proxy = ProxyHost(of(devices))
        self.cloud = CloudHost(selected, rounds, of(-1), self.sizes)
        self._registry = FakeRegistry(self.devices)
        self._start()

    def _start(self) -> None:
        for host in self.devices:
            self.net.add(fx.DeviceAddress(host.id), self._machine(host), host)
        self.net.add(fx.ProxyAddress(), self._machine(self.proxy), self.proxy)
        self.net.add(fx.CloudAddress(), self._machine(self.cloud), self.cloud)
        for node in self.net.nodes.values():
            self.net.connect(node)

    def _machine(self, host: Crashing) -> fx.Machine:
        """A machine as its process would make it, from what is on disk."""
        cloud, proxy = self._cloud_key.public(), self._proxy_key.public()
        packet_bytes, push_bytes = self.sizes.packet_bytes, self.sizes.push_bytes
        match host:
            case DeviceHost():
                signer, settings = Signer(host.id, host.identity), DeviceSettings(packet_bytes)
                return DeviceMachine(
                    signer, PeerKeys.pinned(cloud=cloud, proxy=proxy), host.disk.load(), settings
                )
            case ProxyHost():
                bounds = ProxySettings(packet_bytes, push_bytes=push_bytes, min_batch_floor=FLOOR)
                signer, memory = Signer("proxy", self._proxy_key), host.disk.load()
                return ProxyMachine(
                    signer, PeerKeys.pinned(cloud=cloud), self._registry, memory, bounds
                )
        limits = CloudSettings(packet_bytes, push_bytes=push_bytes)
        return CloudMachine(
            Signer("cloud", self._cloud_key), {"": PeerKeys.pinned(proxy=proxy)}, limits
        )

    def run(self, limit_s: float = 20_000.0) -> str:
        """Run the job to its end; processes that crash are started again. The job's status."""
        self.until(lambda: True, limit_s)
        return self.finish(limit_s)

    def until(self, reached: Callable[[], bool], limit_s: float = 20_000.0) -> None:
        """Start the job once the roster is there, and run on until something holds."""
        self._until(lambda: len(self.cloud.keys) == len(self.devices), limit_s)
        self._go_on()
        self._until(reached, limit_s)

    def finish(self, limit_s: float = 20_000.0) -> str:
        """Run a started job to its end; its status."""
        self._until(lambda: bool(self.cloud.status), limit_s)
        return self.cloud.status

    def force_upload(self, device: DeviceHost, membership: bytes) -> None:
        """An upload of a device that was not asked, in due form but for the membership tag."""
        proxy = self.net.nodes[fx.ProxyAddress()]
        machine = proxy.machine
        assert isinstance(machine, ProxyMachine)
        (collection,) = machine.rounds.collections.values()
        tensor = device.number.to_bytes(8, "big")
        data = b"".join(seal_segment(collection.manifest, g, membership, tensor) for g in GROUPS)
        blob = describe(data, part_bytes(self.sizes.packet_bytes))
        header = Upload(collection.manifest.at, tuple(range(len(GROUPS))), blob)
        offer = Signer(device.id, device.identity).offer(header, data)
        self.net.post(proxy, fx.MessageReceived(fx.DeviceAddress(device.id), offer))

    def settle(self) -> None:
        """The losses stop, all connect again, and everything that is on its way arrives."""
        self.net.faults = no_faults
        for node in self.net.nodes.values():
            self.net.connect(node)
        self._until(lambda: False, self.net.now_s + 300.0)

    def _go_on(self) -> None:
        what = RepeatEnd(JOB, self.cloud.status) if self.cloud.status else self.cloud.resume()
        self.net.post(self.net.nodes[fx.CloudAddress()], fx.Command(what))

    def _until(self, reached: Callable[[], bool], limit_s: float) -> None:
        while True:
            try:
                self.net.run(reached, limit_s)
            except Crash as crash:
                self._restart(crash.host)
            else:
                return

    def _restart(self, host: Crashing) -> None:
        (node,) = [n for n in self.net.nodes.values() if n.host is host]
        node.machine = self._machine(host)
        node.timers.clear()
        self.net._queue = [e for e in self.net._queue if not self._lost_with(node, e[2], e[3])]
        heapq.heapify(self.net._queue)
        self.net.connect(node)
        self.net.post(node, fx.Command("started"))
        known = len(self.cloud.keys) == len(self.devices)
        if host is self.cloud and known:
            self._go_on()

    @staticmethod
    def _lost_with(node: Node, place: Node, event: fx.Event) -> bool:
        """Work in progress and commands die with their process; frames wait at the broker."""
        return place is node and isinstance(event, fx.WorkDone | fx.Command)

    # --- what an observer of the wire saw ---

    def acknowledged(self) -> set[tuple[str, bytes]]:
        """(device, digest) of everything of a device's that the proxy said it holds."""
        found = set()
        for sender, to, frame in self.net.wire or []:
            if isinstance(sender, fx.ProxyAddress) and isinstance(to, fx.DeviceAddress):
                message = decode(frame, self.sizes.packet_bytes)
                body = decode_body(message.body) if isinstance(message, Note) else None
                if isinstance(body, Ack) and body.status == "held":
                    found.add((to.id, body.blob))
        return found
