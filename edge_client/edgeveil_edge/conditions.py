"""Presence of a device: the owner's conditions compared with measurements of the box.

`unmet` decides, `BoxSensors` measures. `Presence` checks at a random moment of each interval, and
the device joins or leaves then: the proxy sees at most one change in an interval, at no moment
chosen by the owner. Records are not involved.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

from edgeveil.config.edge import Conditions, minutes_of
from edgeveil.protocol import effects as fx
from edgeveil.units import byte_text

PRESENCE_INTERVAL_S = 900.0  # at most one change of presence in each, at a random moment
LOW_BATTERY_PERCENT = 15.0  # Android's threshold of a low battery
LOW_STORAGE_SHARE, LOW_STORAGE_BYTES = 0.05, 500 << 20  # the lesser of both
IDLE_S = 600.0  # a terminal untouched for so long counts as idle
BUS_S = 2.0
COMMAND_TIMEOUT_S = 10.0  # an owner's command that takes longer counts as failed
_UNROUTED = ("192.0.2.1", 9)  # RFC 5737; connecting a UDP socket sends nothing
_METERED, _UNMETERED = ("1", "3"), ("2", "4")  # NMMetered: yes and guessed yes; no and guessed no


def unmet(conditions: Conditions, state_dir: Path, sensors: BoxSensors) -> list[str]:
    """Return the unmet conditions with measured values; an error counts as unmet."""
    try:
        return list(_unmet(conditions, state_dir, sensors))
    except OSError as error:
        return [f"the box cannot be measured: {error.filename or ''} {error.strerror}"]


def _unmet(conditions: Conditions, state_dir: Path, sensors: BoxSensors) -> Iterator[str]:
    battery = (100.0, True)
    if conditions.charging or conditions.battery_not_low:
        battery = sensors.battery() or battery
    if conditions.charging and not battery[1]:
        yield "charging: the box runs on battery"
    if conditions.battery_not_low and not battery[1] and battery[0] <= LOW_BATTERY_PERCENT:
        yield f"battery_not_low: {battery[0]:.0f} % are left"
    if conditions.idle and sensors.in_use():
        yield "idle: somebody uses the box"
    if conditions.unmetered:
        metered = sensors.metered(conditions.metered_interfaces)
        if metered is None:
            yield "unmetered: no network is found"
        elif metered:
            yield "unmetered: the network is metered"
    if conditions.storage_not_low:
        free, total = sensors.storage_bytes(state_dir)
        if free < min(LOW_STORAGE_SHARE * total, LOW_STORAGE_BYTES):
            yield f"storage_not_low: {byte_text(free)} are free"
    if conditions.max_temperature_celsius is not None:
        found, most = sensors.temperature_celsius(), conditions.max_temperature_celsius
        if found is None:
            yield "max_temperature_celsius: the box has no temperature sensor"
        elif found > most:
            yield f"max_temperature_celsius: {found:.0f} °C are above {most:g} °C"
    if conditions.max_load is not None and (load := sensors.load()) > conditions.max_load:
        yield f"max_load: {load:.2f} per core is above {conditions.max_load:g}"
    if conditions.between and not within(conditions.between, sensors.minute_of_day()):
        yield f"between: now is outside {', '.join(conditions.between)}"
    # Last: the owner's command may cost most.
    if conditions.command and not sensors.holds(conditions.command, COMMAND_TIMEOUT_S):
        yield f"command: {conditions.command[0]} failed"


def wanted(conditions: Conditions) -> dict[str, Any]:
    unshown = {"metered_interfaces"}
    asked = conditions.model_dump(mode="json", exclude=unshown, exclude_defaults=True)
    return asked | ({"command": conditions.command[0]} if conditions.command else {})


def within(windows: Sequence[str], minute: int) -> bool:
    """Return whether a minute of the day is in a window [begin, end), which may pass midnight."""
    spans = map(minutes_of, windows)
    return any(b <= minute < e if b < e else minute >= b or minute < e for b, e in spans)


class Presence:
    """Presence of a machine: `look` returns unmet conditions, `moment` draws from [0, 1)."""

    def __init__(
        self,
        look: Callable[[], list[str]],
        post: Callable[[fx.Event], None],
        moment: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._look, self._post, self._moment, self._sleep = look, post, moment, sleep
        self.paused = False  # by the owner; counts as an unmet condition
        self.unmet: tuple[str, ...] = ()  # at the last check
        self._here = True  # a machine starts as present

    async def settle(self) -> None:
        """Check at once; used before the device is connected, when the time is invisible."""
        self.unmet = tuple(await asyncio.to_thread(self._look))
        here = not (self.paused or self.unmet)
        if here != self._here:
            self._here = here
            self._post(fx.Command("come" if here else "leave"))

    async def run(self) -> None:
        while True:
            before_s = self._moment() * PRESENCE_INTERVAL_S
            await self._sleep(before_s)
            await self.settle()
            await self._sleep(PRESENCE_INTERVAL_S - before_s)


class BoxSensors:
    def battery(self) -> tuple[float, bool] | None:
        """Return charge in percent and whether the box is plugged in (True if unknown)."""
        read = getattr(psutil, "sensors_battery", None)  # missing in psutil on some systems
        found = read() if read else None
        return (found.percent, found.power_plugged is not False) if found else None

    def in_use(self) -> bool:
        login = "org.freedesktop.login1"
        hint = _bus(login, "/org/freedesktop/login1", f"{login}.Manager", "IdleHint")
        if hint in ("true", "false"):
            # Some systems report "false" without a logged-in user.
            return hint == "false" and bool(psutil.users())
        return any(_touched(user.terminal) for user in psutil.users())

    def metered(self, patterns: Sequence[str]) -> bool | None:
        """Ask NetworkManager; else match the outgoing interface's name. None: no network."""
        manager = "org.freedesktop.NetworkManager"
        state = _bus(manager, "/org/freedesktop/NetworkManager", manager, "Metered")
        if state in (*_METERED, *_UNMETERED):
            return state in _METERED
        name = _interface_out()
        return None if name is None else any(fnmatch(name, pattern) for pattern in patterns)

    def storage_bytes(self, folder: Path) -> tuple[int, int]:
        """Return (free, total) bytes of the folder's disk; the folder need not exist."""
        there = next((one for one in (folder, *folder.parents) if one.exists()), Path.cwd())
        found = psutil.disk_usage(str(there))
        return found.free, found.total

    def temperature_celsius(self) -> float | None:
        read = getattr(psutil, "sensors_temperatures", None)
        chips = read().values() if read else ()
        return max((one.current for chip in chips for one in chip), default=None)

    def load(self) -> float:
        return float(psutil.getloadavg()[0]) / (psutil.cpu_count() or 1)

    def minute_of_day(self) -> int:
        now = datetime.now().astimezone()
        return now.hour * 60 + now.minute

    def holds(self, command: Sequence[str], timeout_s: float) -> bool:
        """Run without shell, input or output; return False if the command fails or cannot run."""
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with suppress(OSError, subprocess.TimeoutExpired):
            ended = subprocess.run(list(command), timeout=timeout_s, check=False, **quiet)
            return ended.returncode == 0
        return False


def _bus(service: str, path: str, interface: str, name: str) -> str:
    command = ["busctl", "--system", "get-property", service, path, interface, name]
    with suppress(OSError, subprocess.TimeoutExpired):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=BUS_S, check=False)
        if ended.returncode == 0:
            return ended.stdout.strip().rpartition(" ")[2]
    return ""


def _interface_out() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNROUTED)
        except OSError:
            return None
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == own for one in addresses):
            return str(name)
    return None


def _touched(terminal: str | None) -> bool:
    try:
        touched_s = Path("/dev", terminal or "").stat().st_atime
    except OSError:  # a graphical session has no terminal: counts as in use
        return True
    return bool(terminal) and time.time() - touched_s < IDLE_S
