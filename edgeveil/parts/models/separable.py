"""Networks of depthwise separable convolutions, for small processors.

`mobilenet_v3_small`: Howard et al. 2019, table 2, without dropout. `ds_cnn`: the small network of
Zhang et al. 2017 (Hello Edge) for keyword spotting, on [bands, frames]. Both with group
normalisation, since batch normalisation has no gradient per record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from edgeveil.parts.models.convolutional import PICTURES, is_large, multiplied, normalised
from edgeveil.parts.models.layers import (
    Chain,
    Dense,
    GlobalAveragePool,
    HardSwish,
    Layer,
    Picture,
    Relu,
    Residual,
    Shape,
    Sides,
    Weight,
    Window,
)
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.models.network import ModelPart, Network, classifier

if TYPE_CHECKING:
    from torch import Tensor

    from edgeveil.parts.features.feature_map import NodeList
    from edgeveil.parts.models.layers import Tensors

Named = Iterator[tuple[str, Layer]]


@dataclass(frozen=True)
class SqueezeExcite(Layer):
    """Channels scaled by two dense layers of their means (Hu et al. 2018), with hard sigmoid."""

    channels: int
    squeezed: int

    @cached_property
    def _inner(self) -> Chain:
        means = ("mean", GlobalAveragePool())
        return Chain(
            (means, ("1", Dense(self.squeezed)), ("relu", Relu()), ("2", Dense(self.channels)))
        )

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return self._inner.weights(name, given)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import hardsigmoid

        return x * hardsigmoid(self._inner.apply(weights, name, x))[:, :, None, None]

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        inner = self._inner.nodes(graph, name, x, given)
        scale = graph.add("HardSigmoid", inner, alpha=1 / 6, beta=0.5)
        return graph.add("Mul", x, graph.add("Unsqueeze", scale, graph.whole(2, 3)))


class _Bottleneck(NamedTuple):
    """Row of table 2: window, channels inside and after, squeeze, hard swish, stride."""

    kernel: int
    inner: int
    channels: int
    squeezes: bool
    swish: bool
    stride: int


BOTTLENECKS = (
    _Bottleneck(3, 16, 16, True, False, 2),
    _Bottleneck(3, 72, 24, False, False, 2),
    _Bottleneck(3, 88, 24, False, False, 1),
    _Bottleneck(5, 96, 40, True, True, 2),
    _Bottleneck(5, 240, 40, True, True, 1),
    _Bottleneck(5, 240, 40, True, True, 1),
    _Bottleneck(5, 120, 48, True, True, 1),
    _Bottleneck(5, 144, 48, True, True, 1),
    _Bottleneck(5, 288, 96, True, True, 2),
    _Bottleneck(5, 576, 96, True, True, 1),
    _Bottleneck(5, 576, 96, True, True, 1),
)
FIRST, LAST, DENSE = 16, 576, 1024  # channels of the first and last convolution; units after it


def build_mobilenet(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    def wide(channels: int) -> int:
        return multiplied(channels, parameters.channel_multiplier)

    before = wide(FIRST)
    first = Window(3, 2 if is_large(input_shape) else 1, padding=1)
    layers = [("picture", Picture()), *normalised("0", before, first), ("swish0", HardSwish())]
    for number, row in enumerate(BOTTLENECKS, start=1):
        inner, after = wide(row.inner), wide(row.channels)
        body = Chain(tuple(_bottleneck(row, before, inner, after)))
        same = row.stride == 1 and before == after
        layers.append((f"block{number}", Residual(body) if same else body))
        before = after
    layers += [*normalised("9", wide(LAST), Window(1)), ("swish9", HardSwish())]
    layers += [("mean", GlobalAveragePool()), ("dense", Dense(wide(DENSE))), ("swish", HardSwish())]
    return classifier(layers, parameters, input_shape, classes)


def _bottleneck(row: _Bottleneck, before: int, inner: int, after: int) -> Named:
    active = HardSwish() if row.swish else Relu()
    if inner != before:
        yield from normalised("1", inner, Window(1))
        yield "active1", active
    window = Window(row.kernel, row.stride, padding=row.kernel // 2)
    yield from normalised("2", inner, window, depthwise=True)
    yield "active2", active
    if row.squeezes:
        yield "squeeze", SqueezeExcite(inner, multiplied(inner, 0.25))
    yield from normalised("3", after, Window(1))


KEYWORD_CHANNELS, KEYWORD_BLOCKS = 64, 4
KEYWORD_WINDOW: Sides = (4, 10)  # bands and frames of the first convolution


def build_ds_cnn(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    first = Window(KEYWORD_WINDOW, stride=2, padding=(1, 4))
    layers = [("picture", Picture()), *normalised("0", KEYWORD_CHANNELS, first), ("relu0", Relu())]
    for number in range(1, KEYWORD_BLOCKS + 1):
        around = Window(3, padding=1)
        layers += normalised(f"{number}.depth", KEYWORD_CHANNELS, around, depthwise=True)
        layers.append((f"relu{number}.depth", Relu()))
        layers += normalised(f"{number}.point", KEYWORD_CHANNELS, Window(1))
        layers.append((f"relu{number}.point", Relu()))
    layers.append(("mean", GlobalAveragePool()))
    return classifier(layers, parameters, input_shape, classes)


PARTS = (
    ModelPart(
        name="mobilenet_v3_small",
        parameters=NetworkParameters,
        summary="MobileNetV3-Small with group normalisation; small pictures keep their size at"
        " first.",
        build=build_mobilenet,
        needs=PICTURES,
        source="Howard et al. 2019, table 2",
        example="model: {name: mobilenet_v3_small, channel_multiplier: 0.5, input_scale: 255}",
    ),
    ModelPart(
        name="ds_cnn",
        parameters=NetworkParameters,
        summary="DS-CNN for keyword spotting: four depthwise separable convolutions, 64 channels.",
        build=build_ds_cnn,
        needs="records of [bands, frames], as log-mel spectra",
        source="Zhang et al. 2017 (Hello Edge), DS-CNN-S",
        example="model: {name: ds_cnn, input_scale: 255}",
    ),
)
