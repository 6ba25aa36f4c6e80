"""Gradients of single records, clipped: together as one by one, for every model and layer."""

import math

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch import nn

from edgeveil.parts.methods.dp_sgd import NOISE_BITS, _exact_sum, gradient_rows, to_steps
from edgeveil.parts.models import MODELS, build_network, python_model
from edgeveil.parts.models.network import AdapterParameters
from edgeveil.parts.models.python_model import PythonParameters
from tests.unit.edgeveil.parts.models.test_models_layers import NOT_BY_RECORD, USABLE
from tests.unit.edgeveil.parts.models.test_models_networks import NAMES

pytestmark = pytest.mark.usefixtures("own_process_here")
CLASSES, SHA = 4, "0" * 64
SHAPES = {"gru": (6, 3), "tcn": (6, 3), "transformer": (6, 3), "ds_cnn": (12, 14)}
SMALL = {"alexnet": None, "mobilenet_v3_small": {"channel_multiplier": 0.1}}  # too large: None
TOKENS = {"tokens": 9, "width": 8}


class Normed(nn.Sequential):
    """A network with batch normalisation and dropout, whose statistics are not the first ones."""

    def __init__(self):
        norm = nn.BatchNorm2d(3)
        with torch.no_grad():
            norm.running_mean += torch.arange(3)
        tail = [nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, CLASSES)]
        super().__init__(nn.Conv2d(1, 3, 3, padding=1), norm, nn.ReLU(), *tail)


def preset(name, shape=None, adapters=None, **options):
    shape = shape or SHAPES.get(name, (16, 16))
    plain = build_network(MODELS[name].made(**options), shape, CLASSES)
    if adapters is None:
        return plain
    made = MODELS[name].made(state_dict={"sha256": SHA}, adapters=adapters, **options)
    return adapted(made, plain)


def adapted(parameters, plain):
    packed = save(
        {name: np.array(one, order="C") for name, one in plain.saved(plain.initial()).items()}
    )
    return build_network(parameters, plain.input_shape, plain.classes, {SHA: packed})


def own(function, shape, classes, **more):
    python_model.loaded.cache_clear()
    given = {"name": "python", "function": function}
    plain = PythonParameters.model_validate(given, context={"folder": "."})
    network = build_network(plain, shape, classes)
    if more:
        changed = {**plain.model_dump(), "state_dict": {"sha256": SHA}, **more}
        network = adapted(PythonParameters.model_validate(changed), network)
    network.prepare()
    return network


RANK = AdapterParameters(rank=1)
CASES = {
    **{
        name: lambda name=name: preset(name, **SMALL.get(name, {}))
        for name in NAMES
        if SMALL.get(name, {}) is not None
    },
    **{
        f"{name} of tokens": lambda name=name: preset(name, (6,), **TOKENS)
        for name in ("gru", "tcn", "transformer")
    },
    **{
        f"{name} with adapters": lambda name=name: preset(name, adapters=RANK)
        for name in ("mlp", "lenet", "ds_cnn", "gru", "transformer")
    },
    "tokens with adapters": lambda: preset("gru", (6,), adapters=RANK, **TOKENS),
    "frozen batch normalisation": lambda: own(
        f"{__name__}:Normed", (1, 4, 4), CLASSES, adapters={"rank": 0, "head": ["*"]}
    ),
    **{
        layer: lambda layer=layer, one=one: own(f"{USABLE_FROM}:{layer}", one[0], 3)
        for layer, one in USABLE.items()
        if layer not in NOT_BY_RECORD
    },
}
USABLE_FROM = "tests.unit.edgeveil.parts.models.test_models_layers"


def records(network):
    chance = np.random.default_rng(0)
    x = chance.uniform(0, 9, (3, *network.input_shape)).astype(np.float32)
    x[0, ..., network.input_shape[-1] // 2 :] = 0  # of tokens, padding
    return torch.as_tensor(x), torch.arange(3) % network.classes


@pytest.mark.parametrize("case", CASES)
def test_clipped_gradients_of_records_are_those_of_a_loop(case):
    network, chance = CASES[case](), np.random.default_rng(1)
    x, y = records(network)
    weights = {
        name: torch.tensor(array + 0.05 * chance.standard_normal(array.shape), dtype=torch.float32)
        for name, array in network.initial().items()
    }
    alone = []
    for k in range(len(x)):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = network.loss(leaves, x[k : k + 1], y[k : k + 1])
        alone.append(torch.autograd.grad(loss, list(leaves.values())))
    rows = gradient_rows(network, None, weights)(x, y)
    norms = [math.sqrt(sum(float(part.double().square().sum()) for part in one)) for one in alone]
    clip_norm = sorted(norms)[1]  # one record is shorter, one longer
    assert norms[0] > 0
    whole = to_steps(rows, torch.ones(len(x)), clip_norm)
    sums = [_exact_sum(whole, torch.arange(len(x)) == k) for k in range(len(x))]
    found = torch.tensor(np.ldexp(np.stack(sums), -NOISE_BITS))
    for k, one in enumerate(alone):
        wanted = torch.cat([part.flatten() for part in one]).double() / max(norms[k], clip_norm)
        torch.testing.assert_close(found[k], wanted, rtol=0, atol=5e-4)
        assert float(found[k].double().norm()) <= 1
