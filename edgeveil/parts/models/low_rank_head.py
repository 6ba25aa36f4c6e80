"""A low-rank residual before a softmax head, for features of a frozen backbone (`low_rank_head`).

φ + (α/r)·φ·A·B, then a dense layer: LoRA (Hu et al. 2021) where the backbone's own layers cannot be
reached, on its output. A begins as public chance and B as 0, so that the head begins on φ itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from edgeveil.parts.models.layers import Dense, Flatten, Shape, Weight
from edgeveil.parts.models.network import ModelParameters, ModelPart, Network

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.features.onnx_nodes import NodeList


class LowRankHeadParameters(ModelParameters):
    """The `model` block of a job with `name: low_rank_head`."""

    name: Literal["low_rank_head"] = "low_rank_head"
    """A low-rank change of the job's features and a softmax head: for a frozen backbone."""
    rank: int = Field(default=4, ge=1, le=1024)
    """r: columns of A and rows of B."""
    alpha: float = Field(default=8.0, gt=0, le=1e6, allow_inf_nan=False)
    """α: the head takes φ + (α/r)·φ·A·B."""


@dataclass(frozen=True)
class LowRank:
    """x + scale·x·A·B, `lora_a` (d, rank) and `lora_b` (rank, d)."""

    rank: int
    scale: float

    def output_shape(self, given: Shape) -> Shape:
        return given

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        size = math.prod(given)
        return (
            Weight(f"{name}.lora_a", (size, self.rank), fan_in=size, turned=True),
            Weight(f"{name}.lora_b", (self.rank, size), turned=True),
        )

    def apply(
        self, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
    ) -> torch.Tensor:
        return x + self.scale * (x @ weights[f"{name}.lora_a"]) @ weights[f"{name}.lora_b"]

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        inner = graph.add("MatMul", x, f"{name}.lora_a")
        change = graph.add("MatMul", inner, f"{name}.lora_b")
        return graph.add("Add", x, graph.add("Mul", change, graph.number(self.scale)))


def build(parameters: LowRankHeadParameters, input_shape: Shape, classes: int) -> Network:
    """Features as they are with a change of low rank, then one dense layer."""
    layers = (
        ("flat", Flatten()),
        ("features", LowRank(parameters.rank, parameters.alpha / parameters.rank)),
        ("output", Dense(classes)),
    )
    return Network(layers, input_shape, classes, parameters.input_scale)


PART = ModelPart(
    parameters=LowRankHeadParameters,
    build=build,
    source="Hu et al. 2021 (LoRA), on a backbone's output",
    needs="features, as a rule of a frozen backbone",
    example="model: {name: low_rank_head, rank: 4}",
)
