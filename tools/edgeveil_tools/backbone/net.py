"""A small convolutional encoder of digits: trained on public images, written as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from edgeveil.parts.features.onnx_nodes import IR_VERSION, OPSET, NodeList
from edgeveil_tools.backbone.drawings import PIXELS, PublicDigits

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
    steps: int, drawings: int, seed: int, on_step: Callable[[int], None] = lambda _: None
) -> Encoder:
    """The encoder after `steps` batches of public digits, the same for the same seed and machine.

    One-cycle learning rate (Smith and Topin 2019); calls `on_step` with the steps done.
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
            on_step(step + 1)
    trained: Encoder = encoder.eval()
    return trained


def onnx_encoder(encoder: Encoder) -> bytes:
    """The encoder as ONNX: `image` (N, 1, 28, 28) -> `features` (N, 138), batch norms folded."""
    import onnx
    from onnx import TensorProto, helper

    graph, value = NodeList(), "image"
    for k in range(len(_CHANNELS)):
        convolution, norm = encoder.convolutions[4 * k], encoder.convolutions[4 * k + 1]
        weight, bias = (graph.constant(v) for v in _folded(convolution, norm))
        value = graph.add("Conv", value, weight, bias, pads=[_KERNELS[k] // 2] * 4)
        value = graph.add("Relu", value)
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    values = graph.add("Gemm", graph.add("Flatten", value, axis=1), *_dense(graph, encoder.dense))
    scores = graph.add("Gemm", graph.add("Relu", values), *_dense(graph, encoder.head))
    mean = graph.add("ReduceMean", scores, axes=[1], keepdims=1)
    shares = ((values, 1 - _CLASS_SHARE), (graph.add("Sub", scores, mean), _CLASS_SHARE))
    parts = [graph.add("Mul", graph.unit_rows(v), graph.number(share**0.5)) for v, share in shares]
    graph.nodes.append(helper.make_node("Concat", parts, ["features"], axis=1))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, PIXELS, PIXELS])
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", FEATURES])
    whole = helper.make_graph(graph.nodes, "digits", [image], [features], graph.initializers)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(whole, opset_imports=opset, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    written: bytes = model.SerializeToString()
    return written


def _dense(graph: NodeList, layer: nn.Linear) -> tuple[str, str]:
    """A dense layer's weight (inputs, outputs) and bias, as Gemm takes them."""
    return graph.constant(_array(layer.weight.T)), graph.constant(_array(layer.bias))


def _folded(convolution: Any, norm: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weight and bias of a convolution and the batch norm after it, as one convolution."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = convolution.weight * scale[:, None, None, None]
    return _array(weight), _array(norm.bias - norm.running_mean * scale)


def _array(values: torch.Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = values.detach().contiguous().numpy()
    return found
