"""Networks of dense layers: perceptrons (`mlp`, `mlp_300_100`), `autoencoder`, and `low_rank_head`,
φ + (α/r)·φ·A·B then a dense layer (LoRA, Hu et al. 2021, on a frozen backbone's output; A begins as
public chance, B as 0)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from edgeveil.parts.models.layers import Dense, Flatten, Layer, Relu, Shape, Weight
from edgeveil.parts.models.network import ModelParameters, ModelPart, Network, Reconstruction

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.features.onnx_nodes import NodeList
    from edgeveil.parts.models.layers import Tensors


class MlpParameters(ModelParameters):
    """The `model` block of a job with `name: mlp`."""

    name: Literal["mlp"] = "mlp"
    """Dense layers with ReLU between them."""
    hidden: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = Field(default=(128,), max_length=8)
    """Widths of the hidden layers."""


class Mlp300100Parameters(ModelParameters):
    """The `model` block of a job with `name: mlp_300_100`."""

    name: Literal["mlp_300_100"] = "mlp_300_100"
    """The perceptron of LeCun et al. 1998: dense layers of 300 and 100 units with ReLU."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return (300, 100)


def build(
    parameters: MlpParameters | Mlp300100Parameters, input_shape: Shape, classes: int
) -> Network:
    """d - hidden… - classes."""
    layers: list[tuple[str, Layer]] = [("flat", Flatten())]
    for number, width in enumerate(parameters.hidden, start=1):
        layers += [(f"hidden{number}", Dense(width)), (f"relu{number}", Relu())]
    layers.append(("output", Dense(classes)))
    return Network(tuple(layers), input_shape, classes, parameters.input_scale)


class AutoencoderParameters(ModelParameters):
    """The `model` block of a job with `name: autoencoder`."""

    name: Literal["autoencoder"] = "autoencoder"
    """Gives records back through a narrow layer: one unlike those learned comes back worse."""
    hidden: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = Field(default=(64,), max_length=8)
    """Widths of the layers before the narrow one, with ReLU; behind it they stand in turn."""
    code: int = Field(default=8, ge=1, le=8192)
    """Width of the narrow layer, which is linear."""


def build_autoencoder(
    parameters: AutoencoderParameters, input_shape: Shape, classes: int
) -> Network:
    """d - hidden… - code - …hidden - d; of nothing but records, so `classes` says nothing."""
    layers: list[tuple[str, Layer]] = [("flat", Flatten())]
    for number, width in enumerate(parameters.hidden, start=1):
        layers += [(f"encoder{number}", Dense(width)), (f"relu{number}", Relu())]
    layers.append(("code", Dense(parameters.code)))
    for number, width in enumerate(reversed(parameters.hidden), start=1):
        layers += [(f"decoder{number}", Dense(width)), (f"unfolded{number}", Relu())]
    layers.append(("output", Dense(math.prod(input_shape))))
    goal = Reconstruction()
    return Network(tuple(layers), input_shape, classes, parameters.input_scale, goal)


class LowRankHeadParameters(ModelParameters):
    """The `model` block of a job with `name: low_rank_head`."""

    name: Literal["low_rank_head"] = "low_rank_head"
    """A low-rank change of the job's features and a softmax head: for a frozen backbone."""
    rank: int = Field(default=4, ge=1, le=1024)
    """r: columns of A and rows of B."""
    alpha: float = Field(default=8.0, gt=0, le=1e6, allow_inf_nan=False)
    """α: the head takes φ + (α/r)·φ·A·B."""


@dataclass(frozen=True)
class LowRank(Layer):
    """x + scale·x·A·B, `lora_a` (d, rank) and `lora_b` (rank, d)."""

    rank: int
    scale: float

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        size = math.prod(given)
        return (
            Weight(f"{name}.lora_a", (size, self.rank), fan_in=size, turned=True),
            Weight(f"{name}.lora_b", (self.rank, size), turned=True),
        )

    def apply(self, weights: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * (x @ weights[f"{name}.lora_a"]) @ weights[f"{name}.lora_b"]

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        inner = graph.add("MatMul", x, f"{name}.lora_a")
        change = graph.add("MatMul", inner, f"{name}.lora_b")
        return graph.add("Add", x, graph.add("Mul", change, graph.number(self.scale)))


def build_low_rank_head(
    parameters: LowRankHeadParameters, input_shape: Shape, classes: int
) -> Network:
    """Features as they are with a change of low rank, then one dense layer."""
    layers = (
        ("flat", Flatten()),
        ("features", LowRank(parameters.rank, parameters.alpha / parameters.rank)),
        ("output", Dense(classes)),
    )
    return Network(layers, input_shape, classes, parameters.input_scale)


PARTS = (
    ModelPart(
        parameters=MlpParameters,
        build=build,
        source="Cao et al. 2023 (DELM), section 3.3",
        example="model: {name: mlp, hidden: [128]}",
    ),
    ModelPart(
        parameters=Mlp300100Parameters,
        build=build,
        source="Zhang, Wu and Dong (PSO-DP); LeCun et al. 1998",
        example="model: {name: mlp_300_100}",
    ),
    ModelPart(
        parameters=AutoencoderParameters,
        build=build_autoencoder,
        source="Hinton and Salakhutdinov 2006; as a detector, Sakurada and Yairi 2014",
        example="model: {name: autoencoder, hidden: [64], code: 8}",
        anomaly=True,
    ),
    ModelPart(
        parameters=LowRankHeadParameters,
        build=build_low_rank_head,
        source="Hu et al. 2021 (LoRA), on a backbone's output",
        needs="features, as a rule of a frozen backbone",
        example="model: {name: low_rank_head, rank: 4}",
    ),
)
