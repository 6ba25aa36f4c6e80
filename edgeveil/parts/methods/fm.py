"""Re-expanded functional mechanism (`fm`) for a softmax head, or a linear head of a number.

Around each broadcast W the cross-entropy is a second-order polynomial of ΔW with sums over records
as coefficients (Zhang et al. 2012); the squared loss of a number is exactly such a polynomial.
Linear coefficients are perturbed every round, quadratic ones (bounded by Böhning 1992) once or
never; devices minimise their own polynomial, which is post-processing. A round on an old polynomial
would only add local steps. A federated PCA (`feature_map.py`) may precede. Proofs:
`docs/privacy.md`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.parts.features.feature_map import COVARIANCE
from edgeveil.parts.method_context import MethodContext, MethodPart
from edgeveil.parts.methods import fm_sums
from edgeveil.parts.methods.fm_sums import CENTRE, QUADRATIC, FmParameters
from edgeveil.parts.methods.local_steps import minimise_quadratic
from edgeveil.parts.round import (
    TRAIN,
    Answer,
    Array,
    CloudMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    planned_rounds,
    required,
    summed_spec,
)
from edgeveil.privacy.events import UNITS, Event
from edgeveil.privacy.grid import GRID_BITS, Int64
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.subnormals import flushed

Form = tuple[tuple[int, ...], str]


def forms(round: PlannedRound, parameters: FmParameters, context: MethodContext) -> dict[str, Form]:
    """Return shape and dtype of each tensor that an answer needs."""
    d, features = context.dimension, context.feature_dimension
    head = fm_sums.head_shape(parameters, context)
    needed: dict[str, Form] = {}
    if round.phase == COVARIANCE:
        return needed
    if context.projection is not None and context.projection.name == "ldp_fpca":
        needed["basis"] = ((features, d), "int16")
    if context.projection is not None and context.projection.name == "ldp_pca":
        needed[COVARIANCE] = ((fm_sums.triangle_size(features),), "float32")  # the device's own
    if round.phase == CENTRE:
        return needed
    if parameters.centre:
        needed["centre"] = ((d,), "float32")
    if round.phase == QUADRATIC:
        return needed
    needed["iterate"] = (head, "int32")
    needed["spectrum"] = ((2,), "float64")
    if parameters.quadratic == "once":
        needed["curvature"] = ((fm_sums.triangle_size(head[0]),), "float32")
    return needed


def check_package(
    round: PlannedRound, tensors: Tensors, parameters: FmParameters, context: MethodContext
) -> None:
    """Raise ProtocolError unless tensors have their public form and W is within its limit.

    With the sizes of `check_sizes`, no exact sum then overflows or raises, whatever the records."""
    for name, (shape, dtype) in forms(round, parameters, context).items():
        required(tensors, name, shape, dtype)
    if round.phase == TRAIN:
        limit = math.ceil(fm_sums.MAX_WEIGHT * 2**GRID_BITS)
        iterate = tensors["iterate"]
        if iterate.min() < -limit or iterate.max() > limit:  # abs(-2**31) overflows
            raise ProtocolError("bad_package", f"tensor 'iterate' goes beyond {limit} steps")
        low, high = tensors["spectrum"].astype(np.float64)
        if not 0 < low <= high:
            raise ProtocolError("bad_package", "the spectrum must satisfy 0 < low <= high")


HEAD = "head.weight"


class FmDevice:
    parameters: Any  # of a subclass in `pca_residual`

    def __init__(self, parameters: FmParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self.budget: fm_sums.Budget = fm_sums.budget(parameters, context)
        self.intercept = fm_sums.intercept_steps(parameters, context, self.budget)
        self._cache = fm_sums.RowCache(context)

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return self.budget.price(round)

    @flushed()
    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """Return noised sums in preparatory phases, ΔW in training; integers if summed."""
        self.check(round, tensors)
        total = self.sums(round, tensors, records)
        result = fm_sums.noised(total, self.budget.events[round.phase], random_bytes)
        segments = self.finish(round, tensors, result, processor)
        return Answer(segments, self.price(round))

    @flushed()
    def sums(self, round: PlannedRound, tensors: Tensors, records: Records) -> Int64:
        """Return the exact sum in grid steps before noise, which never leaves the device."""
        total = self.exact(round, tensors, records)
        total = total << (self.budget.grid_bits(round.phase) - fm_sums.PRODUCT_BITS)
        if not self.context.summed:
            return total
        room = self.budget.room(round.phase, self.context.divisor)
        within: Int64 = np.clip(total, -room, room)
        return within

    def check(self, round: PlannedRound, tensors: Tensors) -> None:
        check_package(round, tensors, self.parameters, self.context)

    def exact(self, round: PlannedRound, tensors: Tensors, records: Records) -> Int64:
        if round.phase == COVARIANCE:
            return fm_sums.covariance_sum(self._cache.features(records))
        if round.phase == CENTRE:
            return fm_sums.centre_sum(self._projected(self._cache.features(records), tensors))
        z = self.bounded(records, tensors)
        if round.phase == QUADRATIC:
            return fm_sums.quadratic_sum(z)
        iterate, clip = tensors["iterate"].astype(np.int64), self.parameters.clip
        return fm_sums.linear_sum(z, iterate, clip, regression=self.context.regression)

    def _projected(self, phi: fm_sums.Rows, tensors: Tensors) -> fm_sums.Rows:
        """Return φ, or φ·B by the basis broadcast, own noised (`ldp_pca`) or own (`local_pca`)."""
        projection, d = self.context.projection, self.context.dimension
        if projection is None:
            return phi
        if projection.name == "ldp_fpca":
            return fm_sums.projected(phi, np.asarray(tensors["basis"], np.int16))
        own = tensors[COVARIANCE] if projection.name == "ldp_pca" else fm_sums.covariance_sum(phi)
        return fm_sums.projected(phi, fm_sums.top_basis(own, self.context.feature_dimension, d))

    def bounded(self, records: Records, tensors: Tensors) -> fm_sums.Rows:
        """Return z of the valid records for a checked training package, cached."""
        d, radius = self.context.dimension, self.parameters.radius
        centre = tensors["centre"] if self.parameters.centre else np.zeros(d, np.float32)
        bases = [tensors[name].tobytes() for name in ("basis", COVARIANCE) if name in tensors]

        def made(phi: fm_sums.Rows) -> fm_sums.Rows:
            z = fm_sums.bounded(self._projected(phi, tensors), centre, radius)
            return fm_sums.with_intercept(z, self.intercept) if self.intercept else z

        return self._cache.rows(records, (centre.tobytes(), *bases), made)

    def finish(
        self,
        round: PlannedRound,
        tensors: Tensors,
        noised_sum: NDArray[np.generic],
        processor: str = "auto",
    ) -> Mapping[str, Array]:
        if self.context.summed:
            return {HEAD if round.phase == TRAIN else round.phase: noised_sum}
        if round.phase != TRAIN:
            return {round.phase: noised_sum.astype(np.float32)}
        step = 2.0 ** -self.budget.grid_bits(TRAIN)
        linear = noised_sum.astype(np.float64) * (step / self.context.divisor)
        return {HEAD: local_minimum(linear, tensors, self.parameters, self.context, processor)}


def local_minimum(
    linear: NDArray[np.float64],
    tensors: Tensors,
    parameters: FmParameters,
    context: MethodContext,
    processor: str = "auto",
) -> NDArray[np.float32]:
    """Return ΔW after local steps on a noised polynomial: linear in its coefficients."""
    low, high = (float(v) for v in tensors["spectrum"])
    if parameters.quadratic == "never":  # constant curvature: one step is the minimum
        return (linear / -high).astype(np.float32)
    rows = fm_sums.head_shape(parameters, context)[0]
    curvature = fm_sums.unpacked(tensors["curvature"].tobytes(), rows)
    steps = parameters.local_steps
    return minimise_quadratic(linear, curvature, (low, high), steps, processor)


UNIT = 2.0**GRID_BITS


class FmCloud(CloudMethod):
    def __init__(self, parameters: FmParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self.budget: fm_sums.Budget = fm_sums.budget(parameters, context)
        self.intercept = fm_sums.intercept_steps(parameters, context, self.budget)
        self.head = fm_sums.head_shape(parameters, context)

    def plan(self) -> tuple[PlannedRound, ...]:
        first = fm_sums.phases(self.parameters, self.context.projection)
        return planned_rounds(first, self.parameters.rounds)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        head, phase = self.head, round.phase
        shapes: dict[str, tuple[int, ...]] = {
            COVARIANCE: (fm_sums.triangle_size(self.context.feature_dimension),),
            CENTRE: (self.context.dimension,),
            QUADRATIC: (fm_sums.triangle_size(head[0]),),
            TRAIN: head,
        }
        name = HEAD if phase == TRAIN else phase
        if not self.context.summed:
            return (SegmentSpec(name, shapes[phase], "float32"),)
        largest = self.budget.largest(phase, self.context.divisor)
        return (summed_spec(name, shapes[phase], largest, self.context.summed),)

    def initial_state(self) -> dict[str, Array]:
        d, head = self.context.dimension, self.head
        state: dict[str, Array] = {
            "centre": np.zeros(d, np.float32),
            "spectrum": np.ones(2),
            "iterate": np.zeros(head, np.int32),  # W in steps of 2**-12
            "tail": np.zeros(head),  # sum of the averaged iterates
            "tail_count": np.zeros(1, np.int64),
        }
        if self.context.projection is not None:
            axes = np.eye(self.context.feature_dimension, d, dtype=np.int16)  # until the PCA
            state["basis"] = axes << fm_sums.BASIS_BITS
        if self.parameters.quadratic == "once":
            state["curvature"] = fm_sums.upper(np.eye(head[0], dtype=np.float32))
        else:
            state["spectrum"] = self._isotropic(self.context.devices)
        return state

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        needed = forms(round, self.parameters, self.context)
        return {name: np.asarray(state[name]) for name in needed if name in state}

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        new = {name: np.asarray(value) for name, value in state.items()}
        if round.phase == COVARIANCE:
            s = self.context
            new["basis"] = fm_sums.top_basis(mean[COVARIANCE], s.feature_dimension, s.dimension)
        elif round.phase == CENTRE:
            new["centre"] = self._in_units(mean, CENTRE).astype(np.float32)
        elif round.phase == QUADRATIC:
            new["curvature"], new["spectrum"] = self._curvature(mean, uploads)
        else:
            new |= self._stepped(state, round, self._change(state, mean))
        if self.parameters.quadratic == "never":
            new["spectrum"] = self._isotropic(uploads)
        return new

    def _in_units(self, mean: Tensors, phase: str, name: str | None = None) -> NDArray[np.float64]:
        step = 2.0 ** -self.budget.grid_bits(phase)
        return mean[name or phase].astype(np.float64) * (step / self.context.divisor)

    def _change(self, state: Tensors, mean: Tensors) -> NDArray[np.float64]:
        """Return ΔW: the mean of the devices' steps, or if summed the steps on the mean."""
        if not self.context.summed:
            return mean[HEAD].astype(np.float64)
        linear = self._in_units(mean, TRAIN, HEAD)
        change = local_minimum(linear, state, self.parameters, self.context, "cpu")
        return change.astype(np.float64)

    def _stepped(
        self, state: Tensors, round: PlannedRound, change: NDArray[np.float64]
    ) -> dict[str, Array]:
        p = self.parameters
        weight = state["iterate"].astype(np.float64) / UNIT + change
        clipped = np.clip(np.nan_to_num(weight), -fm_sums.MAX_WEIGHT, fm_sums.MAX_WEIGHT)
        new: dict[str, Array] = {"iterate": np.rint(clipped * UNIT).astype(np.int32)}
        if round.number > int(p.average_from * p.rounds):
            tail = new["iterate"].astype(np.float64) / UNIT
            new["tail"] = state["tail"].astype(np.float64) + tail
            new["tail_count"] = state["tail_count"].astype(np.int64) + 1
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """Return `centre` (d,), `radius` (1,), `weight` (d, c), and with an intercept `bias` (c,).

        The head is the mean of the averaged iterates, once there are any. With a PCA also `basis`
        (D, d)."""
        count = int(state["tail_count"][0])
        source, divisor = ("tail", float(count)) if count else ("iterate", UNIT)
        head = state[source].astype(np.float64) / divisor
        weights: dict[str, Array] = {
            "centre": state["centre"].astype(np.float32),
            "radius": np.array([self.parameters.radius], np.float32),
            "weight": head.astype(np.float32),
        }
        if self.intercept:
            weights["weight"] = (head[:-1] * (fm_sums.shrunk(self.intercept) / UNIT)).astype(
                np.float32
            )
            weights["bias"] = (head[-1] * (self.intercept / UNIT)).astype(np.float32)
        if "basis" in state:
            weights["basis"] = fm_sums.as_weights(np.asarray(state["basis"], np.int16))
        return weights

    def _curvature(self, mean: Tensors, uploads: int) -> tuple[Array, Array]:
        """Return κ·Q₊ + ridge·(noise level)·I as a flat triangle, and its spectrum, both public."""
        quadratic = fm_sums.symmetric(self._in_units(mean, QUADRATIC), self.head[0])
        values, vectors = np.linalg.eigh(quadratic)
        curved = self._hessian * np.maximum(values, 0.0) + self.ridge_level(uploads)
        triangle = fm_sums.upper((vectors * curved) @ vectors.T).astype(np.float32)
        return triangle, np.array([0.999 * curved.min(), 1.001 * curved.max()])

    def _isotropic(self, uploads: int) -> NDArray[np.float64]:
        return np.full(2, self._hessian + self.ridge_level(uploads))

    @property
    def _hessian(self) -> float:
        """κ, bound on the loss's second derivative along a logit; 1 for a squared loss."""
        return 1.0 if self.context.regression else self.parameters.curvature

    def ridge_level(self, uploads: int) -> float:
        """Return the ridge: the larger expected operator norm of the mean's noise.

        2√d·σ of the quadratic (σ off its diagonal) and √c·σ of the linear sum."""
        (d, c), b = self.head, self.budget
        linear = math.sqrt(c * b.noise_variance(TRAIN))
        quadratic = 0.0
        if self.parameters.quadratic == "once":
            quadratic = 2 * math.sqrt(d * b.noise_variance(QUADRATIC))
        scale = 1 / (self.context.divisor * math.sqrt(max(1, uploads)))
        return self.parameters.ridge * max(quadratic, linear) * scale


def _refuses(
    parameters: FmParameters, context: MethodContext
) -> Iterable[tuple[tuple[str, ...], str]]:
    if context.regression and parameters.curvature != FmParameters().curvature:
        yield (
            ("train.curvature", "data.schema.label.number"),
            "bounds the softmax Hessian, and that of the squared loss of a number is known; leave"
            " it out",
        )
    own_basis = context.projection is not None and context.projection.name == "local_pca"
    wishart = context.projection is not None and context.projection.noise == "wishart"
    for key, given in (
        ("train.noise", parameters.noise == "laplace"),
        ("features", own_basis or wishart),
    ):
        if given and context.unit != "record":
            text = f"bounds what a record adds, not a {context.unit}; use gaussian noise, and no"
            yield (key, "privacy.unit"), f"{text} basis of a device's own"


PART = MethodPart(
    parameters=FmParameters,
    settled={"max_weight": fm_sums.MAX_WEIGHT},
    device=FmDevice,
    cloud=FmCloud,
    source="functional mechanism, Zhang et al. 2012; re-expanded, docs/privacy.md; Böhning 1992",
    needs="features",
    reveals="noised sums over a device's records",
    privacy="proven",
    example="train: {method: fm, rounds: 15}",
    regression=True,
    summed=True,
    shares=True,
    units=UNITS,
    refuses=_refuses,
)
