"""A trained network: a list of layers, their weights, the torch function and the ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from edgeveil.parts.models.layers import Layer, Shape, Weight, placed
from edgeveil.parts.part import BlockPart

if TYPE_CHECKING:
    import torch

START_SEED = 0  # of the first weights, which are public
_DRAWN = 1 << 16  # of them at one time


@dataclass(frozen=True)
class Network:
    """Logits of records of `input_shape`, divided by `input_scale` first.

    The weights lie outside: a mapping from `layers.Weight.name`, float32.
    """

    layers: tuple[tuple[str, Layer], ...]
    input_shape: Shape
    classes: int
    input_scale: float = 1.0

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Names and shapes of all weights, in order. Raises DataError for impossible shapes."""
        found: list[Weight] = []
        for name, layer, given in placed(self.layers, self.input_shape):
            found += layer.weights(name, given)
        return tuple(found)

    def prepare(self) -> None:
        """Load what the layers run, before it is called inside a transform of torch.func."""

    def initial(self) -> dict[str, NDArray[np.float32]]:
        """First weights: He et al. 2015 (normal, by fan-in), the same in every job."""
        chance = np.random.default_rng(START_SEED)
        result = {}
        for weight in self.weights:
            values = np.full(math.prod(weight.shape), weight.start, np.float32)
            if weight.fan_in:
                # A few at a time: drawn at once they would take four times what they become.
                for start in range(0, values.size, _DRAWN):
                    part = values[start : start + _DRAWN]
                    part[:] = chance.standard_normal(part.size) * np.sqrt(2 / weight.fan_in)
            result[weight.name] = values.reshape(weight.shape)
        return result

    def logits(self, weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Logits (n, classes) of x (n, *input_shape); a pure function, for torch.func too."""
        x = x / self.input_scale
        for name, layer in self.layers:
            x = layer.apply(weights, name, x)
        return x

    def graph(self) -> bytes:
        """ONNX: `x` (N, *input_shape) and all weights in, `probabilities` (N, classes) out."""
        from onnx import TensorProto, helper

        from edgeveil.parts.features.onnx_nodes import NodeList, serialise

        parts = NodeList()
        x = parts.add("Div", "x", parts.number(self.input_scale))
        for name, layer, given in placed(self.layers, self.input_shape):
            x = layer.nodes(parts, name, x, given)
        parts.nodes.append(helper.make_node("Softmax", [x], ["probabilities"], axis=1))

        def value(name: str, shape: Sequence[int | str]) -> object:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

        inputs = [value("x", ["N", *self.input_shape])]
        inputs += [value(weight.name, weight.shape) for weight in self.weights]
        outputs = [value("probabilities", ["N", self.classes])]
        return serialise(
            helper.make_graph(parts.nodes, "network", inputs, outputs, parts.initializers)
        )


class ModelParameters(BaseModel):
    """What every `model` block may say."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    runs_python: ClassVar[bool] = False
    """Whether the block names code that owners must have installed and allowed."""

    name: str
    input_scale: float = Field(default=1.0, ge=1e-30, le=1e30, allow_inf_nan=False, examples=[255])
    """Divides the raw values: the largest that a value can be."""


@dataclass(frozen=True, kw_only=True)
class ModelPart(BlockPart):
    """The declaration of a model; `build(parameters, input_shape, classes)` gives its network."""

    family: ClassVar[str] = "models"
    key: ClassVar[str] = "model"
    what: ClassVar[str] = "model"
    block: ClassVar[type[BaseModel]] = ModelParameters

    build: Callable[[Any, Shape, int], Network]
