"""Layers, each with two halves: torch for training, ONNX nodes for inference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeveil.errors import DataError
from edgeveil.parts.features.feature_map import NodeList

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

Shape = tuple[int, ...]
_INT64 = 7  # TensorProto.DataType


@dataclass(frozen=True)
class Weight:
    """One trained tensor.

    `turned`: a matrix (in, out), in a PyTorch state_dict (out, in). `statistic`: running mean or
    variance of a batch normalisation, which has no gradient and is set by training steps."""

    name: str
    shape: Shape
    fan_in: int = 0
    start: float = 0.0
    turned: bool = False
    statistic: bool = False


def value_count(weights: Iterable[Weight]) -> int:
    return sum(math.prod(one.shape) for one in weights)


class Layer:
    """Function of each record alone, so that per-record gradients exist; weights are `name.…`."""

    def output_shape(self, given: Shape) -> Shape:
        """Return the shape of one record's output. Raises DataError for unsupported records."""
        return given

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return ()

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        raise NotImplementedError

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        """Add ONNX nodes, with weights as graph inputs; return the output's name."""
        raise NotImplementedError


def row_nodes(graph: NodeList, x: str, low: int, high: int, output: str | None = None) -> str:
    """Add whole numbers in [low, high] of the values, rounded down; 0 for NaN.

    The one pattern of nodes that a device lets choose a table's rows (`graph_check.py`)."""
    number = graph.add("Where", graph.add("IsNaN", x), graph.number(0.0), x)
    bounded = graph.add("Clip", number, graph.number(low), graph.number(high))
    return graph.add("Cast", bounded, output=output, to=_INT64)


def placed(
    layers: tuple[tuple[str, Layer], ...], shape: Shape
) -> Iterator[tuple[str, Layer, Shape]]:
    for name, layer in layers:
        yield name, layer, shape
        shape = layer.output_shape(shape)


@dataclass(frozen=True)
class Dense(Layer):
    """x·W + b, `weight` (in, out) and `bias` (out,)."""

    width: int

    def output_shape(self, given: Shape) -> Shape:
        return (self.width,)

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        size = math.prod(given)
        return (
            Weight(f"{name}.weight", (size, self.width), fan_in=size, turned=True),
            Weight(f"{name}.bias", (self.width,)),
        )

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        import torch

        bias, weight = weights[f"{name}.bias"], weights[f"{name}.weight"]
        if weight.ndim == 2:
            return torch.addmm(bias, x, weight)
        each = x.reshape(len(weight), -1, x.shape[1])  # several models with equal parts of x
        return torch.baddbmm(bias.unsqueeze(1), each, weight).flatten(0, 1)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Gemm", x, f"{name}.weight", f"{name}.bias")


@dataclass(frozen=True)
class Flatten(Layer):
    def output_shape(self, given: Shape) -> Shape:
        return (math.prod(given),)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        return x.flatten(1)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Reshape", x, graph.whole(-1, math.prod(given)))


@dataclass(frozen=True)
class Relu(Layer):
    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        return x.relu()

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Relu", x)


@dataclass(frozen=True)
class Tanh(Layer):
    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        return x.tanh()

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Tanh", x)


@dataclass(frozen=True)
class HardSwish(Layer):
    """x·min(max(x/6 + ½, 0), 1) (Howard et al. 2019, section 5.2)."""

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import hardswish

        return hardswish(x)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("HardSwish", x)


NORM_EPSILON = 1e-5  # added to a variance
_NO_PICTURE = "set data.input_shape to [height, width] or [channels, height, width], or use `mlp`"


@dataclass(frozen=True)
class Picture(Layer):
    """Add a channel axis to records (height, width); channels-first records pass unchanged."""

    def output_shape(self, given: Shape) -> Shape:
        if len(given) not in (2, 3):
            raise DataError(f"records of shape {list(given)} are no pictures", fix=_NO_PICTURE)
        return given if len(given) == 3 else (1, *given)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        return x if x.ndim == 4 else x.unsqueeze(1)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        if len(given) == 3:
            return x
        return graph.add("Reshape", x, graph.whole(-1, *self.output_shape(given)))


Sides = int | tuple[int, int]
"""One number for height and width, or one for each."""


def _pair(sides: Sides) -> tuple[int, int]:
    return (sides, sides) if isinstance(sides, int) else sides


@dataclass(frozen=True)
class Window:
    """A `kernel` of values, `dilation` apart, moved by `stride`, with `padding` on each side."""

    kernel: Sides
    stride: Sides = 1
    padding: Sides = 0
    dilation: Sides = 1

    def places(self, given: Shape) -> Shape:
        """Return (height, width) of the result. Raises DataError for too small pictures."""
        if len(given) != 3:
            raise DataError(f"records of shape {list(given)} are no pictures", fix=_NO_PICTURE)
        keys = (self.kernel, self.stride, self.padding, self.dilation)
        each = zip(given[1:], *map(_pair, keys), strict=True)
        sides = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in each)
        if min(sides) < 1:
            k, wide = _pair(self.kernel)
            raise DataError(
                f"a layer's pictures of {given[1]} x {given[2]} are smaller than its window of "
                f"{k} x {wide}",
                fix="use larger pictures, or a smaller model such as `cnn` or `mlp`",
            )
        return sides

    @property
    def attributes(self) -> dict[str, Any]:
        spread = {} if self.dilation == 1 else {"dilations": list(_pair(self.dilation))}
        return {
            "kernel_shape": list(_pair(self.kernel)),
            "strides": list(_pair(self.stride)),
            "pads": list(_pair(self.padding)) * 2,
            **spread,
        }


@dataclass(frozen=True)
class Conv(Layer):
    """Cross-correlation with `channels` filters: `weight` (channels, in/groups, k, k), `bias`.

    `depthwise`: each filter sees the channel of its own number only."""

    channels: int
    window: Window
    bias: bool = True
    depthwise: bool = False

    def output_shape(self, given: Shape) -> Shape:
        return (self.channels, *self.window.places(given))

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        shape = (1 if self.depthwise else given[0], *_pair(self.window.kernel))
        filters = Weight(f"{name}.weight", (self.channels, *shape), fan_in=math.prod(shape))
        return (filters, Weight(f"{name}.bias", (self.channels,))) if self.bias else (filters,)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import conv2d

        bias, w = weights[f"{name}.bias"] if self.bias else None, self.window
        groups = self.channels if self.depthwise else 1
        filters = weights[f"{name}.weight"]
        return conv2d(x, filters, bias, w.stride, w.padding, w.dilation, groups)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        bias = (f"{name}.bias",) if self.bias else ()
        attributes = self.window.attributes
        if self.depthwise:
            attributes["group"] = self.channels
        return graph.add("Conv", x, f"{name}.weight", *bias, **attributes)


@dataclass(frozen=True)
class MaxPool(Layer):
    window: Window

    def output_shape(self, given: Shape) -> Shape:
        return (given[0], *self.window.places(given))

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import max_pool2d

        return max_pool2d(x, self.window.kernel, self.window.stride, self.window.padding)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("MaxPool", x, **self.window.attributes)


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    def output_shape(self, given: Shape) -> Shape:
        return given[:1]

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        return x.mean((-2, -1))

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return graph.add("Flatten", graph.add("GlobalAveragePool", x), axis=1)


@dataclass(frozen=True)
class GroupNorm(Layer):
    """Group normalisation (Wu and He 2018), since batch normalisation mixes records."""

    groups: int

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return Weight(f"{name}.weight", given[:1], start=1.0), Weight(f"{name}.bias", given[:1])

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import group_norm

        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return group_norm(x, self.groups, scale, shift, NORM_EPSILON)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        import numpy as np

        each = math.prod(given) // self.groups
        grouped = graph.add("Reshape", x, graph.whole(-1, self.groups, each))
        ones = graph.constant(np.ones(self.groups, np.float32))
        zeros = graph.constant(np.zeros(self.groups, np.float32))
        even = graph.add("InstanceNormalization", grouped, ones, zeros, epsilon=NORM_EPSILON)
        even = graph.add("Reshape", even, graph.whole(-1, *given))
        channels = graph.whole(given[0], 1, 1)
        scale = graph.add("Reshape", f"{name}.weight", channels)
        shift = graph.add("Reshape", f"{name}.bias", channels)
        return graph.add("Add", graph.add("Mul", even, scale), shift)


@dataclass(frozen=True)
class Chain(Layer):
    layers: tuple[tuple[str, Layer], ...] = ()

    def output_shape(self, given: Shape) -> Shape:
        for _, layer in self.layers:
            given = layer.output_shape(given)
        return given

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        found: list[Weight] = []
        for part, layer, shape in placed(self.layers, given):
            found += layer.weights(f"{name}.{part}", shape)
        return tuple(found)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        for part, layer in self.layers:
            x = layer.apply(weights, f"{name}.{part}", x)
        return x

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        for part, layer, shape in placed(self.layers, given):
            x = layer.nodes(graph, f"{name}.{part}", x, shape)
        return x


@dataclass(frozen=True)
class Residual(Layer):
    """body(x) + shortcut(x), of one shape; by default the shortcut is x itself."""

    body: Chain
    shortcut: Chain = Chain()

    def output_shape(self, given: Shape) -> Shape:
        return self.body.output_shape(given)

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return self.body.weights(name, given) + self.shortcut.weights(f"{name}.shortcut", given)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        short = self.shortcut.apply(weights, f"{name}.shortcut", x)
        return self.body.apply(weights, name, x) + short

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        short = self.shortcut.nodes(graph, f"{name}.shortcut", x, given)
        return graph.add("Add", self.body.nodes(graph, name, x, given), short)


@dataclass(frozen=True)
class Thin(Layer):
    """Shortcut without weights: every `stride`-th place, zero channels up to `channels`."""

    channels: int
    stride: int

    def output_shape(self, given: Shape) -> Shape:
        return (self.channels, *(-(-side // self.stride) for side in given[1:]))

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import pad

        more = self.channels - x.shape[-3]
        return pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, more))

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        starts, ends = graph.whole(0, 0), graph.whole(*given[1:])
        steps = graph.whole(self.stride, self.stride)
        thin = graph.add("Slice", x, starts, ends, graph.whole(2, 3), steps)
        more = self.channels - given[0]
        return graph.add("Pad", thin, graph.whole(0, 0, 0, 0, 0, more, 0, 0))
