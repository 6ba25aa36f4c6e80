"""An encoder of colour pictures that has seen none: trained on drawn ones, written as ONNX.

Two views of one drawn picture shall lie together, those of different ones apart (Chen et al. 2020,
SimCLR). Pictures drawn by a rule teach this way much of what photographs do (Baradad et al. 2021),
and are nobody's, so private heads can stand on them for nothing (Tang et al. 2023, DP-RandP).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from edgeveil.heap import keep_heap
from edgeveil.parts.features.onnx_nodes import NodeList
from edgeveil.parts.features.pictures import narrowed
from edgeveil.parts.features.procedural_pictures import procedural_pictures
from edgeveil_tools.backbone.graph import folded, written

SIDE, DRAWN_SIDE = 32, 48  # of what it takes, and of what views are cut from
FEATURES = 256
# Channels of each convolution, 3 x 3, and whether it halves the size.
_LAYERS = ((32, 1), (64, 2), (128, 2), (128, 1), (256, 2), (256, 1))
_PROJECTED = (256, 64)  # sizes of the layers that only training has
_POOLED = 2  # windows to a side, of the last maps
_BATCH, _RATE, _DECAY, _WARM_UP = 256, 2e-3, 1e-4, 50
_TEMPERATURE = 0.1
_SMALLEST_VIEW = 0.15  # of a picture's area
_AT_ONCE = 1000  # pictures drawn
_DRAWING = 0.1  # of the whole time, about
_MEASURED = 4000  # pictures that the axes are taken from; no fewer than FEATURES
_HEAP_BYTES = 1 << 30  # kept meanwhile: a step's maps anew from the system cost as long as the step

Float32 = NDArray[np.float32]


class PictureEncoder(nn.Module):
    """Six convolutions with batch norm and ReLU; training has two dense layers on top."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for channels, stride in _LAYERS:
            convolution = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
            before = channels
        self.convolutions = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(before, _PROJECTED[0]), nn.ReLU(), nn.Linear(*_PROJECTED)
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Unit vectors (n, 64) of pictures (n, 3, 32, 32), values 0..1: what training compares."""
        maps = self.convolutions(pictures.contiguous(memory_format=torch.channels_last))
        return functional.normalize(self.head(maps.mean((2, 3))))

    def pooled(self, pictures: torch.Tensor) -> torch.Tensor:
        """The last maps' means over four quarters, (n, 1024)."""
        maps = self.convolutions(pictures.contiguous(memory_format=torch.channels_last))
        return functional.adaptive_avg_pool2d(maps, _POOLED).flatten(1)


def draw(count: int, on_progress: Callable[[float], None]) -> NDArray[np.uint8]:
    """Pictures (n, 3, 48, 48), always the same."""
    found = np.empty((count, 3, DRAWN_SIDE, DRAWN_SIDE), np.uint8)
    for series, start in enumerate(range(0, count, _AT_ONCE)):
        part = found[start : start + _AT_ONCE]
        part[:] = procedural_pictures(len(part), (3, DRAWN_SIDE, DRAWN_SIDE), series)
        on_progress((start + len(part)) / count)
    return found


def train_pictures(
    steps: int, drawings: int, seed: int, on_progress: Callable[[float], None] = lambda _: None
) -> tuple[PictureEncoder, NDArray[np.uint8]]:
    """The encoder after `steps` batches, the same for the same seed and machine; and the drawings.

    Calls `on_progress` with the share done.
    """
    pictures = draw(drawings, lambda share: on_progress(_DRAWING * share))
    keep_heap(_HEAP_BYTES, _HEAP_BYTES)
    try:
        encoder = _taught(torch.from_numpy(pictures), steps, seed, on_progress)
    finally:
        keep_heap()
    return encoder, pictures


def _taught(
    whole: torch.Tensor, steps: int, seed: int, on_progress: Callable[[float], None]
) -> PictureEncoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = PictureEncoder().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.AdamW(encoder.parameters(), _RATE, weight_decay=_DECAY)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = _rate(step, steps)
            batch = whole[torch.randint(len(whole), (_BATCH,))] / 255
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
    place[:, 0, 2], place[:, 1, 2] = (
        (2 * chance() - 1) * (1 - wide),
        (2 * chance() - 1) * (1 - high),
    )
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
    parts = [middle[k : k + _BATCH] for k in range(0, len(middle), _BATCH)]
    values = np.concatenate(
        [encoder.pooled(torch.from_numpy(part.copy()) / 255).numpy() for part in parts]
    ).astype(np.float64)
    mean = values.mean(axis=0)
    return mean.astype(np.float32), narrowed(values - mean, FEATURES).astype(np.float32)


def onnx_pictures(encoder: PictureEncoder, mean: Float32, onto: Float32) -> bytes:
    """As ONNX: `image` (N, 3, 32, 32), values 0..1, -> `features` (N, 256), batch norms folded."""
    graph, value = NodeList(), "image"
    for k, (_, stride) in enumerate(_LAYERS):
        convolution, norm = encoder.convolutions[3 * k], encoder.convolutions[3 * k + 1]
        weight, bias = (graph.constant(v) for v in folded(convolution, norm))
        value = graph.add("Conv", value, weight, bias, pads=[1] * 4, strides=[stride] * 2)
        value = graph.add("Relu", value)
    side = SIDE // math.prod(stride for _, stride in _LAYERS) // _POOLED
    value = graph.add("AveragePool", value, kernel_shape=[side] * 2, strides=[side] * 2)
    centred = graph.add("Sub", graph.add("Flatten", value, axis=1), graph.constant(mean))
    graph.unit_rows(graph.add("MatMul", centred, graph.constant(onto)))
    return written(graph, "pictures", (3, SIDE, SIDE), onto.shape[1])
