"""Layers side by side: what a residual network is made of (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeveil.errors import DataError
from edgeveil.parts.models.layers import Layer, Shape, Weight, placed

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.features.onnx_nodes import NodeList


@dataclass(frozen=True)
class Chain:
    """Layers one after the other, as one layer; their names follow its own."""

    layers: tuple[tuple[str, Layer], ...] = ()

    def output_shape(self, given: Shape) -> Shape:
        for _, layer in self.layers:
            given = layer.output_shape(given)
        return given

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        found: list[Weight] = []
        for part, layer, shape in placed(self.layers, given):
            found += layer.weights(f"{name}.{part}", shape)
        return tuple(found)

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        for part, layer in self.layers:
            x = layer.apply(weights, f"{name}.{part}", x)
        return x

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        for part, layer, shape in placed(self.layers, given):
            x = layer.nodes(graph, f"{name}.{part}", x, shape)
        return x


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x); without layers the shortcut is x itself."""

    body: Chain
    shortcut: Chain = Chain()

    def output_shape(self, given: Shape) -> Shape:
        found, short = self.body.output_shape(given), self.shortcut.output_shape(given)
        if found != short:
            raise DataError(
                f"a residual layer's branches give {list(found)} and {list(short)}",
                fix="give the shortcut layers that end in the same shape",
            )
        return found

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return self.body.weights(name, given) + self.shortcut.weights(f"{name}.shortcut", given)

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        return self.body.apply(weights, name, x) + self.shortcut.apply(
            weights, f"{name}.shortcut", x
        )

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        short = self.shortcut.nodes(graph, f"{name}.shortcut", x, given)
        return graph.add("Add", self.body.nodes(graph, name, x, given), short)


@dataclass(frozen=True)
class Thin:
    """Every `stride`-th place, and channels of 0 up to `channels`: a shortcut without weights."""

    channels: int
    stride: int

    def output_shape(self, given: Shape) -> Shape:
        return (self.channels, *(-(-side // self.stride) for side in given[1:]))

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return ()

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        from torch.nn.functional import pad

        more = self.channels - x.shape[-3]
        return pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, more))

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        starts, ends = graph.whole(0, 0), graph.whole(*given[1:])
        steps = graph.whole(self.stride, self.stride)
        thin = graph.add("Slice", x, starts, ends, graph.whole(2, 3), steps)
        more = self.channels - given[0]
        return graph.add("Pad", thin, graph.whole(0, 0, 0, 0, 0, more, 0, 0))
