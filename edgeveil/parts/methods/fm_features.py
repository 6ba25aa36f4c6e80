"""From records to bounded integer features, each row a function of its own record alone.

Features are clipped and rounded toward zero to steps of 2**-24; a PCA basis, itself on a grid,
is applied in exact integers. What is computed of a data set is kept beside it while both the
data set and the method live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.parts.features import valid_records
from edgeveil.parts.methods.pca_basis import BASIS_BITS, Basis
from edgeveil.parts.setting import Setting
from edgeveil.privacy.grid import Int64, clip_rows, exact_matmul, quantise, squared_norms
from edgeveil.subnormals import flushed

FEATURE_BITS = 24
BLOCK = 4096  # rows at a time: bounds memory; a multiple of the 64 rows of one norm
Int16 = NDArray[np.int16]
Int32 = NDArray[np.int32]
Key = tuple[bytes, ...]


@dataclass(frozen=True)
class Features:
    """φ of the valid records: `steps` int32 (n, k) on 2**-24, ‖φ‖ <= 1; `labels` int64 (n,)."""

    steps: Int32
    labels: Int64


@dataclass(frozen=True)
class Bounded:
    """z of the valid records: `steps` int16 (n, d) on 2**-12, ‖z‖ <= 1, with squared norms."""

    steps: Int16
    squared: Int64
    labels: Int64


def blocks(count: int) -> Iterator[slice]:
    """Slices over `count` rows; at least one, so that no step is skipped for want of records."""
    for start in range(0, max(1, count), BLOCK):
        yield slice(start, start + BLOCK)


@flushed()
def features_of(records: Records, setting: Setting) -> Features:
    """Features of the valid records; the others are dropped."""
    mask = valid_records(records.x, records.y, setting.classes)
    x, labels = records.x[mask], records.y[mask]
    steps = np.empty((len(labels), setting.feature_dimension), np.int32)
    for rows in blocks(len(labels)):
        steps[rows] = quantise(setting.features(x[rows]), 1.0, bits=FEATURE_BITS)
    return Features(steps, labels)


def projected(features: Features, basis: Basis) -> Features:
    """φ·B, clipped to norm 1 again: B is orthonormal up to rounding, or whatever was sent."""
    steps = np.empty((len(features.labels), basis.shape[1]), np.int32)
    scale = 2.0 ** -(FEATURE_BITS + BASIS_BITS)
    for rows in blocks(len(steps)):
        product = exact_matmul(features.steps[rows], basis).astype(np.float64)
        steps[rows] = quantise(product * scale, 1.0, bits=FEATURE_BITS)
    return Features(steps, features.labels)


def bounded(features: Features, centre: NDArray[np.generic], radius: float) -> Bounded:
    """z = clip(φ - centre, radius)/radius; `centre` (d,) may be any values."""
    steps = np.empty(features.steps.shape, np.int16)
    squared = np.empty(len(steps), np.int64)
    for rows in blocks(len(steps)):
        phi = features.steps[rows].astype(np.float64) * 2.0**-FEATURE_BITS
        with np.errstate(over="ignore", invalid="ignore"):
            centred = phi - centre.astype(np.float64)
        whole = quantise(clip_rows(centred, radius) / radius, 1.0)
        steps[rows], squared[rows] = whole, squared_norms(whole)
    return Bounded(steps, squared, features.labels)


class FeatureCache:
    """What is computed of data sets: features once, then z for the last basis and centre.

    A data set is known by its identity (`Records`), never by its content, and is not kept alive.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._features: WeakKeyDictionary[Records, Features] = WeakKeyDictionary()
        self._bounded: WeakKeyDictionary[Records, tuple[Key, Bounded]] = WeakKeyDictionary()

    def features(self, records: Records) -> Features:
        """φ, before any projection."""
        found = self._features.get(records)
        if found is None:
            found = self._features[records] = features_of(records, self._setting)
        return found

    def bounded(self, records: Records, key: Key, make: Callable[[Features], Bounded]) -> Bounded:
        """z as `make` gives it; `key` holds the bytes of all that it depends on beside records."""
        found = self._bounded.get(records)
        if found is None or found[0] != key:
            found = self._bounded[records] = (key, make(self.features(records)))
            self._features.pop(records, None)  # the larger of the two; not needed again
        return found[1]
