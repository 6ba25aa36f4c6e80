"""Loudness by frequency of each channel of a window (`spectra`)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.errors import DataError
from edgeveil.parts.features.feature_map import (
    FeaturePart,
    Float64,
    MapParameters,
    NodeList,
    unit_rows,
    usable,
)
from edgeveil.privacy.grid import Int64, exact_matmul
from edgeveil.subnormals import flushed

STEPS = 1 << 16  # of a value in [-1, 1]
WAVE_STEPS = 1 << 12
LONGEST = 4096
BLOCK_RECORDS = 256


class SpectraParameters(MapParameters):
    """A `spectra` entry of a job's `features`; all of it is public."""

    name: Literal["spectra"] = "spectra"
    """Loudness by frequency of each channel of a window."""
    input_scale: float = Field(default=1.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values, which are then clipped to [-1, 1]."""


class _Spectra:
    """φ = h/‖h‖, h the roots of the moduli of a discrete Fourier transform along the first axis.

    Exact: values in steps of 2**-16 times waves in steps of 2**-12, at most 4,096 of them, stay
    below 2**40. The window is Hann's."""

    name = "spectra"

    def __init__(self, parameters: SpectraParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        length, channels = self._form(input_shape)
        return (length // 2 + 1) * channels

    def _form(self, input_shape: tuple[int, ...]) -> tuple[int, int]:
        length, channels = input_shape[0], math.prod(input_shape[1:])
        if not 2 <= length <= LONGEST:
            what = f"spectra takes windows of 2 to {LONGEST} readings, not {length}"
            raise DataError(what, fix="use records of shape [readings] or [readings, channels]")
        return length, channels

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        length, channels = self._form(x.shape[1:])
        rows, valid = usable(x)
        found = np.zeros((len(rows), self.output_dim(x.shape[1:])))
        for start in range(0, len(rows), BLOCK_RECORDS):
            block = rows[start : start + BLOCK_RECORDS]
            with np.errstate(over="ignore"):
                scaled = np.clip(block / np.float32(self.parameters.input_scale), -1, 1)
            steps = np.rint(scaled * np.float32(STEPS)).astype(np.int64)
            along = steps.reshape(-1, length, channels).transpose(0, 2, 1).reshape(-1, length)
            real, imaginary = np.split(exact_matmul(along, waves(length)).astype(np.float64), 2, 1)
            roots = np.sqrt(np.sqrt(real * real + imaginary * imaginary))
            found[start : start + BLOCK_RECORDS] = roots.reshape(len(block), -1)
        found = unit_rows(found)
        found[~valid] = 0.0
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        length, channels = self._form(input_shape)
        shaped = graph.add("Reshape", x, graph.whole(-1, length, channels))
        scaled = graph.add("Div", shaped, graph.number(self.parameters.input_scale))
        cut = graph.add("Clip", scaled, graph.number(-1.0), graph.number(1.0))
        along = graph.add("Transpose", cut, perm=[0, 2, 1])
        squares = []
        for part in np.split(waves(length) / WAVE_STEPS, 2, axis=1):
            wave = graph.add("MatMul", along, graph.constant(part.astype(np.float32)))
            squares.append(graph.add("Mul", wave, wave))
        roots = graph.add("Sqrt", graph.add("Sqrt", graph.add("Add", *squares)))
        return graph.unit_rows(graph.add("Flatten", roots, axis=1))


@lru_cache(maxsize=8)
def waves(length: int) -> Int64:
    """Return cosines, then sines, under Hann's window (length, 2·(length // 2 + 1)), in steps."""
    at, frequencies = np.arange(length), np.arange(length // 2 + 1)
    hann = np.sin(np.pi * (at + 0.5) / length) ** 2
    turns = 2 * np.pi * np.outer(at, frequencies) / length
    both = np.concatenate([np.cos(turns), np.sin(turns)], axis=1) * hann[:, None]
    whole: Int64 = np.rint(both * WAVE_STEPS).astype(np.int64)
    whole.setflags(write=False)
    return whole


PART = FeaturePart(
    parameters=SpectraParameters,
    build=lambda parameters, _: _Spectra(parameters),
    source="Cooley, Lewis and Welch 1967; Harris 1978 (windows)",
    needs="windows of readings, or flat records of one channel",
    example="features: [{name: spectra}]",
)
