"""What a process with thousands of connections needs: a fast loop, files, a bounded dialler."""

from __future__ import annotations

import asyncio
import importlib.util
import resource
import ssl
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from edgeveil.errors import UsageError
from edgeveil.heap import keep_heap
from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport.dialling import dial_fault
from edgeveil_lab.load.mqtt import BareClient, connect_client


def on_fast_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run it on uvloop where that is installed."""
    keep_heap()
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(main)
    import uvloop

    return int(uvloop.run(main))


# --- what one machine allows: open files and outgoing ports ---

_SPARE_FILES = 100
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def raise_files_limit() -> int:
    """Raise the soft limit of open files to the hard one; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def check_files(connections: int, limit: int) -> None:
    """Raise UsageError unless a process may hold so many connections."""
    needed = connections + _SPARE_FILES
    if resource.RLIM_INFINITY != limit < needed:
        raise UsageError(
            f"{connections} connections need {needed} open files, {limit} are allowed",
            where="ulimit -n",
            fix=f"raise the hard limit (ulimit -Hn {needed}), or play fewer devices",
        )


def check_ports(connections: int) -> None:
    """Raise UsageError unless the system has a port for each connection to one broker."""
    try:
        low, high = (int(word) for word in _PORT_RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        return
    if connections > high - low + 1:
        raise UsageError(
            f"{connections} connections to one broker need as many ports, there are"
            f" {high - low + 1}",
            where=str(_PORT_RANGE),
            fix="widen it (sysctl net.ipv4.ip_local_port_range='1024 65535'),"
            " or play the rest from another host",
        )


# --- connections at a rate, a bounded number at a time ---

_AT_ONCE = 32  # brokers queue about 100 connections: one that finds no place waits for a second
_TIMEOUT_S = 30.0
_STEP_S = 0.01


class Dialled(Protocol):
    """Who wants a connection; `connect` says so to its dialler."""

    answered: asyncio.Event
    """Set once the broker has answered, or the connection is gone."""

    def connect(self) -> None: ...
    def client(self) -> BareClient: ...
    def on_down(self, reason: str) -> None: ...


class Dialler:
    """First connections keep to `rate_per_s` (None: as they can); later ones come as they come."""

    def __init__(
        self, address: BrokerAddress, context: ssl.SSLContext | None, rate_per_s: float | None
    ) -> None:
        self._address, self._context, self._rate_per_s = address, context, rate_per_s
        self._waiting: deque[Dialled] = deque()
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

    async def bring(self, devices: Sequence[Dialled]) -> None:
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

    def dial(self, device: Dialled) -> None:
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

    async def _connect(self, device: Dialled) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await connect_client(device.client, self._address, self._context, self._host)
        except (OSError, TimeoutError) as error:
            device.on_down(dial_fault(error, self._address).what)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await device.answered.wait()
