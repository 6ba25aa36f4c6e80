"""Layers of torch.nn in small models: usable ones to the end, and one refused for each reason.

`function: "test_models_layers:NAME"` of a job gives the model of one entry, a dense layer after it.
"""

import re

import numpy as np
import pytest
import torch
from torch import nn

from edgeveil.jobs import load_plan
from edgeveil.jobs.rehearsal import synthetic_records
from edgeveil.parts.models import python_model
from edgeveil.parts.models.heads import bake
from edgeveil_edge.predict import predict
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.cli import main

pytestmark = pytest.mark.usefixtures("own_process_here")

CLASSES = 3
ROW, SEQUENCE, PICTURE = (12,), (5, 6), (4, 8, 8)


class Part(nn.Module):
    """A layer, called as `how` says, between a dense layer and the logits."""

    def __init__(self, shape, layer, how):
        super().__init__()
        self.first, self.layer, self.how = nn.Linear(shape[-1], shape[-1]), layer, how
        with torch.no_grad():
            inner = self.inner(torch.rand(2, *shape))
        self.last = nn.Linear(inner.shape[1], CLASSES)

    def inner(self, x):
        return self.how(self.layer, torch.sigmoid(self.first(x))).flatten(1)

    def forward(self, x):
        return self.last(self.inner(x))


USABLE, REFUSED = {}, {}
ACTIVATIONS = """
    Identity ReLU ReLU6 ELU SELU LeakyReLU PReLU GELU SiLU Mish Hardtanh Hardsigmoid Hardswish
    Sigmoid LogSigmoid Tanh Tanhshrink Softplus Softsign Dropout RReLU
"""


def entry(layer, shape, *given, how=lambda of, x: of(x), why="", **named):
    """One layer: its records' shape and the function that makes its model; `why` it is refused."""
    made = shape, lambda: Part(shape, getattr(nn, layer)(*given, **named), how)
    (REFUSED if why else USABLE)[layer] = (*made, why)


entry("Flatten", PICTURE)
entry("Unflatten", ROW, 1, (3, 4))
for d, shape in {1: (3, 8), 2: PICTURE, 3: (2, 4, 4, 4)}.items():
    entry(f"Conv{d}d", shape, shape[0], 4, 3, stride=2, padding=1)
    for name in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"):
        entry(f"{name}{d}d", shape, 2)
    for name in ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"):
        entry(f"{name}{d}d", shape, 1)
    entry(f"ConstantPad{d}d", shape, 1, 0.5)
    entry(f"InstanceNorm{d}d", shape, shape[0], affine=True)
    entry(f"Dropout{d}d", shape, 0.5)
entry("GroupNorm", PICTURE, 2, 4)
entry("LayerNorm", ROW, 12)
entry("AlphaDropout", ROW, 0.5)
entry("FeatureAlphaDropout", PICTURE, 0.5)
for name in ACTIVATIONS.split():
    entry(name, ROW)
for name in ("Softmax", "LogSoftmax", "Softmin"):
    entry(name, ROW, 1)
entry("Softmax2d", PICTURE)
entry("PixelUnshuffle", PICTURE, 2)
of_halves = lambda of, x: of(x[:, :2].flatten(2), x[:, 2:].flatten(2))  # noqa: E731
entry("CosineSimilarity", PICTURE, how=of_halves)


def masked(of, x):
    """Attention to earlier steps, but not to those that the values mark as padding."""
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = (x[..., 0] < x[:, :1, 0]) | (x[..., 1] == 0)
    return of(x, x, x, key_padding_mask=padding, attn_mask=later)[0]


twice = lambda of, x: of(x, x)  # noqa: E731
entry("MultiheadAttention", SEQUENCE, 6, 2, batch_first=True, how=masked)
block = {"d_model": 6, "nhead": 2, "dim_feedforward": 8, "batch_first": True}
entry("TransformerEncoder", SEQUENCE, nn.TransformerEncoderLayer(**block), 2)
entry("TransformerDecoder", SEQUENCE, nn.TransformerDecoderLayer(**block), 1, how=twice)
layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
entry("Transformer", SEQUENCE, **block, **layers, how=twice)
for d, shape in {1: (3, 8), 2: PICTURE, 3: (2, 4, 4, 4)}.items():
    entry(f"BatchNorm{d}d", shape, shape[0])
    entry(f"ConvTranspose{d}d", shape, shape[0], 2, 3, stride=2)
entry("PixelShuffle", PICTURE, 2)
for name in ("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"):
    entry(name, PICTURE, scale_factor=2)
entry("RMSNorm", ROW, 12)
for name in ("Hardshrink", "Softshrink"):
    entry(name, ROW)
tokens = lambda of, x: torch.cat([x[..., None], of((5 * x).long())], 2)  # noqa: E731
entry("Embedding", ROW, 6, 4, padding_idx=0, how=tokens)
first = lambda of, x: of(x)[0]  # noqa: E731
entry("GRU", SEQUENCE, 6, 4, batch_first=True, bidirectional=True, how=first)
entry("LSTM", SEQUENCE, 6, 4, num_layers=2, dropout=0.5, batch_first=True, how=first)
entry("RNN", SEQUENCE, 6, 4, nonlinearity="relu", how=lambda of, x: of(x.transpose(0, 1))[1][0])
for name in ("GRUCell", "RNNCell"):
    entry(name, ROW, 12, 4)
entry("LSTMCell", ROW, 12, 4, how=lambda of, x: of(x, of(x))[1])
# One for each reason that docs/models.md gives.
entry("LocalResponseNorm", PICTURE, 2, why="a branch or a loop")
apart = lambda of, x: of(x[:, :6], x[:, 6:])[:, None]  # noqa: E731
entry("PairwiseDistance", ROW, how=apart, why="power")
entry("GLU", ROW, why="'Split'")
# No gradient of a single record can be had, which dp_sgd needs.
NOT_BY_RECORD = {"RReLU": "'dp_sgd' needs"}
NOT_BY_RECORD |= {f"BatchNorm{d}d": "GroupNorm" for d in (1, 2, 3)}


def __getattr__(name):
    try:
        return (USABLE | REFUSED)[name][1]
    except KeyError:
        raise AttributeError(name) from None


JOB = """
job: layer
data: {{source: lines, classes: {classes}, input_shape: {shape}, nominal_records: 8}}
model:
  name: python
  function: "test_models_layers:{layer}"
train: {{method: {method}, rounds: 1}}
privacy: {{epsilon: 8, delta: 1.0e-5, accept_unproven: true}}
"""
FAST = {"GroupNorm", "RReLU"}


@pytest.fixture(autouse=True)
def fresh():
    python_model.loaded.cache_clear()


def job_file(tmp_path, layer, method):
    path, shape = tmp_path / "job.yaml", list((USABLE | REFUSED)[layer][0])
    path.write_text(JOB.format(classes=CLASSES, shape=shape, layer=layer, method=method))
    return path


@pytest.mark.parametrize(
    "layer", [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in USABLE]
)
def test_a_usable_layer_is_trained_released_and_used(layer, tmp_path, capsys):
    path = job_file(tmp_path, layer, "sgd" if layer in NOT_BY_RECORD else "dp_sgd")
    assert main(["check", str(path)]) == 0, capsys.readouterr().out
    plan = load_plan(path)
    round, state, records = (
        plan.all_rounds[0],
        plan.cloud.initial_state(),
        synthetic_records(plan, 8),
    )
    package = plan.cloud.package(state, round)
    answer = plan.device.answer(round, package, records, processor="cpu")
    weights = plan.cloud.model(plan.cloud.absorb(state, round, answer.segments, 1))
    assert any(not np.array_equal(weights[name], state[name]) for name in weights)
    ReleaseStore(tmp_path / "releases").install("layer", bake(plan.graph(), weights), {})
    np.savez(tmp_path / "records.npz", x=records.x)
    found = [row["probabilities"] for row in predict(tmp_path, tmp_path / "records.npz").plain()]
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    with torch.no_grad():
        code = plan.context.network.logits(tensors, torch.tensor(records.x)).softmax(1)
    np.testing.assert_allclose(found, code, atol=1e-4)


UNFIT = [(layer, "sgd", why) for layer, (_, _, why) in REFUSED.items()]
UNFIT += [(layer, "dp_sgd", why) for layer, why in NOT_BY_RECORD.items()]


@pytest.mark.parametrize(("layer", "method", "why"), UNFIT)
def test_a_layer_that_cannot_be_used_is_refused_with_line_and_reason(
    layer, method, why, tmp_path, capsys
):
    path = job_file(tmp_path, layer, method)
    assert main(["check", str(path)]) == 2
    (line,) = capsys.readouterr().out.strip().split("\n")
    assert re.match(rf"{re.escape(str(path))}:[4-6] model", line)
    assert why in line
