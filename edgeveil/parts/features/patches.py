"""A dictionary of patches of procedural pictures, and how much of each a picture holds.

Patches of 6×6 pixels are made even in contrast, whitened, and compared with the centres of clusters
of such patches (Coates, Lee and Ng 2011). What passes a threshold is added up in 3×3 windows. One
half of the dictionary mirrors the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edgeveil.parts.features.feature_map import Float64, NodeList

Float32 = NDArray[np.float32]
SIDE, GRID = 6, 3  # pixels of a patch; windows across and down
SEEN, TURNS = 20_000, 10  # patches that whitening and clusters are learned from; turns of k-means
EVEN = 0.1  # of the mean variance, added to each before whitening
FLAT = 10.0  # added to a patch's variance, in levels²: even patches stay small
PASSING = 0.2  # share of likenesses above the threshold
LARGEST_TAPS = (1 << 16) - 300  # sum of a patch's absolute taps: times 255, rounded, below 2**24


class Dictionary(NamedTuple):
    """Whole `taps` (values of a patch, count); `threshold` of a likeness in steps over a spread."""

    taps: Float32
    threshold: np.float32


def dictionary_of(pictures: Float32, count: int, chance: np.random.RandomState) -> Dictionary:
    """Return `count` centres of patches of pictures in whole levels, the whitening folded in."""
    seen = all_patches(pictures)
    places = tuple(chance.randint(0, size, SEEN) for size in seen.shape[:3])
    drawn = seen[places].reshape(SEEN, -1)
    even = (drawn - drawn.mean(axis=1, keepdims=True)) / spreads(drawn)[:, None]
    mirror = np.arange(even.shape[1]).reshape(-1, SIDE)[:, ::-1].ravel()
    both = np.concatenate([even, even[:, mirror]]).astype(np.float64)
    variances, axes = np.linalg.eigh(both.T @ both / len(both))
    whitening = axes * (variances + EVEN * variances.mean()) ** -0.5 @ axes.T
    white = both[:SEEN] @ whitening
    sizes = np.sqrt(np.square(white).sum(axis=1))
    chosen = np.flatnonzero(sizes >= np.median(sizes))[: count // 2]
    entries = white[chosen] / sizes[chosen, None]
    for _ in range(TURNS):  # spherical k-means of patches and their mirror images
        likeness = np.hstack([white @ entries.T, white[:, mirror] @ entries.T])
        nearest, largest = likeness.argmax(axis=1), likeness.max(axis=1)
        turned = np.where((nearest < len(entries))[:, None], white, white[:, mirror])
        entries *= 1e-3  # so that an empty cluster stays
        np.add.at(entries, nearest % len(entries), largest[:, None] * turned)
        entries /= np.sqrt(np.square(entries).sum(axis=1, keepdims=True))
    taps = np.concatenate([entries, entries[:, mirror]]) @ whitening
    taps -= taps.mean(axis=1, keepdims=True)
    taps *= LARGEST_TAPS / np.abs(taps).sum(axis=1).max()
    threshold = np.rint(np.quantile(both[: SEEN // 10] @ taps.T, 1 - PASSING))
    return Dictionary(np.ascontiguousarray(np.rint(taps).T, np.float32), np.float32(threshold))


def windows(places: int) -> tuple[int, int]:
    """Return size and stride of `GRID` windows, symmetric, over so many places of a patch."""
    size = places // GRID + (places - places // GRID) % (GRID - 1)
    return size, (places - size) // (GRID - 1)


def all_patches(levels: Float32) -> Float32:
    """Return a view (n, down, across, colours, SIDE, SIDE) of pictures' patches."""
    seen = sliding_window_view(levels, (SIDE, SIDE), axis=(2, 3))
    return np.asarray(seen.transpose(0, 2, 3, 1, 4, 5))


def spreads(patches: Float32) -> Float32:
    """Return deviations (n,) of patches in levels, from sums that are whole and below 2**24."""
    once, squares = patches.sum(axis=1), np.einsum("ij,ij->i", patches, patches)
    mean = once.astype(np.float64) / patches.shape[1]
    found: Float32 = np.sqrt(squares / patches.shape[1] - mean * mean + FLAT).astype(np.float32)
    return found


def patch_sums(levels: Float32, found: Dictionary) -> Float64:
    """Return integers (n, count, GRID²) of pictures (n, colours, rows, columns) in whole levels."""
    seen = all_patches(levels)
    (tall, down), (wide, across) = (windows(places) for places in seen.shape[1:3])
    sums = np.empty((len(levels), found.taps.shape[1], GRID, GRID))
    for at, i in np.ndindex(len(levels), GRID):  # a band of one picture: bounds memory
        band = seen[at, i * down :][:tall]
        patches = band.reshape(-1, len(found.taps))
        likeness = patches @ found.taps / spreads(patches)[:, None] - found.threshold
        passed = np.rint(np.maximum(likeness, 0)).reshape(*band.shape[:2], -1)
        for j in range(GRID):
            window = passed[:, j * across :][:, :wide]
            sums[at, :, i, j] = window.sum(axis=(0, 1), dtype=np.float64)
    return sums.reshape(len(levels), -1, GRID * GRID)


def onnx_patch_sums(graph: NodeList, levels: str, found: Dictionary, shape: tuple[int, ...]) -> str:
    """Add `patch_sums` of levels (N, colours, rows, columns)."""

    def mean(values: str) -> str:
        patch = graph.add("AveragePool", values, kernel_shape=[SIDE, SIDE])
        return graph.add("ReduceMean", patch, axes=[1], keepdims=1)

    once, squares = mean(levels), mean(graph.add("Mul", levels, levels))
    variance = graph.add("Sub", squares, graph.add("Mul", once, once))
    spread = graph.add("Sqrt", graph.add("Add", graph.add("Relu", variance), graph.number(FLAT)))
    taps = graph.constant(found.taps.T.reshape(-1, shape[0], SIDE, SIDE))
    likeness = graph.add("Div", graph.add("Conv", levels, taps), spread)
    passed = graph.add("Relu", graph.add("Sub", likeness, graph.number(float(found.threshold))))
    sizes, strides = zip(*(windows(side - SIDE + 1) for side in shape[1:]), strict=True)
    pool: dict[str, Any] = {"kernel_shape": list(sizes), "strides": list(strides)}
    means = graph.add("AveragePool", graph.rounded(passed), **pool)
    sums = graph.add("Mul", means, graph.number(sizes[0] * sizes[1]))
    return graph.add("Reshape", sums, graph.whole(0, -1, GRID * GRID))
