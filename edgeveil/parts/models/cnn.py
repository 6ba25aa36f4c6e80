"""The small convolutional network of Zhang, Wu and Dong (PSO-DP; `cnn`)."""

from __future__ import annotations

from typing import Literal

from edgeveil.parts.models.layers import Conv, Dense, Flatten, Picture, Relu, Shape, Window
from edgeveil.parts.models.network import ModelParameters, ModelPart, Network


class CnnParameters(ModelParameters):
    """The `model` block of a job with `name: cnn`."""

    name: Literal["cnn"] = "cnn"
    """Two 3×3 convolutions of stride 2, 32 and 64 channels, ReLU after each, one dense layer."""


def build(parameters: CnnParameters, input_shape: Shape, classes: int) -> Network:
    """The text names no padding; 1 here, so that border values count."""
    window = Window(kernel=3, stride=2, padding=1)
    layers = (
        ("picture", Picture()),
        ("conv1", Conv(32, window)),
        ("relu1", Relu()),
        ("conv2", Conv(64, window)),
        ("relu2", Relu()),
        ("flat", Flatten()),
        ("output", Dense(classes)),
    )
    return Network(layers, input_shape, classes, parameters.input_scale)


PART = ModelPart(
    parameters=CnnParameters,
    build=build,
    source="Zhang, Wu and Dong (PSO-DP)",
    needs="records of [channels, height, width] or [height, width]",
    example="model: {name: cnn}",
)
