"""Features for pictures, learned from no data: `gabor` and `pictures`.

`gabor`: the pooled modulus of Gabor wavelets, a fixed scattering transform of first order (Bruna
and Mallat 2013).

`pictures`: the same on brightness and two opponent colours; each sum is divided by its typical
size, its square root taken (Perronnin, Sánchez and Mensink 2010), and all are projected on the main
axes, the wide ones narrowed. Sizes and axes come from procedural pictures, not from records.
With `mirror` the axes are those of sums averaged over a picture and its mirror image, which are a
permutation of the picture's own: left and right then have no part in the features. With `patches`
sums of likeness to patches (`patches.py`) stand beside those of wavelets.

Procedural pictures: dead leaves (Lee, Mumford and Huang 2001), Gaussian fields of amplitude f^(−a),
a from 0.6 to 2 (Field 1987), and pen strokes. Colours vary most in brightness, less from yellow to
blue, least from red to green (Ruderman, Cronin and Chiao 1998)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.public_order import public_chance
from edgeveil.errors import DataError
from edgeveil.parts.features.feature_map import (
    FeaturePart,
    Float64,
    MapParameters,
    NodeList,
    unit_rows,
    usable,
)
from edgeveil.parts.features.patches import (
    GRID,
    SIDE,
    Dictionary,
    dictionary_of,
    onnx_patch_sums,
    patch_sums,
)
from edgeveil.parts.part import only_for, some_names
from edgeveil.privacy.grid import Int64, exact_matmul, row_norms
from edgeveil.subnormals import flushed

Float32 = NDArray[np.float32]
BLOCK_RECORDS = 64
COLOURS = 3


class PicturesParameters(MapParameters):
    """A `gabor` or `pictures` entry of a job's `features`; all of it is public."""

    name: Literal["gabor", "pictures"]
    """Which map; `edgeveil methods` describes each."""
    input_scale: float = Field(default=255.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a pixel can be."""
    image: tuple[int, int] | None = Field(default=None, examples=[[28, 28]])
    """Rows and columns of the picture in a flat record; null: the record has that shape itself."""
    orientations: Annotated[int, Field(ge=1, le=32), only_for(gabor=8)] = some_names()
    """Of `gabor`: directions of the wavelets, evenly spread over half a turn; 8 by default."""
    scales: Annotated[int, Field(ge=1, le=3), only_for(gabor=2)] = some_names()
    """Of `gabor`: sizes of the wavelets, with wavelengths of 4, 8 and 16 pixels; 2 by default."""
    pool: Annotated[Literal[4, 8, 16], only_for(gabor=8)] = some_names()
    """Of `gabor`: side of the pooling windows in pixels, which overlap by half; 8 by default."""
    dimension: Annotated[int | None, Field(ge=1, le=4096), only_for(pictures=None)] = some_names(
        examples=[500]
    )
    """Of `pictures`: number of features; null: 400 for grey pictures and 600 for those in colour,
    or as many as there are."""
    mirror: Annotated[bool, only_for(pictures=False)] = some_names(
        exclude_if=lambda value: value is ... or value is False
    )
    """Of `pictures`: give a picture and its mirror image the same features, for the same price:
    better for photographs, worse for digits and letters; false by default."""
    patches: Annotated[int | None, Field(ge=2, le=2048, multiple_of=2), only_for(pictures=None)] = (
        some_names(exclude_if=lambda value: value is ... or value is None, examples=[600])
    )
    """Of `pictures`: number of patches of procedural pictures that a picture is compared with,
    besides wavelets: more accurate for photographs, for twice the time and memory; null: none."""


class _PictureMap:
    name: ClassVar[str]

    def __init__(self, parameters: Any, least: int = 1) -> None:
        self.parameters, self.least = parameters, least  # pixels of a side

    @flushed()
    def __call__(self, x: Float32) -> Float64:
        raster, (rows, valid) = self.raster(x.shape[1:]), usable(x)
        found = np.zeros((len(rows), self.output_dim(x.shape[1:])))
        for start in range(0, len(rows), BLOCK_RECORDS):
            with np.errstate(over="ignore"):
                block = rows[start : start + BLOCK_RECORDS]
                scaled = block / np.float32(self.parameters.input_scale)
            levels = np.rint(np.clip(scaled, 0, 1) * np.float32(LEVELS))
            planes = levels.reshape(-1, raster.colours, raster.rows, raster.columns)
            found[start : start + BLOCK_RECORDS] = self.features(planes, raster, found.shape[1])
        found[~valid] = 0.0
        return found

    def raster_of(self, colours: int, rows: int, columns: int) -> _Raster:
        raise NotImplementedError

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        raise NotImplementedError

    def features(self, levels: Float32, raster: _Raster, dimension: int) -> Float64:
        """Return φ (n, d) of pictures (n, colours, rows, columns) in whole levels 0..255."""
        raise NotImplementedError

    def onnx_levels(self, graph: NodeList, x: str, *shape: int) -> str:
        image = graph.add("Reshape", x, graph.whole(-1, *shape))
        scaled = graph.add("Div", image, graph.number(self.parameters.input_scale))
        cut = graph.add("Clip", scaled, graph.number(0.0), graph.number(1.0))
        return graph.rounded(graph.add("Mul", cut, graph.number(LEVELS)))

    def raster(self, input_shape: tuple[int, ...]) -> _Raster:
        """Return the raster of records of a shape. Raises DataError if they are not pictures."""
        colours, shape, image = 1, input_shape, self.parameters.image
        if image is not None and math.prod(shape) % max(1, math.prod(image)) == 0:
            colours, shape = math.prod(shape) // math.prod(image), image
        elif image is None and len(shape) == 3:
            colours, shape = shape[0], shape[1:]
        if len(shape) != 2 or colours not in (1, COLOURS) or min(shape) < self.least:
            raise DataError(
                f"{self.name} takes one picture a record, grey or of 3 colours and at least"
                f" {self.least} × {self.least}, not the shape {list(input_shape)}"
                + (f" as {list(image)}" if image else ""),
                fix="use records of shape [rows, columns] or [3, rows, columns], or say"
                " `image: [rows, columns]`",
            )
        return self.raster_of(colours, *shape)


CHANNEL_FLOOR = 0.05  # added to a norm, against amplifying an empty channel


class Gabor(_PictureMap):
    """φ(x) = f/‖f‖, f the channels' pooled moduli less their mean, each over its norm.

    Images in 255 levels and integer filters make all sums exact. A colour image is three grey ones.
    """

    name = "gabor"

    def raster_of(self, colours: int, rows: int, columns: int) -> _Raster:
        p = self.parameters
        return _Raster(colours, rows, columns, p.pool, p.orientations, p.scales)

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        return self.raster(input_shape).values

    def features(self, levels: Float32, raster: _Raster, dimension: int) -> Float64:
        sums = raster.pooled(levels.reshape(-1, raster.rows, raster.columns))
        n, channels, windows = sums.shape
        centred = sums * windows - sums.sum(axis=2, keepdims=True)
        norms = row_norms(centred.reshape(n * channels, windows)).reshape(n, channels, 1)
        units = (raster.units / windows)[:, None]
        even: Float64 = (centred * units) / (norms * units + CHANNEL_FLOOR)
        return unit_rows(even.reshape(len(levels), -1))

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        raster = self.raster(input_shape)
        levels = self.onnx_levels(graph, x, 1, raster.rows, raster.columns)
        flat = onnx_channels(graph, levels, raster)
        units = (raster.units * raster.pool**2).astype(np.float32)
        values = graph.add("Mul", flat, graph.constant(units[:, None]))
        count = graph.number(raster.windows)
        mean = graph.add("Div", graph.add("ReduceSum", values, graph.whole(2), keepdims=1), count)
        centred = graph.add("Sub", values, mean)
        squares = graph.add("Mul", centred, centred)
        norms = graph.add("Sqrt", graph.add("ReduceSum", squares, graph.whole(2), keepdims=1))
        divisor = graph.add("Add", norms, graph.number(CHANNEL_FLOOR))
        even = graph.add("Div", centred, divisor)
        return graph.unit_rows(graph.add("Reshape", even, graph.whole(-1, raster.values)))


@dataclass(frozen=True)
class _Raster:
    """Pictures of `colours` planes, with wavelets and windows of side `pool`, stride pool/2."""

    colours: int
    rows: int
    columns: int
    pool: int
    orientations: int
    scales: int
    patches: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.colours, self.rows, self.columns

    @property
    def bank(self) -> Bank:
        return filters(self.orientations, self.scales)

    @property
    def _steps(self) -> tuple[int, int]:
        return -(-self.rows // (self.pool // 2)), -(-self.columns // (self.pool // 2))

    @property
    def padded(self) -> tuple[int, int]:
        down, across = self._steps
        return (down + 1) * (self.pool // 2), (across + 1) * (self.pool // 2)

    @property
    def windows(self) -> int:
        return math.prod(self._steps)

    @property
    def channels(self) -> int:
        return self.colours * (1 + self.orientations * self.scales)

    @property
    def values(self) -> int:
        return self.channels * self.windows + self.patches * GRID * GRID

    @property
    def swapped(self) -> NDArray[np.int64]:
        """Channels (channels,) of a mirror image among those of the picture itself."""
        wavelets = np.arange(self.orientations * self.scales).reshape(self.scales, -1)
        turned = 1 + wavelets[:, -np.arange(self.orientations)]
        first = np.arange(self.colours)[:, None] * (1 + wavelets.size)
        found: NDArray[np.int64] = (first + np.append(0, turned)).ravel()
        return found

    @property
    def mirrored(self) -> NDArray[np.int64]:
        """Places (values,) of a mirror image's pooled sums among those of the picture itself.

        Exact where the windows lie symmetrically: for columns in multiples of half of `pool`."""
        waves, patches = np.split(np.arange(self.values), [self.channels * self.windows])
        waves = waves.reshape(self.channels, *self._steps)[self.swapped, :, ::-1]
        patches = np.roll(patches.reshape(self.patches, GRID, GRID), self.patches // 2, axis=0)
        return np.append(waves, patches[..., ::-1])

    @property
    def units(self) -> Float64:
        """Value of one step of each channel's pooled sum, (channels of one colour,)."""
        wavelets = np.full(self.orientations * self.scales, 1 / (LEVELS * TAP_STEPS))
        return np.concatenate([[1 / (LEVELS * self.pool**2)], wavelets])

    def pooled(self, levels: Float32) -> Float64:
        """Return integers (n, channels of one colour, windows) of images in levels up to ±255.

        The image, then its moduli in steps of pool², so that window sums stay below 2**24."""
        pad = self.pool // 4
        padded = np.zeros((len(levels), *self.padded), np.float32)
        padded[:, pad : pad + self.rows, pad : pad + self.columns] = levels
        steps = np.float32(self.pool**2)
        channels = [np.rint(modulus(padded, scale) / steps) for scale in self.bank]
        return np.concatenate([self._summed(one) for one in (padded[:, None], *channels)], axis=1)

    def _summed(self, channels: Float32) -> Float64:
        n, c, rows, columns = channels.shape
        s = self.pool // 2
        blocks = channels.reshape(n, c, rows // s, s, columns // s, s).sum(axis=(3, 5))
        tall = blocks[:, :, :-1] + blocks[:, :, 1:]
        sums: Float64 = (tall[..., :-1] + tall[..., 1:]).astype(np.float64)
        return sums.reshape(n, c, self.windows)


LEVELS = 255
TAP_STEPS = 1 << 12
ASPECT = 0.49  # the envelope is longer across the wave
RUN = 4  # adjacent outputs of a row that share a patch: fewer copies, more products


@dataclass(frozen=True, eq=False)
class _Filters:
    """Wavelets of one scale (orientations, side, side), in steps of 2**-12, of L1 norm at most 15.

    So sums stay below 15 * 2**12 * 255 + rounding < 2**24: exact in float32."""

    radius: int
    even: Float32
    odd: Float32
    banded: Float32
    """(side * (side + RUN - 1), 2 * orientations * RUN): the filters at RUN adjacent places."""


Bank = tuple[_Filters, ...]  # one per scale


@lru_cache(maxsize=8)
def filters(orientations: int, scales: int) -> Bank:
    """Return the filters of each scale: wavelengths 4, 8, 16 on windows of side 7, 11, 15."""
    return tuple(_filters(orientations, 3 + 2 * k, 4.0 * 2**k, 1.6 * 2**k) for k in range(scales))


def modulus(padded: Float32, bank: _Filters) -> Float32:
    """Return |image * wavelet| (n, orientations, rows, columns) of whole images, zero padded."""
    n, rows, columns = padded.shape
    side, run = 2 * bank.radius + 1, -(-columns // RUN) * RUN
    wide = np.zeros((n, rows + side - 1, run + side - 1), np.float32)
    wide[:, bank.radius : bank.radius + rows, bank.radius : bank.radius + columns] = padded
    patches = sliding_window_view(wide, (side, side + RUN - 1), axis=(1, 2))[:, :, ::RUN]
    waves = patches.reshape(-1, bank.banded.shape[0]) @ bank.banded
    parts = waves.reshape(n, rows, run // RUN, 2, -1, RUN)
    squares = parts[:, :, :, 0] * parts[:, :, :, 0] + parts[:, :, :, 1] * parts[:, :, :, 1]
    found = np.sqrt(squares).transpose(0, 3, 1, 2, 4).reshape(n, -1, rows, run)
    return np.asarray(found[..., :columns], dtype=np.float32)


def onnx_channels(graph: NodeList, levels: str, raster: _Raster) -> str:
    """Add `Raster.pooled` of images (N, 1, rows, columns) as means (N, channels, windows)."""
    pad, (height, width) = raster.pool // 4, raster.padded
    below, right = height - raster.rows - pad, width - raster.columns - pad
    channels = [graph.add("Pad", levels, graph.whole(0, 0, pad, pad, 0, 0, below, right))]
    channels += [_onnx_modulus(graph, channels[0], scale, raster.pool) for scale in raster.bank]
    joined = graph.add("Concat", *channels, axis=1)
    side: dict[str, Any] = {"kernel_shape": [raster.pool] * 2, "strides": [raster.pool // 2] * 2}
    pooled = graph.add("AveragePool", joined, **side)
    return graph.add("Reshape", pooled, graph.whole(0, -1, raster.windows))


def _onnx_modulus(graph: NodeList, image: str, bank: _Filters, pool: int) -> str:
    parts = []
    for taps in (bank.even, bank.odd):
        weights = graph.constant(taps[:, None].astype(np.float32))
        wave = graph.add("Conv", image, weights, pads=[bank.radius] * 4)
        parts.append(graph.add("Mul", wave, wave))
    found = graph.add("Sqrt", graph.add("Add", *parts))
    return graph.rounded(graph.add("Div", found, graph.number(pool**2)))


def _filters(orientations: int, radius: int, wavelength: float, width: float) -> _Filters:
    side = 2 * radius + 1
    even = np.zeros((orientations, side, side))
    odd = np.zeros_like(even)
    for k in range(orientations):
        even[k], odd[k] = _wavelet(math.pi * k / orientations, radius, wavelength, width)
    even, odd = np.rint(even * TAP_STEPS), np.rint(odd * TAP_STEPS)
    banded = np.zeros((side, side + RUN - 1, 2, orientations, RUN))
    for shift in range(RUN):
        banded[:, shift : shift + side, 0, :, shift] = even.transpose(1, 2, 0)
        banded[:, shift : shift + side, 1, :, shift] = odd.transpose(1, 2, 0)
    flat = banded.reshape(side * (side + RUN - 1), -1)
    return _Filters(radius, *(a.astype(np.float32) for a in (even, odd, flat)))


def _wavelet(angle: float, radius: int, wavelength: float, width: float) -> tuple[Float64, Float64]:
    """Return even and odd part (side, side), of joint norm 1, the even part without a mean."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float64)
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    envelope = np.exp(-(along**2 + ASPECT * across**2) / (2 * width**2))
    even = envelope * np.cos(2 * math.pi * along / wavelength)
    odd = envelope * np.sin(2 * math.pi * along / wavelength)
    even -= envelope * even.sum() / envelope.sum()
    norm = math.sqrt((even**2 + odd**2).sum())
    return np.asarray(even / norm), np.asarray(odd / norm)


Chance = np.random.RandomState

LEAVES = 48  # in one picture
PEN_POINTS = 14  # of one curve
CURVES = 3
# Brightness, yellow to blue, green to magenta, as rows of red, green and blue; their deviations.
COLOUR_AXES = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])
VARIES = np.array([1.0, 0.35, 0.2])


def procedural_pictures(count: int, shape: tuple[int, int, int], series: int = 0) -> Float32:
    """Return `count` pictures (n, colours, rows, columns) in whole levels 0..255."""
    chance = public_chance(series, f"procedural-pictures/{shape}")
    grey = shape[0] == 1  # more drawings, as these are more often grey than photographs
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
    """Return Gaussian fields of mean 0, variance 1, cut from larger ones: edges do not repeat."""
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
        across = (below * np.cos(turn) - right * np.sin(turn)) / longer
        box = np.maximum(np.abs(along), np.abs(across))
        far = np.where(drawn(0, 1) < 0.4, box, np.hypot(along, across))
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
        if curve:  # most continue at the end of the previous curve
            joined = chance.uniform(size=(count, 1)) < 0.6
            knots[:, 0] = np.where(joined, end, knots[:, 0])
        points = np.einsum("tk,nkd->ntd", powers, knots)
        end, there = points[:, -1], chance.uniform(size=(count, 1, 1)) < (0.6 if curve else 1)
        for right, below in points.transpose(1, 2, 0)[..., None, None]:
            square = (x - right) ** 2 + (y - below) ** 2
            nearest = np.where(there, np.minimum(nearest, square), nearest)
    inked = np.clip(pen + 0.5 - np.sqrt(nearest), 0, 1)[:, None]
    found: Float64 = ground[:, :, None, None] * (1 - inked) + ink[:, :, None, None] * inked
    return found


DRAWN = 1500  # procedural pictures
ORIENTATIONS = 8
STEPS = 1 << 8  # per unit of a root; 1 for a channel of typical size
LARGEST = float(1 << 6)  # root of 4,096 times the typical size
AXIS_STEPS = 1 << 15  # largest entry of all axes
NARROWED = 0.25  # axes of variance v are multiplied by v^-0.25: half whitening
FLOOR = 0.01  # share of the mean variance added to each
NARROWED_PATCHED = 0.4  # the same where patches take part
PATCHED = 500  # procedural pictures that patches are taken from
GREY_FEATURES, COLOUR_FEATURES = 400, 600


@dataclass(frozen=True, eq=False)
class Axes:
    """Statistics of procedural pictures: scales `units`, mean and axes in integers.

    Units are (channels, 1) of wavelets, then (patches, 1)."""

    units: tuple[Float64, ...]
    middle: Int64
    axes: Int64


class Pictures(_PictureMap):
    """φ = h/‖h‖ for h = Aᵀ(r − m), r the roots of a picture's sums over their typical sizes.

    Sums, A, m and rounded r are integers, so features depend on the record alone. Rounding of sines
    on other machines may turn the axes, and φ by about 1e-3."""

    name = "pictures"

    def raster_of(self, colours: int, rows: int, columns: int) -> _Raster:
        """Choose by size: windows of side 8, or 4 below 16 pixels; a third scale from 32 pixels."""
        side, patches = min(rows, columns), self.parameters.patches or 0
        pool, scales = 8 if side >= 16 else 4, 3 if side >= 32 else 2
        return _Raster(colours, rows, columns, pool, ORIENTATIONS, scales, patches)

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """Return the dimension, or its default. Raises DataError for unsupported values."""
        raster, asked = self.raster(input_shape), self.parameters.dimension
        usual = GREY_FEATURES if raster.colours == 1 else COLOUR_FEATURES
        most = min(self._different(raster), DRAWN - 1)
        if asked is not None and asked > most:
            shape = [raster.rows, raster.columns]
            shape = shape if raster.colours == 1 else [raster.colours, *shape]
            what = f"pictures of shape {shape} have {most} features, not {asked}"
            raise DataError(what, fix=f"set dimension to at most {most}")
        return min(usual, most) if asked is None else asked

    def _different(self, raster: _Raster) -> int:
        """Return the number of values, or with `mirror` of pairs of values that mirror swaps."""
        if not self.parameters.mirror:
            return raster.values
        return int((raster.mirrored >= np.arange(raster.values)).sum())

    def prepare(self, input_shape: tuple[int, ...]) -> None:
        self._axes(self.raster(input_shape), self.output_dim(input_shape))

    def _axes(self, raster: _Raster, dimension: int) -> Axes:
        return axes_of(raster, dimension, self.parameters.mirror)

    def features(self, levels: Float32, raster: _Raster, dimension: int) -> Float64:
        common = self._axes(raster, dimension)
        steps = all_roots(sums_of(levels, raster), common.units) - common.middle
        return unit_rows(exact_matmul(steps, common.axes).astype(np.float64))

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        raster = self.raster(input_shape)
        common = self._axes(raster, self.output_dim(input_shape))
        levels = self.onnx_levels(graph, x, raster.colours, raster.rows, raster.columns)
        planes = levels
        if raster.colours == COLOURS:
            mixed = graph.add("Conv", levels, graph.constant(_OPPONENTS[:, :, None, None]))
            planes = graph.rounded(graph.add("Div", mixed, graph.constant(_PARTS[:, None, None])))
        planes = graph.add("Reshape", planes, graph.whole(-1, 1, raster.rows, raster.columns))
        means = onnx_channels(graph, planes, raster)
        sums = graph.add("Reshape", means, graph.whole(-1, raster.channels, raster.windows))
        flat = self._onnx_roots(graph, sums, common.units[0] * raster.pool**2)
        if raster.patches:
            sums = onnx_patch_sums(graph, levels, patches_of(raster), raster.shape)
            more = self._onnx_roots(graph, sums, common.units[1])
            flat = graph.add("Concat", flat, more, axis=1)
        middle = graph.constant(common.middle.astype(np.float32))
        steps, entries = graph.add("Sub", flat, middle), common.axes / AXIS_STEPS
        if self.parameters.mirror:  # a value and its mirror image have the same entries
            first = np.flatnonzero(np.arange(raster.values) <= raster.mirrored)
            second = raster.mirrored[first]
            entries = entries[first] * np.where(first == second, 0.5, 1)[:, None]
            pairs = (graph.add("Gather", steps, graph.whole(*at), axis=1) for at in (first, second))
            steps = graph.add("Add", *pairs)
        product = graph.add("MatMul", steps, graph.constant(entries.astype(np.float32)))
        return graph.unit_rows(product)

    @staticmethod
    def _onnx_roots(graph: NodeList, sums: str, units: Float64) -> str:
        sizes = graph.add("Mul", sums, graph.constant(units.astype(np.float32)))
        bright = graph.add("Sqrt", graph.add("Relu", sizes))
        dark = graph.add("Sqrt", graph.add("Relu", graph.add("Neg", sizes)))
        root = graph.add("Sub", bright, dark)
        within = graph.add("Clip", root, graph.number(-LARGEST), graph.number(LARGEST))
        steps = graph.rounded(graph.add("Mul", within, graph.number(STEPS)))
        return graph.add("Flatten", steps)


# Brightness, red against blue, and both against green; whole levels up to ±255 again.
_OPPONENTS = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]], np.float32)
_PARTS = np.array([3, 1, 2], np.float32)


def pooled(levels: Float32, raster: _Raster) -> Float64:
    """Return integers (n, channels, windows) of pictures (n, colours, rows, columns)."""
    if raster.colours == COLOURS:
        red, green, blue = levels[:, 0], levels[:, 1], levels[:, 2]
        grey, third = np.rint((red + green + blue) / _PARTS[0]), (red - 2 * green + blue)
        levels = np.stack([grey, red - blue, np.rint(third / _PARTS[2])], axis=1)
    planes = np.ascontiguousarray(levels.reshape(-1, raster.rows, raster.columns))
    return raster.pooled(planes).reshape(len(levels), raster.channels, raster.windows)


def roots(sums: Float64, units: Float64) -> Int64:
    """Return signed roots (n, values) of sums (n, channels, windows) in `units`, in steps."""
    sizes = sums * units
    root = np.clip(np.copysign(np.sqrt(np.abs(sizes)), sizes), -LARGEST, LARGEST)
    steps: Int64 = np.rint(root * STEPS).astype(np.int64).reshape(len(sums), -1)
    return steps


def sums_of(levels: Float32, raster: _Raster) -> tuple[Float64, ...]:
    """Return `pooled` and, if asked for, `patch_sums` of pictures."""
    if not raster.patches:
        return (pooled(levels, raster),)
    return pooled(levels, raster), patch_sums(levels, patches_of(raster))


def all_roots(sums: tuple[Float64, ...], units: tuple[Float64, ...]) -> Int64:
    return np.hstack([roots(some, unit) for some, unit in zip(sums, units, strict=True)])


@lru_cache(maxsize=4)
def patches_of(raster: _Raster) -> Dictionary:
    chance = public_chance(0, f"patches/{raster.shape}")
    pictures = procedural_pictures(PATCHED, raster.shape, series=1)
    return dictionary_of(pictures, raster.patches, chance)


@lru_cache(maxsize=4)
def axes_of(raster: _Raster, dimension: int, mirror: bool = False) -> Axes:
    pictures = procedural_pictures(DRAWN, raster.shape)
    blocks = [
        sums_of(pictures[k : k + BLOCK_RECORDS], raster) for k in range(0, DRAWN, BLOCK_RECORDS)
    ]
    sums = tuple(np.concatenate(some) for some in zip(*blocks, strict=True))
    swapped = raster.swapped, np.roll(np.arange(raster.patches), raster.patches // 2)
    ones = np.tile(raster.units, raster.colours)[:, None], np.ones((raster.patches, 1))
    units = []
    for some, once, mirrored in zip(sums, ones, swapped, strict=False):
        squares = np.square(some * once).mean(axis=(0, 2))
        squares = (squares + squares[mirrored]) / 2 if mirror else squares
        units.append(once / np.maximum(np.sqrt(squares)[:, None], np.finfo(np.float32).tiny))
    if raster.patches:
        waves, patches = (roots(*pair).var(axis=0).sum() for pair in zip(sums, units, strict=True))
        units[1] *= waves / patches  # to one variance
    steps = all_roots(sums, tuple(units))
    middle = np.rint(steps.mean(axis=0)).astype(np.int64)
    rows = (steps - middle) / STEPS
    rows = (rows + rows[:, raster.mirrored]) / 2 if mirror else rows
    axes = narrowed(rows, dimension, NARROWED_PATCHED if raster.patches else NARROWED)
    whole = np.rint(axes * (AXIS_STEPS / np.abs(axes).max())).astype(np.int64)
    if mirror:  # exactly, also after rounding
        whole = whole + whole[raster.mirrored]
    for array in (middle, whole):
        array.setflags(write=False)
    return Axes(tuple(units), middle, whole)


def narrowed(rows: Float64, dimension: int, exponent: float) -> Float64:
    """Return the main axes (values, dimension) of rows (n, values) times variance^-exponent."""
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
    found: Float64 = vectors * (variances + floor) ** -exponent
    return found


PARTS = (
    FeaturePart(
        name="gabor",
        summary="Edges of an image by direction and size: fixed Gabor wavelets, their modulus"
        " pooled.",
        parameters=PicturesParameters,
        build=lambda parameters, _: Gabor(parameters),
        source="Bruna and Mallat 2013, fixed scattering",
        needs="pictures",
        example="features: [{name: gabor, input_scale: 255}]",
    ),
    FeaturePart(
        name="pictures",
        summary="Pictures of any kind, grey or in colour: wavelets on the main axes of procedural"
        " pictures.",
        parameters=PicturesParameters,
        build=lambda parameters, _: Pictures(parameters, SIDE + GRID if parameters.patches else 4),
        source="Bruna and Mallat 2013; Perronnin, Sánchez and Mensink 2010, on drawn pictures",
        needs="pictures",
        example="features: [{name: pictures}]",
    ),
)
