"""The public encoders: small networks trained on public or drawn images, written as ONNX.

`digits` tells drawn and scanned digits apart; its features are the values before the class scores,
and the scores. `pictures` has seen drawn colour pictures alone: two views of one picture shall lie
together, those of different ones apart (Chen et al. 2020, SimCLR). Pictures drawn by a rule teach
this way much of what photographs do (Baradad et al. 2021), and are nobody's, so private heads can
stand on them for nothing (Tang et al. 2023, DP-RandP).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from edgeveil.heap import keep_heap
from edgeveil.parts.features.feature_map import NodeList, serialise
from edgeveil.parts.features.pictures import narrowed, procedural_pictures
from edgeveil_tools.backbone.drawings import PIXELS, PublicDigits

Float32 = NDArray[np.float32]
Progress = Callable[[float], None]  # gets the share that is done, up to 1


def _convolutions(
    before: int, layers: Sequence[tuple[int, int, int]], *more: type
) -> nn.Sequential:
    """Convolutions (channels, kernel, stride), each with batch norm, ReLU and `more`(2)."""
    found: list[nn.Module] = []
    for channels, kernel, stride in layers:
        found.append(nn.Conv2d(before, channels, kernel, stride, padding=kernel // 2, bias=False))
        found += [nn.BatchNorm2d(channels), nn.ReLU(), *(kind(2) for kind in more)]
        before = channels
    return nn.Sequential(*found)


def _array(values: torch.Tensor) -> Float32:
    """A parameter as an array of its own."""
    found: Float32 = values.detach().contiguous().numpy()
    return found


def _folded(graph: NodeList, value: str, convolution: Any, norm: Any, **strides: Any) -> str:
    """Add a convolution, the batch norm after it folded in, and its ReLU."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = _array(convolution.weight * scale[:, None, None, None])
    bias = _array(norm.bias - norm.running_mean * scale)
    names, pads = (graph.constant(weight), graph.constant(bias)), [*convolution.padding] * 2
    return graph.add("Relu", graph.add("Conv", value, *names, pads=pads, **strides))


def _written(graph: NodeList, name: str, input_shape: tuple[int, ...], output_dim: int) -> bytes:
    """The file of a graph from `image` (N, *input_shape) to what its last node gives (N, d)."""
    from onnx import TensorProto, helper

    graph.nodes[-1].output[0] = "features"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", *input_shape])
    found = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", output_dim])
    return serialise(helper.make_graph(graph.nodes, name, [image], [found], graph.initializers))


# --- digits ---

HIDDEN, CLASSES = 128, 10
FEATURES = HIDDEN + CLASSES
_LAYERS = ((32, 5, 1), (64, 3, 1), (128, 3, 1))
_CLASS_SHARE = 0.3  # of the features' squared norm: what the class scores have
_BATCH, _RATE, _DECAY, _SMOOTHING = 128, 2e-3, 1e-2, 0.1


class Encoder(nn.Module):
    """Three times convolution, batch norm, ReLU and pooling; features are `HIDDEN` values and the
    class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = _convolutions(1, _LAYERS, nn.MaxPool2d)
        side = PIXELS // 2 ** len(_LAYERS)
        self.dense = nn.Linear(_LAYERS[-1][0] * side * side, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def parts(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values (n, 128) and class scores (n, 10) of images (n, 1, 28, 28), ink 0..1."""
        flat = functional.dropout(self.convolutions(images).flatten(1), 0.2, self.training)
        values = self.dense(flat)
        return values, self.head(functional.relu(values))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features (n, 138) of unit norm: the values, and the scores less their mean."""
        values, scores = self.parts(images)
        centred = scores - scores.mean(dim=1, keepdim=True)
        shares = ((values, 1 - _CLASS_SHARE), (centred, _CLASS_SHARE))
        return torch.cat([share**0.5 * functional.normalize(v) for v, share in shares], dim=1)


def train_encoder(
    steps: int, drawings: int, seed: int, on_progress: Progress = lambda _: None
) -> Encoder:
    """The encoder after `steps` batches, the same for the same seed and machine; one-cycle rate
    (Smith and Topin 2019)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        digits = PublicDigits.load(drawings, seed)
        encoder = Encoder().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.AdamW(encoder.parameters(), _RATE, weight_decay=_DECAY)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, steps, pct_start=0.15)
        for step in range(steps):
            images, labels = digits.batch(_BATCH)
            images = images.to(memory_format=torch.channels_last)
            _, scores = encoder.parts(images)
            loss = functional.cross_entropy(scores, labels, label_smoothing=_SMOOTHING)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            rate.step()
            on_progress((step + 1) / steps)
    trained: Encoder = encoder.eval()
    return trained


def onnx_encoder(encoder: Encoder) -> bytes:
    """The encoder as ONNX: `image` (N, 1, 28, 28) -> `features` (N, 138), batch norms folded."""
    graph, value = NodeList(), "image"
    for k in range(len(_LAYERS)):
        convolution, norm = encoder.convolutions[4 * k], encoder.convolutions[4 * k + 1]
        value = _folded(graph, value, convolution, norm)
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    values = graph.add("Gemm", graph.add("Flatten", value, axis=1), *_dense(graph, encoder.dense))
    scores = graph.add("Gemm", graph.add("Relu", values), *_dense(graph, encoder.head))
    mean = graph.add("ReduceMean", scores, axes=[1], keepdims=1)
    shares = ((values, 1 - _CLASS_SHARE), (graph.add("Sub", scores, mean), _CLASS_SHARE))
    parts = [graph.add("Mul", graph.unit_rows(v), graph.number(share**0.5)) for v, share in shares]
    graph.add("Concat", *parts, axis=1)
    return _written(graph, "digits", (1, PIXELS, PIXELS), FEATURES)


def _dense(graph: NodeList, layer: nn.Linear) -> tuple[str, str]:
    """A dense layer's weight (inputs, outputs) and bias, as Gemm takes them."""
    return graph.constant(_array(layer.weight.T)), graph.constant(_array(layer.bias))


# --- pictures ---

SIDE, DRAWN_SIDE = 32, 48  # of what it takes, and of what views are cut from
PICTURE_FEATURES = 256
_PICTURE_LAYERS = ((32, 3, 1), (64, 3, 2), (128, 3, 2), (128, 3, 1), (256, 3, 2), (256, 3, 1))
_PROJECTED = (256, 64)  # sizes of the layers that only training has
_POOLED = 2  # windows to a side, of the last maps
_VIEWED, _DECAY_OF_VIEWS, _WARM_UP = 256, 1e-4, 50
_TEMPERATURE = 0.1
_SMALLEST_VIEW = 0.15  # of a picture's area
_AT_ONCE = 1000  # pictures drawn
_DRAWING = 0.1  # of the whole time, about
_MEASURED = 4000  # pictures that the axes are taken from; no fewer than features
_HEAP_BYTES = 1 << 30  # kept meanwhile: a step's maps anew from the system cost as long as the step


class PictureEncoder(nn.Module):
    """Six convolutions with batch norm and ReLU; training has two dense layers on top."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = _convolutions(3, _PICTURE_LAYERS)
        first = nn.Linear(_PICTURE_LAYERS[-1][0], _PROJECTED[0])
        self.head = nn.Sequential(first, nn.ReLU(), nn.Linear(*_PROJECTED))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Unit vectors (n, 64) of pictures (n, 3, 32, 32), values 0..1: what training compares."""
        maps = self.convolutions(pictures.contiguous(memory_format=torch.channels_last))
        return functional.normalize(self.head(maps.mean((2, 3))))

    def pooled(self, pictures: torch.Tensor) -> torch.Tensor:
        """The last maps' means over four quarters, (n, 1024)."""
        maps = self.convolutions(pictures.contiguous(memory_format=torch.channels_last))
        return functional.adaptive_avg_pool2d(maps, _POOLED).flatten(1)


def draw(count: int, on_progress: Progress) -> NDArray[np.uint8]:
    """Pictures (n, 3, 48, 48), always the same."""
    found = np.empty((count, 3, DRAWN_SIDE, DRAWN_SIDE), np.uint8)
    for series, start in enumerate(range(0, count, _AT_ONCE)):
        part = found[start : start + _AT_ONCE]
        part[:] = procedural_pictures(len(part), (3, DRAWN_SIDE, DRAWN_SIDE), series)
        on_progress((start + len(part)) / count)
    return found


def train_pictures(
    steps: int, drawings: int, seed: int, on_progress: Progress = lambda _: None
) -> tuple[PictureEncoder, NDArray[np.uint8]]:
    """The encoder after `steps` batches, the same for a seed and machine; and the drawings."""
    pictures = draw(drawings, lambda share: on_progress(_DRAWING * share))
    keep_heap(_HEAP_BYTES, _HEAP_BYTES)
    try:
        encoder = _taught(torch.from_numpy(pictures), steps, seed, on_progress)
    finally:
        keep_heap()
    return encoder, pictures


def _taught(whole: torch.Tensor, steps: int, seed: int, on_progress: Progress) -> PictureEncoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = PictureEncoder().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.AdamW(encoder.parameters(), _RATE, weight_decay=_DECAY_OF_VIEWS)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = _rate(step, steps)
            batch = whole[torch.randint(len(whole), (_VIEWED,))] / 255
            loss = _contrast(encoder(torch.cat([views(batch), views(batch)])))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            on_progress(_DRAWING + (1 - _DRAWING) * (step + 1) / steps)
    trained: PictureEncoder = encoder.eval()
    return trained


def _rate(step: int, steps: int) -> float:
    return _RATE * min(1.0, (step + 1) / _WARM_UP) * (math.cos(math.pi * step / steps) + 1.02) / 2


def _contrast(vectors: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of finding each vector's other view among all, by similarity."""
    half = len(vectors) // 2
    likeness = vectors @ vectors.T / _TEMPERATURE
    likeness = likeness.masked_fill(torch.eye(2 * half, dtype=torch.bool), -math.inf)
    other = torch.cat([torch.arange(half) + half, torch.arange(half)])
    return functional.cross_entropy(likeness, other)


def views(pictures: torch.Tensor) -> torch.Tensor:
    """One view of each picture, (n, 3, 32, 32): cut out, turned, mirrored, in another light."""
    count = len(pictures)

    def chance(*size: int) -> torch.Tensor:
        return torch.rand(count, *size)

    area, longer = _SMALLEST_VIEW + (1 - _SMALLEST_VIEW) * chance(), torch.exp(0.6 * chance() - 0.3)
    wide, high = ((area * part).sqrt().clamp(max=1) for part in (longer, 1 / longer))
    turn, mirrored = 0.6 * chance() - 0.3, torch.sign(chance() - 0.5)
    place = torch.zeros(count, 2, 3)
    place[:, 0, 0], place[:, 0, 1] = mirrored * wide * turn.cos(), -high * turn.sin()
    place[:, 1, 0], place[:, 1, 1] = mirrored * wide * turn.sin(), high * turn.cos()
    place[:, 0, 2] = (2 * chance() - 1) * (1 - wide)
    place[:, 1, 2] = (2 * chance() - 1) * (1 - high)
    grid = functional.affine_grid(place, [count, 3, SIDE, SIDE], align_corners=False)
    found = functional.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
    mean = found.mean((1, 2, 3), keepdim=True)
    found = (found - mean) * (0.7 + 0.6 * chance(1, 1, 1)) + mean
    grey = found.mean(1, keepdim=True)
    found = (found - grey) * (0.6 + 0.8 * chance(1, 1, 1)) + grey
    # Colours tell things apart, so they change little.
    found = found * (0.85 + 0.3 * chance(3, 1, 1)) + 0.2 * chance(1, 1, 1) - 0.1
    return found.clamp(0, 1)


@torch.no_grad()
def axes(encoder: PictureEncoder, drawings: NDArray[np.uint8]) -> tuple[Float32, Float32]:
    """The mean (1024,) of drawn pictures' values and their main axes (1024, 256), narrowed."""
    edge = (DRAWN_SIDE - SIDE) // 2
    middle = drawings[:_MEASURED, :, edge : edge + SIDE, edge : edge + SIDE]
    parts = [middle[k : k + _VIEWED] for k in range(0, len(middle), _VIEWED)]
    values = np.concatenate(
        [encoder.pooled(torch.from_numpy(part.copy()) / 255).numpy() for part in parts]
    ).astype(np.float64)
    mean = values.mean(axis=0)
    return mean.astype(np.float32), narrowed(values - mean, PICTURE_FEATURES).astype(np.float32)


def onnx_pictures(encoder: PictureEncoder, mean: Float32, onto: Float32) -> bytes:
    """As ONNX: `image` (N, 3, 32, 32), values 0..1, -> `features` (N, 256), batch norms folded."""
    graph, value = NodeList(), "image"
    for k, (_, _, stride) in enumerate(_PICTURE_LAYERS):
        convolution, norm = encoder.convolutions[3 * k], encoder.convolutions[3 * k + 1]
        value = _folded(graph, value, convolution, norm, strides=[stride] * 2)
    side = SIDE // math.prod(stride for *_, stride in _PICTURE_LAYERS) // _POOLED
    value = graph.add("AveragePool", value, kernel_shape=[side] * 2, strides=[side] * 2)
    centred = graph.add("Sub", graph.add("Flatten", value, axis=1), graph.constant(mean))
    graph.unit_rows(graph.add("MatMul", centred, graph.constant(onto)))
    return _written(graph, "pictures", (3, SIDE, SIDE), onto.shape[1])
