"""Networks of dense layers: perceptrons (`mlp`, `mlp_300_100`) and `autoencoder`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from edgeveil.parts.models.layers import Dense, Flatten, Layer, Relu, Shape
from edgeveil.parts.models.network import ModelParameters, ModelPart, Network, Reconstruction


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
        return (300, 100)


def build(
    parameters: MlpParameters | Mlp300100Parameters, input_shape: Shape, classes: int
) -> Network:
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
)
