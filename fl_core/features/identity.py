"""The raw values, scaled, shifted and brought to unit norm."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fl_core.features.base import SMALLEST_NORM, Float64, unit_rows


class IdentityParameters(BaseModel):
    """An `identity` entry of a job's `features`; all of it is public."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["identity"] = "identity"
    """The values themselves, scaled, shifted and brought to unit norm."""
    input_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Divides the raw values: the largest that a value can be."""
    shift: float = Field(default=0.0, allow_inf_nan=False)
    """Added to the scaled values."""


class Identity:
    """φ(x) = u/‖u‖ for u = x/input_scale + shift; φ = 0 where u = 0."""

    name = "identity"

    def __init__(self, parameters: IdentityParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """The number of values of a record."""
        return int(np.prod(input_shape, dtype=np.int64))

    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) float64 of records (n, ...)."""
        flat = x.reshape(len(x), self.output_dim(x.shape[1:])).astype(np.float64)
        return unit_rows(flat / self.parameters.input_scale + self.parameters.shift)

    def onnx_nodes(
        self, input_name: str, input_shape: tuple[int, ...]
    ) -> tuple[list[Any], list[Any], str]:
        """The same map in float32."""
        from onnx import helper, numpy_helper

        def constant(name: str, values: NDArray[np.generic]) -> Any:
            return numpy_helper.from_array(values, name)

        scale, shift = self.parameters.input_scale, self.parameters.shift
        initializers = [
            constant("identity.shape", np.array([-1, self.output_dim(input_shape)], np.int64)),
            constant("identity.scale", np.array(scale, np.float32)),
            constant("identity.shift", np.array(shift, np.float32)),
            constant("identity.least", np.array(SMALLEST_NORM, np.float32)),
            constant("identity.axes", np.array([1], np.int64)),
        ]
        nodes = [
            helper.make_node("Reshape", [input_name, "identity.shape"], ["identity.flat"]),
            helper.make_node("Div", ["identity.flat", "identity.scale"], ["identity.scaled"]),
            helper.make_node("Add", ["identity.scaled", "identity.shift"], ["identity.shifted"]),
            # Mul/ReduceSum/Sqrt: available at every opset from 13 on, unlike ReduceL2 with axes.
            helper.make_node("Mul", ["identity.shifted", "identity.shifted"], ["identity.squares"]),
            helper.make_node(
                "ReduceSum", ["identity.squares", "identity.axes"], ["identity.sum"], keepdims=1
            ),
            helper.make_node("Sqrt", ["identity.sum"], ["identity.norm"]),
            helper.make_node("Max", ["identity.norm", "identity.least"], ["identity.divisor"]),
            helper.make_node("Div", ["identity.shifted", "identity.divisor"], ["features"]),
        ]
        return nodes, initializers, "features"
