"""A small convolutional encoder of digits: trained on public images, written as ONNX."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from edgeveil.parts.features.onnx_nodes import NodeList
from edgeveil_tools.backbone.drawings import PIXELS, PublicDigits
from edgeveil_tools.backbone.graph import array, folded, written

HIDDEN, CLASSES = 128, 10
FEATURES = HIDDEN + CLASSES
_CHANNELS, _KERNELS = (32, 64, 128), (5, 3, 3)
_CLASS_SHARE = 0.3  # of the features' squared norm: what the class scores have
_BATCH, _RATE, _DECAY, _SMOOTHING = 128, 2e-3, 1e-2, 0.1


class Encoder(nn.Module):
    """Three times convolution, batch norm, ReLU and pooling; then `HIDDEN` values, and scores.

    Both are the features: on other writers' digits the scores alone are mostly right, and the
    values before them hold what corrects the rest.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for channels, kernel in zip(_CHANNELS, _KERNELS, strict=True):
            convolution = nn.Conv2d(before, channels, kernel, padding=kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
            before = channels
        side = PIXELS // 2 ** len(_CHANNELS)
        self.convolutions = nn.Sequential(*layers)
        self.dense = nn.Linear(before * side * side, HIDDEN)
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
    steps: int, drawings: int, seed: int, on_progress: Callable[[float], None] = lambda _: None
) -> Encoder:
    """The encoder after `steps` batches of public digits, the same for the same seed and machine.

    One-cycle learning rate (Smith and Topin 2019); calls `on_progress` with the share done.
    """
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
    for k in range(len(_CHANNELS)):
        convolution, norm = encoder.convolutions[4 * k], encoder.convolutions[4 * k + 1]
        weight, bias = (graph.constant(v) for v in folded(convolution, norm))
        value = graph.add("Conv", value, weight, bias, pads=[_KERNELS[k] // 2] * 4)
        value = graph.add("Relu", value)
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    values = graph.add("Gemm", graph.add("Flatten", value, axis=1), *_dense(graph, encoder.dense))
    scores = graph.add("Gemm", graph.add("Relu", values), *_dense(graph, encoder.head))
    mean = graph.add("ReduceMean", scores, axes=[1], keepdims=1)
    shares = ((values, 1 - _CLASS_SHARE), (graph.add("Sub", scores, mean), _CLASS_SHARE))
    parts = [graph.add("Mul", graph.unit_rows(v), graph.number(share**0.5)) for v, share in shares]
    graph.add("Concat", *parts, axis=1)
    return written(graph, "digits", (1, PIXELS, PIXELS), FEATURES)


def _dense(graph: NodeList, layer: nn.Linear) -> tuple[str, str]:
    """A dense layer's weight (inputs, outputs) and bias, as Gemm takes them."""
    return graph.constant(array(layer.weight.T)), graph.constant(array(layer.bias))
