"""Colour pictures of ten kinds, made by a rule: a bright shape on a dark procedural background.

    python docs/examples/colour_scenes.py scenes.npz [COUNT] [SEED]

Place, size, turn and colours are drawn at random, so that no kind has a colour of its own.
"""

import sys

import numpy as np

from edgeveil.parts.features.pictures import procedural_pictures

SIDE, COUNT, BATCH = 32, 30_000, 1000
KINDS = ("disc", "ring", "square", "frame", "triangle", "cross", "bar", "bars", "checks", "pair")


def scenes(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures (count, 3, 32, 32) uint8 and kinds (count,), the index into KINDS."""
    chance = np.random.default_rng(seed)
    kinds = chance.integers(0, len(KINDS), count)
    batches = [
        _drawn(kinds[first : first + BATCH], chance, seed * count + first)
        for first in range(0, count, BATCH)
    ]
    return np.concatenate(batches), kinds


def _drawn(kinds: np.ndarray, chance: np.random.Generator, series: int) -> np.ndarray:
    grounds = 0.4 * procedural_pictures(len(kinds), (3, SIDE, SIDE), series)
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    found = np.empty(grounds.shape, np.uint8)
    for at, (kind, ground) in enumerate(zip(kinds, grounds, strict=True)):
        radius = chance.uniform(6, 10)
        right, down = (one - chance.uniform(radius, SIDE - radius) for one in (x, y))
        turn = chance.uniform(0, np.pi / 6)
        u = (right * np.cos(turn) + down * np.sin(turn)) / radius
        v = (down * np.cos(turn) - right * np.sin(turn)) / radius
        inside = np.clip(0.5 - _distance(KINDS[kind], u, v) * radius, 0, 1)
        ink = chance.permutation([255, *chance.uniform(80, 255, 2)])[:, None, None]
        found[at] = np.rint(ground + inside * (ink - ground))
    return found


def _distance(kind: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return about how far points are outside a shape of radius 1, negative inside."""
    far, box = np.hypot(u, v), np.maximum(np.abs(u), np.abs(v))
    thirds = np.abs((v * 2.5) % 2 - 1) - 0.5
    shapes = {
        "disc": far - 1,
        "ring": np.abs(far - 0.75) - 0.25,
        "square": box - 0.85,
        "frame": np.abs(box - 0.65) - 0.22,
        "triangle": np.maximum(np.abs(u) * 1.7 + v - 0.9, -v - 0.8),
        "cross": np.minimum(
            np.maximum(np.abs(u) - 0.25, np.abs(v) - 1), np.maximum(np.abs(v) - 0.25, np.abs(u) - 1)
        ),
        "bar": np.maximum(np.abs(v) - 0.3, np.abs(u) - 1),
        "bars": np.maximum(thirds / 2.5, box - 0.95),
        "checks": np.maximum(np.sign(u * v) * np.minimum(np.abs(u), np.abs(v)), box - 0.9),
        "pair": np.hypot(np.abs(u) - 0.6, v) - 0.4,
    }
    return shapes[kind]


if __name__ == "__main__":
    numbers = [int(one) for one in sys.argv[2:]] or [COUNT]
    made, labels = scenes(*numbers)
    np.savez_compressed(sys.argv[1], x=made, y=labels)
