"""The smallest network, its context and one record, with steps computable by hand."""

import numpy as np

from edgeveil.data.records import Records
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as made_context

NETWORK = build_network(NetworkParameters(hidden=()), (2,), 2)  # softmax regression
CONTEXT = made_context(
    epsilon=1.0, classes=2, input_shape=(2,), nominal_records=10, devices=2, network=NETWORK
)
ROUND = PlannedRound(1, TRAIN, 1)
ONE = Records(np.array([[1.0, 2.0]], np.float32), np.array([0]))
ZERO = {"output.weight": np.zeros((2, 2), np.float32), "output.bias": np.zeros(2, np.float32)}


def answer(method, records=ONE, weights=ZERO, context=CONTEXT, **options):
    entry = METHODS[method]
    device = entry.device(entry.made(rounds=2, **options), context)
    return device.answer(ROUND, weights, records, SeededRandom(1), "cpu")
