"""Whether the box may work now: power and load, by the owner's settings."""

from __future__ import annotations

import os
from pathlib import Path

from edgeveil.sites.edge import Conditions

POWER = Path("/sys/class/power_supply")


def why_not_now(conditions: Conditions, power: Path = POWER) -> str:
    """The reason to decline this round, or an empty string. Never depends on records."""
    if conditions.max_load is not None:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        if load > conditions.max_load:
            return f"load {load:.2f} per core is above conditions.max_load {conditions.max_load:g}"
    if conditions.require_power and not on_power(power):
        return "the box runs on battery and conditions.require_power is set"
    return ""


def on_power(power: Path = POWER) -> bool:
    """True on mains, or where no battery is reported."""
    supplies = list(power.glob("*")) if power.is_dir() else []
    kinds = {supply: _read(supply / "type") for supply in supplies}
    if "Battery" not in kinds.values():
        return True
    return any(_read(s / "online") == "1" for s, kind in kinds.items() if kind != "Battery")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
