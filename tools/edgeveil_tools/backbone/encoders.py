"""The public encoder of digits: a small classifier of drawn and scanned digits, as ONNX.

Its features are the values before the class scores, and the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from edgeveil.parts.features.feature_map import NodeList
from edgeveil_tools.backbone.drawings import PIXELS, PublicDigits

Float32 = NDArray[np.float32]
Progress = Callable[[float], None]  # called with the completed share, up to 1


def _array(values: torch.Tensor) -> Float32:
    found: Float32 = values.detach().contiguous().numpy()
    return found


HIDDEN, CLASSES = 128, 10
FEATURES = HIDDEN + CLASSES
_LAYERS = ((32, 5), (64, 3), (128, 3))  # channels, kernel
_CLASS_SHARE = 0.3  # the class scores' share of the features' squared norm
_BATCH, _RATE, _DECAY, _SMOOTHING = 128, 2e-3, 1e-2, 0.1


class Encoder(nn.Module):
    """Three convolutions and two dense layers; features are `HIDDEN` values and class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions, before = nn.Sequential(), 1
        for channels, kernel in _LAYERS:
            convolution = nn.Conv2d(before, channels, kernel, padding=kernel // 2, bias=False)
            self.convolutions.extend(
                [convolution, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
            )
            before = channels
        side = PIXELS // 2 ** len(_LAYERS)
        self.dense = nn.Linear(_LAYERS[-1][0] * side * side, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def parts(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values (n, 128) and class scores (n, 10) of images (n, 1, 28, 28), ink 0..1."""
        flat = functional.dropout(self.convolutions(images).flatten(1), 0.2, self.training)
        values = self.dense(flat)
        return values, self.head(functional.relu(values))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return features (n, 138) of unit norm: the values, and the centred scores."""
        values, scores = self.parts(images)
        centred = scores - scores.mean(dim=1, keepdim=True)
        shares = ((values, 1 - _CLASS_SHARE), (centred, _CLASS_SHARE))
        return torch.cat([share**0.5 * functional.normalize(v) for v, share in shares], dim=1)


def train_encoder(
    steps: int, drawings: int, seed: int, on_progress: Progress = lambda _: None
) -> Encoder:
    """Train for `steps` batches with one-cycle rate (Smith and Topin 2019), seeded."""
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
    """Return ONNX from `image` (N, 1, 28, 28) to `features` (N, 138), batch norms folded."""
    graph, value = NodeList(), "image"
    for k in range(len(_LAYERS)):
        convolution: Any = encoder.convolutions[4 * k]
        norm: Any = encoder.convolutions[4 * k + 1]
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = graph.constant(_array(convolution.weight * scale[:, None, None, None]))
        bias = graph.constant(_array(norm.bias - norm.running_mean * scale))
        value = graph.add("Conv", value, weight, bias, pads=[*convolution.padding] * 2)
        value = graph.add("Relu", value)
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    values = graph.add("Gemm", graph.add("Flatten", value, axis=1), *_dense(graph, encoder.dense))
    scores = graph.add("Gemm", graph.add("Relu", values), *_dense(graph, encoder.head))
    mean = graph.add("ReduceMean", scores, axes=[1], keepdims=1)
    shares = ((values, 1 - _CLASS_SHARE), (graph.add("Sub", scores, mean), _CLASS_SHARE))
    parts = [graph.add("Mul", graph.unit_rows(v), graph.number(share**0.5)) for v, share in shares]
    graph.add("Concat", *parts, output="features", axis=1)
    image, features = {"image": ("N", 1, PIXELS, PIXELS)}, {"features": ("N", FEATURES)}
    return graph.model("digits", image, features)


def _dense(graph: NodeList, layer: nn.Linear) -> tuple[str, str]:
    return graph.constant(_array(layer.weight.T)), graph.constant(_array(layer.bias))
