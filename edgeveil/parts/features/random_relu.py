"""ReLU of a public random projection (Rahimi and Recht 2008; Cho and Saul 2009, degree 1)."""

from __future__ import annotations

import hashlib
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
from edgeveil.privacy.grid import Int64, exact_matmul
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList

STEPS = 1 << 20  # of an input in [-1, 1]
ENTRY_BYTES = 8
LARGEST_MATRIX = 1 << 24
BLOCK_RECORDS = 4096
_BITS_SET = np.array([value.bit_count() for value in range(256)], np.uint8)


class RandomParameters(MapParameters):
    """A `random` entry of a job's `features`; all of it is public."""

    name: Literal["random"]
    """ReLU of a public random projection of the values."""
    dimension: int = Field(default=512, ge=1, le=1 << 14)
    """Number of features."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the projection; public, and the same matrix on every machine."""
    input_scale: float = Field(default=1.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a value can be."""
    shift: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    """Added to the scaled values; what then lies outside [-1, 1] is cut off."""


@lru_cache(maxsize=4)
def projection(seed: int, values: int, dimension: int) -> Int64:
    """The public matrix (values, dimension) of integers, nearly N(0, 4²): ones in 64 bits of
    SHAKE-256, less 32."""
    label = f"edgeveil/v1/random-features/{seed}/{values}/{dimension}".encode()
    bits = hashlib.shake_256(label).digest(values * dimension * ENTRY_BYTES)
    ones = _BITS_SET[np.frombuffer(bits, np.uint8)].reshape(-1, ENTRY_BYTES).sum(1, dtype=np.int64)
    matrix: Int64 = (ones - ENTRY_BYTES * 4).reshape(values, dimension)
    matrix.setflags(write=False)
    return matrix


class RandomRelu:
    """φ(x) = h/‖h‖ for h = max(0, Wᵀu), u = x/input_scale + shift clipped to [-1, 1]. With u in
    steps of 2**-20 and |W| <= 32 a product of 2**24 values stays below 2**49: exact."""

    name = "random"

    def __init__(self, parameters: RandomParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        values, wanted = size_of(input_shape), self.parameters.dimension
        if values * wanted > LARGEST_MATRIX:
            raise DataError(
                f"a random projection of {values} values to {wanted} is too large",
                fix=f"set dimension to at most {LARGEST_MATRIX // values}",
            )
        return wanted

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        p, (rows, valid) = self.parameters, usable(x)
        matrix = projection(p.seed, rows.shape[1], self.output_dim(x.shape[1:]))
        found = np.zeros((len(rows), p.dimension))
        for start in range(0, len(rows), BLOCK_RECORDS):
            block = rows[start : start + BLOCK_RECORDS]
            with np.errstate(over="ignore"):
                scaled = block / np.float32(p.input_scale) + np.float32(p.shift)
            steps = np.rint(np.clip(scaled, -1, 1) * np.float32(STEPS)).astype(np.int64)
            products = np.maximum(exact_matmul(steps, matrix), 0).astype(np.float64)
            found[start : start + BLOCK_RECORDS] = unit_rows(products)
        found[~valid] = 0.0
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        p, values = self.parameters, size_of(input_shape)
        matrix = projection(p.seed, values, self.output_dim(input_shape)).astype(np.int8)
        flat = graph.add("Reshape", x, graph.whole(-1, values))
        scaled = graph.add("Div", flat, graph.number(p.input_scale))
        shifted = graph.add("Add", scaled, graph.number(p.shift))
        cut = graph.add("Clip", shifted, graph.number(-1.0), graph.number(1.0))
        whole = graph.rounded(graph.add("Mul", cut, graph.number(STEPS)))
        entries = graph.add("Cast", graph.constant(matrix), to=1)
        unit = graph.add("Div", whole, graph.number(STEPS))
        return graph.unit_rows(graph.add("Relu", graph.add("MatMul", unit, entries)))


PART = FeaturePart(
    parameters=RandomParameters,
    build=lambda parameters, _: RandomRelu(parameters),
    source="Rahimi and Recht 2008; Cho and Saul 2009",
    example="features: [{name: random, dimension: 512}]",
)
