"""Exact sums over records that `fm` and related methods release, with their noise and budget.

Each row of features depends only on its own record and is rounded toward zero to steps of 2**-24; a
PCA basis is applied in exact integers. Symmetric matrices are sent as flat upper triangles, row by
row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from edgeveil.data.records import Records, grouped
from edgeveil.data.target import scaled
from edgeveil.errors import PrivacyError
from edgeveil.parts.features.feature_map import COVARIANCE, PcaParameters
from edgeveil.parts.method_context import MethodContext, MethodParameters
from edgeveil.parts.part import Keys
from edgeveil.parts.round import TRAIN, Array, PlannedRound
from edgeveil.privacy.accountant import HAIR, discreteness_tv, epsilon, mu_for, pure_epsilon
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import (
    ClaimedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Unit,
    as_single,
    as_summed,
)
from edgeveil.privacy.gaussian_mechanism import (
    Layout,
    diagonal_of_triangle,
    gaussian,
    gaussian_event,
    hiding,
    shared_gaussian,
)
from edgeveil.privacy.grid import (
    GRID_BITS,
    LARGEST_DIMENSION,
    Float64,
    Int64,
    Integers,
    clip_rows,
    clip_sum,
    clipped_slack,
    exact_gram,
    exact_matmul,
    quantise,
    squared_norms,
)
from edgeveil.privacy.laplace_mechanism import laplace, laplace_event, noise_room, scale_of
from edgeveil.privacy.sampler import RandomBytes, discrete_gaussian
from edgeveil.subnormals import flushed

FEATURE_BITS = 24
BLOCK = 4096  # rows at a time: bounds memory; a multiple of the 64 rows of one norm
Key = tuple[bytes, ...]


def triangle_size(d: int) -> int:
    return d * (d + 1) // 2


def upper(matrix: NDArray[np.generic]) -> NDArray[np.generic]:
    return matrix[np.triu_indices(len(matrix))]


def symmetric(triangle: NDArray[np.generic], d: int) -> NDArray[np.float64]:
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    return matrix + np.triu(matrix, 1).T


@lru_cache(maxsize=2)
def unpacked(triangle: bytes, d: int) -> NDArray[np.float32]:
    """Return `symmetric` as float32, cached over the rounds; do not modify."""
    return symmetric(np.frombuffer(triangle, np.float32), d).astype(np.float32)


@dataclass(frozen=True)
class Rows:
    """Rows of norm at most 1: φ (n, k) int32 in steps of 2**-24, or z (n, d) int16 of 2**-12.

    `owners` (n,) numbers the unit of each row; None: each row is one."""

    steps: Integers
    labels: Int64
    owners: Int64 | None = None

    def made(
        self, width: int, kind: type[np.signedinteger[Any]], make: Callable[[Integers], Int64]
    ) -> Rows:
        """Return rows of another width; `make` must treat each row of a block alone."""
        steps = np.empty((len(self.labels), width), kind)
        for rows in blocks(len(steps)):
            steps[rows] = make(self.steps[rows])
        return replace(self, steps=steps)

    def clipped_sum(self, of: Callable[[Rows], Int64], limit: int) -> Int64:
        """Return the sum `of` all rows, each unit's part clipped to L2 norm `limit`.

        A single row's part must be within it."""
        if self.owners is None:
            return of(self)
        groups = grouped(self.owners)
        alone = [group for group in groups if len(group) == 1]
        total = of(self._at(np.sort(np.concatenate([np.empty(0, np.int64), *alone]))))
        for group in groups:
            if len(group) > 1:
                total += clip_sum(of(self._at(group)), limit)
        return total

    def _at(self, chosen: Int64) -> Rows:
        return Rows(self.steps[chosen], self.labels[chosen])


def blocks(count: int) -> Iterator[slice]:
    """Yield slices over `count` rows, at least one, so that no data set skips a step."""
    for start in range(0, max(1, count), BLOCK):
        yield slice(start, start + BLOCK)


@flushed()
def features_of(records: Records, context: MethodContext) -> Rows:
    mask = context.learned_from(records)
    x, labels = records.x[mask], records.y[mask]
    steps = np.empty((len(labels), context.feature_dimension), np.int32)
    for rows in blocks(len(labels)):
        steps[rows] = quantise(context.features(x[rows]), 1.0, bits=FEATURE_BITS)
    owners = records.owners(context.unit)
    return Rows(steps, labels, None if owners is None else owners[mask])


def projected(phi: Rows, basis: Basis) -> Rows:
    """Return φ·B clipped to norm 1, since a sent B need not be orthonormal."""
    scale = 2.0 ** -(FEATURE_BITS + BASIS_BITS)

    def make(steps: Integers) -> Int64:
        product = exact_matmul(steps, basis).astype(np.float64)
        return quantise(product * scale, 1.0, bits=FEATURE_BITS)

    return phi.made(basis.shape[1], np.int32, make)


def bounded(phi: Rows, centre: NDArray[np.generic], radius: float) -> Rows:
    """Return z = clip(φ - centre, radius)/radius; any `centre` (d,) is safe."""

    def make(steps: Integers) -> Int64:
        with np.errstate(over="ignore", invalid="ignore"):
            centred = steps.astype(np.float64) * 2.0**-FEATURE_BITS - centre.astype(np.float64)
        return quantise(clip_rows(centred, radius) / radius, 1.0)

    return phi.made(len(centre), np.int16, make)


def shrunk(intercept: int) -> int:
    """Return the largest a with a² + i² <= 1, i = `intercept`, in steps of 2**-12."""
    return math.isqrt((1 << 2 * GRID_BITS) - intercept**2)


def with_intercept(z: Rows, intercept: int) -> Rows:
    """Return (a·z, i) for z, i = `intercept` steps of 2**-12: a² + i² <= 1, rounded toward zero."""
    factor = shrunk(intercept)

    def make(steps: Integers) -> Int64:
        given = steps.astype(np.int64)
        less = np.sign(given) * (np.abs(given) * factor >> GRID_BITS)
        return np.pad(less, ((0, 0), (0, 1)), constant_values=intercept)

    return z.made(z.steps.shape[1] + 1, np.int16, make)


class RowCache:
    """Cache of each data set's last rows: φ, then z for one basis and centre."""

    def __init__(self, context: MethodContext) -> None:
        self._context = context
        self._kept: WeakKeyDictionary[Records, tuple[Key, Rows]] = WeakKeyDictionary()

    def features(self, records: Records) -> Rows:
        return self.rows(records, (), lambda phi: phi)

    def rows(self, records: Records, key: Key, make: Callable[[Rows], Rows]) -> Rows:
        """Return `make(φ)`; `key` holds the bytes of its other inputs."""
        before, found = self._kept.get(records, (None, None))
        if found is None or before != key:
            phi = found if found is not None and before == () else None
            found = make(features_of(records, self._context) if phi is None else phi)
            self._kept[records] = (key, found)
        return found


# Released sums. Each function maps rows of bounded integers to the exact integer sum over records,
# on the grid 2**-24. Any one record, or other unit, changes a sum by at most the stated norm.

PRODUCT_BITS = 2 * GRID_BITS
ONE = 1 << PRODUCT_BITS
LARGEST_L1 = 2 << GRID_BITS  # of p - y, or of a difference of numbers


def check_sizes(context: MethodContext) -> None:
    """Raise PrivacyError for sizes at which exact sums could overflow, whatever the records.

    With at most 2**22 features and classes, in steps: φ·B is below 2**61, a logit below
    2**22·2**12·2**22 = 2**56 (MAX_WEIGHT = 2**10), a released value at most 2**29 per record."""
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


def covariance_sum(phi: Rows) -> Int64:
    """Return the upper triangle of Σφφᵀ (D(D+1)/2,); Frobenius norm per record at most 1."""

    def gram(some: Rows) -> Int64:
        total = np.zeros((some.steps.shape[1],) * 2, np.int64)
        for rows in blocks(len(some.steps)):
            fine = some.steps[rows]
            total += exact_gram(np.sign(fine) * (np.abs(fine) >> (FEATURE_BITS - GRID_BITS)))
        return total

    return np.asarray(upper(phi.clipped_sum(gram, ONE)), dtype=np.int64)


def centre_sum(phi: Rows) -> Int64:
    """Return Σφ (d,); L2 norm per record at most 1."""
    total = phi.clipped_sum(lambda some: some.steps.sum(axis=0, dtype=np.int64), ONE)
    return np.asarray(total)


def quadratic_sum(z: Rows) -> Int64:
    """Return the upper triangle of Σzzᵀ (d(d+1)/2,); Frobenius norm per record at most 1."""
    total = z.clipped_sum(lambda some: exact_gram(some.steps), ONE)
    return np.asarray(upper(total), dtype=np.int64)


def linear_sum(z: Rows, weight_steps: Int64, clip: float, *, regression: bool = False) -> Int64:
    """Return Σ z(p - y)ᵀ (d, c), each record and each unit clipped to Frobenius norm `clip`.

    p = softmax(Wᵀz), for `regression` Wᵀz. W (d, c) is on 2**-12: exact integer logits on 2**-24.
    """
    limit = int(clip * 2.0**PRODUCT_BITS)
    return z.clipped_sum(partial(_linear, weight_steps, clip, regression), limit)


def _linear(weight_steps: Int64, clip: float, regression: bool, z: Rows) -> Int64:
    total = np.zeros(weight_steps.shape, np.int64)
    limit = int(clip * 2.0**PRODUCT_BITS) ** 2
    for rows in blocks(len(z.steps)):
        steps, labels = z.steps[rows], z.labels[rows]
        squared = squared_norms(steps.astype(np.int64))
        outputs = exact_matmul(steps, weight_steps).astype(np.float64) * 2.0**-PRODUCT_BITS
        residual = outputs - scaled(labels)[:, None] if regression else _residual(outputs, labels)
        norm = np.sqrt(squared.astype(np.float64)) * 2.0**-GRID_BITS
        factors = quantise(clip_rows(residual, clip / np.maximum(norm, 1e-9)), 2.0)
        # The outer product's norm is the product of the norms: check it in integers.
        within = squared * squared_norms(factors) <= limit
        within &= _l1_bounded(factors, None if regression else labels)
        total += exact_matmul(steps.T, np.where(within[:, None], factors, 0))
    return total


def _residual(logits: Float64, labels: Int64) -> Float64:
    residual = _softmax(logits)
    residual[np.arange(len(labels)), labels] -= 1.0
    return residual


def _l1_bounded(factors: Int64, labels: Int64 | None) -> NDArray[np.bool_]:
    """Return a mask (n,) of records that keep the bounds behind the L1 sensitivity of `priced_sum`.

    ‖r‖₁ <= 2, and for classes the label's entry equals the sum of all others, up to one step."""
    sizes = np.abs(factors)
    total = sizes.sum(axis=1)
    within: NDArray[np.bool_] = total <= LARGEST_L1
    if labels is not None:
        within &= total <= 2 * sizes[np.arange(len(labels)), labels] + 1
    return within


def _softmax(logits: Float64) -> Float64:
    """Return the softmax of rows (n, c), each bit for bit a function of itself alone.

    Vectorised exponentials may differ in an array's tail, hence `math.exp`."""
    shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    flat = np.fromiter(map(math.exp, shifted.ravel().tolist()), np.float64, shifted.size)
    powers: Float64 = flat.reshape(shifted.shape)
    total = np.zeros(len(powers))
    for column in powers.T:
        total = total + column
    return powers / np.maximum(total, 1.0)[:, None]


def noised(total: Int64, event: Event, random_bytes: RandomBytes) -> Int64:
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
    """Return the upper triangle (`size`,) of ZZᵀ in steps of 2**-24, Z (D, D+1) ~ N(0, 1/(2ε)).

    DELM, alg. 2; no guarantee is proven for it."""
    d = len(diagonal_of_triangle(size))
    variance = Fraction(1 << PRODUCT_BITS) / (2 * Fraction(epsilon))
    z = discrete_gaussian(variance, (d, d + 1), random_bytes)
    return np.asarray(upper(exact_matmul(z, z.T)), dtype=np.int64)


BASIS_BITS = 14  # entries of an orthonormal basis are at most 1, so they fit int16
AXES_SEED = 0  # of public axes
Basis = NDArray[np.int16]


def top_basis(triangle: NDArray[np.generic], features: int, kept: int) -> Basis:
    """Return an orthonormal basis (D, d = kept) of the d leading eigenvectors' span, on 2**-14.

    The basis is the one nearest to public axes (orthogonal Procrustes, Schönemann 1966):
    eigenvectors' signs and order are arbitrary, but parties with nearly one covariance need common
    coordinates."""
    finite = np.nan_to_num(triangle.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    _, vectors = np.linalg.eigh(symmetric(finite, features))
    leading = vectors[:, features - kept :]
    left, _, right = np.linalg.svd(leading.T @ _public_axes(features, kept))
    steps: Basis = np.rint(leading @ (left @ right) * 2**BASIS_BITS).astype(np.int16)
    return steps


def as_weights(basis: Basis) -> NDArray[np.float32]:
    return basis.astype(np.float32) * np.float32(2.0**-BASIS_BITS)


@lru_cache(maxsize=2)
def _public_axes(features: int, kept: int) -> NDArray[np.float64]:
    return np.linalg.qr(np.random.default_rng(AXES_SEED).normal(size=(features, kept)))[0]


def own_weights(context: MethodContext, records: Records | None) -> Mapping[str, Array]:
    """Return with `local_pca` the `basis` (D, d) of `records`, else {}.

    The basis has no noise, so this is only for the cloud's own test records."""
    projection = context.projection
    if records is None or projection is None or projection.name != "local_pca":
        return MappingProxyType({})
    return MappingProxyType({"basis": _own_basis(context, records)})


@lru_cache(maxsize=2)
def _own_basis(context: MethodContext, records: Records) -> Array:
    covariance = covariance_sum(features_of(records, context))
    return as_weights(top_basis(covariance, context.feature_dimension, context.dimension))


class Shares(Keys):
    """Shares of the preparatory sums in μ² (Gaussian) or ε (Laplace).

    Training gets the rest, with the share of any sum not released. A PCA takes its share first."""

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
    """`gaussian`: (ε, δ). `laplace`: pure ε, with far more noise for many features."""
    centre: bool = True
    """Release the sum of the features, so that they can be centred; false: the centre is 0."""
    quadratic: Literal["once", "never"] = "once"
    """`once`: the curvature comes from a released sum. `never`: it is constant."""
    clip: float = Field(default=0.6, gt=0, le=2.0)
    """L2 bound on one record's linear coefficients; smaller: less noise, more bias."""
    radius: float = Field(default=0.7, ge=1e-3, le=2.0)
    """L2 bound on one record's centred features; public, never taken from the data."""
    ridge: float = Field(default=0.3, gt=0, le=1e3)
    """Ridge, as a multiple of the noise level in the averaged sums."""
    curvature: float = Field(default=0.5, gt=0, le=1.0)
    """Bound on the softmax Hessian; 0.5 is Böhning's, smaller means longer steps. Not for numeric
    labels: their loss is a polynomial with a known Hessian."""
    shares: Shares = Shares()
    """Shares of the budget for the preparatory sums."""
    local_steps: int = Field(default=20, ge=1, le=1000)
    """Steps of each device on its noised polynomial in a round; they cost no ε."""
    average_from: float = Field(default=0.7, ge=0, lt=1)
    """Fraction of the rounds after which the model is the average of the iterates."""
    intercept: bool = True
    """Whether each class has an intercept, which learns the class's frequency; within the bound on
    a record, with a public size. Numeric labels always have one."""

    left_out: ClassVar[Mapping[str, Any]] = {"intercept": False}

    @property
    def bias(self) -> bool:
        return self.intercept


MAX_WEIGHT = 1024.0  # largest absolute value of a weight
NUMBER_INTERCEPT = 1 << (GRID_BITS - 1)  # i = 1/2, of a label that is a number
LARGEST_INTERCEPT = 0.3 * 2**GRID_BITS  # of two classes, without noise
HALVING_NOISE = 0.02  # the noise level at which i is half of LARGEST_INTERCEPT


def head_shape(parameters: FmParameters, context: MethodContext) -> tuple[int, int]:
    """Return the head's shape: (d, classes), plus a row for an intercept; a number: (d + 1, 1)."""
    if context.regression:
        return (context.dimension + 1, 1)
    return (context.dimension + int(parameters.intercept), context.classes)


# Sizes and sensitivities of the releases of `fm`, by phase, in integer steps. The bounds hold for
# every record and every broadcast; proofs in `docs/privacy.md`.

CENTRE, QUADRATIC = "centre", "quadratic"
# Gaussian sums use the grid 2**-28, so that σ is at least 2**20 steps; Laplace noise is priced
# exactly on any grid and uses that of the products.
GAUSSIAN_BITS, LAPLACE_BITS = 28, PRODUCT_BITS
LOCAL_BASIS = ClaimedEvent(
    what="basis of the device's own PCA, without noise",
    unit="record",
    claimed_epsilon=0.0,
    source="DELM, section 6: projecting by it is taken to cost nothing",
)


def phases(parameters: FmParameters, projection: PcaParameters | None) -> tuple[str, ...]:
    wanted = (
        (COVARIANCE, projection is not None and projection.name != "local_pca"),
        (CENTRE, parameters.centre),
        (QUADRATIC, parameters.quadratic == "once"),
    )
    return tuple(phase for phase, asked in wanted if asked)


@dataclass(frozen=True)
class PricedSum:
    """Sum over records: sensitivities `l2` in units (Frobenius), `l1_steps` in steps of 2**-24."""

    what: str
    size: int
    l2: float
    l1_steps: int
    layout: Layout = "vector"

    def gaussian(self, mu: float, unit: Unit = "record") -> GaussianEvent:
        steps = int(self.l2 * 2.0**GAUSSIAN_BITS)
        if unit != "record":  # so that a record of a unit moves the sum by no more
            values = 2 * self.size if self.layout == "symmetric" else self.size
            limit = int(self.l2 * 2.0**PRODUCT_BITS)
            steps += clipped_slack(values, limit) << (GAUSSIAN_BITS - PRODUCT_BITS)
        event = gaussian_event(
            self.what, steps, mu, self.size, grid_bits=GAUSSIAN_BITS, layout=self.layout
        )
        return hiding(event, unit)

    def laplace(self, epsilon: float) -> LaplaceEvent:
        steps = self.l1_steps
        return laplace_event(self.what, steps, steps, epsilon, self.size, LAPLACE_BITS)


def priced_sum(phase: str, parameters: FmParameters, context: MethodContext) -> PricedSum:
    """Return the sum of a preparatory phase, or of the linear terms.

    L1 of z·rᵀ, r = p - y clipped, is ‖z‖₁·‖r‖₁: at most 2√d, and at most 2√(d(c - 1)/c)·clip, since
    r's entry at the label equals the sum of all others (up to one step of 2**-12). A number's r is
    one value: at most 2√d, and √d·clip. d counts the intercept."""
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
    return PricedSum("sum of linear terms", d * c, parameters.clip, min(by_factors, by_norm))


def features_sum(d: int) -> PricedSum:
    """Return the form of Σφ of d features with ‖φ‖₂ at most 1, so ‖φ‖₁ <= √d."""
    one = 1 << PRODUCT_BITS
    return PricedSum("sum of features", d, 1.0, math.isqrt(d * one * one))


def products_sum(what: str, d: int) -> PricedSum:
    """Return the form of the triangle of Σzzᵀ, whose L1 is (‖z‖₁² + ‖z‖²)/2 <= (d + 1)/2."""
    return PricedSum(what, triangle_size(d), 1.0, (d + 1) << (PRODUCT_BITS - 1), "symmetric")


@dataclass(frozen=True)
class Budget:
    """Events of the released phases; TRAIN is one round's, `tainted` are of every answer."""

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

    def room(self, phase: str, nominal_records: int) -> int:
        """Return the public bound in steps to which a device's sum is clipped before noise.

        Clipping before the noise moves no two sums further apart, so the sensitivity holds."""
        event = as_single(self.events[phase])
        if isinstance(event, GaussianEvent):
            return nominal_records * event.sensitivity_steps
        return nominal_records << self.grid_bits(phase) + 1

    def largest(self, phase: str, nominal_records: int) -> int:
        """Return a public bound on a noised value, in steps; 2^60 values exceed it with P < 2^-40.

        12 σ for a normal value (Mills' ratio, 2·Q(12) < 2^-107), `noise_room` for Laplace."""
        event, room = as_single(self.events[phase]), self.room(phase, nominal_records)
        if isinstance(event, LaplaceEvent):
            return room + noise_room(event)
        if isinstance(event, GaussianEvent):  # σ of the diagonal, the largest
            return room + math.ceil(12 * math.sqrt(event.sigma_squared))
        return room

    def noise_variance(self, phase: str) -> float:
        """Return the variance in units² of one value of a device's sum, off a matrix's diagonal."""
        event = as_single(self.events[phase])
        steps = 0.0
        if isinstance(event, GaussianEvent):
            steps = float(event.finest_sigma_squared)
        elif isinstance(event, LaplaceEvent):
            steps = 2.0 * float(scale_of(event)) ** 2
        return steps * 4.0 ** -self.grid_bits(phase)


def budget(parameters: FmParameters, context: MethodContext) -> Budget:
    """Return noise for which all answers of a device are (ε, δ)-DP per record; see `settled`."""
    own, rest, _ = _split(parameters, context)
    of_gaussian = own if parameters.noise == "laplace" else rest
    return settled(partial(_share_out, parameters, context), context, of_gaussian)


def _split(parameters: FmParameters, context: MethodContext) -> tuple[float, float, float]:
    """Return ε of the covariance, ε of the rest, and the covariance's share of μ².

    All Gaussian: μ² is shared (composes by Σμ²), both ε are the job's. Mixed: ε is shared."""
    projection, whole = context.projection, context.epsilon
    gaussian_rest = parameters.noise == "gaussian"
    if projection is None or COVARIANCE not in phases(parameters, projection):
        return whole, whole if gaussian_rest else whole * HAIR, 0.0
    first = projection.share
    if gaussian_rest and projection.noise == "gaussian":
        return whole, whole, first
    return whole * first * HAIR, whole * (1 - first) * HAIR, 0.0


def settled(
    made: Callable[[float], Budget], context: MethodContext, gaussian_epsilon: float
) -> Budget:
    """Return the budget that `made` gives for a δ, such that it costs at most the context's (ε, δ).

    Part of δ is reserved for the discreteness of Gaussian noise, which depends on the noise: a few
    iterations. Raises PrivacyError if the grid is too coarse for (ε, δ) or the features."""
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
    """Return ε by basic composition of the kinds; infinite if discreteness exceeds δ."""
    events = result.job_events()
    pure = pure_epsilon(event for event in events if isinstance(event, LaplaceEvent))
    claimed = sum(event.claimed_epsilon for event in events if isinstance(event, ClaimedEvent))
    try:
        return epsilon(_gaussians(result), delta).epsilon + float(pure) + claimed
    except PrivacyError:
        return math.inf


def _share_out(parameters: FmParameters, context: MethodContext, delta: float) -> Budget:
    names, projection = phases(parameters, context.projection), context.projection
    own_epsilon, rest_epsilon, first = _split(parameters, context)
    times = min(context.max_participations, parameters.rounds)
    shares = {CENTRE: parameters.shares.centre, QUADRATIC: parameters.shares.quadratic}
    shares = {phase: share for phase, share in shares.items() if phase in names}
    shares[TRAIN] = (1.0 - sum(shares.values())) / times

    def noised_by(phase: str, mu: float) -> Event:
        released = priced_sum(phase, parameters, context)
        return shared_gaussian(released.gaussian(mu, context.unit), context.honest)

    events: dict[str, Event] = {}
    if COVARIANCE in names and projection is not None and projection.noise == "wishart":
        events[COVARIANCE] = ClaimedEvent(
            what="covariance with Wishart noise",
            unit="record",
            claimed_epsilon=own_epsilon,
            source="DELM, alg. 2: pure ε, which does not hold (docs/privacy.md)",
        )
    elif COVARIANCE in names:
        mu = mu_for(own_epsilon, delta) * math.sqrt(first or 1.0)
        events[COVARIANCE] = noised_by(COVARIANCE, mu)
    if parameters.noise == "gaussian":
        mu = mu_for(rest_epsilon, delta) * math.sqrt(1 - first)
        events |= {
            phase: noised_by(phase, mu * math.sqrt(share)) for phase, share in shares.items()
        }
    else:
        for phase, share in shares.items():
            released = priced_sum(phase, parameters, context)
            events[phase] = released.laplace(rest_epsilon * share)
    local = projection is not None and projection.name == "local_pca"
    return Budget(events, times, (LOCAL_BASIS,) if local else ())


def intercept_steps(
    parameters: FmParameters, context: MethodContext, settled_budget: Budget
) -> int:
    """Return i for the intercept in steps of 2**-12, 0 without; from public numbers only."""
    if context.regression:
        return NUMBER_INTERCEPT
    if not parameters.intercept:
        return 0
    noise = math.sqrt(settled_budget.noise_variance(TRAIN) / context.devices)
    noise /= context.divisor
    largest = LARGEST_INTERCEPT * math.sqrt(2 / context.classes)
    return int(largest / (1 + noise / HALVING_NOISE))
