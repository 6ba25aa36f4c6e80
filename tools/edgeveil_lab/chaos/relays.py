"""TCP relays between the processes and their brokers, which cut, hold up and spoil what passes."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from edgeveil.errors import ProtocolError
from edgeveil.transport.mqtt_packets import (
    PUBLISH,
    PacketCutter,
    asked_version,
    packet,
    read_publish,
)
from edgeveil_lab.chaos.faults import Fault

HOST = "127.0.0.1"
_READ_BYTES = 65536
_WAITING_PACKETS = 256


class Relay:
    """One link: listens on `port`, passes on to `target_port`. Runs on the loop of `Relays`."""

    def __init__(self, name: str, port: int, target_port: int, seed: int) -> None:
        self.name, self.port, self._target_port = name, port, target_port
        self.counts: Counter[str] = Counter()
        self._random = random.Random(f"{seed} {name}")  # noqa: S311 - chooses what to spoil
        self._faults: dict[str, tuple[float, float]] = {}  # kind: (until, amount)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, HOST, self.port)

    async def stop(self) -> None:
        """End the relay and all connections through it."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        self.cut()

    def begin(self, fault: Fault) -> None:
        """From now on and as long as the fault lasts."""
        self._faults[fault.kind] = (time.monotonic() + fault.lasts_s, fault.amount)
        if fault.kind == "cut":
            self.cut()

    def cut(self) -> None:
        """Break every connection."""
        for writer in tuple(self._open):
            self.counts["cut"] += 1
            writer.transport.abort()

    def _amount(self, kind: str) -> float | None:
        """How strong a fault is now; None when there is none."""
        until_s, amount = self._faults.get(kind, (0.0, 0.0))
        return amount if time.monotonic() < until_s else None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._amount("cut") is not None:
            self.counts["refused"] += 1
            writer.transport.abort()
            return
        self.counts["connections"] += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        version = [4]
        self._keep(self._pass(reader, far_writer, writer, version))
        self._keep(self._pass(far_reader, writer, far_writer, version))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        version: list[int],
    ) -> None:
        """One direction until either end closes; then the other direction ends too."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_WAITING_PACKETS)
        sender = asyncio.create_task(_send(waiting, writer))
        packets = PacketCutter()
        self._open.add(writer)
        try:
            while data := await reader.read(_READ_BYTES):
                for first, body in packets.feed(data):
                    version[0] = asked_version(first, body) or version[0]
                    for out in self._spoiled(first, body, version[0]):
                        await waiting.put((time.monotonic() + self._held_up(), out))
            await waiting.put((0.0, b""))
            await sender
        except (OSError, ProtocolError):
            pass
        finally:
            sender.cancel()
            self._open.discard(writer)
            for one in (writer, back):
                one.close()

    def _held_up(self) -> float:
        delay_s = self._amount("delay")
        if delay_s is None:
            return 0.0
        self.counts["delayed"] += 1
        return delay_s

    def _spoiled(self, first: int, body: bytes, version: int) -> tuple[bytes, ...]:
        """What leaves in place of a packet: itself, itself twice, or with one bit flipped."""
        self.counts["packets"] += 1
        if first >> 4 != PUBLISH:
            return (packet(first, body),)
        if self._chance("corrupt"):
            _, start = read_publish(first, body, version)
            if start < len(body):
                self.counts["corrupted"] += 1
                body = flipped(body, self._random.randrange(start, len(body)))
        out = packet(first, body)
        if self._chance("duplicate"):
            self.counts["duplicated"] += 1
            return out, out
        return (out,)

    def _chance(self, kind: str) -> bool:
        share = self._amount(kind)
        return share is not None and self._random.random() < share


def flipped(data: bytes, at: int) -> bytes:
    """The same with one bit of the byte `at` the other way round."""
    return data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]


async def _send(waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    """Each packet at its time, in order, until an empty one; into a broken link none."""
    broken = False
    while True:
        due_s, packet = await waiting.get()
        if not packet:
            return
        if broken:  # taken all the same, so that the reader comes to its end
            continue
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        try:
            writer.write(packet)
            await writer.drain()
        except OSError:
            broken = True


class Relays:
    """All relays of a site, on a thread of their own."""

    def __init__(self, ports: Mapping[str, tuple[int, int]], seed: int) -> None:
        """`ports`: link name to (port to listen on, port of the broker)."""
        self.links = {name: Relay(name, *pair, seed) for name, pair in ports.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="relays")

    def start(self) -> None:
        """Listen on all ports. Raises OSError where one is taken."""
        self._thread.start()
        for relay in self.links.values():
            self._run(relay.start())

    def begin(self, fault: Fault) -> None:
        """Bring a fault on its link."""
        self._call(lambda: self.links[fault.target].begin(fault))

    def stop(self) -> None:
        """End all; may be called twice, and before `start`."""
        if not self._thread.is_alive():
            return
        for relay in self.links.values():
            self._run(relay.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def counts(self) -> dict[str, dict[str, int]]:
        """What passed each link and what was done to it."""
        return {name: dict(relay.counts) for name, relay in self.links.items()}

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    def _call(self, what: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(what)
