"""Features for pictures of any kind (`pictures`): wavelets, evened out and projected, by no data.

The pooled moduli of `gabor` on brightness and two opponent colours. Each is divided by its typical
size and its square root taken, which brings the few large ones down to the many small (Perronnin,
Sánchez and Mensink 2010), then all are projected on the main axes of what pictures have in common,
the wide ones made narrower. Typical sizes and axes are those of procedural pictures
(`procedural_pictures.py`), so no record, published or private, has a part in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.errors import DataError
from edgeveil.parts.features.feature_map import (
    FeaturePart,
    Float64,
    MapParameters,
    size_of,
    unit_rows,
    usable,
)
from edgeveil.parts.features.gabor import (
    COLOURS,
    LEVELS,
    Bank,
    Windows,
    channel_units,
    filters,
    onnx_channels,
    pooled_channels,
)
from edgeveil.parts.features.procedural_pictures import procedural_pictures
from edgeveil.privacy.grid import Int64, exact_matmul
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList

Float32 = NDArray[np.float32]

BLOCK_RECORDS = 64
DRAWN = 1500  # procedural pictures
ORIENTATIONS = 8
STEPS = 1 << 8  # of a root; a channel of typical size has 1
LARGEST = float(1 << 6)  # of a root: one that is 4,096 times the typical size
AXIS_STEPS = 1 << 15  # of the largest entry of all axes
NARROWED = 0.25  # axes of variance v are multiplied by v^-0.25: halfway to all alike
FLOOR = 0.01  # of the mean variance, added to each
GREY_FEATURES, COLOUR_FEATURES = 400, 600


class PicturesParameters(MapParameters):
    """A `pictures` entry of a job's `features`; all of it is public."""

    name: Literal["pictures"]
    """Pictures of any kind, grey or in colour: wavelets on the main axes of procedural pictures."""
    dimension: int | None = Field(default=None, ge=1, le=4096, examples=[500])
    """Number of features; null: 400 for grey pictures and 600 for those in colour, or as many as
    there are."""
    input_scale: float = Field(default=255.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a pixel can be."""
    image: tuple[int, int] | None = Field(default=None, examples=[[8, 8]])
    """Rows and columns of the picture in a flat record; null: the record has that shape itself."""


@dataclass(frozen=True)
class Raster:
    """Pictures of `colours` planes, and how wavelets lie over them: by their size alone."""

    colours: int
    rows: int
    columns: int

    @property
    def windows(self) -> Windows:
        """Sides of 8 pixels, of 4 for pictures below 16."""
        return Windows(self.rows, self.columns, 8 if min(self.rows, self.columns) >= 16 else 4)

    @property
    def bank(self) -> Bank:
        """Wavelengths of 4 and 8 pixels, and 16 for pictures of 32 and more."""
        return filters(ORIENTATIONS, 3 if min(self.rows, self.columns) >= 32 else 2)

    @property
    def channels(self) -> int:
        """Of all planes."""
        return self.colours * (1 + sum(len(scale.even) for scale in self.bank))

    @property
    def values(self) -> int:
        """Numbers before the projection."""
        return self.channels * self.windows.windows


@dataclass(frozen=True, eq=False)
class Axes:
    """What procedural pictures of one raster have in common.

    `units` (channels, 1): one step of a channel over its typical size. `middle` (values,) and
    `axes` (values, d): integers, the mean of the roots in steps and the axes, scaled alike.
    """

    units: Float64
    middle: Int64
    axes: Int64


class Pictures:
    """φ = h/‖h‖ for h = Aᵀ(r − m), r the roots of the channels over their typical sizes.

    Pooled sums are exact integers, a root is correctly rounded and then put on a grid, and A and m
    hold integers: a record's features depend on nothing else. Where another machine's sines round
    one level of one drawn picture differently, its axes turn a little, and φ by about 1e-3;
    libraries of linear algebra that differ in their last digits gave the same axes.
    """

    name = "pictures"

    def __init__(self, parameters: PicturesParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """The dimension asked for; DataError unless a record is a picture of at least 4 × 4."""
        raster, asked = self._raster(input_shape), self.parameters.dimension
        usual = GREY_FEATURES if raster.colours == 1 else COLOUR_FEATURES
        most = min(raster.values, DRAWN - 1)
        if asked is not None and asked > most:
            raise DataError(
                f"pictures of shape {list(input_shape)} have {most} features, not {asked}",
                fix=f"set dimension to at most {most}",
            )
        return min(usual, most) if asked is None else asked

    @flushed()
    def __call__(self, x: Float32) -> Float64:
        """Features (n, d) float64 of records (n, rows, columns) or (n, 3, rows, columns)."""
        raster, (rows, valid) = self._raster(x.shape[1:]), usable(x)
        found = np.zeros((len(rows), self.output_dim(x.shape[1:])))
        common = axes_of(raster, found.shape[1])
        for start in range(0, len(rows), BLOCK_RECORDS):
            block = rows[start : start + BLOCK_RECORDS]
            with np.errstate(over="ignore"):
                scaled = block / np.float32(self.parameters.input_scale)
            levels = np.rint(np.clip(scaled, 0, 1) * np.float32(LEVELS))
            planes = levels.reshape(-1, raster.colours, raster.rows, raster.columns)
            steps = roots(pooled(planes, raster), common.units)
            products = exact_matmul(steps - common.middle, common.axes)
            found[start : start + BLOCK_RECORDS] = unit_rows(products.astype(np.float64))
        found[~valid] = 0.0
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """The same map in float32."""
        raster = self._raster(input_shape)
        common = axes_of(raster, self.output_dim(input_shape))
        shape = graph.whole(-1, raster.colours, raster.rows, raster.columns)
        image = graph.add("Reshape", x, shape)
        scaled = graph.add("Div", image, graph.number(self.parameters.input_scale))
        cut = graph.add("Clip", scaled, graph.number(0.0), graph.number(1.0))
        levels = graph.rounded(graph.add("Mul", cut, graph.number(LEVELS)))
        if raster.colours == COLOURS:
            mixed = graph.add("Conv", levels, graph.constant(_OPPONENTS[:, :, None, None]))
            levels = graph.rounded(graph.add("Div", mixed, graph.constant(_PARTS[:, None, None])))
        planes = graph.add("Reshape", levels, graph.whole(-1, 1, raster.rows, raster.columns))
        windows = raster.windows
        means = onnx_channels(graph, planes, windows, raster.bank)
        whole = graph.whole(-1, raster.channels, windows.windows)
        units = (common.units * windows.pool**2).astype(np.float32)
        sizes = graph.add("Mul", graph.add("Reshape", means, whole), graph.constant(units))
        bright = graph.add("Sqrt", graph.add("Relu", sizes))
        dark = graph.add("Sqrt", graph.add("Relu", graph.add("Neg", sizes)))
        root = graph.add("Sub", bright, dark)
        least, most = graph.number(-LARGEST), graph.number(LARGEST)
        within = graph.add("Clip", root, least, most)
        steps = graph.rounded(graph.add("Mul", within, graph.number(STEPS)))
        flat = graph.add("Reshape", steps, graph.whole(-1, raster.values))
        middle = graph.constant(common.middle.astype(np.float32))
        entries = graph.constant((common.axes / AXIS_STEPS).astype(np.float32))
        return graph.unit_rows(graph.add("MatMul", graph.add("Sub", flat, middle), entries))

    def _raster(self, input_shape: tuple[int, ...]) -> Raster:
        image, colours, shape = self.parameters.image, 1, input_shape
        if image is not None and size_of(shape) % max(1, size_of(image)) == 0:
            colours, shape = size_of(shape) // size_of(image), image
        elif image is None and len(shape) == 3:
            colours, shape = shape[0], shape[1:]
        if len(shape) != 2 or colours not in (1, COLOURS) or min(shape) < 4:
            raise DataError(
                f"pictures takes one picture a record, grey or of 3 colours and at least 4 × 4, "
                f"not the shape {list(input_shape)}" + (f" as {list(image)}" if image else ""),
                fix="use records of shape [rows, columns] or [3, rows, columns], or say"
                " `image: [rows, columns]`",
            )
        return Raster(colours, *shape)


# Brightness, red against blue, and both against green; whole levels up to ±255 again.
_OPPONENTS = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]], np.float32)
_PARTS = np.array([3, 1, 2], np.float32)


def pooled(levels: Float32, raster: Raster) -> Float64:
    """Integers (n, channels, windows) of pictures (n, colours, rows, columns) in whole levels."""
    if raster.colours == COLOURS:
        red, green, blue = levels[:, 0], levels[:, 1], levels[:, 2]
        grey, third = np.rint((red + green + blue) / _PARTS[0]), (red - 2 * green + blue)
        levels = np.stack([grey, red - blue, np.rint(third / _PARTS[2])], axis=1)
    planes = np.ascontiguousarray(levels.reshape(-1, raster.rows, raster.columns))
    found = pooled_channels(planes, raster.windows, raster.bank)
    return found.reshape(len(levels), raster.channels, raster.windows.windows)


def roots(sums: Float64, units: Float64) -> Int64:
    """(n, values): the signed roots of pooled sums (n, channels, windows) in units, in steps."""
    sizes = sums * units
    root = np.clip(np.copysign(np.sqrt(np.abs(sizes)), sizes), -LARGEST, LARGEST)
    steps: Int64 = np.rint(root * STEPS).astype(np.int64).reshape(len(sums), -1)
    return steps


@lru_cache(maxsize=4)
def axes_of(raster: Raster, dimension: int) -> Axes:
    """Typical sizes and the first axes of procedural pictures; seconds, then kept."""
    pictures = procedural_pictures(DRAWN, (raster.colours, raster.rows, raster.columns))
    sums = np.concatenate(
        [pooled(pictures[k : k + BLOCK_RECORDS], raster) for k in range(0, DRAWN, BLOCK_RECORDS)]
    )
    once = np.tile(channel_units(raster.bank, raster.windows.pool), raster.colours)[:, None]
    typical = np.sqrt(np.square(sums * once).mean(axis=(0, 2)))[:, None]
    units: Float64 = once / np.maximum(typical, np.finfo(np.float32).tiny)
    steps = roots(sums, units)
    middle = np.rint(steps.mean(axis=0)).astype(np.int64)
    axes = narrowed((steps - middle) / STEPS, dimension)
    whole = np.rint(axes * (AXIS_STEPS / np.abs(axes).max())).astype(np.int64)
    for array in (middle, whole):
        array.setflags(write=False)
    return Axes(units, middle, whole)


def narrowed(rows: Float64, dimension: int) -> Float64:
    """The main axes (values, dimension) of rows (n, values), each by a power of its variance.

    By the smaller of the two matrices of products. An axis has the sign of its largest entry.
    """
    count, values = rows.shape
    wide = values > count
    variances, vectors = np.linalg.eigh((rows @ rows.T if wide else rows.T @ rows) / count)
    variances = np.maximum(variances[::-1][:dimension], 0.0)
    vectors = vectors[:, ::-1][:, :dimension]
    if wide:
        vectors = rows.T @ vectors
        vectors /= np.maximum(np.sqrt(np.square(vectors).sum(axis=0)), np.finfo(float).tiny)
    largest = np.abs(vectors).argmax(axis=0)
    vectors *= np.sign(vectors[largest, np.arange(dimension)])
    floor = FLOOR * variances.mean()
    found: Float64 = vectors * (variances + floor) ** -NARROWED
    return found


PART = FeaturePart(
    parameters=PicturesParameters,
    build=lambda parameters, _: Pictures(parameters),
    source="Bruna and Mallat 2013; Perronnin, Sánchez and Mensink 2010, on drawn pictures",
    needs="pictures",
    example="features: [{name: pictures}]",
)
