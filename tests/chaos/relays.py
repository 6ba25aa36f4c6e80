"""TCP relays between processes and brokers that cut, delay, corrupt and repeat MQTT packets."""

import asyncio
import random
import threading
import time
from collections import Counter

from edgeveil.errors import ProtocolError
from edgeveil.transport.mqtt_packets import CONNECT, PUBLISH, PacketCutter, packet, read_publish

HOST = "127.0.0.1"
_READ_BYTES = 65536
_WAITING_PACKETS = 256


def asked_version(first, body):
    """Return the protocol version of a CONNECT, 4 or 5; None for any other packet."""
    at = 2 + int.from_bytes(body[:2], "big")
    return body[at] if first >> 4 == CONNECT and at < len(body) else None


class Relay:
    """One link from `port` to `target_port`, on the event loop of `Relays`."""

    def __init__(self, name, port, target_port, seed):
        self.port, self._target_port = port, target_port
        self.counts = Counter()
        self._random = random.Random(f"{seed} {name}")
        self._faults = {}  # kind: (until, amount)
        self._open = set()
        self._tasks = set()

    async def start(self):
        self._server = await asyncio.start_server(self._accept, HOST, self.port)

    async def stop(self):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        self._cut()

    def begin(self, fault):
        self._faults[fault.kind] = (time.monotonic() + fault.lasts_s, fault.amount)
        if fault.kind == "cut":
            self._cut()

    def _cut(self):
        for writer in tuple(self._open):
            self.counts["cut"] += 1
            writer.transport.abort()

    def _amount(self, kind):
        """Return the strength of the current fault; None without one."""
        until_s, amount = self._faults.get(kind, (0.0, 0.0))
        return amount if time.monotonic() < until_s else None

    async def _accept(self, reader, writer):
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
        version = [4]  # of MQTT, as the CONNECT packet asks
        for ends in ((reader, far_writer, writer), (far_reader, writer, far_writer)):
            task = asyncio.get_running_loop().create_task(self._pass(*ends, version))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader, writer, back, version):
        """Relay one direction until either end closes, then end the other direction."""
        waiting = asyncio.Queue(_WAITING_PACKETS)
        sender = asyncio.create_task(_send(waiting, writer))
        packets = PacketCutter()
        self._open.add(writer)
        try:
            while data := await reader.read(_READ_BYTES):
                for first, body in packets.feed(data):
                    version[0] = asked_version(first, body) or version[0]
                    for out in self._spoiled(first, body, version[0]):
                        if delay_s := self._amount("delay"):
                            self.counts["delayed"] += 1
                        await waiting.put((time.monotonic() + (delay_s or 0.0), out))
            await waiting.put((0.0, b""))
            await sender
        except (OSError, ProtocolError):
            pass
        finally:
            sender.cancel()
            self._open.discard(writer)
            writer.close()
            back.close()

    def _spoiled(self, first, body, version):
        """Return the packet itself, with one bit of its payload flipped, or twice."""
        self.counts["packets"] += 1
        if first >> 4 != PUBLISH:
            return (packet(first, body),)
        if self._random.random() < (self._amount("corrupt") or 0.0):
            _, start = read_publish(first, body, version)
            if start < len(body):
                self.counts["corrupted"] += 1
                at = self._random.randrange(start, len(body))
                body = body[:at] + bytes([body[at] ^ 0x20]) + body[at + 1 :]
        out = packet(first, body)
        if self._random.random() < (self._amount("duplicate") or 0.0):
            self.counts["duplicated"] += 1
            return out, out
        return (out,)


async def _send(waiting, writer):
    """Send each packet at its time, in order, until an empty one; none into a broken link."""
    broken = False
    while True:
        due_s, data = await waiting.get()
        if not data:
            return
        if broken:  # still consumed, so that the reader can end
            continue
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        try:
            writer.write(data)
            await writer.drain()
        except OSError:
            broken = True


class Relays:
    """All relays of a site, on one thread; `ports`: name -> (port to listen on, broker's port)."""

    def __init__(self, ports, seed):
        self.links = {name: Relay(name, *pair, seed) for name, pair in ports.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="relays")

    def start(self):
        """Listen on all ports; raises OSError if one is in use."""
        self._thread.start()
        for relay in self.links.values():
            asyncio.run_coroutine_threadsafe(relay.start(), self._loop).result(10.0)

    def begin(self, fault):
        self._loop.call_soon_threadsafe(self.links[fault.target].begin, fault)

    def stop(self):
        """End all; may be called twice, and before `start`."""
        if not self._thread.is_alive():
            return
        for relay in self.links.values():
            asyncio.run_coroutine_threadsafe(relay.stop(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def counts(self):
        return {name: dict(relay.counts) for name, relay in self.links.items()}
