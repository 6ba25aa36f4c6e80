"""ResNet-20 (He et al. 2016, section 4.2) with group normalisation (`resnet20`).

As Zhang, Wu and Dong (PSO-DP) have it: 19 convolutions of 3×3 with 16, 32, 64 channels and one
dense layer. Batch normalisation, which has no gradient per record, is group normalisation here.
"""

from __future__ import annotations

from typing import Literal

from edgeveil.parts.models.layers import (
    Chain,
    Conv,
    Dense,
    GlobalAveragePool,
    GroupNorm,
    Layer,
    Picture,
    Relu,
    Residual,
    Shape,
    Thin,
    Window,
)
from edgeveil.parts.models.network import ModelParameters, ModelPart, Network

STAGES = (16, 32, 64)  # channels; the picture's sides are halved from stage to stage
BLOCKS = 3  # a stage, of two convolutions each


class Resnet20Parameters(ModelParameters):
    """The `model` block of a job with `name: resnet20`."""

    name: Literal["resnet20"] = "resnet20"
    """ResNet-20 for small pictures, with group normalisation in place of batch normalisation."""
    groups: Literal[1, 2, 4, 8, 16] = 16
    """Groups of channels that are normalised together."""
    shortcut: Literal["thin", "projection"] = "thin"
    """Where channels grow: `thin` takes every second place and adds channels of 0 (no weights);
    `projection`: a 1×1 convolution, normalised."""


def build(parameters: Resnet20Parameters, input_shape: Shape, classes: int) -> Network:
    """One convolution, nine residual blocks, each channel's mean, one dense layer."""
    layers: list[tuple[str, Layer]] = [("picture", Picture())]
    layers += _normalised("0", STAGES[0], Window(3, padding=1), parameters.groups)
    layers.append(("relu0", Relu()))
    before = STAGES[0]
    for stage, channels in enumerate(STAGES, start=1):
        for block in range(1, BLOCKS + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            name = f"block{stage}.{block}"
            layers += [
                (name, _block(parameters, before, channels, stride)),
                (f"{name}.relu", Relu()),
            ]
            before = channels
    layers += [("mean", GlobalAveragePool()), ("output", Dense(classes))]
    return Network(tuple(layers), input_shape, classes, parameters.input_scale)


def _block(parameters: Resnet20Parameters, before: int, channels: int, stride: int) -> Residual:
    groups = parameters.groups
    body = Chain(
        (
            *_normalised("1", channels, Window(3, stride, padding=1), groups),
            ("relu", Relu()),
            *_normalised("2", channels, Window(3, padding=1), groups),
        )
    )
    if before == channels:
        return Residual(body)
    if parameters.shortcut == "thin":
        return Residual(body, Chain((("thin", Thin(channels, stride)),)))
    return Residual(body, Chain(_normalised("", channels, Window(1, stride), groups)))


def _normalised(
    name: str, channels: int, window: Window, groups: int
) -> tuple[tuple[str, Layer], ...]:
    # The shift of the normalisation does a bias's work.
    return (
        (f"conv{name}", Conv(channels, window, bias=False)),
        (f"norm{name}", GroupNorm(groups)),
    )


PART = ModelPart(
    parameters=Resnet20Parameters,
    build=build,
    source="He et al. 2016, section 4.2; Zhang, Wu and Dong (PSO-DP)",
    needs="records of [channels, height, width] or [height, width]",
    example="model: {name: resnet20, groups: 16}",
)
