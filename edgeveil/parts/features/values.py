"""Feature maps of plain values: `identity`, and `random`, a ReLU of a public random projection.

`random`: Rahimi and Recht 2008; Cho and Saul 2009, degree 1."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from edgeveil.errors import DataError
from edgeveil.parts.features.feature_map import (
    FeaturePart,
    Float64,
    MapParameters,
    NodeList,
    finite_records,
    unit_rows,
    usable,
)
from edgeveil.parts.part import omittable, only_for, some_names
from edgeveil.privacy.grid import Int64, exact_matmul
from edgeveil.subnormals import flushed


class IdentityParameters(MapParameters):
    """An `identity` or `random` entry of a job's `features`; all of it is public."""

    name: Literal["identity", "random"] = "identity"
    """Which map; `edgeveil methods` describes each."""
    input_scale: float = Field(default=1.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values: the largest that a value can be."""
    shift: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    """Added to the scaled values; `random` then clips them to [-1, 1]."""
    ranges: tuple[tuple[float, float], ...] = omittable(
        (), max_length=65536, examples=[[[17, 90], [0, 1]]]
    )
    """Of `identity`, instead of both: the public range of each value of a record, in order. Values
    are clipped to it and scaled to [-1, 1]; a job with `data.schema` needs none."""
    norm: Literal["unit", "bounded"] = omittable("unit")
    """Of `identity`; `unit`: each record is scaled to norm 1 and loses its magnitude. `bounded`:
    values are clipped to [-1, 1] and divided by one constant, which keeps it."""
    dimension: Annotated[int, Field(ge=1, le=1 << 14), only_for(random=512)] = some_names()
    """Of `random`: number of features; 512 by default."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63), only_for(random=0)] = some_names()
    """Of `random`: seed of the projection, public, and the same matrix on every machine; 0 by
    default."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.name != "identity" and (self.ranges or self.norm != "unit"):
            raise ValueError("ranges and norm belong to identity; leave them out")
        if self.ranges and (self.input_scale, self.shift) != (1.0, 0.0):
            raise ValueError("ranges replace input_scale and shift; leave these out")
        for low, high in self.ranges:
            if not -1e30 <= low < high <= 1e30:
                raise ValueError(f"each is the least and the greatest value, got {[low, high]}")
        return self


class Identity:
    """φ(x) = u/‖u‖, u = x/input_scale + shift or `ranges` to [-1, 1]; `bounded`: clip(u, ±1)/√d."""

    name = "identity"

    def __init__(self, parameters: IdentityParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        size, ranges = math.prod(input_shape), self.parameters.ranges
        if ranges and len(ranges) != size:
            what = f"has {len(ranges)} ranges, a record has {size} values"
            raise DataError(what, where="features", fix="write one for each")
        return size

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        p, valid = self.parameters, finite_records(x)
        rows = x.reshape(len(x), self.output_dim(x.shape[1:])).astype(np.float64)
        rows[~valid] = 0.0
        if p.ranges:
            low, high = self._ends(np.float64)
            rows = (np.clip(rows, low, high) - low) / (high - low) * 2.0 - 1.0
        else:
            rows = rows / p.input_scale + p.shift
        if p.norm == "bounded":
            rows = np.clip(rows, -1.0, 1.0) / math.sqrt(rows.shape[1])
        else:
            rows = unit_rows(rows)
        rows[~valid] = 0.0
        return rows

    def _ends(self, kind: type[np.floating[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        ends = np.array(self.parameters.ranges, kind)
        return ends[:, 0], ends[:, 1]

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        flat = graph.add("Reshape", x, graph.whole(-1, self.output_dim(input_shape)))
        if self.parameters.ranges:
            low, high = self._ends(np.float32)
            width = graph.constant((high - low) / np.float32(2))
            within = graph.add("Max", flat, graph.constant(low))
            within = graph.add(
                "Sub", graph.add("Min", within, graph.constant(high)), graph.constant(low)
            )
            ranged = graph.add("Sub", graph.add("Div", within, width), graph.number(1.0))
            return self._normed_nodes(graph, ranged, len(low))
        scaled = graph.add("Div", flat, graph.number(self.parameters.input_scale))
        shifted = graph.add("Add", scaled, graph.number(self.parameters.shift))
        return self._normed_nodes(graph, shifted, self.output_dim(input_shape))

    def _normed_nodes(self, graph: NodeList, rows: str, width: int) -> str:
        if self.parameters.norm == "unit":
            return graph.unit_rows(rows)
        below = graph.add("Min", graph.add("Max", rows, graph.number(-1.0)), graph.number(1.0))
        # Keep NaN, which Max and Min may replace by a bound.
        kept = graph.add("Add", below, graph.add("Mul", rows, graph.number(0.0)))
        return graph.add("Div", kept, graph.number(math.sqrt(width)))


STEPS = 1 << 20  # of an input in [-1, 1]
ENTRY_BYTES = 8
LARGEST_MATRIX = 1 << 24
BLOCK_RECORDS = 4096
_BITS_SET = np.array([value.bit_count() for value in range(256)], np.uint8)


@lru_cache(maxsize=4)
def projection(seed: int, values: int, dimension: int) -> Int64:
    """Return the public matrix (values, dimension) of ones in 64 hash bits, less 32: ≈ N(0, 4²)."""
    label = f"edgeveil/v1/random-features/{seed}/{values}/{dimension}".encode()
    bits = hashlib.shake_256(label).digest(values * dimension * ENTRY_BYTES)
    ones = _BITS_SET[np.frombuffer(bits, np.uint8)].reshape(-1, ENTRY_BYTES).sum(1, dtype=np.int64)
    matrix: Int64 = (ones - ENTRY_BYTES * 4).reshape(values, dimension)
    matrix.setflags(write=False)
    return matrix


class _RandomRelu:
    """φ(x) = h/‖h‖ for h = max(0, Wᵀu), u = x/input_scale + shift clipped to [-1, 1].

    Exact: u in steps of 2**-20, |W| <= 32 and 2**24 values give a product below 2**49."""

    name = "random"

    def __init__(self, parameters: IdentityParameters) -> None:
        self.parameters = parameters

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        values, wanted = math.prod(input_shape), self.parameters.dimension
        if values * wanted > LARGEST_MATRIX:
            what = f"a random projection of {values} values to {wanted} is too large"
            raise DataError(what, fix=f"set dimension to at most {LARGEST_MATRIX // values}")
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
        p, values = self.parameters, math.prod(input_shape)
        matrix = projection(p.seed, values, self.output_dim(input_shape)).astype(np.int8)
        flat = graph.add("Reshape", x, graph.whole(-1, values))
        scaled = graph.add("Div", flat, graph.number(p.input_scale))
        shifted = graph.add("Add", scaled, graph.number(p.shift))
        cut = graph.add("Clip", shifted, graph.number(-1.0), graph.number(1.0))
        whole = graph.rounded(graph.add("Mul", cut, graph.number(STEPS)))
        entries = graph.add("Cast", graph.constant(matrix), to=1)
        unit = graph.add("Div", whole, graph.number(STEPS))
        return graph.unit_rows(graph.add("Relu", graph.add("MatMul", unit, entries)))


PARTS = (
    FeaturePart(
        name="identity",
        summary="The values themselves, scaled, shifted and brought to unit norm, or below it.",
        parameters=IdentityParameters,
        build=lambda parameters, _: Identity(parameters),
        source="the records themselves",
        example="features: [{name: identity, input_scale: 16}]",
    ),
    FeaturePart(
        name="random",
        summary="ReLU of a public random projection of the values.",
        parameters=IdentityParameters,
        build=lambda parameters, _: _RandomRelu(parameters),
        source="Rahimi and Recht 2008; Cho and Saul 2009",
        example="features: [{name: random, dimension: 512}]",
    ),
)
