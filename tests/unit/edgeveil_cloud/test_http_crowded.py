"""Who holds hundreds of connections, and is slow, keeps nobody from the cloud's HTTP control."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import aiohttp

from edgeveil.transport.listener import MOST_CONNECTIONS
from edgeveil_cloud.http import HttpThread, make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store

TOKENS = {Scope.SUBMIT: "s" * 43}
CROWD = 400
DRIP_S = 0.3


async def slow(port: int, sent: list[int]) -> None:
    """One byte of a request after the other, and again once it is hung up on."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for byte in b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + bytes(1000):
                    if reader.at_eof():
                        break
                    writer.write(bytes([byte or 65]))
                    await writer.drain()
                    sent[0] += 1
                    await asyncio.sleep(DRIP_S)
            finally:
                writer.close()
        await asyncio.sleep(DRIP_S)


async def dripped():
    """A job's file whose bytes take longer than it takes the crowd to come anew."""
    for byte in b"job: a":
        yield bytes([byte])
        await asyncio.sleep(2 * DRIP_S)


def test_hundreds_of_slow_clients_keep_nobody_from_health_and_submit() -> None:
    submitted: list[str] = []

    def submit(text: str) -> str:
        submitted.append(text)
        return "a-job"

    control = SimpleNamespace(submit=submit, check=lambda _text: None, status=dict)

    async def run() -> None:
        store, http, sent = Store(), HttpThread(), [0]
        await http.start(make_app(store, control, lambda: TOKENS), "127.0.0.1")
        port = int(http.url.rpartition(":")[2])
        crowd = [asyncio.ensure_future(slow(port, sent)) for _ in range(CROWD)]
        while sent[0] < 3 * MOST_CONNECTIONS:  # all places are taken
            await asyncio.sleep(0.01)
        try:
            timeout = aiohttp.ClientTimeout(total=30)
            async with aiohttp.ClientSession(http.url, timeout=timeout) as session:
                for _ in range(20):  # each by a connection of its own
                    async with session.get("/healthz", headers={"Connection": "close"}) as answer:
                        assert answer.status == 200
                headers = {"Authorization": f"Bearer {TOKENS[Scope.SUBMIT]}"}
                async with session.post("/jobs", headers=headers, data=dripped()) as answer:
                    assert answer.status == 201
        finally:
            for one in crowd:
                one.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            await http.stop()
            store.close()

    asyncio.run(run())
    assert submitted == ["job: a"]
