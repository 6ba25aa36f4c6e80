"""Features for pictures of any kind (`pictures`), learned from no data.

Pooled moduli of `gabor` on brightness and two opponent colours: each sum is divided by its typical
size, its square root taken (Perronnin, Sánchez and Mensink 2010), and all are projected on the main
axes, the wide ones narrowed. Sizes and axes are those of procedural pictures, so no record has a
part in them.

Procedural pictures: dead leaves (Lee, Mumford and Huang 2001), Gaussian fields of amplitude f^(−a),
a from 0.6 to 2 (Field 1987), and pen strokes. Colours vary most in brightness, less from yellow to
blue, least from red to green (Ruderman, Cronin and Chiao 1998).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.public_order import public_chance
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
    Bank,
    Windows,
    channel_units,
    filters,
    onnx_channels,
    onnx_levels,
    pooled_channels,
    whole_levels,
)
from edgeveil.privacy.grid import Int64, exact_matmul
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList


Float32 = NDArray[np.float32]

Chance = np.random.RandomState

LEAVES = 48  # in one picture
PEN_POINTS = 14  # of one curve
CURVES = 3
# Brightness, yellow to blue, green to magenta, as rows of red, green and blue; and how they vary.
COLOUR_AXES = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])
VARIES = np.array([1.0, 0.35, 0.2])


def procedural_pictures(count: int, shape: tuple[int, int, int], series: int = 0) -> Float32:
    """`count` pictures (n, colours, rows, columns) of one or three colours, in whole levels 0..255;
    the same on every machine but for rounding of sines and roots."""
    chance = public_chance(series, f"procedural-pictures/{shape}")
    grey = shape[0] == 1  # drawings are more often grey, photographs coloured
    leaves, fields = count * (4 if grey else 6) // 10, count * (2 if grey else 3) // 10
    drawn = [
        _leaves(chance, leaves, shape),
        _fields(chance, fields, shape),
        _strokes(chance, count - leaves - fields, shape),
    ]
    pictures = np.rint(np.clip(np.concatenate(drawn), 0, 1) * 255)
    return np.asarray(pictures[chance.permutation(count)], np.float32)


def _palette(chance: Chance, count: int, size: int, colours: int) -> Float64:
    if colours == 1:
        around = chance.uniform(0, 1, (count, 1, 1))
        return around + chance.uniform(0.1, 0.5, (count, 1, 1)) * chance.standard_normal(
            (count, size, 1)
        )
    spread = chance.uniform(0.15, 0.6, (count, 1, 1))
    around = 0.25 * chance.standard_normal((count, 1, 3))
    found: Float64 = (
        0.5 + (around + spread * chance.standard_normal((count, size, 3))) * VARIES @ COLOUR_AXES
    )
    return found


def _spectra(chance: Chance, count: int, shape: tuple[int, int, int]) -> Float64:
    """Gaussian fields of mean 0 and variance 1: a part of a larger one, so that no edge repeats."""
    colours, rows, columns = shape
    down, across = np.fft.fftfreq(2 * rows)[:, None], np.fft.rfftfreq(2 * columns)[None]
    frequency = np.hypot(down, across)
    frequency[0, 0] = np.inf
    amplitude = frequency ** -chance.uniform(0.6, 2.0, (count, 1, 1, 1))
    size = (count, colours, 2 * rows, columns + 1)
    waves = chance.standard_normal(size) + 1j * chance.standard_normal(size)
    field = np.fft.irfft2(waves * amplitude, s=(2 * rows, 2 * columns))[:, :, :rows, :columns]
    field /= np.sqrt(np.square(field).mean(axis=(1, 2, 3), keepdims=True)) + 1e-9
    if colours == 1:
        return field
    found: Float64 = np.einsum("nchw,cd->ndhw", field * VARIES[:, None, None], COLOUR_AXES)
    return found


def _fields(chance: Chance, count: int, shape: tuple[int, int, int]) -> Float64:
    contrast = chance.uniform(0.1, 0.4, (count, 1, 1, 1))
    around = _palette(chance, count, 1, shape[0])[:, 0, :, None, None]
    return around + contrast * _spectra(chance, count, shape)


def _leaves(chance: Chance, count: int, shape: tuple[int, int, int]) -> Float64:
    colours, rows, columns = shape
    side = min(rows, columns)
    texture = chance.uniform(0, 0.25, (count, 1, 1, 1)) * _spectra(chance, count, shape)
    palette = _palette(chance, count, LEAVES + 1, colours)
    pictures = np.broadcast_to(palette[:, 0, :, None, None], (count, *shape)).copy()
    y, x = np.mgrid[:rows, :columns].astype(np.float64)
    smallest, largest = 0.04 * side, 0.5 * side

    def drawn(low: float, high: float) -> Float64:
        return chance.uniform(low, high, (count, 1, 1))

    for leaf in range(1, LEAVES + 1):
        radius = (largest**-2 + drawn(0, 1) * (smallest**-2 - largest**-2)) ** -0.5
        right, below = x - drawn(0, columns), y - drawn(0, rows)
        turn, longer = drawn(0, np.pi), np.exp(drawn(-0.7, 0.7))
        along = (right * np.cos(turn) + below * np.sin(turn)) * longer
        beside = (below * np.cos(turn) - right * np.sin(turn)) / longer
        box = np.maximum(np.abs(along), np.abs(beside))
        far = np.where(drawn(0, 1) < 0.4, box, np.hypot(along, beside))
        cover = np.clip(radius - far + 0.5, 0, 1)[:, None]
        shade = 0.012 * (drawn(-1, 1) * right + drawn(-1, 1) * below)[:, None]
        pictures += cover * (palette[:, leaf, :, None, None] + shade - pictures)
    return pictures + texture


def _strokes(chance: Chance, count: int, shape: tuple[int, int, int]) -> Float64:
    colours, rows, columns = shape
    y, x = np.mgrid[:rows, :columns].astype(np.float64)
    pen = chance.uniform(0.02, 0.07, (count, 1, 1)) * min(rows, columns)
    if colours == 1:
        ground, ink = chance.uniform(0, 0.1, (count, 1)), chance.uniform(0.7, 1.2, (count, 1))
    else:
        ground, ink = np.moveaxis(_palette(chance, count, 2, colours), 1, 0)
    t = np.linspace(0, 1, PEN_POINTS)[:, None]
    powers = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3])
    nearest, end = np.full((count, rows, columns), np.inf), np.zeros((count, 2))
    for curve in range(CURVES):
        knots = chance.uniform(0.1, 0.9, (count, 4, 2)) * [columns, rows]
        if curve:  # most go on where the one before ended
            goes_on = chance.uniform(size=(count, 1)) < 0.6
            knots[:, 0] = np.where(goes_on, end, knots[:, 0])
        points = np.einsum("tk,nkd->ntd", powers, knots)
        end, there = points[:, -1], chance.uniform(size=(count, 1, 1)) < (0.6 if curve else 1)
        for right, below in points.transpose(1, 2, 0)[..., None, None]:
            square = (x - right) ** 2 + (y - below) ** 2
            nearest = np.where(there, np.minimum(nearest, square), nearest)
    inked = np.clip(pen + 0.5 - np.sqrt(nearest), 0, 1)[:, None]
    found: Float64 = ground[:, :, None, None] * (1 - inked) + ink[:, :, None, None] * inked
    return found


BLOCK_RECORDS = 64
DRAWN = 1500  # procedural pictures
ORIENTATIONS = 8
STEPS = 1 << 8  # of a root; a channel of typical size has 1
LARGEST = float(1 << 6)  # of a root: one that is 4,096 times the typical size
AXIS_STEPS = 1 << 15  # of the largest entry of all axes
NARROWED = 0.25  # axes of variance v are multiplied by v^-0.25: halfway to all alike
FLOOR = 0.01  # of the mean variance, added to each
GREY_FEATURES, COLOUR_FEATURES = 400, 600
LEAST_SIDE = 4  # pixels of a picture


class PicturesParameters(MapParameters):
    """A `pictures` entry of a job's `features`; all of it is public."""

    name: Literal["pictures"]
    """Pictures of any kind, grey or in colour: wavelets on the main axes of procedural pictures."""
    dimension: int | None = Field(default=None, ge=1, le=4096, examples=[500])
    """Number of features; null: 400 for grey pictures and 600 for those in colour, or as many as
    there are."""
    input_scale: float = Field(default=255.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a pixel can be."""
    image: tuple[int, int] | None = Field(default=None, examples=[[28, 28]])
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
        return self.colours * (1 + sum(len(scale.even) for scale in self.bank))

    @property
    def values(self) -> int:
        return self.channels * self.windows.windows


@dataclass(frozen=True, eq=False)
class Axes:
    """What procedural pictures of one raster share: `units` (channels, 1), a step over a channel's
    typical size; integers `middle` (values,) and `axes` (values, d)."""

    units: Float64
    middle: Int64
    axes: Int64


class Pictures:
    """φ = h/‖h‖ for h = Aᵀ(r − m), r the roots of a picture's sums over their typical sizes.

    Sums, A and m are integers and a root is rounded to a grid, so features depend on the record
    alone. Other machines' rounding of sines may turn the axes, and φ by about 1e-3.
    """

    name = "pictures"

    def __init__(self, parameters: PicturesParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """The dimension asked for or usual; DataError for no pictures, or more than there are."""
        raster, asked = self._raster(input_shape), self.parameters.dimension
        usual = GREY_FEATURES if raster.colours == 1 else COLOUR_FEATURES
        most = min(raster.values, DRAWN - 1)
        if asked is not None and asked > most:
            shape = [raster.rows, raster.columns]
            shape = shape if raster.colours == 1 else [raster.colours, *shape]
            raise DataError(
                f"pictures of shape {shape} have {most} features, not {asked}",
                fix=f"set dimension to at most {most}",
            )
        return min(usual, most) if asked is None else asked

    def prepare(self, input_shape: tuple[int, ...]) -> None:
        axes_of(self._raster(input_shape), self.output_dim(input_shape))

    @flushed()
    def __call__(self, x: Float32) -> Float64:
        raster, (rows, valid) = self._raster(x.shape[1:]), usable(x)
        found = np.zeros((len(rows), self.output_dim(x.shape[1:])))
        common = axes_of(raster, found.shape[1])
        for start in range(0, len(rows), BLOCK_RECORDS):
            levels = whole_levels(rows[start : start + BLOCK_RECORDS], self.parameters.input_scale)
            planes = levels.reshape(-1, raster.colours, raster.rows, raster.columns)
            found[start : start + BLOCK_RECORDS] = projected(pooled(planes, raster), common)
        found[~valid] = 0.0
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        raster = self._raster(input_shape)
        windows, common = raster.windows, axes_of(raster, self.output_dim(input_shape))
        shape = (raster.colours, raster.rows, raster.columns)
        levels = onnx_levels(graph, x, shape, self.parameters.input_scale)
        if raster.colours == COLOURS:
            mixed = graph.add("Conv", levels, graph.constant(_OPPONENTS[:, :, None, None]))
            levels = graph.rounded(graph.add("Div", mixed, graph.constant(_PARTS[:, None, None])))
        planes = graph.add("Reshape", levels, graph.whole(-1, 1, raster.rows, raster.columns))
        means = onnx_channels(graph, planes, windows, raster.bank)
        whole = graph.whole(-1, raster.channels, windows.windows)
        sums = graph.add("Reshape", means, whole)
        return onnx_projected(graph, sums, common, common.units * windows.pool**2)

    def _raster(self, input_shape: tuple[int, ...]) -> Raster:
        """How records of a shape are pictures. DataError where they are none."""
        colours, shape, image = 1, input_shape, self.parameters.image
        if image is not None and size_of(shape) % max(1, size_of(image)) == 0:
            colours, shape = size_of(shape) // size_of(image), image
        elif image is None and len(shape) == 3:
            colours, shape = shape[0], shape[1:]
        if len(shape) != 2 or colours not in (1, COLOURS) or min(shape) < LEAST_SIDE:
            raise DataError(
                "pictures takes one picture a record, grey or of 3 colours and at least"
                f" {LEAST_SIDE} × {LEAST_SIDE}, not the shape {list(input_shape)}"
                + (f" as {list(image)}" if image else ""),
                fix="use records of shape [rows, columns] or [3, rows, columns], or say"
                " `image: [rows, columns]`",
            )
        return Raster(colours, *shape)


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


def projected(sums: Float64, common: Axes) -> Float64:
    steps = roots(sums, common.units)
    products = exact_matmul(steps - common.middle, common.axes)
    return unit_rows(products.astype(np.float64))


def narrowed(rows: Float64, dimension: int) -> Float64:
    """The main axes (values, dimension) of rows (n, values), each by a power of its variance; the
    largest entry of an axis is positive."""
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
