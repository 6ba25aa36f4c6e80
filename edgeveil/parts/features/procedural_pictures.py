"""Pictures of nothing: drawn by a rule, so that statistics of pictures can be had from no data.

Three kinds, after what is known of photographs and of writing. *Dead leaves*: discs and boxes of
all sizes, r⁻³ of them of radius r, each in front of the one before (Lee, Mumford and Huang 2001),
with shading and texture. *Spectra*: Gaussian fields whose amplitude falls with frequency as f^(−a),
a from 0.6 to 2 (Field 1987: about 1). *Strokes*: curves of a pen. Colours vary most in brightness,
less from yellow to blue, least from red to green (Ruderman, Cronin and Chiao 1998).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.public_order import public_chance

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

Chance = np.random.RandomState

LEAVES = 48  # in one picture
PEN_POINTS = 14  # of one curve
CURVES = 3
# Brightness, yellow to blue, green to magenta, as rows of red, green and blue; and how they vary.
AXES = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])
VARIES = np.array([1.0, 0.35, 0.2])


def procedural_pictures(count: int, shape: tuple[int, int, int], series: int = 0) -> Float32:
    """`count` pictures (n, colours, rows, columns) of one colour or three, in whole levels 0..255.

    The same on every machine, but for what a machine's own sines and roots round differently; of
    another `series` others.
    """
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
    """(count, size, colours): for each picture colours around one of its own."""
    if colours == 1:
        around = chance.uniform(0, 1, (count, 1, 1))
        return around + chance.uniform(0.1, 0.5, (count, 1, 1)) * chance.standard_normal(
            (count, size, 1)
        )
    spread = chance.uniform(0.15, 0.6, (count, 1, 1))
    around = 0.25 * chance.standard_normal((count, 1, 3))
    found: Float64 = (
        0.5 + (around + spread * chance.standard_normal((count, size, 3))) * VARIES @ AXES
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
    found: Float64 = np.einsum("nchw,cd->ndhw", field * VARIES[:, None, None], AXES)
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
    """Up to three cubic curves of one pen, light on dark, or of any two colours."""
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
