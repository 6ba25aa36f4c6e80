"""Sharing one data set out over devices, for demonstrations: seeded, disjoint, complete."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fl_core.data.order import public_order
from fl_core.errors import DataError, UsageError
from fl_core.registry import nearest

Shares = list[NDArray[np.int64]]

PARTITIONS = ("iid", "n_class")


def partition(
    y: NDArray[np.int64], devices: int, kind: str, classes_per_device: int = 2, seed: int = 0
) -> Shares:
    """One array of record indices for each device; every record stands in exactly one.

    `iid`: sizes differ by at most one. `n_class`: each device holds `classes_per_device` pieces
    of the records sorted by label (McMahan et al. 2017, the non-IID split), so about that many
    classes, and sizes differ by at most `classes_per_device`. Raises DataError on impossible
    numbers, UsageError on an unknown kind.
    """
    if devices < 1 or classes_per_device < 1:
        raise DataError(
            f"cannot share records over {devices} devices with {classes_per_device} classes each",
            where="partition",
            fix="use at least one of each",
        )
    if kind == "iid":
        return [np.sort(part) for part in _pieces(public_order(len(y), seed, "iid"), devices)]
    if kind == "n_class":
        return _n_class(y, devices, classes_per_device, seed)
    raise UsageError(f"unknown partition '{kind}'", fix=nearest(kind, list(PARTITIONS)))


def _n_class(y: NDArray[np.int64], devices: int, pieces: int, seed: int) -> Shares:
    classes = np.unique(y)
    rank = np.argsort(public_order(len(classes), seed, "classes"))  # classes in a seeded order
    order = public_order(len(y), seed, "records")
    by_class = order[np.argsort(rank[np.searchsorted(classes, y[order])], kind="stable")]
    parts = _pieces(by_class, devices * pieces)
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(devices)]
    # Each device takes one piece from each of `pieces` stretches of the class order, so that its
    # pieces come from different classes.
    for stretch in range(pieces):
        chosen = public_order(devices, seed, f"stretch-{stretch}")
        for device, piece in enumerate(chosen):
            shares[device].append(parts[stretch * devices + int(piece)])
    return [np.sort(np.concatenate(share)) for share in shares]


def _pieces(order: NDArray[np.int64], count: int) -> Shares:
    edges = [len(order) * k // count for k in range(count + 1)]
    return [order[a:b] for a, b in pairwise(edges)]
