"""Layers, each with its two halves: torch for training, ONNX nodes for inference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.features.onnx_nodes import NodeList

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Weight:
    """One trained tensor. `fan_in` scales its first values; 0: it begins as `start`."""

    name: str
    shape: Shape
    fan_in: int = 0
    start: float = 0.0


class Layer(Protocol):
    """A function of a batch and of the weights whose names begin with `name`.

    Every record is treated alone, so that gradients per record exist (no batch statistics).
    """

    def output_shape(self, given: Shape) -> Shape:
        """Shape of one record's output; raises DataError for records it does not take."""
        ...

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        """Its trained tensors, for records of shape `given`."""
        ...

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        """The output (n, *output_shape) of x (n, *given), in torch."""
        ...

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        """The same as ONNX nodes, weights as graph inputs of their names; the output's name."""
        ...


def placed(
    layers: tuple[tuple[str, Layer], ...], shape: Shape
) -> Iterator[tuple[str, Layer, Shape]]:
    """Each of layers in a row with its name and the shape of the records that reach it."""
    for name, layer in layers:
        yield name, layer, shape
        shape = layer.output_shape(shape)


@dataclass(frozen=True)
class Dense:
    """x·W + b, `weight` (in, out) and `bias` (out,)."""

    width: int

    def output_shape(self, given: Shape) -> Shape:
        return (self.width,)

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        size = math.prod(given)
        return (
            Weight(f"{name}.weight", (size, self.width), fan_in=size),
            Weight(f"{name}.bias", (self.width,)),
        )

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        import torch

        return torch.addmm(weights[f"{name}.bias"], x, weights[f"{name}.weight"])

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Gemm", x, f"{name}.weight", f"{name}.bias")


@dataclass(frozen=True)
class Flatten:
    """All values of a record in a row."""

    def output_shape(self, given: Shape) -> Shape:
        return (math.prod(given),)

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return ()

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        return x.flatten(1)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Reshape", x, graph.whole(-1, math.prod(given)))


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""

    def output_shape(self, given: Shape) -> Shape:
        return given

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return ()

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        return x.relu()

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Relu", x)
