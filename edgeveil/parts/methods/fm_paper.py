"""The functional mechanism for a three-layer perceptron as published (`fm_paper`, claimed).

DELM (Cao et al. 2023, eq. 1 to 10): logits h = uᵀx with u = W₁w₂, y in {-1, 1}, and per class the
perturbed Taylor polynomial Σ (log 2 - ½·y·h + ⅛·h²) + ηᵀu + uᵀNu, η, N ~ Lap(Δ/ε), Δ = d + d²/4
(eq. 9), drawn anew at each local step; SGD on W₁ and W₂; FedAvg. The claimed ε does not hold: noise
is redrawn at each step and charged once, and every class perturbs sums over the same records. So
every release is a `ClaimedEvent`.

Choices where the text is incomplete or contradicts itself: no ReLU, as in eq. 9; the label belongs
to the odd term; N is drawn once a step, η once a step and class; a batch is all records over
`nominal_records`; weights stay within ±MAX_WEIGHT; each round's event carries its part of the ε
left by a PCA."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.parts.features.feature_map import COVARIANCE
from edgeveil.parts.method_context import MethodContext, MethodParameters, MethodPart
from edgeveil.parts.methods.fm import FmCloud, FmDevice, forms
from edgeveil.parts.methods.fm_sums import FmParameters, Rows, as_weights, phases, top_basis
from edgeveil.parts.round import (
    TRAIN,
    Aim,
    Answer,
    Array,
    CloudMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    planned_rounds,
    required,
)
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import ClaimedEvent, Event
from edgeveil.privacy.grid import GRID_BITS, Float64, exact_gram, exact_matmul
from edgeveil.privacy.sampler import RandomBytes, discrete_laplace, os_random
from edgeveil.subnormals import flushed

MAX_WEIGHT = 100.0
WIDTH = 32  # of the hidden layer
LEARNING_RATE = 0.03  # for a loss that is a mean over `nominal_records`
HIDDEN, OUTPUT = "hidden.weight", "output.weight"


class FmPaperParameters(MethodParameters):
    """The `train` block of a job with `method: fm_paper`. No guarantee is proven."""

    method: Literal["fm_paper"] = "fm_paper"
    """The functional mechanism as published; claimed, not proven."""
    rounds: int = Field(default=15, ge=1, le=10_000)
    """Training rounds."""
    local_steps: int = Field(default=20, ge=1, le=1000)
    """Gradient steps of a device in a round, each on a freshly noised polynomial."""


def projecting() -> FmParameters:
    """Return the `fm` that only projects; one round, so that no budget is refused as too small."""
    return FmParameters(
        rounds=1, noise="laplace", centre=False, quadratic="never", radius=1.0, intercept=False
    )


def noise_scale(parameters: FmPaperParameters, context: MethodContext) -> float:
    """Return Δ/ε (eq. 9, 10), Δ = d + d²/4, in units of the coefficients."""
    d = context.dimension
    return (d + d * d / 4) / claimed_epsilon(parameters, context)


def claimed_epsilon(parameters: FmPaperParameters, context: MethodContext) -> float:
    projection = context.projection
    released = COVARIANCE in phases(projecting(), projection)
    share = projection.share if projection is not None and released else 0.0
    return context.epsilon * (1 - share) * HAIR


def round_event(parameters: FmPaperParameters, context: MethodContext) -> ClaimedEvent:
    times = min(context.max_participations, parameters.rounds)
    return ClaimedEvent(
        what="perturbed polynomial, noise redrawn each step",
        unit="record",
        claimed_epsilon=claimed_epsilon(parameters, context) / times,
        source="DELM (Cao et al. 2023), eq. 6 to 10: one charge for all steps, which does not hold",
    )


def check_package(
    round: PlannedRound, tensors: Tensors, parameters: FmPaperParameters, context: MethodContext
) -> None:
    d, k, c = context.dimension, WIDTH, context.classes
    basis = forms(round, projecting(), context)
    needed = {name: form for name, form in basis.items() if name in ("basis", COVARIANCE)}
    needed |= {HIDDEN: ((d, k), "float32"), OUTPUT: ((k, c), "float32")}
    if round.phase != TRAIN:
        raise ProtocolError("bad_package", f"no training round: '{round.phase}'")
    for name, (shape, dtype) in needed.items():
        required(tensors, name, shape, dtype)


NOISE_STEPS = 1 << 20  # scale of the integer Laplace noise before scaling


class FmPaperDevice:
    def __init__(self, parameters: FmPaperParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self._fm = FmDevice(projecting(), context)
        self._scale = noise_scale(parameters, context)

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        if round.phase != TRAIN:
            return self._fm.price(round)
        event = round_event(self.parameters, self.context)
        return (event, *self._fm.budget.tainted)

    @flushed()
    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """Return W₁ (d, hidden) and W₂ (hidden, c) after the local steps, float32."""
        if round.phase != TRAIN:
            return self._fm.answer(round, tensors, records, random_bytes, processor)
        check_package(round, tensors, self.parameters, self.context)
        linear, quadratic = coefficients(self._fm.bounded(records, tensors), self.context.classes)
        law = round_event(self.parameters, self.context)
        total = np.concatenate([linear.ravel(), quadratic.ravel()])
        hidden, output = tensors[HIDDEN].astype(np.float64), tensors[OUTPUT].astype(np.float64)
        for _ in range(self.parameters.local_steps):
            noisy = self._noised(linear, quadratic, bound(random_bytes, law, total))
            slope = (noisy[0] + 2 * noisy[1] @ (hidden @ output)) / self.context.nominal_records
            hidden, output = (
                self._stepped(hidden, slope @ output.T),
                self._stepped(output, hidden.T @ slope),
            )
        weights = {HIDDEN: hidden.astype(np.float32), OUTPUT: output.astype(np.float32)}
        return Answer(weights, self.price(round))

    def _noised(
        self, linear: Float64, quadratic: Float64, random_bytes: RandomBytes
    ) -> tuple[Float64, Float64]:
        """Return the coefficients plus Lap(Δ/ε) each; N made symmetric, with the same uᵀNu."""

        def laplace(shape: tuple[int, ...]) -> Float64:
            steps = discrete_laplace(NOISE_STEPS, shape, random_bytes)
            return steps.astype(np.float64) * (self._scale / NOISE_STEPS)

        noise = laplace(quadratic.shape)
        return linear + laplace(linear.shape), quadratic + (noise + noise.T) / 2

    def _stepped(self, weight: Float64, gradient: Float64) -> Float64:
        moved = np.nan_to_num(weight - LEARNING_RATE * gradient)
        return np.asarray(np.clip(moved, -MAX_WEIGHT, MAX_WEIGHT), dtype=np.float64)


def coefficients(z: Rows, classes: int) -> tuple[Float64, Float64]:
    """Return Σ -½·y·x (d, c), y = ±1 for a record's own or another class, and ⅛·Σxxᵀ (d, d)."""
    signs: NDArray[np.int64] = np.where(z.labels[:, None] == np.arange(classes), 1, -1)
    linear = exact_matmul(z.steps.T, signs).astype(np.float64) * (-(2.0**-GRID_BITS) / 2)
    return linear, exact_gram(z.steps).astype(np.float64) * (4.0**-GRID_BITS / 8)


START_SEED = 0  # of the public first weights


class FmPaperCloud(CloudMethod):
    """Cloud half with one segment per layer, so that the proxy shuffles layers as published."""

    def __init__(self, parameters: FmPaperParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self._fm = FmCloud(projecting(), context)

    def plan(self) -> tuple[PlannedRound, ...]:
        first = phases(projecting(), self.context.projection)
        return planned_rounds(first, self.parameters.rounds)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        if round.phase != TRAIN:
            return self._fm.segments(round)
        d, k, c = self.context.dimension, WIDTH, self.context.classes
        return SegmentSpec(HIDDEN, (d, k), "float32"), SegmentSpec(OUTPUT, (k, c), "float32")

    def initial_state(self) -> dict[str, Array]:
        """Return W₁ with entries N(0, 1/hidden) and W₂ = 0: h = 0, the point of expansion."""
        d, k, c = self.context.dimension, WIDTH, self.context.classes
        start = np.random.default_rng(START_SEED).standard_normal((d, k)) / np.sqrt(k)
        state: dict[str, Array] = {
            HIDDEN: start.astype(np.float32),
            OUTPUT: np.zeros((k, c), np.float32),
        }
        first = self._fm.initial_state()
        return {**state, "basis": first["basis"]} if "basis" in first else state

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        if round.phase != TRAIN:
            return self._fm.package(state, round)
        projection = self.context.projection
        shared = projection is not None and projection.name == "ldp_fpca"
        names = (HIDDEN, OUTPUT, "basis") if shared else (HIDDEN, OUTPUT)
        return {name: np.asarray(state[name]) for name in names}

    def aim(self, state: Tensors, round: PlannedRound) -> Aim | None:
        if round.phase != TRAIN:
            return None
        return Aim({name: np.asarray(state[name]) for name in (HIDDEN, OUTPUT)}, change=False)

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        new = {name: np.asarray(value) for name, value in state.items()}
        if round.phase == COVARIANCE:
            s = self.context
            new["basis"] = top_basis(mean[COVARIANCE], s.feature_dimension, s.dimension)
            return new
        for name in (HIDDEN, OUTPUT):
            weight = np.nan_to_num(mean[name].astype(np.float64))
            new[name] = np.clip(weight, -MAX_WEIGHT, MAX_WEIGHT).astype(np.float32)
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """Return a softmax head with weight u = W₁W₂, centre 0, radius 1: the same argmax."""
        weight = state[HIDDEN].astype(np.float64) @ state[OUTPUT].astype(np.float64)
        weights: dict[str, Array] = {
            "centre": np.zeros(self.context.dimension, np.float32),
            "radius": np.ones(1, np.float32),
            "weight": np.clip(weight, -MAX_WEIGHT, MAX_WEIGHT).astype(np.float32),
        }
        if "basis" in state:
            weights["basis"] = as_weights(np.asarray(state["basis"], np.int16))
        return weights


PART = MethodPart(
    parameters=FmPaperParameters,
    settled={"hidden": WIDTH, "learning_rate": LEARNING_RATE, "max_weight": MAX_WEIGHT},
    device=FmPaperDevice,
    cloud=FmPaperCloud,
    source="Cao et al. 2023 (DELM), eq. 1 to 10",
    needs="features; privacy.accept_unproven",
    reveals="weights after steps on noised polynomials",
    privacy="claimed",
    example="train: {method: fm_paper, local_steps: 20}",
)
