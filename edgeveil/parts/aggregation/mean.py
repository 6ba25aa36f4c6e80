"""The mean of uploads: exact, and the same in any order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import JobFailed

BLOCK_VALUES = 1 << 16  # at one time: what is computed with stays in the processor's cache
_DIGITS = 52  # of a float64 behind the leading one
_LARGEST_EXPONENT = 1022


@runtime_checkable
class Measured(Protocol):
    """Arrays whose `largest` absolute value is known; others are looked at once more for it."""

    @property
    def largest(self) -> float: ...


def mean(stacked: Mapping[str, Sequence[NDArray[np.generic]]]) -> dict[str, NDArray[np.float64]]:
    """Per segment name, the mean of the devices' arrays (each of one shape), float64.

    One array is looked at after the other. Integer segments are summed
    exactly in int64; float segments on grids on which every sum is exact, down to 2^-60 of the
    largest value: the order of arrival changes no bit. Raises `JobFailed` for a name without
    uploads.
    """
    result: dict[str, NDArray[np.float64]] = {}
    for name, arrays in stacked.items():
        if len(arrays) == 0:
            raise JobFailed(f"no valid upload of segment '{name}'")
        first = np.asarray(arrays[0])
        add = _integers if np.issubdtype(first.dtype, np.integer) else _floats
        result[name] = add(arrays, first.size).reshape(first.shape) / len(arrays)
    return result


def _integers(arrays: Sequence[NDArray[np.generic]], size: int) -> NDArray[np.float64]:
    total = np.zeros(size, np.int64)
    for array in arrays:
        total += np.asarray(array).ravel().astype(np.int64)
    return total.astype(np.float64)


def _floats(arrays: Sequence[NDArray[np.generic]], size: int) -> NDArray[np.float64]:
    """Each value is cut in two at a public grid; all sums of one half are exact."""
    known = arrays.largest if isinstance(arrays, Measured) else None
    largest = max(map(_largest, arrays)) if known is None else known
    coarse, fine = _anchors(largest, len(arrays))
    high, low = np.zeros(size), np.zeros(size)
    with np.errstate(over="ignore", invalid="ignore"):
        for array in arrays:
            flat = np.asarray(array).ravel()
            for start in range(0, size, BLOCK_VALUES):
                part = slice(start, start + BLOCK_VALUES)
                rest = flat[part].astype(np.float64)
                cut = rest + coarse
                cut -= coarse
                high[part] += cut
                rest -= cut
                rest += fine
                rest -= fine
                low[part] += rest
        return high + low


def _anchors(largest: float, count: int) -> tuple[float, float]:
    """Added to a value and taken away again, an anchor rounds it to the grid of its last digit.

    1.5 * 2^k has that digit at 2^(k-52), for every value up to 2^(k-1) and every sum up to 2^(k+1).
    """
    room = max(1, math.ceil(math.log2(count)))
    coarse = min(math.frexp(largest)[1] + room, _LARGEST_EXPONENT)
    fine = coarse - _DIGITS + room
    return math.ldexp(1.5, coarse), math.ldexp(1.5, fine)


def _largest(array: NDArray[np.generic]) -> float:
    values = np.asarray(array)
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))
