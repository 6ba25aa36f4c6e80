"""A network of six weights, and a task for its stages."""

from dataclasses import replace

import numpy as np

from edgeveil.data.records import Records
from edgeveil.parts.stage import Task
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as made_context
from tests.kits.softmax_regression import NETWORK, ROUND

CONTEXT = made_context(epsilon=6.0, classes=2, input_shape=(2,), network=NETWORK)
SIZE = 6  # weight (2, 2), bias (2,)
NAMES = [weight.name for weight in NETWORK.weights]


def stage(name, context=CONTEXT, **parameters):
    entry = STAGES[name]
    return entry.build(entry.made(**parameters), context)


def staged(*stages):
    """The context with these stages."""
    return replace(CONTEXT, stages=stages)


def values(*six):
    """An update, or weights, of these six values."""
    flat = np.array(six, np.float32)
    return dict(zip(NAMES, (flat[:4].reshape(2, 2), flat[4:]), strict=True))


def flat(update):
    return np.concatenate([update[name].ravel() for name in NAMES]).astype(float)


def records(count=3):
    return Records(np.ones((count, 2), np.float32), np.zeros(count, np.int64))


def task(memory=None, weights=None, count=3, seed=0):
    start = weights or values(*[0.0] * SIZE)
    kept = {} if memory is None else memory
    return Task(ROUND, NETWORK, start, records(count), kept, SeededRandom(seed), "cpu")
