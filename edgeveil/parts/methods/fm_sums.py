"""What `fm` and `fm_paper` sum over records: bounded features, exact integer sums, their noise.

Each row of features is a function of its own record, rounded toward zero to steps of 2**-24; a PCA
basis is applied in exact integers. Symmetric matrices travel as flat upper triangles, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.data.target import scaled
from edgeveil.errors import PrivacyError
from edgeveil.parts.exchange import Array
from edgeveil.parts.method_context import MethodContext
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import ClaimedEvent, Event, GaussianEvent, LaplaceEvent, as_single
from edgeveil.privacy.gaussian_mechanism import diagonal_of_triangle, gaussian
from edgeveil.privacy.grid import (
    GRID_BITS,
    LARGEST_DIMENSION,
    Float64,
    Int64,
    clip_rows,
    exact_gram,
    exact_matmul,
    quantise,
    squared_norms,
)
from edgeveil.privacy.laplace_mechanism import laplace
from edgeveil.privacy.sampler import RandomBytes, discrete_gaussian
from edgeveil.subnormals import flushed


def triangle_size(d: int) -> int:
    return d * (d + 1) // 2


def upper(matrix: NDArray[np.generic]) -> NDArray[np.generic]:
    return matrix[np.triu_indices(len(matrix))]


def symmetric(triangle: NDArray[np.generic], d: int) -> NDArray[np.float64]:
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    return matrix + np.triu(matrix, 1).T


def unpacked(triangle: NDArray[np.float32], d: int) -> NDArray[np.float32]:
    """As `symmetric`, cached, since a job broadcasts one curvature every round. Do not write to
    it."""
    return _unpacked(triangle.tobytes(), d)


@lru_cache(maxsize=2)
def _unpacked(raw: bytes, d: int) -> NDArray[np.float32]:
    return symmetric(np.frombuffer(raw, np.float32), d).astype(np.float32)


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
def features_of(records: Records, setting: MethodContext) -> Features:
    """Features of the valid records; the others are dropped."""
    mask = setting.learned_from(records)
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


def shrunk(intercept: int) -> int:
    """a in steps of 2**-12, the largest with a² + i² <= 1; i = `intercept` in the same steps."""
    return math.isqrt((1 << 2 * GRID_BITS) - intercept**2)


def with_intercept(z: Bounded, intercept: int) -> Bounded:
    """(a·z, i) in place of z, i = `intercept` steps of 2**-12, a² + i² <= 1: of norm 1 at most. In
    integers, toward zero."""
    factor = shrunk(intercept)
    steps = np.empty((len(z.steps), z.steps.shape[1] + 1), np.int16)
    squared = np.empty(len(steps), np.int64)
    for rows in blocks(len(steps)):
        given = z.steps[rows].astype(np.int64)
        steps[rows, :-1] = np.sign(given) * (np.abs(given) * factor >> GRID_BITS)
        steps[rows, -1] = intercept
        squared[rows] = squared_norms(steps[rows].astype(np.int64))
    return Bounded(steps, squared, z.labels)


class FeatureCache:
    """Features of data sets, then z for the last basis and centre. A data set is known by identity
    (`Records`) and not kept alive."""

    def __init__(self, setting: MethodContext) -> None:
        self._setting = setting
        self._features: WeakKeyDictionary[Records, Features] = WeakKeyDictionary()
        self._bounded: WeakKeyDictionary[Records, tuple[Key, Bounded]] = WeakKeyDictionary()

    def features(self, records: Records) -> Features:
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


# A record's share of each released sum: bounded, on the grid, and exact.
#
# Each function maps rows of bounded integers to the integer sum over records, on the grid 2**-24.
# One record changes it by at most the stated norm, whatever the record holds and whatever the
# others are.

PRODUCT_BITS = 2 * GRID_BITS
LARGEST_L1 = 2 << GRID_BITS  # of p - y, or of a difference of numbers


def check_sizes(setting: MethodContext) -> None:
    """Raise PrivacyError for sizes at which exact sums could overflow, so that no record decides
    whether there is an answer.

    With at most 2**22 features and classes, in steps: φ·B is below 2**61, a logit below
    2**22·2**12·2**28 = 2**62 (`max_weight` <= 2**16), a released value at most 2**29 a record.
    """
    for count, what, where in (
        (setting.feature_dimension, "features", "features"),
        (setting.classes, "classes", "data.classes"),
    ):
        if count > LARGEST_DIMENSION:
            raise PrivacyError(
                f"{count} {what} do not fit exact integers",
                where=where,
                fix=f"use at most {LARGEST_DIMENSION} {what}",
            )


def covariance_sum(phi: Features) -> Int64:
    """Upper triangle of Σφφᵀ (D(D+1)/2,); Frobenius norm per record at most 1."""
    total = np.zeros((phi.steps.shape[1],) * 2, np.int64)
    for rows in blocks(len(phi.steps)):
        fine = phi.steps[rows]
        total += exact_gram(np.sign(fine) * (np.abs(fine) >> (FEATURE_BITS - GRID_BITS)))
    return np.asarray(upper(total), dtype=np.int64)


def centre_sum(phi: Features) -> Int64:
    """Σφ (d,); L2 norm per record at most 1."""
    return np.asarray(phi.steps.sum(axis=0, dtype=np.int64))


def quadratic_sum(z: Bounded) -> Int64:
    """Upper triangle of Σzzᵀ (d(d+1)/2,); Frobenius norm per record at most 1."""
    return np.asarray(upper(exact_gram(z.steps)), dtype=np.int64)


def linear_sum(z: Bounded, weight_steps: Int64, clip: float, *, regression: bool = False) -> Int64:
    """Σ z(p - y)ᵀ (d, c), each record clipped to Frobenius norm `clip`.

    p = softmax(Wᵀz), or with `regression` Wᵀz, and y the number t. W (d, c) is on the grid 2**-12,
    so logits are exact integers on 2**-24.
    """
    residual_of, sound = _residual, _of_a_residual
    if regression:
        residual_of, sound = _difference, _of_a_difference
    total = np.zeros(weight_steps.shape, np.int64)
    limit = int(clip * 2.0**PRODUCT_BITS) ** 2
    for rows in blocks(len(z.steps)):
        steps, squared = z.steps[rows], z.squared[rows]
        residual = residual_of(exact_matmul(steps, weight_steps), z.labels[rows])
        norm = np.sqrt(squared.astype(np.float64)) * 2.0**-GRID_BITS
        factors = quantise(clip_rows(residual, clip / np.maximum(norm, 1e-9)), 2.0)
        # The outer product's norm is the product of the norms: check it in integers.
        within = squared * squared_norms(factors) <= limit
        within &= sound(factors, z.labels[rows])
        total += exact_matmul(steps.T, np.where(within[:, None], factors, 0))
    return total


def _residual(logit_steps: Int64, labels: Int64) -> Float64:
    residual = _softmax(logit_steps.astype(np.float64) * 2.0**-PRODUCT_BITS)
    residual[np.arange(len(labels)), labels] -= 1.0
    return residual


def _of_a_residual(factors: Int64, labels: Int64) -> NDArray[np.bool_]:
    """Mask (n,): ‖r‖₁ <= 2 and the label's entry weighs what all others do, up to one step. The L1
    sensitivity rests on it."""
    sizes = np.abs(factors)
    total, own = sizes.sum(axis=1), sizes[np.arange(len(labels)), labels]
    within: NDArray[np.bool_] = (total <= LARGEST_L1) & (total <= 2 * own + 1)
    return within


def _difference(logit_steps: Int64, labels: Int64) -> Float64:
    found: Float64 = logit_steps.astype(np.float64) * 2.0**-PRODUCT_BITS - scaled(labels)[:, None]
    return found


def _of_a_difference(factors: Int64, labels: Int64) -> NDArray[np.bool_]:
    """Mask (n,): |r| <= 2, whatever the labels; the L1 sensitivity rests on it."""
    within: NDArray[np.bool_] = np.abs(factors[:, 0]) <= LARGEST_L1
    return within


def _softmax(logits: Float64) -> Float64:
    """Softmax over rows (n, c), each a function of itself bit for bit: `math.exp` per value and one
    addition per class, since vectorised exponentials may differ in an array's tail."""
    shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    flat = np.fromiter(map(math.exp, shifted.ravel().tolist()), np.float64, shifted.size)
    powers: Float64 = flat.reshape(shifted.shape)
    total = np.zeros(len(powers))
    for column in powers.T:
        total = total + column
    return powers / np.maximum(total, 1.0)[:, None]


def noised(total: Int64, event: Event, random_bytes: RandomBytes) -> Int64:
    """`total`, in steps, plus the event's noise; of shared noise the device's own part."""
    event = as_single(event)
    if isinstance(event, GaussianEvent):
        return gaussian(total, event, random_bytes)[0]
    if isinstance(event, LaplaceEvent):
        return laplace(total, event, random_bytes)[0]
    if isinstance(event, ClaimedEvent):
        source = bound(random_bytes, event, total)
        return total + wishart(total.size, event.claimed_epsilon, source)
    raise PrivacyError(f"'{event.what}' states no noise")


def wishart(size: int, epsilon: float, random_bytes: RandomBytes) -> Int64:
    """Upper triangle (`size`,) of ZZᵀ, Z (D, D+1) with entries N(0, 1/(2ε)), as DELM, alg. 2; in
    steps of 2**-24. No guarantee is proven for it."""
    d = len(diagonal_of_triangle(size))
    variance = Fraction(1 << PRODUCT_BITS) / (2 * Fraction(epsilon))
    z = discrete_gaussian(variance, (d, d + 1), random_bytes)
    return np.asarray(upper(exact_matmul(z, z.T)), dtype=np.int64)


BASIS_BITS = 14  # entries of an orthonormal basis are at most 1, so they fit int16
AXES_SEED = 0  # of public axes, by no means a secret
Basis = NDArray[np.int16]


def first_axes(features: int, kept: int) -> Basis:
    """The basis (D, d) that keeps the first d of D features; stands where there is none yet."""
    axes: Basis = np.eye(features, kept, dtype=np.int16) << BASIS_BITS
    return axes


def top_basis(triangle: NDArray[np.generic], features: int, kept: int) -> Basis:
    """Orthonormal basis (D, d = kept) of the d leading eigenvectors' span, on 2**-14.

    `triangle` is the covariance's; values not finite count as 0. The basis is the one nearest to
    public axes (orthogonal Procrustes, Schönemann 1966): eigenvectors' signs and order are
    arbitrary, and parties with nearly one covariance must share coordinates.
    """
    finite = np.nan_to_num(triangle.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    _, vectors = np.linalg.eigh(symmetric(finite, features))
    leading = vectors[:, features - kept :]
    left, _, right = np.linalg.svd(leading.T @ _public_axes(features, kept))
    steps: Basis = np.rint(leading @ (left @ right) * 2**BASIS_BITS).astype(np.int16)
    return steps


def as_weights(basis: Basis) -> NDArray[np.float32]:
    """The same basis as the ONNX graph takes it, exactly."""
    return basis.astype(np.float32) * np.float32(2.0**-BASIS_BITS)


@lru_cache(maxsize=2)
def _public_axes(features: int, kept: int) -> NDArray[np.float64]:
    """Orthonormal columns (D, d) in random directions, the same for all."""
    return np.linalg.qr(np.random.default_rng(AXES_SEED).normal(size=(features, kept)))[0]


def own_weights(setting: MethodContext, records: Records | None) -> Mapping[str, Array]:
    """With `local_pca` the weight `basis` (D, d) of the PCA of `records`, else nothing. For the
    cloud's own test records alone: it has no noise."""
    projection = setting.projection
    if records is None or projection is None or projection.name != "local_pca":
        return MappingProxyType({})
    return MappingProxyType({"basis": _own_basis(setting, records)})


@lru_cache(maxsize=2)
def _own_basis(setting: MethodContext, records: Records) -> Array:
    covariance = covariance_sum(features_of(records, setting))
    return as_weights(top_basis(covariance, setting.feature_dimension, setting.dimension))
