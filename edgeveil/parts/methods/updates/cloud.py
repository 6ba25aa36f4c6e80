"""Cloud half of every method that uploads updates: the global weights, moved by the aggregate."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from edgeveil.parts.exchange import TRAIN, Aim, Array, Exchange, SegmentSpec, Tensors
from edgeveil.parts.setting import Setting, network_of
from edgeveil.parts.update import segments_of, specs_of, update_of

LARGEST_WEIGHT = 1e6  # no aggregate moves a weight further; so that no model stops being finite


class Rounds(Protocol):
    """What the cloud needs of a method's parameters."""

    @property
    def rounds(self) -> int: ...


class UpdateCloud:
    """State: the weights, by name, float32."""

    def __init__(self, parameters: Rounds, setting: Setting) -> None:
        self._rounds, self.setting = parameters.rounds, setting
        self._network = network_of(setting)

    def plan(self) -> tuple[Exchange, ...]:
        """The training rounds."""
        every = self.setting.infer_every
        return tuple(
            Exchange(k, TRAIN, k, infer=every > 0 and k % every == 0)
            for k in range(1, self._rounds + 1)
        )

    def segments(self, exchange: Exchange) -> tuple[SegmentSpec, ...]:
        """float32, the form that the job's `proxy.shuffle` asks for."""
        return specs_of(self._network, whole=self.setting.whole)

    def initial_state(self) -> dict[str, Array]:
        """The network's first weights, which are public."""
        return dict(self._network.initial())

    def package(self, state: Tensors, exchange: Exchange) -> dict[str, Array]:
        """All weights."""
        return {w.name: np.asarray(state[w.name]) for w in self._network.weights}

    def aim(self, state: Tensors, exchange: Exchange) -> Aim | None:
        """All weights, in the segments' form; updates are added to them."""
        weights = segments_of(self._network, state, whole=self.setting.whole)
        return Aim(dict(weights), change=True)

    def absorb(
        self, state: Tensors, exchange: Exchange, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """Weights + aggregated update (McMahan et al. 2017, with updates in place of weights)."""
        update = update_of(self._network, mean)
        new: dict[str, Array] = {}
        for weight in self._network.weights:
            moved = np.asarray(state[weight.name], np.float64) + np.nan_to_num(update[weight.name])
            new[weight.name] = np.clip(moved, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.float32)
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """The weights, as the network's graph names them."""
        return self.package(state, Exchange(0, TRAIN, 0))
