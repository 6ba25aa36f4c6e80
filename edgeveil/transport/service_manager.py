"""What systemd is told of a service of `Type=notify`: ready, alive, stopping (sd_notify(3)).

Nothing is said where no `NOTIFY_SOCKET` is set. A process that cannot reach it goes on.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress


def tell(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send `KEY=value` lines; whether there was somebody to tell."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract socket of Linux
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.connect(address)
        told.sendall("\n".join(lines).encode())
        return True
    return False


def tell_ready() -> None:
    """The service does its work from now on."""
    tell("READY=1")


def tell_stopping() -> None:
    """The service ends, as it was asked to."""
    tell("STOPPING=1")


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds after which the service counts as hung unless it says otherwise; None: never."""
    of_process = environ.get("WATCHDOG_PID", str(os.getpid()))
    text = environ.get("WATCHDOG_USEC", "")
    if of_process != str(os.getpid()) or not text.isdecimal() or int(text) == 0:
        return None
    return int(text) / 1e6


async def keep_alive() -> None:
    """Say so from the event loop, twice in the time: a loop that hangs falls silent. For ever."""
    limit_s = watchdog_s()
    while limit_s is not None:
        tell("WATCHDOG=1")
        await asyncio.sleep(limit_s / 2)
