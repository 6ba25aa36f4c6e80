"""Cloud half of `fm_paper`: the average of the devices' weights (FedAvg)."""

from __future__ import annotations

import numpy as np

from edgeveil.parts.exchange import TRAIN, Aim, Array, Exchange, SegmentSpec, Tensors
from edgeveil.parts.methods.fm_cloud import FmCloud, exchanges
from edgeveil.parts.methods.fm_paper import HIDDEN, OUTPUT, FmPaperParameters, projecting
from edgeveil.parts.methods.fm_released import COVARIANCE, phases
from edgeveil.parts.methods.pca_basis import as_weights, top_basis
from edgeveil.parts.setting import Setting

START_SEED = 0  # of the first weights, which are public and the same in every job


class FmPaperCloud:
    """Cloud half: one segment a layer, so that the proxy shuffles layers as the text has it."""

    def __init__(self, parameters: FmPaperParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting
        self._fm = FmCloud(projecting(), setting)

    def plan(self) -> tuple[Exchange, ...]:
        """The covariance where there is a federated PCA, then the training rounds."""
        first = phases(projecting(), self.setting.projection)
        return exchanges(first, self.parameters.rounds, self.setting.infer_every)

    def segments(self, exchange: Exchange) -> tuple[SegmentSpec, ...]:
        """`hidden.weight` (d, hidden) and `output.weight` (hidden, c), float32."""
        if exchange.phase != TRAIN:
            return self._fm.segments(exchange)
        d, k, c = self.setting.dimension, self.parameters.hidden, self.setting.classes
        return SegmentSpec(HIDDEN, (d, k), "float32"), SegmentSpec(OUTPUT, (k, c), "float32")

    def initial_state(self) -> dict[str, Array]:
        """W₁ with entries N(0, 1/hidden) and W₂ = 0, so that h = 0 where the text expands."""
        d, k, c = self.setting.dimension, self.parameters.hidden, self.setting.classes
        start = np.random.default_rng(START_SEED).standard_normal((d, k)) / np.sqrt(k)
        state: dict[str, Array] = {
            HIDDEN: start.astype(np.float32),
            OUTPUT: np.zeros((k, c), np.float32),
        }
        first = self._fm.initial_state()
        return {**state, "basis": first["basis"]} if "basis" in first else state

    def package(self, state: Tensors, exchange: Exchange) -> dict[str, Array]:
        """Training: both weights, and the basis that is the same for all devices."""
        if exchange.phase != TRAIN:
            return self._fm.package(state, exchange)
        projection = self.setting.projection
        shared = projection is not None and projection.name == "ldp_fpca"
        names = (HIDDEN, OUTPUT, "basis") if shared else (HIDDEN, OUTPUT)
        return {name: np.asarray(state[name]) for name in names}

    def aim(self, state: Tensors, exchange: Exchange) -> Aim | None:
        """Training: both weights, which the uploaded ones replace."""
        if exchange.phase != TRAIN:
            return None
        return Aim({name: np.asarray(state[name]) for name in (HIDDEN, OUTPUT)}, change=False)

    def absorb(
        self, state: Tensors, exchange: Exchange, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """State after an exchange; `mean` has the segments' names and shapes, any float type."""
        new = {name: np.asarray(value) for name, value in state.items()}
        if exchange.phase == COVARIANCE:
            s = self.setting
            new["basis"] = top_basis(mean[COVARIANCE], s.feature_dimension, s.dimension)
            return new
        limit = self.parameters.max_weight
        for name in (HIDDEN, OUTPUT):
            weight = np.nan_to_num(mean[name].astype(np.float64))
            new[name] = np.clip(weight, -limit, limit).astype(np.float32)
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """A softmax head with weight u = W₁W₂, centre 0 and radius 1: the same largest class."""
        weight = state[HIDDEN].astype(np.float64) @ state[OUTPUT].astype(np.float64)
        limit = self.parameters.max_weight
        weights: dict[str, Array] = {
            "centre": np.zeros(self.setting.dimension, np.float32),
            "radius": np.ones(1, np.float32),
            "weight": np.clip(weight, -limit, limit).astype(np.float32),
        }
        if "basis" in state:
            weights["basis"] = as_weights(np.asarray(state["basis"], np.int16))
        return weights
