"""Who holds what: the records that a run dealt, counted, and as a section of its page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeveil.jobs import Job
from edgeveil.pages.parts import Json, heat, said, section
from edgeveil.parts.partitions.dealing import low_quality_devices
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.result import UNPROTECTED

MOST_COLUMNS = 120  # of the picture: of more devices several share one
MOST_CLASSES = 60


@dataclass(frozen=True)
class Holdings:
    """What was dealt. `counts` (devices, classes), by the labels that the devices see."""

    counts: NDArray[np.int64]
    low_quality: NDArray[np.int64]  # numbers of these devices, from 0
    kind: str

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Records of each device (devices,)."""
        return np.asarray(self.counts.sum(axis=1), dtype=np.int64)


def holdings(job: Job, run: LocalRun) -> Holdings:
    """Count the records that the run dealt."""
    records, shares = dealt(job, run)
    classes = job.data.classes
    counts = np.zeros((len(shares), classes), np.int64)
    for row, share in zip(counts, shares, strict=True):
        y = records.y[share]
        row[:] = np.bincount(y[(y >= 0) & (y < classes)], minlength=classes)
    poor = low_quality_devices(run.devices, run.partition, run.seed)
    return Holdings(counts, poor, run.partition.kind)


HELD = "held"  # the section's id


def held_section(held: Holdings, published: bool) -> Json:
    """Who holds what: records by device and class."""
    what, were = ("public data set", "was") if published else ("records", "were")
    count = len(held.low_quality)
    poor = (
        f" The {count} devices in red hold records of low quality, shown under the wrong classes"
        " that they carry."
        if count
        else ""
    )
    text = (
        f"How the {what} of this run {were} dealt: {held.kind}.{poor} In a real fleet nobody could"
        " draw this: what a device holds never leaves it."
    )
    warning = f"The exact counts of each device's records, {UNPROTECTED}."
    before = [said(text), None if published else said(warning, "bad")]
    return section(HELD, "Who holds what", [holdings_picture(held)], before=before)


def holdings_picture(held: Holdings) -> Json:
    """Devices from left to right, low quality last where several share a column; classes from
    below, and above all how many records there are."""
    devices, classes = held.counts.shape
    poor = np.isin(np.arange(devices), held.low_quality)
    order = np.arange(devices)
    each = -(-devices // MOST_COLUMNS)
    if each > 1:
        order = np.concatenate([np.flatnonzero(~poor), np.flatnonzero(poor)])
    good = devices - int(poor.sum()) if each > 1 else devices
    groups = [order[k : min(k + each, good)] for k in range(0, good, each)]
    groups += [order[k : k + each] for k in range(good, devices, each)]
    counts = np.stack([held.counts[group].sum(axis=0) for group in groups])
    rows = _bounds(classes, MOST_CLASSES)
    values = np.stack([counts[:, low:high].sum(axis=1) for low, high in rows])
    return heat(
        "Records by device and class",
        _plain(values[::-1]),
        rows=[str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in rows[::-1]],
        columns=[_names(group) for group in groups],
        row_name="class",
        column_name="device" if each == 1 else f"devices, {each} to a column",
        red=[k for k, group in enumerate(groups) if poor[group].all()],
        top=[int(total) for total in counts.sum(axis=1)],
    )


def _bounds(count: int, most: int) -> list[tuple[int, int]]:
    each = -(-count // most)
    return [(low, min(low + each, count)) for low in range(0, count, each)]


def _names(group: NDArray[np.int64]) -> str:
    first, last = int(group[0]) + 1, int(group[-1]) + 1
    return str(first) if first == last else f"{first}…{last}"


def _plain(values: NDArray[np.int64]) -> list[list[int]]:
    found: list[list[int]] = values.tolist()
    return found
