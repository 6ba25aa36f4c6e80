"""Clip, quantise and sum exactly.

A record is clipped and rounded *toward zero* to whole steps of 2**-bits, so its norm cannot grow
and sums are exact in any order (`docs/privacy.md`, "The grid").
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.subnormals import loaded_torch

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Integers = NDArray[np.signedinteger[Any]]

GRID_BITS = 12
EXACT_LIMIT = 1 << 53
# Room for the rounding of a float64 norm and quotient: relative error (d + 4)·2**-53.
SHRINK = 1.0 - 2.0**-28
LARGEST_DIMENSION = 1 << 22
BLOCK_ROWS = 64
LARGEST_PIECE = 1 << 12  # rows of one product, to bound memory; sums are exact without


def row_norms(rows: Float64) -> Float64:
    """Return L2 norms (n,) of `rows` (n, d), in blocks of 64 so that none depends on other rows."""
    n, d = rows.shape
    padded = np.zeros((-(-n // BLOCK_ROWS) * BLOCK_ROWS, d))
    padded[:n] = rows
    norms = np.empty(len(padded))
    for start in range(0, len(padded), BLOCK_ROWS):
        block = padded[start : start + BLOCK_ROWS]
        largest = np.abs(block).max(axis=1, initial=0.0)
        unit = block / np.where(largest > 0, largest, 1.0)[:, None]
        norms[start : start + BLOCK_ROWS] = np.sqrt((unit * unit).sum(axis=1)) * largest
    return norms[:n]


def clip_rows(rows: Float64, bounds: Float64 | float) -> Float64:
    """Return `rows` (n, d) with norms scaled to at most `bounds` > 0; rows not finite become 0."""
    valid: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    finite = np.where(valid[:, None], rows, 0.0)
    with np.errstate(over="ignore"):
        norms = row_norms(finite)
    limit = np.asarray(bounds, dtype=np.float64) * SHRINK
    factor = limit / np.maximum(norms, limit)
    return finite * factor[:, None]


def quantise(rows: Float64, bound: float, *, bits: int = GRID_BITS) -> Int64:
    """Clip rows (n, d) to L2 norm `bound`, round toward zero to 2**-bits, check in integers."""
    steps = int(bound * 2.0**bits)
    if rows.shape[1] > LARGEST_DIMENSION or steps > 1 << 30:
        what = f"{rows.shape[1]} coordinates of norm {steps} steps do not fit exact integers"
        raise PrivacyError(what, fix=f"at most {LARGEST_DIMENSION} coordinates and 2^30 steps")
    with np.errstate(invalid="ignore"):
        whole = np.trunc(clip_rows(rows, bound) * 2.0**bits).astype(np.int64)
    within = squared_norms(whole) <= steps * steps
    return np.where(within[:, None], whole, 0)


def clip_sum(total: Int64, limit: int) -> Int64:
    """Return an integer array scaled to L2 norm `limit`, each value rounded toward zero.

    A function of the array alone, the same on every machine: it adds up integers only."""
    bits = 62 - total.size.bit_length()
    sizes, half = np.abs(total), bits // 2
    shift = max(0, int(sizes.max(initial=0)).bit_length() - bits)
    sizes = (sizes >> shift) + (shift > 0)  # never too small
    low, high = sizes & ((1 << half) - 1), sizes >> half
    products = ((low, low, 0), (low, high, half + 1), (high, high, 2 * half))
    squared = sum(int((a * b).sum()) << by for a, b, by in products)
    if squared << 2 * shift <= limit * limit:
        return total
    factor = limit * SHRINK / (math.isqrt(squared) + 1) / 2.0**shift
    return np.asarray(np.trunc(total * factor), np.int64)


def clipped_slack(count: int, limit: int) -> int:
    """Return the most steps by which `clip_sum` takes two arrays of `count` values further apart.

    A projection onto a ball takes none; `clip_sum` is that but for rounding, by less than √count
    steps, the norm's, by less than √count/16 + 1, and SHRINK. Raises PrivacyError beyond that."""
    if limit >> (57 - count.bit_length()):
        what = f"sums of {count} values of norm {limit} steps are too large to clip by unit"
        raise PrivacyError(what, where="privacy.unit", fix="use fewer features or a smaller model")
    return 3 * (math.isqrt(count) + 4) + (limit >> 26)


def squared_norms(rows: Int64) -> Int64:
    return np.asarray((rows * rows).sum(axis=1), dtype=np.int64)


def exact_matmul(left: Integers, right: Integers) -> Int64:
    """Return exact `left @ right` (n, k) x (k, c), by float64 pieces below 2**53."""
    step = _piece(left.shape[1], max(1, _largest(left) * _largest(right)))
    total: Int64 = np.zeros((left.shape[0], right.shape[1]), dtype=np.int64)
    for start in range(0, left.shape[1], step):
        a = left[:, start : start + step].astype(np.float64)
        total += _product(a, right[start : start + step].astype(np.float64))
    return total


def exact_gram(rows: Integers) -> Int64:
    """Return `rows.T @ rows` (d, d) of integer rows (n, d): `exact_matmul` at half the cost."""
    step = _piece(len(rows), max(1, _largest(rows) ** 2))
    total: Int64 = np.zeros((rows.shape[1], rows.shape[1]), dtype=np.int64)
    for start in range(0, len(rows), step):
        piece = rows[start : start + step].astype(np.float64)
        total += _product(piece.T, piece)  # numpy computes one triangle of a symmetric product
    return total


def _piece(count: int, product: int) -> int:
    """Return how many products, each at most `product`, a float64 sum holds exactly."""
    if product >= EXACT_LIMIT or count * product >= 1 << 63:
        what = f"an exact sum of {count} products up to {product} overflows"
        raise PrivacyError(what, fix="use a coarser grid or smaller values")
    return min(EXACT_LIMIT // product - 1, LARGEST_PIECE) or 1


def _product(left: Float64, right: Float64) -> Int64:
    torch = loaded_torch()  # loaded by training code alone
    if torch is None or not torch.cuda.is_available():
        return (left @ right).astype(np.int64)
    a, b = (torch.from_numpy(np.ascontiguousarray(side)).cuda() for side in (left, right))
    return np.asarray((a @ b).cpu().numpy().astype(np.int64))


def _largest(values: Integers) -> int:
    if not values.size:
        return 0
    return max(int(values.max()), -int(values.min()))  # exact where -128 has no opposite
