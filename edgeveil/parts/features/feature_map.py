"""What a feature map is: public, total, and a function of each record alone."""

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

    A record's features may not depend on the batch it stands in, bit for bit: otherwise adding
    one record would change the contributions of others and no sensitivity bound would hold.
    SIMD kernels treat the tail of an array differently from its body, and float sums depend on
    their order. So a map computes by correctly rounded operations on single values (+ − × ÷ √),
    by sums of integers that are exact in any order, and by sums over a row on blocks of exactly
    64 rows, padded with zeros (`row_norms`).
    """

    @property
    def name(self) -> str:
        """The name in the job file."""
        ...

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """d, for records of `input_shape`; raises DataError if the map takes no such records."""
        ...

    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) of records (n, ...); a record with NaN or infinity gives zeros."""
        ...

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """Add the same map to `graph`, from the (N, *input_shape) float32 tensor named `x`.

        Returns the name of the (N, d) float32 output.
        """
        ...


Artifacts = Mapping[str, bytes]
"""Backbones by their SHA-256 (hex)."""


@dataclass(frozen=True, kw_only=True)
class FeaturePart(BlockPart):
    """The declaration of a feature map. `build(parameters, artifacts)` gives it; None: the entry is
    no map but a step after the maps (a PCA)."""

    family: ClassVar[str] = "features"
    key: ClassVar[str] = "features"
    what: ClassVar[str] = "feature map"
    block: ClassVar[type[BaseModel]] = FeatureParameters

    build: Callable[[Any, Artifacts], FeatureMap] | None = None


def size_of(shape: tuple[int, ...]) -> int:
    """The number of values of one record."""
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
    """Mask (n,): all values finite. Each row decides alone."""
    return np.asarray(np.isfinite(x.reshape(len(x), size_of(x.shape[1:]))).all(axis=1))


def prepare(features: FeatureMap, input_shape: tuple[int, ...]) -> None:
    """Compute what maps of ours take from their parameters alone, and keep it: `prepare` of each.

    A process that is forked afterwards has it.
    """
    for one in getattr(features, "maps", (features,)):
        if ready := getattr(one, "prepare", None):
            ready(input_shape)


# Several maps side by side, each with its share of the norm.


class Concatenation:
    """φ = (√(w₁/Σw)·φ₁, √(w₂/Σw)·φ₂, …): ‖φ‖² is the weighted mean of the ‖φ_k‖², so at most 1."""

    name = "concatenation"

    def __init__(self, maps: Sequence[FeatureMap], weights: Sequence[float]) -> None:
        self.maps = tuple(maps)
        whole = math.fsum(weights)
        self.factors = tuple(math.sqrt(weight / whole) for weight in weights)

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """The sum of the maps' dimensions."""
        return sum(one.output_dim(input_shape) for one in self.maps)

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) float64 of records (n, ...)."""
        found = np.empty((len(x), self.output_dim(x.shape[1:])))
        at = 0
        for one, factor in zip(self.maps, self.factors, strict=True):
            part = one(x)
            np.multiply(part, factor, out=found[:, at : at + part.shape[1]])
            at += part.shape[1]
        return found

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """The same map in float32."""
        parts = [
            graph.add("Mul", one.onnx_nodes(graph, x, input_shape), graph.number(factor))
            for one, factor in zip(self.maps, self.factors, strict=True)
        ]
        return graph.add("Concat", *parts, axis=1)
