"""Networks of dense layers: perceptrons (`mlp`, `mlp_300_100`) and `autoencoder`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from edgeveil.parts.models.layers import Dense, Flatten, Layer, Relu, Shape
from edgeveil.parts.models.network import (
    ModelParameters,
    ModelPart,
    Network,
    Reconstruction,
    classifier,
)
from edgeveil.parts.part import only_for, some_names

Width = Annotated[int, Field(ge=1, le=8192)]


class NetworkParameters(ModelParameters):
    """The `model` block of the built-in networks."""

    name: Literal[
        "mlp",
        "mlp_300_100",
        "autoencoder",
        "cnn",
        "cnn_tanh",
        "lenet",
        "alexnet",
        "resnet20",
        "resnet18",
        "mobilenet_v3_small",
        "ds_cnn",
    ] = "mlp"
    """Which network; `edgeveil methods` describes each."""
    hidden: Annotated[
        tuple[Width, ...], Field(max_length=8), only_for(mlp=(128,), autoencoder=(64,))
    ] = some_names()
    """Of `mlp`: widths of the hidden layers; (128,) by default. Of `autoencoder`: widths of the
    layers before the narrow one, with ReLU, mirrored after it; (64,) by default."""
    code: Annotated[Width, only_for(autoencoder=8)] = some_names()
    """Of `autoencoder`: width of the narrow layer, which is linear; 8 by default."""
    channel_multiplier: Annotated[
        float, Field(ge=0.1, le=2), only_for(resnet18=0.25, mobilenet_v3_small=0.5)
    ] = some_names()
    """Of `resnet18` (0.25 by default) and `mobilenet_v3_small` (0.5): multiplies the channels of
    the published network, to multiples of 8."""


def build(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    layers: list[tuple[str, Layer]] = [("flat", Flatten())]
    hidden = (300, 100) if parameters.name == "mlp_300_100" else parameters.hidden
    for number, width in enumerate(hidden, start=1):
        layers += [(f"hidden{number}", Dense(width)), (f"relu{number}", Relu())]
    return classifier(layers, parameters, input_shape, classes)


def build_autoencoder(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
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
        name="mlp",
        parameters=NetworkParameters,
        summary="Dense layers with ReLU between them.",
        build=build,
        source="Cao et al. 2023 (DELM), section 3.3",
        example="model: {name: mlp, hidden: [128]}",
    ),
    ModelPart(
        name="mlp_300_100",
        parameters=NetworkParameters,
        summary="The perceptron of LeCun et al. 1998: dense layers of 300 and 100 units with ReLU.",
        build=build,
        source="Zhang, Wu and Dong (PSO-DP); LeCun et al. 1998",
        example="model: {name: mlp_300_100}",
    ),
    ModelPart(
        name="autoencoder",
        parameters=NetworkParameters,
        summary="Gives records back through a narrow layer: one unlike those learned comes back"
        " worse.",
        build=build_autoencoder,
        source="Hinton and Salakhutdinov 2006; as a detector, Sakurada and Yairi 2014",
        example="model: {name: autoencoder, hidden: [64], code: 8}",
        anomaly=True,
    ),
)
