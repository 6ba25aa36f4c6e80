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

    def planes(self, rows: Float32, input_scale: float) -> Float32:
        """Records (n, values) as planes (n, colours, rows, columns) in whole levels 0..255."""
        with np.errstate(over="ignore"):
            scaled = rows / np.float32(input_scale)
        levels = np.rint(np.clip(scaled, 0, 1) * np.float32(LEVELS))
        found: Float32 = levels.reshape(-1, self.colours, self.rows, self.columns)
        return found

    def onnx_planes(self, graph: NodeList, x: str, input_scale: float) -> str:
        """The same of the tensor named `x`."""
        image = graph.add("Reshape", x, graph.whole(-1, self.colours, self.rows, self.columns))
        scaled = graph.add("Div", image, graph.number(input_scale))
        cut = graph.add("Clip", scaled, graph.number(0.0), graph.number(1.0))
        return graph.rounded(graph.add("Mul", cut, graph.number(LEVELS)))

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
        raster = self._raster(input_shape)
        return dimension_of(self.parameters.dimension, raster, raster.values, self.name)

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
            found[start : start + BLOCK_RECORDS] = projected(pooled(planes, raster), common)
        found[~valid] = 0.0
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """The same map in float32."""
        raster = self._raster(input_shape)
        common = axes_of(raster, self.output_dim(input_shape))
        levels = raster.onnx_planes(graph, x, self.parameters.input_scale)
        if raster.colours == COLOURS:
            mixed = graph.add("Conv", levels, graph.constant(_OPPONENTS[:, :, None, None]))
            levels = graph.rounded(graph.add("Div", mixed, graph.constant(_PARTS[:, None, None])))
        planes = graph.add("Reshape", levels, graph.whole(-1, 1, raster.rows, raster.columns))
        windows = raster.windows
        means = onnx_channels(graph, planes, windows, raster.bank)
        whole = graph.whole(-1, raster.channels, windows.windows)
        sums = graph.add("Reshape", means, whole)
        return onnx_projected(graph, sums, common, common.units * windows.pool**2)

    def _raster(self, input_shape: tuple[int, ...]) -> Raster:
        return raster_of(input_shape, self.parameters.image, self.name, least=4)


def raster_of(
    input_shape: tuple[int, ...], image: tuple[int, int] | None, name: str, least: int
) -> Raster:
    """How records of a shape are pictures for the map `name`, of at least `least` pixels a side.

    Raises DataError where they are none.
    """
    colours, shape = 1, input_shape
    if image is not None and size_of(shape) % max(1, size_of(image)) == 0:
        colours, shape = size_of(shape) // size_of(image), image
    elif image is None and len(shape) == 3:
        colours, shape = shape[0], shape[1:]
    if len(shape) != 2 or colours not in (1, COLOURS) or min(shape) < least:
        raise DataError(
            f"{name} takes one picture a record, grey or of 3 colours and at least {least} × "
            f"{least}, not the shape {list(input_shape)}" + (f" as {list(image)}" if image else ""),
            fix="use records of shape [rows, columns] or [3, rows, columns], or say"
            " `image: [rows, columns]`",
        )
    return Raster(colours, *shape)


def dimension_of(asked: int | None, raster: Raster, values: int, name: str) -> int:
    """The features asked for, or as many as are usual. Raises DataError for more than there are."""
    usual, most = GREY_FEATURES if raster.colours == 1 else COLOUR_FEATURES, min(values, DRAWN - 1)
    if asked is not None and asked > most:
        shape = [raster.rows, raster.columns]
        shape = shape if raster.colours == 1 else [raster.colours, *shape]
        raise DataError(
            f"{name} of shape {shape} have {most} features, not {asked}",
            fix=f"set dimension to at most {most}",
        )
    return min(usual, most) if asked is None else asked


def onnx_projected(graph: NodeList, sums: str, common: Axes, units: Float64) -> str:
    """`projected` in float32, of pooled sums (N, channels, windows) whose steps are `units`."""
    sizes = graph.add("Mul", sums, graph.constant(units.astype(np.float32)))
    bright = graph.add("Sqrt", graph.add("Relu", sizes))
    dark = graph.add("Sqrt", graph.add("Relu", graph.add("Neg", sizes)))
    root = graph.add("Sub", bright, dark)
    within = graph.add("Clip", root, graph.number(-LARGEST), graph.number(LARGEST))
    steps = graph.rounded(graph.add("Mul", within, graph.number(STEPS)))
    flat = graph.add("Reshape", steps, graph.whole(-1, len(common.middle)))
    middle = graph.constant(common.middle.astype(np.float32))
    entries = graph.constant((common.axes / AXIS_STEPS).astype(np.float32))
    return graph.unit_rows(graph.add("MatMul", graph.add("Sub", flat, middle), entries))


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
    return common_axes(sums, once, dimension)


def projected(sums: Float64, common: Axes) -> Float64:
    """φ (n, d) of pooled sums (n, channels, windows)."""
    steps = roots(sums, common.units)
    products = exact_matmul(steps - common.middle, common.axes)
    return unit_rows(products.astype(np.float64))


def common_axes(sums: Float64, once: Float64, dimension: int) -> Axes:
    """Of the pooled sums (n, channels, windows) of drawn pictures; `once` is a channel's step."""
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
