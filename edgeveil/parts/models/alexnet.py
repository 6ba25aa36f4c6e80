"""AlexNet for pictures of about 32×32 (`alexnet`): five convolutions, three dense layers.

Channels as Krizhevsky 2014 (arXiv:1404.5997), windows of 3×3. Deviations: no dropout, since a
network is a pure function here, no local response normalisation, dense layers of 1024 units by
default in place of 4096, which would make most of an update.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgeveil.parts.models.layers import (
    Conv,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Picture,
    Relu,
    Shape,
    Window,
)
from edgeveil.parts.models.network import ModelParameters, ModelPart, Network

CHANNELS = (64, 192, 384, 256, 256)
POOLED = (1, 2, 5)  # after these convolutions


class AlexnetParameters(ModelParameters):
    """The `model` block of a job with `name: alexnet`."""

    name: Literal["alexnet"] = "alexnet"
    """AlexNet for 32×32 pictures: five 3×3 convolutions, three dense layers, no dropout."""
    dense: int = Field(default=1024, ge=1, le=8192)
    """Units of the first two dense layers; the original has 4096."""


def build(parameters: AlexnetParameters, input_shape: Shape, classes: int) -> Network:
    """The first convolution has stride 2; pooling after the first, second and fifth."""
    layers: list[tuple[str, Layer]] = [("picture", Picture())]
    for number, channels in enumerate(CHANNELS, start=1):
        window = Window(kernel=3, stride=2 if number == 1 else 1, padding=1)
        layers += [(f"conv{number}", Conv(channels, window)), (f"relu{number}", Relu())]
        if number in POOLED:
            layers.append((f"pool{number}", MaxPool(Window(kernel=2, stride=2))))
    layers.append(("flat", Flatten()))
    for number in (6, 7):
        layers += [(f"dense{number}", Dense(parameters.dense)), (f"relu{number}", Relu())]
    layers.append(("output", Dense(classes)))
    return Network(tuple(layers), input_shape, classes, parameters.input_scale)


PART = ModelPart(
    parameters=AlexnetParameters,
    build=build,
    source="Krizhevsky 2014, for pictures of 32×32",
    needs="records of [channels, height, width] or [height, width]",
    example="model: {name: alexnet, dense: 1024}",
)
