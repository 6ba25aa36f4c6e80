"""Plain forms of torch.nn's layers: the same values, for every option, and rows for any token."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from edgeveil.nn import TokenEmbedding, plain_layers, table_rows

N, T, D, H = 3, 5, 4, 6
OPTIONS = [
    {},
    {"batch_first": True, "num_layers": 2, "bidirectional": True},
    {"bias": False, "bidirectional": True},
]


def flat(found):
    if isinstance(found, torch.Tensor):
        return [found]
    return [one for part in found for one in flat(part)]


def same(layer, *given):
    plain = plain_layers(copy.deepcopy(layer))
    wanted, found = flat(layer(*given)), flat(plain(*given))
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN", "RNN relu"])
def test_recurrent_layers_give_what_the_fused_ones_give(kind, options):
    name, _, nonlinearity = kind.partition(" ")
    more = {"nonlinearity": nonlinearity} if nonlinearity else {}
    layer = getattr(nn, name)(D, H, **options, **more)
    x = torch.randn((N, T, D) if layer.batch_first else (T, N, D))
    states = torch.randn(layer.num_layers * (1 + layer.bidirectional), N, H)
    same(layer, x)
    same(layer, x, (states, states.cos()) if name == "LSTM" else states)


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell", "RNNCell"])
def test_so_do_cells(kind):
    cell, x, state = getattr(nn, kind)(D, H), torch.randn(N, D), torch.randn(N, H)
    same(cell, x)
    same(cell, x, (state, state.sin()) if kind == "LSTMCell" else state)


@pytest.mark.parametrize(
    "layer",
    [nn.RMSNorm(D), nn.RMSNorm((T, D), eps=0.1), nn.RMSNorm(D, elementwise_affine=False)],
    ids=str,
)
def test_so_does_a_normalisation_by_size(layer):
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    same(layer, torch.randn(N, T, D))


def test_batch_normalisation_of_one_value_a_channel_uses_what_it_holds():
    layer = plain_layers(nn.BatchNorm1d(D)).train()
    one, held = torch.randn(1, D), layer.running_mean.clone()
    torch.testing.assert_close(layer(one), one, rtol=1e-4, atol=1e-4)  # mean 0, variance 1
    assert torch.equal(layer.running_mean, held)
    same(nn.BatchNorm1d(D).train(), torch.randn(N, D))


def test_every_value_has_a_row():
    inf = float("inf")
    values = [float("nan"), inf, -inf, 1e30, -1, -0.4, 0.6, 7, 8, 6.4, 2.0**24, 1e-40]
    rows = [0, 7, 0, 7, 0, 0, 1, 7, 7, 6, 7, 0]
    assert table_rows(torch.tensor(values), 8).tolist() == rows
    embedding = TokenEmbedding(8, 2)
    found = embedding(torch.tensor(values).reshape(3, 4))
    assert torch.equal(found.reshape(-1, 2), embedding.weight[rows])
    whole = torch.tensor([-(2**63), -1, 3, 8, 2**63 - 1])
    assert torch.equal(embedding(whole), embedding.weight[[0, 0, 3, 7, 7]])


def test_known_tokens_are_those_of_torch():
    tokens = torch.as_tensor(np.arange(12).reshape(3, 4) % 8)
    same(nn.Embedding(8, 2, padding_idx=0), tokens)
