"""A slow link is slow from its first packet on, both ways, over a real socket."""

from __future__ import annotations

import asyncio

from edgeveil.transport import mqtt_packets as packets
from edgeveil_lab.load.mqtt import BareClient

BYTES_PER_S = 20_000
FRAME = bytes(6000)  # 0.3 s
ACCEPTED = b"\x20\x02\x00\x00"


class Owner:
    def __init__(self) -> None:
        self.up, self.frames, self.down = asyncio.Event(), [], []

    def on_up(self) -> None:
        self.up.set()

    def on_frame(self, payload: bytes) -> None:
        self.frames.append((asyncio.get_running_loop().time(), payload))

    def on_down(self, reason: str) -> None:
        self.down.append(reason)


class Broker(asyncio.Protocol):
    """Takes a login and a subscription at once; notes when bytes come."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, int]] = []

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data[0] >> 4 == 1:
            self.transport.write(ACCEPTED)
        elif data[0] >> 4 == 8:
            self.transport.write(b"\x90\x03" + data[2:4] + b"\x00")
        else:
            self.arrived.append((asyncio.get_running_loop().time(), len(data)))


def over_a_slow_link(play) -> None:
    async def body() -> None:
        loop, broker, owner = asyncio.get_running_loop(), Broker(), Owner()
        server = await loop.create_server(lambda: broker, "127.0.0.1", 0)
        login = packets.Login("a", "u", "p", ("t", b""), 60, 65536)
        up = packets.encoded_topic("up")
        client = BareClient(owner, login, 4, ("down",), up, BYTES_PER_S)
        port = server.sockets[0].getsockname()[1]
        await loop.create_connection(lambda: client, "127.0.0.1", port)
        await asyncio.wait_for(owner.up.wait(), 5)
        try:
            await play(loop, client, broker, owner)
        finally:
            client.cut()
            server.close()

    asyncio.run(body())


async def until(done) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0.01)


def test_the_first_packet_up_takes_its_time_in_slices():
    async def play(loop, client, broker, owner):
        began_s = loop.time()
        client.publish(FRAME, 0)
        await until(lambda: sum(n for _, n in broker.arrived) > len(FRAME))
        assert broker.arrived[0][1] < len(FRAME) / 2
        assert broker.arrived[-1][0] - began_s >= len(FRAME) / BYTES_PER_S

    over_a_slow_link(play)


def test_what_comes_between_a_packets_slices_waits_for_its_end():
    async def play(loop, client, broker, owner):
        client.publish(FRAME, 0)
        client.tick(loop.time() + 40)  # a ping is due
        await until(lambda: sum(n for _, n in broker.arrived) >= len(FRAME) + 8)
        assert broker.arrived[-1][1] >= len(packets.PINGREQ)
        assert not owner.down

    over_a_slow_link(play)


def test_the_first_packet_down_takes_its_time():
    async def play(loop, client, broker, owner):
        began_s = loop.time()
        packet = packets.publish_head(packets.encoded_topic("down"), len(FRAME), 0, 4) + FRAME
        broker.transport.write(packet)
        await until(lambda: owner.frames)
        assert owner.frames[0][1] == FRAME
        assert owner.frames[0][0] - began_s >= len(FRAME) / BYTES_PER_S

    over_a_slow_link(play)
