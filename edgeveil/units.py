"""Sizes and times as text, in one style."""

from __future__ import annotations

EARLIEST_S = 1_735_689_600.0
"""The beginning of 2025: an earlier clock is wrong, as this program is younger."""


def byte_text(count: float) -> str:
    """Return a number of bytes with three digits: `1.1 MiB`, `0.977 MiB` for 1000 KiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1024:,.2f} TiB"


def seconds_text(seconds: float) -> str:
    """Return a time with about three digits: `0.84 ms`, `17.4 s`, `2 min 5 s`, `3 h 4 min`."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min" + (f" {seconds_left} s" if seconds_left else "")
    return f"{hours:,} h" + (f" {minutes_left} min" if minutes_left else "")
