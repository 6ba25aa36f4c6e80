"""Cloud half of `fm`: curvature and ridge from the noised sums, and the weights' averages."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_core.algorithms.base import TRAIN, Array, Exchange, SegmentSpec, Tensors
from fl_core.algorithms.fm_parameters import (
    CENTRE,
    HEAD,
    QUADRATIC,
    STEP,
    Budget,
    FmParameters,
    budget,
    symmetric,
)
from fl_core.algorithms.setting import Setting
from fl_core.privacy.grid import GRID_BITS

UNIT = 2.0**GRID_BITS


class FmCloud:
    """Cloud half: sees only the mean of the devices' noised segments."""

    def __init__(self, parameters: FmParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting
        self.budget: Budget = budget(parameters, setting)

    def plan(self) -> tuple[Exchange, ...]:
        """Centre, quadratic, then the training rounds."""
        every = self.setting.infer_every
        rounds = [
            Exchange(2 + k, TRAIN, k, infer=every > 0 and k % every == 0)
            for k in range(1, self.parameters.rounds + 1)
        ]
        return (Exchange(1, CENTRE, 0), Exchange(2, QUADRATIC, 0), *rounds)

    def segments(self, exchange: Exchange) -> tuple[SegmentSpec, ...]:
        """One segment: `centre` (d,), `quadratic` (d(d+1)/2,), or `head.weight` (d, c)."""
        d = self.setting.dimension
        if exchange.phase == CENTRE:
            return (SegmentSpec(CENTRE, (d,), "int64"),)
        if exchange.phase == QUADRATIC:
            return (SegmentSpec(QUADRATIC, (d * (d + 1) // 2,), "int64"),)
        return (SegmentSpec(HEAD, (d, self.setting.classes), "float32"),)

    def initial_state(self) -> dict[str, Array]:
        """Zero centre and weight; unit curvature."""
        d, c = self.setting.dimension, self.setting.classes
        return {
            "centre": np.zeros(d, np.float32),
            "curvature": np.eye(d, dtype=np.float32)[np.triu_indices(d)],
            "spectrum": np.ones(2),
            "iterate": np.zeros((d, c), np.int32),  # W in steps of 2**-12
            "tail": np.zeros((d, c)),  # sum of the averaged iterates
            "tail_count": np.zeros(1, np.int64),
        }

    def package(self, state: Tensors, exchange: Exchange) -> dict[str, Array]:
        """Training: the model's weights and `iterate`, `curvature`, `spectrum`."""
        if exchange.phase == CENTRE:
            return {}
        if exchange.phase == QUADRATIC:
            return {"centre": np.asarray(state["centre"])}
        names = ("iterate", "curvature", "spectrum")
        return {**self.model(state), **{name: np.asarray(state[name]) for name in names}}

    def absorb(
        self, state: Tensors, exchange: Exchange, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """State after an exchange; `mean` has the segments' names and shapes, any float type."""
        new = {name: np.asarray(value) for name, value in state.items()}
        if exchange.phase == CENTRE:
            centre = mean[CENTRE].astype(np.float64) * (STEP / self.setting.nominal_records)
            new["centre"] = centre.astype(np.float32)
        elif exchange.phase == QUADRATIC:
            new["curvature"], new["spectrum"] = self._curvature(mean[QUADRATIC], uploads)
        else:
            p = self.parameters
            weight = state["iterate"].astype(np.float64) / UNIT + mean[HEAD].astype(np.float64)
            clipped = np.clip(np.nan_to_num(weight), -p.max_weight, p.max_weight)
            new["iterate"] = np.rint(clipped * UNIT).astype(np.int32)
            if exchange.number > int(p.average_from * p.rounds):
                tail = new["iterate"].astype(np.float64) / UNIT
                new["tail"] = state["tail"].astype(np.float64) + tail
                new["tail_count"] = state["tail_count"].astype(np.int64) + 1
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """`centre` (d,), `radius` (1,), `weight` (d, c), float32; the tail's mean once it began."""
        count = int(state["tail_count"][0])
        source, divisor = ("tail", float(count)) if count else ("iterate", UNIT)
        return {
            "centre": state["centre"].astype(np.float32),
            "radius": np.array([self.parameters.radius], np.float32),
            "weight": (state[source].astype(np.float64) / divisor).astype(np.float32),
        }

    def _curvature(self, mean: NDArray[np.generic], uploads: int) -> tuple[Array, Array]:
        """κ·Q₊ + ridge·(noise level)·I as a flat triangle, and its spectrum, both public."""
        d, n = self.setting.dimension, self.setting.nominal_records
        quadratic = symmetric(mean.astype(np.float64) * (STEP / n), d)
        values, vectors = np.linalg.eigh(quadratic)
        floor = self.ridge_level(uploads)
        curved = self.parameters.curvature * np.maximum(values, 0.0) + floor
        triangle = ((vectors * curved) @ vectors.T)[np.triu_indices(d)].astype(np.float32)
        return triangle, np.array([0.999 * curved.min(), 1.001 * curved.max()])

    def ridge_level(self, uploads: int) -> float:
        """The ridge, from the noise in the mean of `uploads` devices only, never from data.

        The larger of the operator norms to expect: √(2d)·σ of the quadratic, √c·σ of the linear.
        """
        d, b = self.setting.dimension, self.budget
        scale = STEP / (self.setting.nominal_records * math.sqrt(max(1, uploads)))
        quadratic = math.sqrt(2 * d * b.quadratic.sigma_squared) * scale
        linear = math.sqrt(self.setting.classes * b.linear.sigma_squared) * scale
        return self.parameters.ridge * max(quadratic, linear)
