"""A fleet on digits, played by hand through the two halves of `fm`."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from edgeveil.data.records import Records
from edgeveil.parts.features import IdentityParameters, build_features
from tests.kits.method_context import context as made_context


def context(**changes):
    plain = {"epsilon": 8.0, "max_participations": 15, "classes": 2, "input_shape": (2,)}
    return made_context(**{**plain, "nominal_records": 1, "devices": 1, **changes})


def digits_context(**changes):
    features = build_features([IdentityParameters(input_scale=16.0, shift=-0.3)])
    plain = {"classes": 10, "input_shape": (8, 8), "features": features}
    return context(**{**plain, "nominal_records": 64, "devices": 20, **changes})


def digits(seed):
    """20 devices of two classes each, a tenth held out for evaluation; and the test records."""
    source = load_digits()
    x, y = source.images.astype(np.float32), source.target.astype(np.int64)
    xa, xb, ya, yb = train_test_split(x, y, test_size=360, stratify=y, random_state=0)
    rng = np.random.default_rng(seed)
    pieces = {c: np.array_split(rng.permutation(np.flatnonzero(ya == c)), 4) for c in range(10)}
    shards = []
    for i in range(20):
        own = np.concatenate([pieces[i % 10].pop(), pieces[(i + 1 + i // 10) % 10].pop()])
        own = rng.permutation(own)[len(own) // 10 :]
        shards.append(Records(xa[own], ya[own]))
    return shards, Records(xb, yb)


def pooled(shards):
    return Records(np.concatenate([s.x for s in shards]), np.concatenate([s.y for s in shards]))
