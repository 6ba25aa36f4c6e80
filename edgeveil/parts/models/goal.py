"""What a network is trained for: the loss of a batch, and what its graph gives in the end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeveil.parts.models.layers import Shape
from edgeveil.parts.models.residual_score import THRESHOLD

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.features.onnx_nodes import NodeList


class Goal(Protocol):
    """Of what a network's layers make of its scaled input."""

    @property
    def output(self) -> str:
        """The name of the graph's output (N, width)."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs (1,) of the graph that are no weights of the network."""
        ...

    def width(self, classes: int) -> int:
        """Values a record in the graph's output."""
        ...

    def loss(self, found: torch.Tensor, given: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean loss over records: `found` (n, k) of the layers, their scaled input `given`
        (n, ...) and the labels y (n,)."""
        ...

    def nodes(self, graph: NodeList, found: str, given: str, shape: Shape) -> None:
        """Adds what gives the output of what the layers found, and of what they were given."""
        ...


@dataclass(frozen=True)
class Classes:
    """The layers give logits; the loss is the cross-entropy in nats."""

    output = "probabilities"
    inputs = ()

    def width(self, classes: int) -> int:
        return classes

    def loss(self, found: torch.Tensor, given: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(found, y)

    def nodes(self, graph: NodeList, found: str, given: str, shape: Shape) -> None:
        from onnx import helper

        graph.nodes.append(helper.make_node("Softmax", [found], [self.output], axis=1))


@dataclass(frozen=True)
class Reconstruction:
    """The layers give back what they are given; the loss is the mean squared error of its values,
    and so is the score of a record, divided by the threshold. Labels take no part."""

    output = "score"
    inputs = (THRESHOLD,)

    def width(self, classes: int) -> int:
        return 1

    def loss(self, found: torch.Tensor, given: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (found - given.flatten(1)).square().mean()

    def nodes(self, graph: NodeList, found: str, given: str, shape: Shape) -> None:
        from onnx import helper

        flat = graph.add("Reshape", given, graph.whole(-1, math.prod(shape)))
        away = graph.add("Sub", found, flat)
        squares = graph.add("Mul", away, away)
        mean = graph.add("ReduceMean", squares, axes=[1], keepdims=1)
        graph.nodes.append(helper.make_node("Div", [mean, THRESHOLD], [self.output]))


CLASSES = Classes()
