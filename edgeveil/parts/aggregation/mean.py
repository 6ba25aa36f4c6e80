"""The mean of uploads: exact and independent of order, computed at once or in parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import JobFailed

BLOCK_VALUES = 1 << 16  # per pass: operands stay in the processor's cache
_DIGITS = 52  # of a float64's mantissa, without the leading one
_LARGEST_EXPONENT = 1022

Array = NDArray[np.generic]


@runtime_checkable
class Measured(Protocol):
    @property
    def largest(self) -> float: ...


@runtime_checkable
class AddedUp(Protocol):
    """Arrays summed by their holder; the caller of `added` may consume the returned `ExactSum`."""

    def added(self, grids: Grids | None) -> ExactSum: ...


@dataclass(frozen=True)
class Grids:
    """Two public grids for exact sums: adding and subtracting 1.5 · 2^k rounds to 2^(k-52).

    Valid for values up to 2^(k-1) and sums up to 2^(k+1)."""

    coarse: float
    fine: float

    @classmethod
    def of(cls, largest: float, count: int, spare_bits: int = 0) -> Grids:
        """Return grids for `count` finite values up to 2^spare_bits · `largest` in size."""
        room = max(1, math.ceil(math.log2(count)))
        coarse = min(math.frexp(largest)[1] + room + spare_bits, _LARGEST_EXPONENT)
        return cls(math.ldexp(1.5, coarse), math.ldexp(1.5, coarse - _DIGITS + room))

    def covers(self, other: Grids) -> bool:
        """Return whether values that fit `other` fit here, and those exact here are exact there."""
        return self.coarse >= other.coarse and self.fine >= other.fine


class ExactSum:
    """Exact sum of arrays of `size` values, in int64 or (with `grids`) floats split at two grids.

    Partial sums join to the bits of the whole. `rounded`: some value was not on the fine grid."""

    def __init__(self, size: int, grids: Grids | None = None) -> None:
        self._grids, self.rounded = grids, False
        self._parts: list[NDArray[Any]] = (
            [np.zeros(size, np.int64)]
            if grids is None
            else [np.zeros(size, np.float64), np.zeros(size, np.float64)]
        )

    def add(self, arrays: Iterable[Array]) -> ExactSum:
        for array in arrays:
            self._take(np.asarray(array).ravel())
        return self

    def join(self, other: ExactSum) -> ExactSum:
        # Arrays from another process may be read-only.
        own = [part if part.flags.writeable else part.copy() for part in self._parts]
        for part, more in zip(own, other._parts, strict=True):
            part += more
        self._parts = own
        self.rounded |= other.rounded
        return self

    def same_as_on(self, grids: Grids | None) -> bool:
        """Return whether `total` has the same bits on `grids`."""
        if grids is None or self._grids is None:
            return grids is self._grids
        return grids == self._grids or (not self.rounded and self._grids.covers(grids))

    def integers(self) -> NDArray[np.int64]:
        (whole,) = self._parts
        return whole

    def divided(self, count: int) -> NDArray[np.float64]:
        """Return the mean (size,) of `count` arrays. Consumes the sum, to save memory."""
        first, *low = self._parts
        self._parts = []
        if not first.flags.writeable:
            first = first.copy()
        total = first.view(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, total.size, BLOCK_VALUES):
                part = slice(start, start + BLOCK_VALUES)
                total[part] = first[part] + low[0][part] if low else first[part].astype(np.float64)
            total /= count
        return total

    def _take(self, flat: Array) -> None:
        if self._grids is None:
            self._parts[0] += flat.astype(np.int64, copy=False)
            return
        coarse, fine = self._grids.coarse, self._grids.fine
        high, low = self._parts
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, flat.size, BLOCK_VALUES):
                part = slice(start, start + BLOCK_VALUES)
                remainder = flat[part].astype(np.float64)
                cut = remainder + coarse
                cut -= coarse
                high[part] += cut
                remainder -= cut
                kept = remainder + fine
                kept -= fine
                low[part] += kept
                self.rounded = self.rounded or not np.array_equal(kept, remainder)


def mean(stacked: Mapping[str, Sequence[Array]]) -> dict[str, NDArray[np.float64]]:
    """Return per segment name the float64 mean; floats are exact to 2^-60 of the largest.

    Raises JobFailed for a name without uploads."""
    result: dict[str, NDArray[np.float64]] = {}
    for name, arrays in stacked.items():
        if len(arrays) == 0:
            raise JobFailed(f"no valid upload of segment '{name}'")
        first = np.asarray(arrays[0])
        shape = first.shape
        grids = (
            None
            if np.issubdtype(first.dtype, np.integer)
            else Grids.of(largest_of(arrays), len(arrays))
        )
        if isinstance(arrays, AddedUp):
            found = arrays.added(grids)
        else:
            found = ExactSum(math.prod(shape), grids).add(arrays)
        result[name] = found.divided(len(arrays)).reshape(shape)
    return result


def largest_of(arrays: Sequence[Array]) -> float:
    return arrays.largest if isinstance(arrays, Measured) else max(map(largest, arrays))


def largest(array: Array) -> float:
    values = np.asarray(array)
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))
