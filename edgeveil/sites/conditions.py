"""When a box has time for learning, in the words of Android's WorkManager and iOS's tasks."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from edgeveil.settings.base import Block

_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")


def minutes_of(window: str) -> tuple[int, int]:
    """Begin and end of `HH:MM-HH:MM` in minutes since midnight. Raises ValueError."""
    found = _WINDOW.fullmatch(window)
    if found is None:
        raise ValueError(f"must be HH:MM-HH:MM, got '{window[:40]}'; write 22:00-06:00")
    hour, minute, end_hour, end_minute = map(int, found.groups())
    return hour * 60 + minute, end_hour * 60 + end_minute


def _window(text: str) -> str:
    begin, end = minutes_of(text)
    if begin == end:
        raise ValueError(f"'{text}' is empty; for the whole day leave the key out")
    return text


class Conditions(Block):
    """When the box has time for learning; else the device does not say that it is there."""

    charging: bool = False
    """Only on external power; a box without a battery always is."""
    battery_not_low: bool = False
    """Not on battery with 15 % or less."""
    idle: bool = False
    """Only while nobody uses the box: systemd-logind's idle hint, else untouched terminals."""
    unmetered: bool = False
    """Only on a network that is not paid by the byte: as NetworkManager knows it, else by
    `metered_interfaces`."""
    metered_interfaces: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        default=("wwan*", "ppp*", "usb*", "rmnet*"), max_length=32
    )
    """Interfaces that are metered where NetworkManager does not say; `*` stands for any text."""
    storage_not_low: bool = False
    """Only with at least 5 % of the state folder's disk free, or 500 MiB where that is less."""
    max_temperature_celsius: float | None = Field(default=None, ge=-50, le=150)
    """Hottest sensor of the box; null: any. Without a sensor the condition does not hold."""
    max_load: float | None = Field(default=None, gt=0)
    """Largest load average per core over one minute, this device's own work included; null: any."""
    between: tuple[Annotated[str, AfterValidator(_window)], ...] = Field(default=(), max_length=32)
    """Windows of local time, `["22:00-06:00"]`; empty: always."""
    command: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = Field(
        default=(), max_length=64
    )
    """A program and its arguments, run without a shell; exit code 0: yes. Empty: none."""
