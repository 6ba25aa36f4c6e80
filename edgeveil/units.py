"""Sizes and times: for a person, in one style wherever they are printed."""

from __future__ import annotations

EARLIEST_S = 1_735_689_600.0
"""The beginning of 2025: a clock that says less is wrong, this program is younger."""


def byte_text(count: float) -> str:
    """A number of bytes in three digits: `1.1 MiB`, `0.977 MiB` for 1000 KiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1024:,.2f} TiB"


def seconds_text(seconds: float) -> str:
    """A time in about three digits: `0.84 ms`, `640 ms`, `17.4 s`, `2 min 5 s`, `3 h 4 min`."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_min = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min" + (f" {rest_s} s" if rest_s else "")
    return f"{hours:,} h" + (f" {rest_min} min" if rest_min else "")
