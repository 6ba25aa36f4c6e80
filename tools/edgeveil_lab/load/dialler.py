"""Opens connections at a rate, a bounded number at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextlib import suppress

from edgeveil.transport.dialling import dial_fault
from edgeveil.transport.link import BrokerAddress
from edgeveil_lab.load.device import LoadDevice

_AT_ONCE = 32  # brokers queue about 100 connections: one that finds no place waits for a second
_TIMEOUT_S = 30.0
_STEP_S = 0.01


class Dialler:
    """First connections keep to `rate_per_s` (None: as they can); later ones come as they come."""

    def __init__(
        self, address: BrokerAddress, context: ssl.SSLContext | None, rate_per_s: float | None
    ) -> None:
        self._address, self._context, self._rate_per_s = address, context, rate_per_s
        self._waiting: deque[LoadDevice] = deque()
        self._open: set[asyncio.Task[None]] = set()
        self._host = address.host

    async def resolve(self) -> None:
        """Look the name up once for all devices. Raises BrokerError."""
        loop, address = asyncio.get_running_loop(), self._address
        try:
            found = await loop.getaddrinfo(address.host, address.port, type=1)
        except OSError as error:
            raise dial_fault(error, address) from None
        self._host = str(found[0][4][0])

    async def bring(self, devices: list[LoadDevice]) -> None:
        """Let all of them connect, evenly at the rate."""
        loop = asyncio.get_running_loop()
        began_s, sent = loop.time(), 0
        while sent < len(devices):
            elapsed_s = loop.time() - began_s
            rate = self._rate_per_s
            due = len(devices) if rate is None else min(len(devices), 1 + int(elapsed_s * rate))
            while sent < due:
                devices[sent].connect()
                sent += 1
            await asyncio.sleep(_STEP_S)

    def dial(self, device: LoadDevice) -> None:
        """Connect this device as soon as there is room."""
        self._waiting.append(device)
        self._fill()

    async def stop(self) -> None:
        """Dial no more."""
        self._waiting.clear()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _fill(self) -> None:
        while self._waiting and len(self._open) < _AT_ONCE:
            task = asyncio.create_task(self._connect(self._waiting.popleft()))
            self._open.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._fill()

    async def _connect(self, device: LoadDevice) -> None:
        loop, name = asyncio.get_running_loop(), self._address.host
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.create_connection(
                    device.client,
                    self._host,
                    self._address.port,
                    ssl=self._context,
                    server_hostname=name if self._context else None,
                )
        except (OSError, TimeoutError) as error:
            device.on_down(dial_fault(error, self._address).what)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await device.answered.wait()
