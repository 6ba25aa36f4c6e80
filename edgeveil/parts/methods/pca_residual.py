"""Anomaly detection by the residual of a PCA of normal records (`pca_residual`).

Per record, add/remove, proven. Devices release the noised sum of their bounded features, then that
of the centred products (Analyze Gauss, Dwork et al. 2014): exact integer sums of norm 1 per record,
priced as those of `fm` (`docs/privacy.md`, "The sums of `pca_residual`"). Records labelled
anomalous are in no sum.

With λᵢ, vᵢ of the noised covariance, direction i has the weight wᵢ = r/(max(λᵢ, 0) + r), r the
noise level: r times the squared Mahalanobis distance with a ridge. `keep` gives 0 to the leading
directions and 1 to the others (Jackson and Mudholkar 1979)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.records import Records
from edgeveil.parts.method_context import MethodContext, MethodParameters, MethodPart
from edgeveil.parts.methods import fm_sums
from edgeveil.parts.methods.fm import FmDevice
from edgeveil.parts.methods.fm_sums import CENTRE
from edgeveil.parts.round import (
    TRAIN,
    Array,
    CloudMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    planned_rounds,
    required,
    summed_spec,
)
from edgeveil.privacy.accountant import mu_for
from edgeveil.privacy.events import Event
from edgeveil.privacy.gaussian_mechanism import shared_gaussian
from edgeveil.privacy.grid import Int64

PRODUCTS = "products"  # the segment of a training round
CENTRE_SHARE = 0.05  # of μ² for the sum of the features; the products get the remainder
RIDGE = 0.1  # r, as a multiple of the noise level in the averaged products
LEAST_RIDGE = 1e-3  # lower bound on r, as a multiple of the mean λ

Count = Annotated[int, Field(ge=1, le=1 << 22)]
Share = Annotated[float, Field(gt=0, lt=1)]


class PcaResidualParameters(MethodParameters):
    """The `train` block of a job with `method: pca_residual`; all of it is public."""

    method: Literal["pca_residual"] = "pca_residual"
    """Learn normal records by the covariance of public features; score others by a residual."""
    rounds: int = Field(default=1, ge=1, le=10_000)
    """Training rounds, in each of which devices release their products. More than one helps if not
    all devices take part in each, since rounds share a device's budget."""
    radius: float = Field(default=0.2, ge=1e-3, le=2.0)
    """L2 bound on one record's centred features in training; public, never taken from the data.
    Smaller: less noise, and less influence of an unusual record."""
    keep: Count | Share | None = Field(default=None, examples=[8])
    """Number or share of leading directions that get weight 0, all others alike; null: each
    direction is weighted by the variance of records in it."""

    def kept(self, d: int) -> int | None:
        """Return how many of d directions get weight 0; None for weights by variance."""
        if self.keep is None or isinstance(self.keep, int):
            return self.keep
        return max(1, round(self.keep * d))


def budget(parameters: PcaResidualParameters, context: MethodContext) -> fm_sums.Budget:
    """Return noise for which all answers of a device are (ε, δ)-DP per record; see `settled`."""
    times, d = min(context.max_participations, parameters.rounds), context.dimension
    products = fm_sums.products_sum("sum of products of centred features", d)
    released = {CENTRE: fm_sums.features_sum(d), TRAIN: products}
    shares = {CENTRE: CENTRE_SHARE, TRAIN: (1 - CENTRE_SHARE) / times}

    def made(delta: float) -> fm_sums.Budget:
        mu, events = mu_for(context.epsilon, delta), dict[str, Event]()
        for phase, share in shares.items():
            event = released[phase].gaussian(mu * math.sqrt(share))
            events[phase] = shared_gaussian(event, context.honest)
        return fm_sums.Budget(events, times)

    return fm_sums.settled(made, context, context.epsilon)


class PcaResidualDevice(FmDevice):
    def __init__(self, parameters: PcaResidualParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self.budget = budget(parameters, context)
        self._cache = fm_sums.RowCache(context)

    def check(self, round: PlannedRound, tensors: Tensors) -> None:
        if round.phase == TRAIN:
            required(tensors, CENTRE, (self.context.dimension,), "float32")

    def exact(self, round: PlannedRound, tensors: Tensors, records: Records) -> Int64:
        if round.phase != TRAIN:
            return fm_sums.centre_sum(self._cache.features(records))
        centre, radius = np.asarray(tensors[CENTRE]), self.parameters.radius
        key = (centre.tobytes(),)
        z = self._cache.rows(records, key, lambda phi: fm_sums.bounded(phi, centre, radius))
        return fm_sums.quadratic_sum(z)

    def finish(
        self,
        round: PlannedRound,
        tensors: Tensors,
        noised_sum: NDArray[np.generic],
        processor: str = "auto",
    ) -> Mapping[str, Array]:
        name = PRODUCTS if round.phase == TRAIN else CENTRE
        return {name: noised_sum if self.context.summed else noised_sum.astype(np.float32)}


class PcaResidualCloud(CloudMethod):
    """Cloud half; state: `centre` (d,) float32, `products` (d(d+1)/2,) float64, `uploads` (1,)."""

    def __init__(self, parameters: PcaResidualParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self.budget: fm_sums.Budget = budget(parameters, context)
        self.ridge = RIDGE

    def plan(self) -> tuple[PlannedRound, ...]:
        return planned_rounds((CENTRE,), self.parameters.rounds)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        d, phase = self.context.dimension, round.phase
        name, shape = (PRODUCTS, (fm_sums.triangle_size(d),)) if phase == TRAIN else (CENTRE, (d,))
        if not self.context.summed:
            return (SegmentSpec(name, shape, "float32"),)
        largest = self.budget.largest(phase, self.context.nominal_records)
        return (summed_spec(name, shape, largest, self.context.summed),)

    def initial_state(self) -> dict[str, Array]:
        d = self.context.dimension
        return {
            CENTRE: np.zeros(d, np.float32),
            PRODUCTS: np.zeros(fm_sums.triangle_size(d)),
            "uploads": np.zeros(1, np.int64),
        }

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        return {CENTRE: np.asarray(state[CENTRE])} if round.phase == TRAIN else {}

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        new = {name: np.asarray(value) for name, value in state.items()}
        step = 2.0 ** -self.budget.grid_bits(round.phase) / self.context.nominal_records
        if round.phase != TRAIN:
            new[CENTRE] = (mean[CENTRE].astype(np.float64) * step).astype(np.float32)
            return new
        found = np.nan_to_num(mean[PRODUCTS].astype(np.float64), posinf=0.0, neginf=0.0)
        new[PRODUCTS] = state[PRODUCTS].astype(np.float64) + uploads * step * found
        new["uploads"] = state["uploads"].astype(np.int64) + uploads
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """Return `centre` (d,) and `residual` (d, d), float32."""
        d, uploads = self.context.dimension, max(1, int(np.asarray(state["uploads"])[0]))
        covariance = fm_sums.symmetric(state[PRODUCTS].astype(np.float64) / uploads, d)
        values, vectors = np.linalg.eigh(covariance)
        root = np.sqrt(self._weights(np.maximum(values, 0.0), uploads))
        residual = (vectors * root) @ vectors.T
        return {CENTRE: state[CENTRE].astype(np.float32), "residual": residual.astype(np.float32)}

    def _weights(self, values: NDArray[np.float64], uploads: int) -> NDArray[np.float64]:
        """Return the weight (d,) of each direction, in ascending order of variance."""
        kept = self.parameters.kept(len(values))
        if kept is not None:
            return (np.arange(len(values)) < len(values) - kept).astype(np.float64)
        ridge = max(self.ridge_level(uploads), LEAST_RIDGE * float(values.mean()))
        return np.asarray(ridge / np.maximum(values + ridge, np.finfo(np.float64).tiny))

    def ridge_level(self, uploads: int) -> float:
        """Return r: the expected operator norm 2√d·σ of the noise in `uploads` devices' mean."""
        sigma = math.sqrt(self.budget.noise_variance(TRAIN))
        scale = self.context.nominal_records * math.sqrt(uploads)
        return self.ridge * 2 * math.sqrt(self.context.dimension) * sigma / scale


def _refuses(
    parameters: PcaResidualParameters, context: MethodContext
) -> Iterable[tuple[tuple[str, ...], str]]:
    if context.projection is not None:
        yield (
            ("features", "train.method"),
            "pca_residual finds the directions itself; leave the PCA out",
        )
    d = context.feature_dimension
    if (kept := parameters.kept(d)) is not None and kept >= d:
        yield (
            ("train.keep", "features"),
            f"{kept} directions of {d} leave no residual; keep at most {d - 1}",
        )


PART = MethodPart(
    parameters=PcaResidualParameters,
    settled={"centre_share": CENTRE_SHARE, "ridge": RIDGE},
    device=PcaResidualDevice,
    cloud=PcaResidualCloud,
    source="Analyze Gauss, Dwork et al. 2014; residual, Jackson and Mudholkar 1979",
    needs="features",
    reveals="noised sums over a device's records",
    privacy="proven",
    example="train: {method: pca_residual}",
    anomaly=True,
    summed=True,
    shares=True,
    refuses=_refuses,
)
