"""Cloud half of `fm`: curvature and ridge from the noised sums, and the weights' averages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.exchange import TRAIN, Aim, Array, Exchange, SegmentSpec, Tensors
from edgeveil.parts.methods.fm_budget import Budget, budget
from edgeveil.parts.methods.fm_device import HEAD
from edgeveil.parts.methods.fm_package import forms
from edgeveil.parts.methods.fm_parameters import FmParameters
from edgeveil.parts.methods.fm_released import CENTRE, COVARIANCE, QUADRATIC, phases
from edgeveil.parts.methods.pca_basis import as_weights, first_axes, top_basis
from edgeveil.parts.methods.triangle import symmetric, triangle_size, upper
from edgeveil.parts.setting import Setting
from edgeveil.privacy.grid import GRID_BITS

UNIT = 2.0**GRID_BITS


def exchanges(first: Sequence[str], rounds: int, infer_every: int) -> tuple[Exchange, ...]:
    """One for each preparatory phase, then the training rounds."""
    return (
        *(Exchange(index, phase, 0) for index, phase in enumerate(first, start=1)),
        *(
            Exchange(len(first) + k, TRAIN, k, infer=infer_every > 0 and k % infer_every == 0)
            for k in range(1, rounds + 1)
        ),
    )


class FmCloud:
    """Cloud half: sees only the mean of the devices' noised segments."""

    def __init__(self, parameters: FmParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting
        self.budget: Budget = budget(parameters, setting)

    def plan(self) -> tuple[Exchange, ...]:
        """The preparatory sums that are released, then the training rounds."""
        first = phases(self.parameters, self.setting.projection)
        return exchanges(first, self.parameters.rounds, self.setting.infer_every)

    def segments(self, exchange: Exchange) -> tuple[SegmentSpec, ...]:
        """One float32 segment: a triangle, the centre (d,), or `head.weight` (d, c).

        A noised sum is rounded to float32, which is post-processing.
        """
        d = self.setting.dimension
        if exchange.phase == TRAIN:
            return (SegmentSpec(HEAD, (d, self.setting.classes), "float32"),)
        sizes = {
            COVARIANCE: triangle_size(self.setting.feature_dimension),
            CENTRE: d,
            QUADRATIC: triangle_size(d),
        }
        return (SegmentSpec(exchange.phase, (sizes[exchange.phase],), "float32"),)

    def initial_state(self) -> dict[str, Array]:
        """Zero centre and weight; unit curvature; the first axes where there is a PCA."""
        d, c = self.setting.dimension, self.setting.classes
        state: dict[str, Array] = {
            "centre": np.zeros(d, np.float32),
            "spectrum": np.ones(2),
            "iterate": np.zeros((d, c), np.int32),  # W in steps of 2**-12
            "tail": np.zeros((d, c)),  # sum of the averaged iterates
            "tail_count": np.zeros(1, np.int64),
        }
        if self.setting.projection is not None:
            state["basis"] = first_axes(self.setting.feature_dimension, d)
        if self.parameters.quadratic == "once":
            state["curvature"] = upper(np.eye(d, dtype=np.float32))
        else:
            state["spectrum"] = self._isotropic(self.setting.devices)
        return state

    def package(self, state: Tensors, exchange: Exchange) -> dict[str, Array]:
        """The tensors of the exchange's form; what a device adds itself is not in the state."""
        needed = forms(exchange, self.parameters, self.setting)
        return {name: np.asarray(state[name]) for name in needed if name in state}

    def aim(self, state: Tensors, exchange: Exchange) -> Aim | None:
        """Nothing: a step on a noised polynomial is a linear image of its coefficients."""
        return None

    def absorb(
        self, state: Tensors, exchange: Exchange, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """State after an exchange; `mean` has the segments' names and shapes, any float type."""
        new = {name: np.asarray(value) for name, value in state.items()}
        if exchange.phase == COVARIANCE:
            s = self.setting
            new["basis"] = top_basis(mean[COVARIANCE], s.feature_dimension, s.dimension)
        elif exchange.phase == CENTRE:
            new["centre"] = self._in_units(mean, CENTRE).astype(np.float32)
        elif exchange.phase == QUADRATIC:
            new["curvature"], new["spectrum"] = self._curvature(mean, uploads)
        else:
            new |= self._stepped(state, exchange, mean[HEAD].astype(np.float64))
        if self.parameters.quadratic == "never":
            new["spectrum"] = self._isotropic(uploads)
        return new

    def _in_units(self, mean: Tensors, phase: str) -> NDArray[np.float64]:
        """A mean sum as the mean over one device's nominal records."""
        step = 2.0 ** -self.budget.grid_bits(phase)
        return mean[phase].astype(np.float64) * (step / self.setting.nominal_records)

    def _stepped(
        self, state: Tensors, exchange: Exchange, change: NDArray[np.float64]
    ) -> dict[str, Array]:
        p = self.parameters
        weight = state["iterate"].astype(np.float64) / UNIT + change
        clipped = np.clip(np.nan_to_num(weight), -p.max_weight, p.max_weight)
        new: dict[str, Array] = {"iterate": np.rint(clipped * UNIT).astype(np.int32)}
        if exchange.number > int(p.average_from * p.rounds):
            tail = new["iterate"].astype(np.float64) / UNIT
            new["tail"] = state["tail"].astype(np.float64) + tail
            new["tail_count"] = state["tail_count"].astype(np.int64) + 1
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """`centre` (d,), `radius` (1,), `weight` (d, c), float32; the tail's mean once it began.

        With a PCA also `basis` (D, d): the broadcast one (`ldp_fpca`), that of the mean noised
        covariance (`ldp_pca`), or the first axes (`local_pca`, where each party has its own).
        """
        count = int(state["tail_count"][0])
        source, divisor = ("tail", float(count)) if count else ("iterate", UNIT)
        weights: dict[str, Array] = {
            "centre": state["centre"].astype(np.float32),
            "radius": np.array([self.parameters.radius], np.float32),
            "weight": (state[source].astype(np.float64) / divisor).astype(np.float32),
        }
        if "basis" in state:
            weights["basis"] = as_weights(np.asarray(state["basis"], np.int16))
        return weights

    def _curvature(self, mean: Tensors, uploads: int) -> tuple[Array, Array]:
        """κ·Q₊ + ridge·(noise level)·I as a flat triangle, and its spectrum, both public."""
        quadratic = symmetric(self._in_units(mean, QUADRATIC), self.setting.dimension)
        values, vectors = np.linalg.eigh(quadratic)
        curved = self.parameters.curvature * np.maximum(values, 0.0) + self.ridge_level(uploads)
        triangle = upper((vectors * curved) @ vectors.T).astype(np.float32)
        return triangle, np.array([0.999 * curved.min(), 1.001 * curved.max()])

    def _isotropic(self, uploads: int) -> NDArray[np.float64]:
        """The spectrum of (κ + ridge·(noise level))·I, which bounds the curvature: ‖z‖ <= 1."""
        return np.full(2, self.parameters.curvature + self.ridge_level(uploads))

    def ridge_level(self, uploads: int) -> float:
        """The ridge, from the noise in the mean of `uploads` devices only, never from data.

        The larger of the operator norms to expect: 2√d·σ of the quadratic, σ being the noise off
        its diagonal, and √c·σ of the linear.
        """
        d, b = self.setting.dimension, self.budget
        linear = math.sqrt(self.setting.classes * b.noise_variance(TRAIN))
        quadratic = 0.0
        if self.parameters.quadratic == "once":
            quadratic = 2 * math.sqrt(d * b.noise_variance(QUADRATIC))
        scale = 1 / (self.setting.nominal_records * math.sqrt(max(1, uploads)))
        return self.parameters.ridge * max(quadratic, linear) * scale
