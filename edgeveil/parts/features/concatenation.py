"""Several maps side by side, each with its share of the norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.features.base import FeatureMap, Float64
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList


class Concatenation:
    """φ = (√(w₁/Σw)·φ₁, √(w₂/Σw)·φ₂, …): ‖φ‖² is the weighted mean of the ‖φ_k‖², so at most 1."""

    name = "concatenation"

    def __init__(self, maps: Sequence[FeatureMap], weights: Sequence[float]) -> None:
        self.maps = tuple(maps)
        whole = math.fsum(weights)
        self.factors = tuple(math.sqrt(weight / whole) for weight in weights)

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """The sum of the maps' dimensions."""
        return sum(one.output_dim(input_shape) for one in self.maps)

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) float64 of records (n, ...)."""
        found = np.empty((len(x), self.output_dim(x.shape[1:])))
        at = 0
        for one, factor in zip(self.maps, self.factors, strict=True):
            part = one(x)
            np.multiply(part, factor, out=found[:, at : at + part.shape[1]])
            at += part.shape[1]
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """The same map in float32."""
        parts = [
            graph.add("Mul", one.onnx_nodes(graph, x, input_shape), graph.number(factor))
            for one, factor in zip(self.maps, self.factors, strict=True)
        ]
        return graph.add("Concat", *parts, axis=1)
