"""Feature maps: public, total, a function of each record alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from edgeveil.parts.part import BlockPart, PartBlock
from edgeveil.privacy.grid import row_norms
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList

Float64 = NDArray[np.float64]
SMALLEST_NORM = 1e-12


class FeatureParameters(PartBlock):
    """One entry of a job's `features`: a map, or the PCA that follows the maps."""

    name: str


class MapParameters(FeatureParameters):
    """What every entry of a job's `features` that names a map may say."""

    weight: float = Field(default=1.0, ge=1e-6, le=1e6, allow_inf_nan=False)
    """Share of the squared norm that this map has beside the others; alone it changes nothing."""


class FeatureMap(Protocol):
    """φ(x) with ‖φ‖₂ <= 1, fixed before any record is read.

    A record's features may not depend on its batch, bit for bit, or no sensitivity bound holds.
    SIMD kernels treat an array's tail differently, and float sums depend on order. So maps use
    correctly rounded operations on single values, exact sums of integers, and row sums on blocks of
    exactly 64 rows (`row_norms`).
    """

    @property
    def name(self) -> str: ...

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """d for records of `input_shape`; DataError if the map takes no such records."""
        ...

    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) of records (n, ...); a record with NaN or infinity gives zeros."""
        ...

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """Add the map to `graph` from the tensor `x` (N, *input_shape); returns its output."""
        ...


Artifacts = Mapping[str, bytes]
"""Backbones by their SHA-256 (hex)."""


@dataclass(frozen=True, kw_only=True)
class FeaturePart(BlockPart):
    """Declaration of a feature map; `build(parameters, artifacts)`, None for a PCA."""

    family: ClassVar[str] = "features"
    key: ClassVar[str] = "features"
    what: ClassVar[str] = "feature map"
    block: ClassVar[type[BaseModel]] = FeatureParameters

    build: Callable[[Any, Artifacts], FeatureMap] | None = None


def size_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def usable(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Records as float32 rows (n, k), those with NaN or infinity as zeros, and the mask (n,)."""
    rows = x.reshape(len(x), size_of(x.shape[1:])).astype(np.float32, copy=False)
    valid: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    return np.where(valid[:, None], rows, np.float32(0)), valid


def unit_rows(rows: Float64) -> Float64:
    """Rows (n, d) divided by their L2 norm; zero rows, and rows not finite, become zero."""
    valid: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    finite = np.where(valid[:, None], rows, 0.0)
    unit: Float64 = finite / np.maximum(row_norms(finite), SMALLEST_NORM)[:, None]
    return unit


def valid_records(x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> NDArray[np.bool_]:
    """Mask (n,): all values finite and the label in [0, classes). Each row decides alone."""
    mask: NDArray[np.bool_] = finite_records(x) & (y >= 0) & (y < classes)
    return mask


def finite_records(x: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(x.reshape(len(x), size_of(x.shape[1:]))).all(axis=1))


def prepare(features: FeatureMap, input_shape: tuple[int, ...]) -> None:
    """Compute what maps take from their parameters alone, so that forked processes have it."""
    for one in getattr(features, "maps", (features,)):
        if ready := getattr(one, "prepare", None):
            ready(input_shape)


class Concatenation:
    """φ = (√(w₁/Σw)·φ₁, √(w₂/Σw)·φ₂, …): of norm 1 at most."""

    name = "concatenation"

    def __init__(self, maps: Sequence[FeatureMap], weights: Sequence[float]) -> None:
        self.maps = tuple(maps)
        whole = math.fsum(weights)
        self.factors = tuple(math.sqrt(weight / whole) for weight in weights)

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        return sum(one.output_dim(input_shape) for one in self.maps)

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        found = np.empty((len(x), self.output_dim(x.shape[1:])))
        at = 0
        for one, factor in zip(self.maps, self.factors, strict=True):
            part = one(x)
            np.multiply(part, factor, out=found[:, at : at + part.shape[1]])
            at += part.shape[1]
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        parts = [
            graph.add("Mul", one.onnx_nodes(graph, x, input_shape), graph.number(factor))
            for one, factor in zip(self.maps, self.factors, strict=True)
        ]
        return graph.add("Concat", *parts, axis=1)
