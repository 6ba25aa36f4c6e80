"""The raw values, scaled, shifted and brought to unit norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.features.feature_map import (
    FeaturePart,
    Float64,
    MapParameters,
    size_of,
    unit_rows,
)
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList


class IdentityParameters(MapParameters):
    """An `identity` entry of a job's `features`; all of it is public."""

    name: Literal["identity"] = "identity"
    """The values themselves, scaled, shifted and brought to unit norm."""
    input_scale: float = Field(default=1.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a value can be."""
    shift: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    """Added to the scaled values."""


class Identity:
    """φ(x) = u/‖u‖ for u = x/input_scale + shift; φ = 0 where u = 0."""

    name = "identity"

    def __init__(self, parameters: IdentityParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """The number of values of a record."""
        return size_of(input_shape)

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) float64 of records (n, ...)."""
        flat = x.reshape(len(x), self.output_dim(x.shape[1:])).astype(np.float64)
        return unit_rows(flat / self.parameters.input_scale + self.parameters.shift)

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """The same map in float32."""
        flat = graph.add("Reshape", x, graph.whole(-1, self.output_dim(input_shape)))
        scaled = graph.add("Div", flat, graph.number(self.parameters.input_scale))
        return graph.unit_rows(graph.add("Add", scaled, graph.number(self.parameters.shift)))


PART = FeaturePart(
    parameters=IdentityParameters,
    build=lambda parameters, _: Identity(parameters),
    source="the records themselves",
    example="features: [{name: identity, input_scale: 16}]",
)
