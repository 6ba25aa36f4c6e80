"""What `fm` and the methods beside it release of records: parameters, exact sums, noise and budget.

Each row of features is a function of its own record, rounded toward zero to steps of 2**-24; a PCA
basis is applied in exact integers. Symmetric matrices travel as flat upper triangles, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from edgeveil.data.records import Records
from edgeveil.data.target import scaled
from edgeveil.errors import PrivacyError
from edgeveil.parts.features.feature_map import COVARIANCE, PcaParameters
from edgeveil.parts.method_context import MethodContext, MethodParameters
from edgeveil.parts.part import PartBlock
from edgeveil.parts.round import TRAIN, Array, PlannedRound
from edgeveil.privacy.accountant import HAIR, discreteness_tv, epsilon, mu_for, pure_epsilon
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import (
    ClaimedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    as_single,
    as_summed,
)
from edgeveil.privacy.gaussian_mechanism import (
    Layout,
    diagonal_of_triangle,
    gaussian,
    gaussian_event,
    shared_gaussian,
)
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
from edgeveil.privacy.laplace_mechanism import laplace, laplace_event, noise_room, scale_of
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
def features_of(records: Records, context: MethodContext) -> Features:
    """Features of the valid records; the others are dropped."""
    mask = context.learned_from(records)
    x, labels = records.x[mask], records.y[mask]
    steps = np.empty((len(labels), context.feature_dimension), np.int32)
    for rows in blocks(len(labels)):
        steps[rows] = quantise(context.features(x[rows]), 1.0, bits=FEATURE_BITS)
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

    def __init__(self, context: MethodContext) -> None:
        self._context = context
        self._features: WeakKeyDictionary[Records, Features] = WeakKeyDictionary()
        self._bounded: WeakKeyDictionary[Records, tuple[Key, Bounded]] = WeakKeyDictionary()

    def features(self, records: Records) -> Features:
        found = self._features.get(records)
        if found is None:
            found = self._features[records] = features_of(records, self._context)
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


def check_sizes(context: MethodContext) -> None:
    """Raise PrivacyError for sizes at which exact sums could overflow, so that no record decides
    whether there is an answer.

    With at most 2**22 features and classes, in steps: φ·B is below 2**61, a logit below
    2**22·2**12·2**22 = 2**56 (MAX_WEIGHT = 2**10), a released value at most 2**29 a record.
    """
    for count, what, where in (
        (context.feature_dimension, "features", "features"),
        (context.classes, "classes", "data.classes"),
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


def own_weights(context: MethodContext, records: Records | None) -> Mapping[str, Array]:
    """With `local_pca` the weight `basis` (D, d) of the PCA of `records`, else nothing. For the
    cloud's own test records alone: it has no noise."""
    projection = context.projection
    if records is None or projection is None or projection.name != "local_pca":
        return MappingProxyType({})
    return MappingProxyType({"basis": _own_basis(context, records)})


@lru_cache(maxsize=2)
def _own_basis(context: MethodContext, records: Records) -> Array:
    covariance = covariance_sum(features_of(records, context))
    return as_weights(top_basis(covariance, context.feature_dimension, context.dimension))


class Shares(PartBlock):
    """Budget shares of the preparatory sums, of μ² (Gaussian) or ε (Laplace); training gets the
    rest, and the share of a sum that is not released. A PCA takes its share first."""

    centre: float = Field(default=0.02, gt=0, lt=1)
    """Share for the sum of the features."""
    quadratic: float = Field(default=0.2, gt=0, lt=1)
    """Share for the sum of the quadratic terms."""

    @model_validator(mode="after")
    def _leave_a_rest(self) -> Self:
        if self.centre + self.quadratic >= 1:
            raise ValueError("centre and quadratic must leave a share for the training rounds")
        return self


class FmParameters(MethodParameters):
    """The `train` block of a job with `method: fm`. Hessian bound: Böhning (1992)."""

    method: Literal["fm"] = "fm"
    """The re-expanded functional mechanism for a softmax head, or of a number for a linear one."""
    rounds: int = Field(default=15, ge=1, le=10_000)
    """Training rounds, one Taylor expansion each; preparation rounds are not counted."""
    noise: Literal["gaussian", "laplace"] = "gaussian"
    """`gaussian`: (ε, δ). `laplace`: pure ε, with far more noise where there are many features."""
    centre: bool = True
    """Release the sum of the features, so that they can be centred; false: the centre is 0."""
    quadratic: Literal["once", "never"] = "once"
    """`once`: the curvature comes from a released sum. `never`: it is alike in all directions."""
    clip: float = Field(default=0.6, gt=0, le=2.0)
    """L2 bound on one record's linear coefficients; smaller: less noise, more bias."""
    radius: float = Field(default=0.7, ge=1e-3, le=2.0)
    """L2 bound on one record's centred features; public, never taken from the data."""
    ridge: float = Field(default=0.3, gt=0, le=1e3)
    """Ridge, as a multiple of the noise level in the averaged sums."""
    curvature: float = Field(default=0.5, gt=0, le=1.0)
    """Bound on the softmax Hessian; 0.5 is Böhning's, smaller takes longer steps. Not for a label
    that is a number: there the loss is a polynomial itself, and its Hessian known."""
    shares: Shares = Shares()
    """Shares of the budget for the preparatory sums."""
    local_steps: int = Field(default=20, ge=1, le=1000)
    """Steps each device takes on its own noised polynomial in a round; they cost no ε."""
    average_from: float = Field(default=0.7, ge=0, lt=1)
    """Part of the rounds after which the model is the average of the iterates."""
    intercept: bool = True
    """Whether each class has an intercept, so that how frequent it is can be learned; inside the
    bound on a record, its size by a public formula. Of a number there always is one."""

    left_out: ClassVar[Mapping[str, Any]] = {"intercept": False}

    @property
    def bias(self) -> bool:
        return self.intercept


MAX_WEIGHT = 1024.0  # largest absolute value of a weight
NUMBER_INTERCEPT = 1 << (GRID_BITS - 1)  # i = 1/2, of a label that is a number
LARGEST_INTERCEPT = 0.3 * 2**GRID_BITS  # of two classes, without noise
HALVING_NOISE = 0.02  # of which i is half of that


def head_shape(parameters: FmParameters, context: MethodContext) -> tuple[int, int]:
    """Rows and columns of the head: (d, classes), one row more for the intercept; (d + 1, 1) of a
    number."""
    if context.regression:
        return (context.dimension + 1, 1)
    return (context.dimension + int(parameters.intercept), context.classes)


# What `fm` releases, phase by phase: size, and how far one record moves it, in integer steps.
#
# The bounds hold for every record and every broadcast; the proofs are in `docs/privacy.md`.

CENTRE, QUADRATIC = "centre", "quadratic"
# Gaussian sums are moved to the grid 2**-28, so that the noise has 2**20 steps and more; Laplace
# noise is exactly priced on any grid and stays on that of the products.
GAUSSIAN_BITS, LAPLACE_BITS = 28, PRODUCT_BITS
LOCAL_BASIS = ClaimedEvent(
    what="basis of the device's own PCA, without noise",
    unit="record",
    claimed_epsilon=0.0,
    source="DELM, section 6: projecting by it is taken to cost nothing",
)


def phases(parameters: FmParameters, projection: PcaParameters | None) -> tuple[str, ...]:
    """The preparation rounds, in order; each is released once."""
    wanted = (
        (COVARIANCE, projection is not None and projection.name != "local_pca"),
        (CENTRE, parameters.centre),
        (QUADRATIC, parameters.quadratic == "once"),
    )
    return tuple(phase for phase, asked in wanted if asked)


@dataclass(frozen=True)
class ReleasedSum:
    """A sum over records before noise. `l2` is in units, the Frobenius norm of a symmetric matrix;
    `l1_steps` counts the sent values in steps of 2**-24."""

    what: str
    size: int
    l2: float
    l1_steps: int
    layout: Layout = "vector"

    def gaussian(self, mu: float) -> GaussianEvent:
        steps = int(self.l2 * 2.0**GAUSSIAN_BITS)
        return gaussian_event(
            self.what, steps, mu, self.size, grid_bits=GAUSSIAN_BITS, layout=self.layout
        )

    def laplace(self, epsilon: float) -> LaplaceEvent:
        steps = self.l1_steps
        return laplace_event(self.what, steps, steps, epsilon, self.size, LAPLACE_BITS)


def released_sum(phase: str, parameters: FmParameters, context: MethodContext) -> ReleasedSum:
    """The sum of a preparatory phase, or of the linear terms.

    L1 of z·rᵀ, r = p - y clipped, is ‖z‖₁·‖r‖₁: at most 2√d, and at most 2√(d(c - 1)/c)·clip, since
    r's entry at the label weighs as much as all others (up to one step of 2**-12). A number's r is
    one value: at most 2√d, and √d·clip. d counts the intercept.
    """
    (d, c), features = head_shape(parameters, context), context.feature_dimension
    one = 1 << PRODUCT_BITS
    if phase == COVARIANCE:
        return products_sum("covariance of the features", features)
    if phase == QUADRATIC:
        return products_sum("sum of quadratic terms", d)
    if phase == CENTRE:
        return features_sum(context.dimension)
    widest = math.isqrt(d * one)  # ‖z‖₁ in steps of 2**-12
    limit = int(parameters.clip * one) ** 2
    by_factors = widest * LARGEST_L1
    if context.regression:
        by_norm = math.isqrt(d * limit)
    else:
        by_norm = math.isqrt(4 * d * (c - 1) * limit // c) + 1 + widest
    return ReleasedSum("sum of linear terms", d * c, parameters.clip, min(by_factors, by_norm))


def features_sum(d: int) -> ReleasedSum:
    """Σφ of d features of norm 1 at most, so ‖φ‖₁ <= √d."""
    one = 1 << PRODUCT_BITS
    return ReleasedSum("sum of features", d, 1.0, math.isqrt(d * one * one))


def products_sum(what: str, d: int) -> ReleasedSum:
    """Triangle of Σzzᵀ, z (d,) of norm 1 at most: its L1 is (‖z‖₁² + ‖z‖²)/2 <= (d + 1)/2."""
    return ReleasedSum(what, triangle_size(d), 1.0, (d + 1) << (PRODUCT_BITS - 1), "symmetric")


@dataclass(frozen=True)
class Budget:
    """The event of each released phase in order; TRAIN is one round's. `tainted` goes with every
    answer where the basis comes from records without noise."""

    events: Mapping[str, Event]
    participations: int
    tainted: tuple[Event, ...] = ()

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (self.events[round.phase], *self.tainted)

    def job_events(self) -> tuple[Event, ...]:
        once = [event for phase, event in self.events.items() if phase != TRAIN]
        every = (*once, *[self.events[TRAIN]] * self.participations)
        return (*every, *self.tainted * len(every))

    def grid_bits(self, phase: str) -> int:
        event = as_single(self.events[phase])
        if isinstance(event, GaussianEvent | LaplaceEvent):
            return event.grid_bits
        return PRODUCT_BITS

    def on_grid(self, phase: str, total: Int64, context: MethodContext) -> Int64:
        """An exact sum on the grid of its phase; where it is summed cut off at the room of one."""
        moved = total << (self.grid_bits(phase) - PRODUCT_BITS)
        if not context.summed:
            return moved
        room = self.room(phase, context.nominal_records)
        within: Int64 = np.clip(moved, -room, room)
        return within

    def room(self, phase: str, nominal_records: int) -> int:
        """Public bound on one device's sum where it is summed, in steps: the nominal records at
        their largest. It is cut before the noise, so no two sums move further apart."""
        event = as_single(self.events[phase])
        if isinstance(event, GaussianEvent):
            return nominal_records * event.sensitivity_steps
        return nominal_records << self.grid_bits(phase) + 1

    def largest(self, phase: str, nominal_records: int) -> int:
        """Public bound on a noised value, in steps, passed with a chance below 2^-40 for 2^60
        values: 12 σ for a normal value (Mills' ratio, 2·Q(12) < 2^-107), `noise_room` for Laplace.
        """
        event, room = as_single(self.events[phase]), self.room(phase, nominal_records)
        if isinstance(event, LaplaceEvent):
            return room + noise_room(event)
        if isinstance(event, GaussianEvent):  # that on a diagonal, which is the widest
            return room + math.ceil(12 * math.sqrt(event.sigma_squared))
        return room

    def noise_variance(self, phase: str) -> float:
        """Variance of one value of a device's sum, off a matrix's diagonal, in units²."""
        event = as_single(self.events[phase])
        steps = 0.0
        if isinstance(event, GaussianEvent):
            steps = float(event.finest_sigma_squared)
        elif isinstance(event, LaplaceEvent):
            steps = 2.0 * float(scale_of(event)) ** 2
        return steps * 4.0 ** -self.grid_bits(phase)


@dataclass(frozen=True)
class _Split:
    """The covariance's share, and what is left. All Gaussian: a share of μ² (composes by Σμ²), both
    ε the job's. Two kinds: ε itself is shared and prices add up."""

    first: float
    one_kind: bool
    own_epsilon: float
    rest_epsilon: float


def _split(parameters: FmParameters, context: MethodContext) -> _Split:
    projection, whole = context.projection, context.epsilon
    if projection is None or COVARIANCE not in phases(parameters, projection):
        one_kind = parameters.noise == "gaussian"
        return _Split(0.0, one_kind, whole, whole if one_kind else whole * HAIR)
    first = projection.share
    if parameters.noise == projection.noise == "gaussian":
        return _Split(first, True, whole, whole)
    return _Split(first, False, whole * first * HAIR, whole * (1 - first) * HAIR)


def budget(parameters: FmParameters, context: MethodContext) -> Budget:
    """Noise for which a device's whole part is (ε, δ)-DP per record. Raises as `settled`."""
    split = _split(parameters, context)
    of_gaussian = split.own_epsilon if parameters.noise == "laplace" else split.rest_epsilon
    return settled(partial(_share_out, parameters, context, split), context, of_gaussian)


def settled(
    made: Callable[[float], Budget], context: MethodContext, gaussian_epsilon: float
) -> Budget:
    """The budget that `made` gives for a δ, such that it costs the context's (ε, δ) at most.

    Part of δ is set aside for the discreteness of Gaussian noise, which depends on the noise: a few
    rounds settle it. Raises PrivacyError if the grid is too coarse for (ε, δ), or for so many
    features.
    """
    check_sizes(context)
    reserve = 0.0
    for _ in range(8):
        if reserve < context.delta:
            result = made(context.delta - reserve)
            if _costs(result, context.delta) <= context.epsilon:
                return result
            tv = math.fsum(discreteness_tv(event) for event in _gaussians(result))
            worst = math.exp(gaussian_epsilon)
            reserve = 1.1 * (1 + worst) * tv + 1e-6 * context.delta
    raise PrivacyError(
        f"the noise grid is too coarse for ε = {context.epsilon:g}, δ = {context.delta:g}",
        where="privacy.epsilon",
        fix="lower epsilon or raise delta",
    )


def _gaussians(result: Budget) -> list[GaussianEvent]:
    events = map(as_summed, result.job_events())
    return [event for event in events if isinstance(event, GaussianEvent)]


def _costs(result: Budget, delta: float) -> float:
    """ε of the whole part by basic composition of its kinds; infinite while discreteness uses up
    δ."""
    events = result.job_events()
    pure = pure_epsilon(event for event in events if isinstance(event, LaplaceEvent))
    claimed = sum(event.claimed_epsilon for event in events if isinstance(event, ClaimedEvent))
    try:
        return epsilon(_gaussians(result), delta).epsilon + float(pure) + claimed
    except PrivacyError:
        return math.inf


def _share_out(
    parameters: FmParameters, context: MethodContext, split: _Split, delta: float
) -> Budget:
    events: dict[str, Event] = {}
    if split.first:
        events[COVARIANCE] = _covariance_event(parameters, context, split, delta)
    times = min(context.max_participations, parameters.rounds)
    names = phases(parameters, context.projection)
    shares = {CENTRE: parameters.shares.centre, QUADRATIC: parameters.shares.quadratic}
    shares = {phase: share for phase, share in shares.items() if phase in names}
    shares[TRAIN] = (1.0 - sum(shares.values())) / times
    mu = 0.0
    if parameters.noise == "gaussian":
        mu = mu_for(split.rest_epsilon, delta)
        mu *= math.sqrt(1 - split.first) if split.one_kind else 1.0
    for phase, share in shares.items():
        released = released_sum(phase, parameters, context)
        if parameters.noise == "gaussian":
            events[phase] = shared_gaussian(
                released.gaussian(mu * math.sqrt(share)), context.honest
            )
        else:
            events[phase] = released.laplace(split.rest_epsilon * share)
    local = context.projection is not None and context.projection.name == "local_pca"
    return Budget(events, times, (LOCAL_BASIS,) if local else ())


def _covariance_event(
    parameters: FmParameters, context: MethodContext, split: _Split, delta: float
) -> Event:
    if context.projection is not None and context.projection.noise == "wishart":
        return ClaimedEvent(
            what="covariance with Wishart noise",
            unit="record",
            claimed_epsilon=split.own_epsilon,
            source="DELM, alg. 2: pure ε, which does not hold (docs/privacy.md)",
        )
    mu = mu_for(split.own_epsilon, delta) * (math.sqrt(split.first) if split.one_kind else 1.0)
    return shared_gaussian(
        released_sum(COVARIANCE, parameters, context).gaussian(mu), context.honest
    )


def intercept_steps(
    parameters: FmParameters, context: MethodContext, settled_budget: Budget
) -> int:
    """i, beside z for the intercept, in steps of 2**-12; 0: none. Of classes it follows from the
    noise in the mean linear sum of `context.devices` devices, so from public numbers alone."""
    if context.regression:
        return NUMBER_INTERCEPT
    if not parameters.intercept:
        return 0
    noise = math.sqrt(settled_budget.noise_variance(TRAIN) / context.devices)
    noise /= context.nominal_records
    largest = LARGEST_INTERCEPT * math.sqrt(2 / context.classes)
    return int(largest / (1 + noise / HALVING_NOISE))
