"""Whitened patches of pictures of any kind (`patches`), with a dictionary that no data made.

Coates and Ng (2011): patches of 6 × 6 pixels (3 × 3 of pictures below 8) are whitened and compared
with a dictionary of whitened patches; what is beyond a threshold, of either sign, is summed over
each quarter of the picture. There the dictionary is drawn from the training data; here it is drawn
from procedural pictures (`procedural_pictures.py`), and so is the whitening: no record, published
or private, has a part in it. The sums are evened out and projected as those of `pictures`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.public_order import public_chance
from edgeveil.parts.features.feature_map import FeaturePart, Float64, MapParameters, usable
from edgeveil.parts.features.pictures import (
    BLOCK_RECORDS,
    DRAWN,
    Axes,
    Raster,
    common_axes,
    dimension_of,
    onnx_projected,
    projected,
    raster_of,
)
from edgeveil.parts.features.procedural_pictures import procedural_pictures
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList

Float32 = NDArray[np.float32]

ENTRIES = 128  # of the dictionary
TAP_STEPS = 127  # of an entry's largest tap
PATCHES = 12_000  # that whitening is measured on
QUARTERS = 4
EVEN = 0.1  # of the mean variance, added to each before whitening


class PatchesParameters(MapParameters):
    """A `patches` entry of a job's `features`; all of it is public."""

    name: Literal["patches"]
    """Pictures of any kind, grey or in colour: whitened patches against drawn ones."""
    dimension: int | None = Field(default=None, ge=1, le=4096, examples=[500])
    """Number of features; null: 400 for grey pictures and 600 for those in colour."""
    input_scale: float = Field(default=255.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a pixel can be."""
    image: tuple[int, int] | None = Field(default=None, examples=[[28, 28]])
    """Rows and columns of the picture in a flat record; null: the record has that shape itself."""


class Patches:
    """φ = h/‖h‖ for h = Aᵀ(r − m), r the roots of the quarters' sums over their typical sizes.

    Taps and thresholds are integers, so that float32 holds every sum over a patch exactly (at most
    108 · 127 · 255 < 2**24) and float64 every sum over a quarter. From there on as `pictures`.
    """

    name = "patches"

    def __init__(self, parameters: PatchesParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """The dimension asked for; DataError unless a record is a picture of at least 4 × 4."""
        values = 2 * ENTRIES * QUARTERS
        return dimension_of(self.parameters.dimension, self._raster(input_shape), values, self.name)

    def prepare(self, input_shape: tuple[int, ...]) -> None:
        """Have the axes ready, which take seconds and no record."""
        axes_of(self._raster(input_shape), self.output_dim(input_shape))

    @flushed()
    def __call__(self, x: Float32) -> Float64:
        """Features (n, d) float64 of records (n, rows, columns) or (n, 3, rows, columns)."""
        raster, (rows, valid) = self._raster(x.shape[1:]), usable(x)
        found = np.zeros((len(rows), self.output_dim(x.shape[1:])))
        common = axes_of(raster, found.shape[1])
        for start in range(0, len(rows), BLOCK_RECORDS):
            block = rows[start : start + BLOCK_RECORDS]
            planes = raster.planes(block, self.parameters.input_scale)
            sums = quarter_sums(planes, dictionary_of(raster))
            found[start : start + BLOCK_RECORDS] = projected(sums, common)
        found[~valid] = 0.0
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """The same map in float32."""
        raster = self._raster(input_shape)
        dictionary = dictionary_of(raster)
        common = axes_of(raster, self.output_dim(input_shape))
        planes = raster.onnx_planes(graph, x, self.parameters.input_scale)
        side = side_of(raster)
        taps = dictionary.taps.T.reshape(ENTRIES, raster.colours, side, side)
        likeness = graph.add("Conv", planes, graph.constant(taps))
        threshold = graph.constant(dictionary.threshold[:, None, None])
        like = graph.add("Relu", graph.add("Sub", likeness, threshold))
        unlike = graph.add("Relu", graph.add("Sub", graph.add("Neg", likeness), threshold))
        beyond = graph.add("Concat", like, unlike, axis=1)
        sums = []
        for down, across in quarters(raster):
            starts = graph.whole(down.start, across.start)
            ends = graph.whole(down.stop, across.stop)
            part = graph.add("Slice", beyond, starts, ends, graph.whole(2, 3))
            sums.append(graph.add("ReduceSum", part, graph.whole(2, 3), keepdims=1))
        whole = graph.whole(-1, 2 * ENTRIES, QUARTERS)
        joined = graph.add("Reshape", graph.add("Concat", *sums, axis=3), whole)
        return onnx_projected(graph, joined, common, common.units)

    def _raster(self, input_shape: tuple[int, ...]) -> Raster:
        return raster_of(input_shape, self.parameters.image, self.name, least=4)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Integers: `taps` (values of a patch, entries), and what each entry's likeness must pass."""

    taps: Float32
    threshold: Float32


@lru_cache(maxsize=4)
def dictionary_of(raster: Raster) -> Dictionary:
    """Whitened patches of procedural pictures, and the whitening, in one.

    An entry d, compared with a whitened patch Wp, is dᵀWp = (Wd)ᵀp: the whitening goes into the
    taps. Those entries are drawn that are no flat patches. A threshold is the mean likeness.
    """
    shape = (raster.colours, raster.rows, raster.columns)
    chance = public_chance(0, f"patches/{shape}")
    seen = patches(procedural_pictures(DRAWN, shape, series=1), side_of(raster))
    places = np.stack([chance.randint(0, size, PATCHES) for size in seen.shape[:3]])
    _, first = np.unique(places, axis=1, return_index=True)  # no place twice
    drawn = seen[tuple(places[:, np.sort(first)])].reshape(len(first), -1).astype(np.float64)
    even = drawn - drawn.mean(axis=1, keepdims=True)
    variances, axes = np.linalg.eigh(even.T @ even / len(even))
    whitening = axes * (variances + EVEN * variances.mean()) ** -0.5 @ axes.T
    white = even @ whitening
    sizes = np.sqrt(np.square(white).sum(axis=1))
    chosen = np.flatnonzero(sizes >= np.median(sizes))[:ENTRIES]
    taps = (white[chosen] / sizes[chosen, None]) @ whitening
    taps -= taps.mean(axis=1, keepdims=True)
    taps = np.rint(taps * (TAP_STEPS / np.abs(taps).max(axis=1, keepdims=True))).T
    threshold = np.rint(np.abs(drawn @ taps).mean(axis=0))
    for array in (taps, threshold):
        array.setflags(write=False)
    return Dictionary(np.ascontiguousarray(taps, np.float32), threshold.astype(np.float32))


def side_of(raster: Raster) -> int:
    """Pixels of a patch's side."""
    return 6 if min(raster.rows, raster.columns) >= 8 else 3


def patches(planes: Float32, side: int) -> Float32:
    """A view (n, down, across, colours, side, side) of planes (n, colours, rows, columns)."""
    views = sliding_window_view(planes, (side, side), axis=(2, 3))
    return np.asarray(views.transpose(0, 2, 3, 1, 4, 5))


def quarters(raster: Raster) -> list[tuple[slice, slice]]:
    """The places of patches in each quarter of a picture: rows and columns."""
    places = [pixels - side_of(raster) + 1 for pixels in (raster.rows, raster.columns)]
    halves = [(slice(0, n // 2), slice(n // 2, n)) for n in places]
    return [(top, left) for top in halves[0] for left in halves[1]]


def quarter_sums(planes: Float32, dictionary: Dictionary) -> Float64:
    """Integers (n, 2 · entries, quarters): how far likenesses, of either sign, pass thresholds."""
    raster = Raster(*planes.shape[1:])
    seen = patches(planes, side_of(raster))
    likeness = seen.reshape(-1, len(dictionary.taps)) @ dictionary.taps
    likeness = likeness.reshape(*seen.shape[:3], ENTRIES)
    sums = np.empty((len(planes), 2 * ENTRIES, QUARTERS))
    for at, (down, across) in enumerate(quarters(raster)):
        part = likeness[:, down, across]
        for sign, first in ((1, 0), (-1, ENTRIES)):
            beyond = np.maximum(sign * part - dictionary.threshold, 0)
            sums[:, first : first + ENTRIES, at] = beyond.sum(axis=(1, 2), dtype=np.float64)
    return sums


@lru_cache(maxsize=4)
def axes_of(raster: Raster, dimension: int) -> Axes:
    """Typical sizes and the first axes of procedural pictures; seconds, then kept."""
    pictures = procedural_pictures(DRAWN, (raster.colours, raster.rows, raster.columns))
    dictionary, blocks = dictionary_of(raster), range(0, DRAWN, BLOCK_RECORDS)
    sums = [quarter_sums(pictures[k : k + BLOCK_RECORDS], dictionary) for k in blocks]
    return common_axes(np.concatenate(sums), np.ones((2 * ENTRIES, 1)), dimension)


PART = FeaturePart(
    parameters=PatchesParameters,
    build=lambda parameters, _: Patches(parameters),
    source="Coates and Ng 2011, on drawn pictures",
    needs="pictures",
    example="features: [{name: patches}]",
)
