"""Layers for a torch.nn.Module of your own (`model: python`); importing this needs torch.

`TokenEmbedding` turns a record's values into rows of a table, whatever the values are.
`plain_layers` gives layers of torch.nn a forward of plain operations where their own has no
gradient of one record or no form that devices run: same weights, same values up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def table_rows(values: Tensor, rows: int) -> Tensor:
    """Return the nearest row numbers in [0, rows), int64; 0 for NaN.

    Devices run exactly these operations (`edgeveil/evaluation/graph_check.py`)."""
    numbers = values + 0.5
    numbers = torch.where(numbers.isnan(), torch.zeros((), device=values.device), numbers)
    return numbers.clamp(0, rows - 1).long()


class TokenEmbedding(nn.Embedding):
    """nn.Embedding for records, which are float32: values beyond the table take its ends.

    Takes tokens (n, …) as float32 or int64, gives (n, …, embedding_dim)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the tokens' rows of `weight`."""
        rows = self.num_embeddings
        places = table_rows(input, rows) if input.is_floating_point() else input.clamp(0, rows - 1)
        return functional.embedding(places, self.weight, self.padding_idx)


def recurrent_step(
    kind: str, given: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None
) -> list[Tensor]:
    """Return the next states (n, h) of a recurrent layer, the output first, as torch.nn defines it.

    `kind`: a `mode` of nn.RNNBase. `given` (n, gates·h): the input's part of all gates. `states`:
    the output, of LSTM also the cell; of n records, or 1 for all. `weight` (gates·h, h) and `bias`
    are those of the recurrent part."""
    output = states[0]
    size = output.shape[1]
    recurrent = functional.linear(output, weight, bias)

    def gate(values: Tensor, number: int) -> Tensor:
        return values[:, number * size : (number + 1) * size]

    if kind == "GRU":
        both = torch.sigmoid(given[:, : 2 * size] + recurrent[:, : 2 * size])
        new = torch.tanh(gate(given, 2) + gate(both, 0) * gate(recurrent, 2))
        return [new + gate(both, 1) * (output - new)]
    gates = given + recurrent
    if kind != "LSTM":
        return [gates.relu() if kind == "RNN_RELU" else gates.tanh()]
    enter, forget = gate(gates, 0).sigmoid(), gate(gates, 1).sigmoid()
    cell = forget * states[1] + enter * gate(gates, 2).tanh()
    return [gate(gates, 3).sigmoid() * cell.tanh(), cell]


def unrolled(
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] = (None, None),
    *,
    reverse: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Return outputs (n, t, h) and last states of one layer over x (n, t, d).

    `weights` and `biases`: of the input's and of the recurrent part."""
    given = functional.linear(x, weights[0], biases[0])
    outputs, states = [], list(states)
    for at in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        states = recurrent_step(kind, given[:, at], states, weights[1], biases[1])
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if reverse else outputs, 1), states


States = Tensor | tuple[Tensor, ...] | None


def _recurrent(layer: nn.RNNBase, input: Tensor, hx: States = None) -> tuple[Tensor, States]:
    """nn.GRU, nn.LSTM or nn.RNN step by step, for sequences of one length."""
    x = input if layer.batch_first else input.transpose(0, 1)
    count, ways = 2 if layer.mode == "LSTM" else 1, 1 + layer.bidirectional
    if hx is None:
        # One row for all records, whose number a traced graph must leave open.
        hx = (x.new_zeros(layer.num_layers * ways, 1, layer.hidden_size),) * count
    first = hx if isinstance(hx, tuple) else (hx,)
    ends: list[list[Tensor]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for way in range(ways):
            names = [f"{part}_l{depth}{'_reverse' * way}" for part in ("ih", "hh")]
            weights = [getattr(layer, f"weight_{name}") for name in names]
            biases = [getattr(layer, f"bias_{name}", None) for name in names]
            start = [state[depth * ways + way] for state in first]
            found, end = unrolled(layer.mode, x, start, weights, biases, reverse=bool(way))
            outputs.append(found)
            ends.append(end)
        x = torch.cat(outputs, 2)
        if layer.dropout and depth < layer.num_layers - 1:
            x = functional.dropout(x, layer.dropout, layer.training)
    last = tuple(torch.stack([end[k] for end in ends]) for k in range(count))
    return x if layer.batch_first else x.transpose(0, 1), last if count > 1 else last[0]


def _cell(kind: str, layer: nn.RNNCellBase, input: Tensor, hx: States = None) -> States:
    if hx is None:
        hx = (input.new_zeros(1, layer.hidden_size),) * (2 if kind == "LSTM" else 1)
    states = hx if isinstance(hx, tuple) else (hx,)
    given = functional.linear(input, layer.weight_ih, layer.bias_ih)
    found = recurrent_step(kind, given, states, layer.weight_hh, layer.bias_hh)
    return tuple(found) if kind == "LSTM" else found[0]


def _rms_norm(layer: nn.RMSNorm, input: Tensor) -> Tensor:
    axes = tuple(range(-len(layer.normalized_shape), 0))
    epsilon = torch.finfo(input.dtype).eps if layer.eps is None else layer.eps
    normed = input / ((input * input).mean(axes, keepdim=True) + epsilon).sqrt()
    return normed if layer.weight is None else normed * layer.weight


def _batch_norm(layer: nn.modules.batchnorm._BatchNorm, input: Tensor) -> Tensor:
    """Normalise by the batch in training, but for one value a channel, which has no variance."""
    by_batch = layer.training and input.numel() > input.shape[1]
    held = layer.running_mean, layer.running_var, layer.weight, layer.bias
    return functional.batch_norm(input, *held, by_batch, layer.momentum or 0.0, layer.eps)


def normalises_batches(layer: nn.Module) -> bool:
    """Return whether `layer` is a batch normalisation that keeps statistics."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats


def _plain_form(layer: nn.Module) -> Callable[..., Any] | None:
    kind = type(layer)
    if kind in (nn.GRU, nn.LSTM, nn.RNN) and not getattr(layer, "proj_size", 0):
        return _recurrent
    if kind is nn.RNNCell:
        return partial(_cell, f"RNN_{layer.nonlinearity}".upper())
    if kind in (nn.GRUCell, nn.LSTMCell):
        return partial(_cell, kind.__name__.removesuffix("Cell"))
    if kind is nn.Embedding and layer.max_norm is None:
        return TokenEmbedding.forward
    if kind is nn.RMSNorm:
        return _rms_norm
    return _batch_norm if normalises_batches(layer) else None


def plain_layers(module: nn.Module) -> nn.Module:
    """Give the module's layers their plain forward, in place; weights and names stay."""
    for layer in module.modules():
        if form := _plain_form(layer):
            layer.forward = partial(form, layer)
    return module
