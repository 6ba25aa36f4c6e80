"""What rules keep beside their laws (`test_laws.py`): chance of draws, and memory to the byte."""

from dataclasses import replace

import numpy as np
import pytest

from edgeveil.parts.aggregation import AGGREGATIONS, Uploads
from edgeveil.parts.exchange import Aim

OPTIONS = {
    "min_divergence": {"k": 4, "sampling": "top_k"},
    "secprobe": {"k": 4, "sampling": "top_k"},
    "trimmed_mean": {"share": 0.3},
    "krum": {"k": 4, "malicious": 3},
}
DRAWN = ("min_divergence", "secprobe")
COUNT = 11


def rule(name, **changes):
    entry = AGGREGATIONS[name]
    return entry.rule(entry.parameters(**{**OPTIONS.get(name, {}), **changes}))


def score(segments):
    """A score, at most 200 as the rules have it, that differs from upload to upload."""
    return int(np.clip(100 + 25 * float(segments["layer"].ravel()[0]), 0, 200))


def uploads(arrays, seed=0):
    """One layer of (3, 50), random weights."""
    rng = np.random.default_rng(seed)
    aim = Aim({"layer": rng.normal(size=(3, 50)).astype(np.float32)}, change=True)
    chance = np.random.default_rng(seed).bytes
    return Uploads({"layer": arrays}, aim, chance, score)


def some(seed=0, count=COUNT):
    """Larger and larger, so that no two turn as many signs."""
    rng = np.random.default_rng(seed)
    return [(1.6**k / 5 * rng.normal(size=(3, 50))).astype(np.float32) for k in range(count)]


@pytest.mark.parametrize("chosen", DRAWN)
def test_a_draw_changes_with_its_bytes_alone(chosen):
    arrays, one = some(), rule(chosen, sampling="exponential", k=2)
    found = [one.combine(uploads(arrays, seed=0))["layer"] for _ in range(2)]
    np.testing.assert_array_equal(*found)
    rest = uploads(arrays)
    others = [replace(rest, random_bytes=np.random.default_rng(k).bytes) for k in range(20)]
    many = {one.combine(other)["layer"].tobytes() for other in others}
    assert len(many) > 10  # of 55 pairs
