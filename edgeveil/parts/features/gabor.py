"""Modulus of Gabor wavelets, pooled: a fixed scattering transform of first order, after Bruna and
Mallat (2013). Nothing is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
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
from edgeveil.privacy.grid import row_norms
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList

BLOCK_RECORDS = 64
COLOURS = 3
CHANNEL_FLOOR = 0.05  # keeps an empty channel from being blown up
Float32 = NDArray[np.float32]


class GaborParameters(MapParameters):
    """A `gabor` entry of a job's `features`; all of it is public."""

    name: Literal["gabor"]
    """Edges of an image by direction and size: fixed Gabor wavelets, their modulus pooled."""
    orientations: int = Field(default=8, ge=1, le=32)
    """Directions of the wavelets, evenly spread over half a turn."""
    scales: int = Field(default=2, ge=1, le=3)
    """Sizes of the wavelets: wavelengths of 4, 8 and 16 pixels."""
    pool: Literal[4, 8, 16] = 8
    """Side of the pooling windows in pixels; they overlap by half."""
    input_scale: float = Field(default=255.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a pixel can be."""
    image: tuple[int, int] | None = Field(default=None, examples=[[8, 8]])
    """Rows and columns of the image in a flat record; null: the record has that shape itself."""


class Gabor:
    """φ(x) = f/‖f‖, f the channels' pooled moduli less their mean, each over its norm.

    A colour image is three grey ones. Images in 255 levels and integer filters make all sums exact;
    modulus and norms are correctly rounded.
    """

    name = "gabor"

    def __init__(self, parameters: GaborParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        grid, p = self._grid(input_shape), self.parameters
        return grid.colours * (1 + p.orientations * p.scales) * grid.windows

    @flushed()
    def __call__(self, x: Float32) -> Float64:
        grid, (rows, valid) = self._grid(x.shape[1:]), usable(x)
        found = np.zeros((len(rows), self.output_dim(x.shape[1:])))
        for start in range(0, len(rows), BLOCK_RECORDS):
            levels = whole_levels(rows[start : start + BLOCK_RECORDS], self.parameters.input_scale)
            pooled = pooled_channels(levels.reshape(-1, grid.height, grid.width), grid, self._bank)
            even = self._normalised(pooled).reshape(len(levels), -1)
            found[start : start + BLOCK_RECORDS] = unit_rows(even)
        found[~valid] = 0.0
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        grid, p = self._grid(input_shape), self.parameters
        levels = onnx_levels(graph, x, (1, grid.height, grid.width), p.input_scale)
        flat = onnx_channels(graph, levels, grid, self._bank)
        units = (self._units() * p.pool**2).astype(np.float32)
        values = graph.add("Mul", flat, graph.constant(units[:, None]))
        count = graph.number(grid.windows)
        mean = graph.add("Div", graph.add("ReduceSum", values, graph.whole(2), keepdims=1), count)
        centred = graph.add("Sub", values, mean)
        squares = graph.add("Mul", centred, centred)
        norms = graph.add("Sqrt", graph.add("ReduceSum", squares, graph.whole(2), keepdims=1))
        divisor = graph.add("Add", norms, graph.number(CHANNEL_FLOOR))
        even = graph.add("Div", centred, divisor)
        whole = graph.whole(-1, self.output_dim(input_shape))
        return graph.unit_rows(graph.add("Reshape", even, whole))

    def _grid(self, input_shape: tuple[int, ...]) -> Windows:
        image, colours = self.parameters.image, 1
        if image is None and len(input_shape) == 3 and input_shape[0] in (1, COLOURS):
            colours, input_shape = input_shape[0], input_shape[1:]
        if image is not None and size_of(image) == size_of(input_shape) and min(image) > 0:
            return Windows(*image, self.parameters.pool, colours)
        if image is not None or len(input_shape) != 2:
            raise DataError(
                f"gabor takes one image a record, not the shape {list(input_shape)}"
                + (f" as {list(image)}" if image else ""),
                fix="use records of shape [rows, columns] or [3, rows, columns], or say"
                " `image: [rows, columns]`",
            )
        return Windows(*input_shape, self.parameters.pool, colours)

    @property
    def _bank(self) -> Bank:
        return filters(self.parameters.orientations, self.parameters.scales)

    def _units(self) -> Float64:
        return channel_units(self._bank, self.parameters.pool)

    def _normalised(self, pooled: Float64) -> Float64:
        """(n, d): each channel less its mean, over its norm; both exact up to the norm."""
        n, channels, windows = pooled.shape
        centred = pooled * windows - pooled.sum(axis=2, keepdims=True)
        norms = row_norms(centred.reshape(n * channels, windows)).reshape(n, channels, 1)
        units = (self._units() / windows)[:, None]
        even: Float64 = (centred * units) / (norms * units + CHANNEL_FLOOR)
        return even.reshape(n, channels * windows)


class Windows:
    """Pooling windows of side `pool` every pool/2 pixels over an image with a margin of pool/4."""

    def __init__(self, height: int, width: int, pool: int, colours: int = 1) -> None:
        self.height, self.width, self.pad, self.stride = height, width, pool // 4, pool // 2
        self.pool, self.colours = pool, colours
        down, across = -(-height // self.stride), -(-width // self.stride)
        self.windows = down * across
        self.padded = ((down + 1) * self.stride, (across + 1) * self.stride)

    def summed(self, channels: Float32) -> Float64:
        n, c, rows, columns = channels.shape
        s = self.stride
        blocks = channels.reshape(n, c, rows // s, s, columns // s, s).sum(axis=(3, 5))
        tall = blocks[:, :, :-1] + blocks[:, :, 1:]
        sums: Float64 = (tall[..., :-1] + tall[..., 1:]).astype(np.float64)
        return sums.reshape(n, c, self.windows)


LEVELS = 255
TAP_STEPS = 1 << 12
ASPECT = 0.49  # the envelope is longer across the wave
RUN = 4  # neighbouring outputs of one row that share a patch: fewer copies, somewhat more products


def whole_levels(rows: Float32, input_scale: float) -> Float32:
    """Values divided by `input_scale`, cut to [0, 1], in whole levels 0..255."""
    with np.errstate(over="ignore"):
        scaled = rows / np.float32(input_scale)
    levels: Float32 = np.rint(np.clip(scaled, 0, 1) * np.float32(LEVELS))
    return levels


def onnx_levels(graph: NodeList, x: str, shape: tuple[int, ...], input_scale: float) -> str:
    """The same of the tensor `x` as images (-1, *shape)."""
    image = graph.add("Reshape", x, graph.whole(-1, *shape))
    scaled = graph.add("Div", image, graph.number(input_scale))
    cut = graph.add("Clip", scaled, graph.number(0.0), graph.number(1.0))
    return graph.rounded(graph.add("Mul", cut, graph.number(LEVELS)))


@dataclass(frozen=True, eq=False)
class Filters:
    """Wavelets of one scale: even and odd parts (orientations, side, side), in steps of 2**-12.

    The L1 norm of one is 15 at most, so sums stay below 15 * 2**12 * 255 + rounding < 2**24: exact
    in float32.
    """

    radius: int
    even: Float32
    odd: Float32
    banded: Float32
    """(side * (side + RUN - 1), 2 * orientations * RUN): the filters at RUN places beside."""


Bank = tuple[Filters, ...]
"""A scale each."""


@lru_cache(maxsize=8)
def filters(orientations: int, scales: int) -> Bank:
    """One bank for each scale: wavelengths 4, 8, 16 on windows of side 7, 11, 15."""
    return tuple(_bank(orientations, 3 + 2 * k, 4.0 * 2**k, 1.6 * 2**k) for k in range(scales))


def modulus(padded: Float32, bank: Filters) -> Float32:
    """|image * wavelet| (n, orientations, rows, columns) of whole images (n, rows, columns), zero
    outside. A value depends on its own window alone."""
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


def pooled_channels(levels: Float32, grid: Windows, bank: Bank) -> Float64:
    """Integers (n, channels, windows) of images (n, rows, columns) in whole levels up to ±255: the
    image, then its moduli, cut to steps of pool² so that window sums stay below 2**24."""
    padded = np.zeros((len(levels), *grid.padded), np.float32)
    inside = padded[:, grid.pad : grid.pad + grid.height, grid.pad : grid.pad + grid.width]
    inside[...] = levels
    channels = [padded[:, None]]
    steps = np.float32(grid.pool**2)
    channels += [np.rint(modulus(padded, scale) / steps) for scale in bank]
    return np.concatenate([grid.summed(channel) for channel in channels], axis=1)


def channel_units(bank: Bank, pool: int) -> Float64:
    """(channels,): what one step of a channel's pooled sum stands for."""
    wavelets = np.full(sum(len(scale.even) for scale in bank), 1 / (LEVELS * TAP_STEPS))
    return np.concatenate([[1 / (LEVELS * pool**2)], wavelets])


def onnx_channels(graph: NodeList, levels: str, grid: Windows, bank: Bank) -> str:
    """The same over images (N, 1, rows, columns): means (N, channels, windows) in place of sums."""
    below, right = grid.padded[0] - grid.height, grid.padded[1] - grid.width
    pads = graph.whole(0, 0, grid.pad, grid.pad, 0, 0, below - grid.pad, right - grid.pad)
    channels = [graph.add("Pad", levels, pads)]
    channels += [_onnx_modulus(graph, channels[0], scale, grid.pool) for scale in bank]
    joined = graph.add("Concat", *channels, axis=1)
    side = {"kernel_shape": [grid.pool] * 2, "strides": [grid.pool // 2] * 2}
    pooled = graph.add("AveragePool", joined, **side)
    return graph.add("Reshape", pooled, graph.whole(0, -1, grid.windows))


def _onnx_modulus(graph: NodeList, image: str, bank: Filters, pool: int) -> str:
    parts = []
    for taps in (bank.even, bank.odd):
        weights = graph.constant(taps[:, None].astype(np.float32))
        wave = graph.add("Conv", image, weights, pads=[bank.radius] * 4)
        parts.append(graph.add("Mul", wave, wave))
    found = graph.add("Sqrt", graph.add("Add", *parts))
    return graph.rounded(graph.add("Div", found, graph.number(pool**2)))


def _bank(orientations: int, radius: int, wavelength: float, width: float) -> Filters:
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
    return Filters(radius, *(a.astype(np.float32) for a in (even, odd, flat)))


def _wavelet(angle: float, radius: int, wavelength: float, width: float) -> tuple[Float64, Float64]:
    """Even and odd part (side, side) at unit norm together, the even part without a mean."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float64)
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    envelope = np.exp(-(along**2 + ASPECT * across**2) / (2 * width**2))
    even = envelope * np.cos(2 * math.pi * along / wavelength)
    odd = envelope * np.sin(2 * math.pi * along / wavelength)
    even -= envelope * even.sum() / envelope.sum()
    norm = math.sqrt((even**2 + odd**2).sum())
    return np.asarray(even / norm), np.asarray(odd / norm)


PART = FeaturePart(
    parameters=GaborParameters,
    build=lambda parameters, _: Gabor(parameters),
    source="Bruna and Mallat 2013, fixed scattering",
    needs="pictures",
    example="features: [{name: gabor, input_scale: 255}]",
)
