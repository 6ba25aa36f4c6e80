"""LeNet-5 (LeCun et al. 1998, `lenet`) with ReLU and max pooling.

Deviations: the original's tanh units, trained subsampling, sparse second convolution and radial
output are ReLU, max pooling, a full convolution and a dense layer here, as is usual now.
"""

from __future__ import annotations

from typing import Literal

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


class LenetParameters(ModelParameters):
    """The `model` block of a job with `name: lenet`."""

    name: Literal["lenet"] = "lenet"
    """LeNet-5: convolutions of 6 and 16 channels, 5×5, pooled; dense layers of 120 and 84."""


def build(parameters: LenetParameters, input_shape: Shape, classes: int) -> Network:
    """The first convolution keeps the size: 28×28 as the original's 32×32."""
    pool = MaxPool(Window(kernel=2, stride=2))
    layers: tuple[tuple[str, Layer], ...] = (
        ("picture", Picture()),
        ("conv1", Conv(6, Window(kernel=5, padding=2))),
        ("relu1", Relu()),
        ("pool1", pool),
        ("conv2", Conv(16, Window(kernel=5))),
        ("relu2", Relu()),
        ("pool2", pool),
        ("flat", Flatten()),
        ("hidden1", Dense(120)),
        ("relu3", Relu()),
        ("hidden2", Dense(84)),
        ("relu4", Relu()),
        ("output", Dense(classes)),
    )
    return Network(layers, input_shape, classes, parameters.input_scale)


PART = ModelPart(
    parameters=LenetParameters,
    build=build,
    source="LeCun et al. 1998 (LeNet-5)",
    needs="records of [channels, height, width] or [height, width]",
    example="model: {name: lenet, input_scale: 255}",
)
