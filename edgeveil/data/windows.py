"""Windows: several readings, rows of a table, as one record.

Windows lie on a public grid of time, or hold the rows of one group, and never overlap. So a reading
belongs to one window at most, moves no other, and a guarantee per record covers a whole window."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.config.base import Block
from edgeveil.data.table_form import number_in

Int64 = NDArray[np.int64]
Name = Annotated[str, Field(min_length=1, max_length=128)]
_LATEST_S = 1e11  # of a time, either side of 1970
_NO_WINDOW = -1


class Windows(Block):
    """Readings as windows: records of [length, values of the columns]."""

    length: int = Field(ge=2, le=1 << 16, examples=[64])
    """Readings of a window. A gap repeats the reading before it, or the first one."""
    time: Name | None = Field(default=None, examples=["time"])
    """Column of the time: seconds since 1970, or ISO 8601 (UTC by default)."""
    every_s: float | None = Field(default=None, ge=1e-6, le=1e9, examples=[0.01])
    """Seconds between readings: windows lie on a grid of times from 1970 on, and one with readings
    in less than half of its places is left out. null: a window is a group."""
    step: int | None = Field(default=None, ge=2, le=1 << 24)
    """Places from one window's begin to the next on the grid, at least `length`, the default."""
    group: Name | None = Field(default=None, examples=["machine"])
    """Column whose values never share a window, such as a machine's number; null: all rows are of
    one. Without `every_s` the first `length` rows of each value are a window, in order of time or,
    without a time, of the file."""
    label: Literal["last", "any"] = "last"
    """Label of a window: of its last reading, or the highest class among its readings (`any`)."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in (self.time, self.group) if name is not None)


def faults(windows: Windows, taken: Sequence[str]) -> list[tuple[str, str]]:
    """Return (key, reason) for each impossible setting; `taken` are inputs and label."""
    found = []
    if windows.time is None and windows.group is None:
        found.append(("time", "needs time, the column of the time, or group; add one of them"))
    if windows.every_s is not None and windows.time is None:
        found.append(("every_s", "needs the column of the time; add time"))
    if windows.every_s is None and windows.group is None and windows.time is not None:
        found.append(("every_s", "needs every_s, the seconds between readings, or group; add one"))
    if windows.step is not None and windows.every_s is None:
        found.append(("step", "is a number of places on the grid of every_s; leave it out"))
    elif windows.step is not None and windows.step < windows.length:
        often = math.ceil(windows.length / windows.step)
        why = f"puts a reading into {often} windows, and a guarantee per window would not cover it"
        found.append(("step", f"{why}; set at least length, {windows.length}"))
    for name in windows.columns:
        if name in taken:
            key = "time" if name == windows.time else "group"
            found.append((key, f"'{name}' is also an input or the label; leave it out there"))
    return found


@dataclass(frozen=True)
class Assembled:
    """Windows by the rows of their readings (`own`), and the places of these in them (`at`)."""

    own: list[Int64]
    at: list[Int64]
    left_out: int

    def rows(self, chosen: Int64, length: int) -> Int64:
        """Return the rows (n, length) of chosen windows, gaps filled."""
        found = np.zeros((len(chosen), length), np.int64)
        for row, window in zip(found, chosen, strict=True):
            nearest = np.searchsorted(self.at[window], np.arange(length), side="right") - 1
            row[:] = self.own[window][np.maximum(nearest, 0)]
        return found


class WindowRows:
    """Collects the place of each row of a table, and assembles windows."""

    def __init__(self, windows: Windows, place: Mapping[str, int]) -> None:
        self.form = windows
        self._time, self._group = (
            None if name is None else place[name] for name in (windows.time, windows.group)
        )
        self._numbers: dict[str, int] = {}
        self._groups, self._times = array("q"), array("d")

    def add(self, cells: Sequence[str] | None) -> str:
        """Add a row, None for a broken one; return its problem or ""."""
        group, at, problem = _NO_WINDOW, float(len(self._times)), ""
        if cells is not None:
            text = "" if self._group is None else cells[self._group].strip()
            if self._time is not None:
                at = seconds_in(cells[self._time].strip())
            if self._group is not None and not text:
                problem = "the group is missing"
            elif math.isnan(at):
                problem = "the time is missing or unreadable"
            else:
                group = self._numbers.setdefault(text, len(self._numbers))
        self._groups.append(group)
        self._times.append(0.0 if math.isnan(at) else at)
        return problem

    def assembled(self, digests: NDArray[np.uint8]) -> Assembled:
        """Return all windows; of readings in one place that of the greatest digest counts."""
        windows, groups = self.form, np.frombuffer(self._groups, np.int64)
        times, length = np.frombuffer(self._times), windows.length
        window, offset = np.zeros(len(groups), np.int64), times
        if windows.every_s is not None:
            places = np.floor(times / windows.every_s + 0.5)
            step = windows.step or length
            window = np.floor(places / step).astype(np.int64)
            offset = places - window * step
        ties = digests.view(">u8").T[::-1]
        order = np.lexsort((*ties, offset, window, groups))
        order = order[(groups >= 0)[order]]
        keys = np.stack([groups[order], window[order]], axis=1)
        starts = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
        least = 1 if windows.every_s is None else math.ceil(length / 2)
        own, ats, left_out = [], [], 0
        for members in np.split(order, starts) if len(order) else []:
            if windows.every_s is None:
                members = members[:length]
                at = np.arange(len(members))
            else:
                at = offset[members].astype(np.int64)
                last = np.append(at[1:] != at[:-1], True) & (at < length)
                members, at = members[last], at[last]
            if len(members) < least:
                left_out += bool(len(members))
                continue
            own.append(members)
            ats.append(at)
        return Assembled(own, ats, left_out)


def seconds_in(cell: str) -> float:
    """Return a time as seconds since 1970, NaN if unreadable or out of range."""
    found = number_in(cell)
    if math.isnan(found):
        try:
            moment = datetime.fromisoformat(cell)
            found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return math.nan
    return found if abs(found) <= _LATEST_S else math.nan
