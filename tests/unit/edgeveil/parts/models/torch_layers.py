"""The layers of torch.nn in small models: those that can be used, and those that are refused.

`function: "torch_layers:NAME"` of a job gives the model of one entry, a dense layer after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

CLASSES = 3
ROW, SEQUENCE = (12,), (5, 6)
LINE, PICTURE, VOLUME = (3, 8), (4, 8, 8), (2, 4, 4, 4)
OF_DIMENSION = {1: LINE, 2: PICTURE, 3: VOLUME}


class Part(nn.Module):
    """A layer, called as `how` says, between a dense layer and the logits."""

    def __init__(self, shape, make, how):
        super().__init__()
        self.first = nn.Linear(shape[-1], shape[-1])
        self.layer, self.how = make(), how
        with torch.no_grad():
            inner = self.inner(torch.rand(2, *shape))
        self.last = nn.Linear(inner.shape[1], CLASSES)

    def inner(self, x):
        return self.how(self.layer, torch.sigmoid(self.first(x))).flatten(1)

    def forward(self, x):
        return self.last(self.inner(x))


@dataclass(frozen=True)
class Entry:
    """`why` says of a refused layer what the reason has to name."""

    layer: str
    shape: tuple[int, ...]
    make: Callable[[], nn.Module]
    how: Callable[..., torch.Tensor] = lambda layer, x: layer(x)
    by_record: bool = True  # a record's own gradient can be had, which dp_sgd needs
    why: str = ""

    def model(self):
        return Part(self.shape, self.make, self.how)


def entry(layer, shape, *given, how=None, by_record=True, why="", **named):
    kind = getattr(nn, layer)
    more = {} if how is None else {"how": how}
    return Entry(layer, shape, lambda: kind(*given, **named), by_record=by_record, why=why, **more)


def halves(layer, x):
    return layer(x[:, :6], x[:, 6:])


def _usable():
    yield entry("Identity", ROW)
    yield entry("Linear", ROW, 12, 8)
    yield entry("Flatten", PICTURE)
    yield entry("Unflatten", ROW, 1, (3, 4))
    for d, shape in OF_DIMENSION.items():
        yield entry(f"Conv{d}d", shape, shape[0], 4, 3, stride=2, padding=1)
        for name in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"):
            yield entry(f"{name}{d}d", shape, 2)
        for name in ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"):
            yield entry(f"{name}{d}d", shape, 1)
        yield entry(f"ConstantPad{d}d", shape, 1, 0.5)
        yield entry(f"InstanceNorm{d}d", shape, shape[0], affine=True)
        yield entry(f"Dropout{d}d", shape, 0.5)
    yield entry("GroupNorm", PICTURE, 2, 4)
    yield entry("LayerNorm", ROW, 12)
    for name in ("Dropout", "AlphaDropout"):
        yield entry(name, ROW, 0.5)
    yield entry("FeatureAlphaDropout", PICTURE, 0.5)
    for name in ACTIVATIONS.split():
        yield entry(name, ROW)
    yield entry("RReLU", ROW, by_record=False)
    for name in ("Softmax", "LogSoftmax", "Softmin"):
        yield entry(name, ROW, 1)
    yield entry("Softmax2d", PICTURE)
    yield entry("PixelUnshuffle", PICTURE, 2)
    yield entry(
        "CosineSimilarity", PICTURE, how=lambda of, x: of(x[:, :2].flatten(2), x[:, 2:].flatten(2))
    )
    yield entry(
        "MultiheadAttention", SEQUENCE, 6, 2, batch_first=True, how=lambda of, x: of(x, x, x)[0]
    )
    block = {"d_model": 6, "nhead": 2, "dim_feedforward": 8, "batch_first": True}
    yield entry("TransformerEncoderLayer", SEQUENCE, **block)
    yield entry("TransformerDecoderLayer", SEQUENCE, **block, how=lambda of, x: of(x, x))
    inner = nn.TransformerEncoderLayer(**block)
    yield entry("TransformerEncoder", SEQUENCE, inner, 2)
    yield entry(
        "TransformerDecoder",
        SEQUENCE,
        nn.TransformerDecoderLayer(**block),
        1,
        how=lambda of, x: of(x, x),
    )
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    yield entry("Transformer", SEQUENCE, **block, **layers, how=lambda of, x: of(x, x))


ACTIVATIONS = """
    ReLU ReLU6 ELU SELU LeakyReLU PReLU GELU SiLU Mish Hardtanh Hardsigmoid Hardswish Sigmoid
    LogSigmoid Tanh Tanhshrink Softplus Softsign
"""


def _refused():
    """One for each reason that docs/models.md gives."""
    yield entry("BatchNorm2d", PICTURE, 4, why="has buffers")
    yield entry("ConvTranspose2d", PICTURE, 4, 2, 3, why="'ConvTranspose'")
    yield entry("RMSNorm", ROW, 12, why="no ONNX form")
    yield entry("LocalResponseNorm", PICTURE, 2, why="a branch or a loop")
    yield entry("PairwiseDistance", ROW, how=lambda of, x: halves(of, x)[:, None], why="power")
    yield entry("Hardshrink", ROW, why="'Greater'")
    yield entry("Upsample", PICTURE, scale_factor=2, why="'Resize'")
    yield entry("Embedding", ROW, 20, 4, how=lambda of, x: of(x.long()), why="whole numbers")
    whole = {"batch_first": True, "how": lambda of, x: of(x)[0], "why": "'ConstantOfShape'"}
    yield entry("LSTM", SEQUENCE, 6, 4, **whole)


USABLE = {one.layer: one for one in _usable()}
REFUSED = {one.layer: one for one in _refused()}


def __getattr__(name):
    entries = {**USABLE, **REFUSED}
    if name not in entries:
        raise AttributeError(name)
    return entries[name].model
