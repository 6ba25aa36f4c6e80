"""Feature maps: public, total, a function of each record alone; and the PCA that may follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from edgeveil.parts.part import BlockPart, Keys
from edgeveil.privacy.grid import row_norms
from edgeveil.subnormals import flushed

Float64 = NDArray[np.float64]
SMALLEST_NORM = 1e-12


class FeatureParameters(Keys):
    name: str


class MapParameters(FeatureParameters):
    weight: float = Field(default=1.0, ge=1e-6, le=1e6, allow_inf_nan=False)
    """Weight of this map in the squared norm among the job's maps; no effect on a single map."""


class FeatureMap(Protocol):
    """φ(x) with ‖φ‖₂ <= 1, fixed before any record is read.

    A record's features must not depend on its batch, bit for bit, or no sensitivity bound holds.
    SIMD kernels treat an array's tail differently, and float sums depend on order. So maps use
    correctly rounded operations on single values, exact sums of integers, and row sums on blocks of
    exactly 64 rows (`row_norms`)."""

    @property
    def name(self) -> str: ...

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """Return d for records of `input_shape`. Raises DataError for unsupported shapes."""
        ...

    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Return features (n, d) of records (n, ...); zeros for a record with NaN or infinity."""
        ...

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """Add the map of tensor `x` (N, *input_shape) to `graph`; return its output's name."""
        ...


Artifacts = Mapping[str, bytes]
"""Backbones by their SHA-256 (hex)."""


@dataclass(frozen=True, kw_only=True)
class FeaturePart(BlockPart):
    family: ClassVar[str] = "features"
    key: ClassVar[str] = "features"
    what: ClassVar[str] = "feature map"
    block: ClassVar[type[BaseModel]] = FeatureParameters

    build: Callable[[Any, Artifacts], FeatureMap] | None = None


def usable(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return records as float32 rows (n, k), non-finite ones as zeros, and the mask (n,)."""
    rows = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float32, copy=False)
    valid: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    return np.where(valid[:, None], rows, np.float32(0)), valid


def unit_rows(rows: Float64) -> Float64:
    """Return rows (n, d) divided by their L2 norm; zero and non-finite rows become zero."""
    valid: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    finite = np.where(valid[:, None], rows, 0.0)
    unit: Float64 = finite / np.maximum(row_norms(finite), SMALLEST_NORM)[:, None]
    return unit


def valid_records(x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> NDArray[np.bool_]:
    """Return a mask (n,): finite values and a label in [0, classes), per row."""
    mask: NDArray[np.bool_] = finite_records(x) & (y >= 0) & (y < classes)
    return mask


def finite_records(x: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(x.reshape(len(x), math.prod(x.shape[1:]))).all(axis=1))


def prepare(features: FeatureMap, input_shape: tuple[int, ...]) -> None:
    """Compute what depends on parameters only, before processes are forked."""
    for one in getattr(features, "maps", (features,)):
        if ready := getattr(one, "prepare", None):
            ready(input_shape)


class Concatenation:
    """φ = (√(w₁/Σw)·φ₁, √(w₂/Σw)·φ₂, …), of norm at most 1."""

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


COVARIANCE = "covariance"
"""The phase in which devices release their covariance, for the basis."""


class PcaParameters(FeatureParameters):
    """The last of a job's `features`: a PCA of the output of the others."""

    name: Literal["ldp_fpca", "ldp_pca", "local_pca"]
    """`ldp_fpca`: one basis, from the average of the devices' noised covariances. `ldp_pca`: each
    device uses that of its own noised one. `local_pca`: its own without noise, claimed."""
    keep: float = Field(default=0.5, gt=0, le=1)
    """p: the share of dimensions that is kept."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the training budget for the covariance: of μ², or of ε if two kinds of noise are
    combined. `local_pca` releases none and takes none."""
    noise: Literal["gaussian", "wishart"] = "gaussian"
    """`gaussian`: symmetric noise on the covariance. `wishart`: as in the text, claimed."""

    def output_dim(self, dimension: int) -> int:
        return max(1, round(self.keep * dimension))


OPSET = 17
IR_VERSION = 8
ROUNDING = float(3 << 22)  # float32 has no fractions at this size


Ends = Mapping[str, Sequence[int | str]]
"""Shapes of tensors by name; "N" is the free batch axis."""


class NodeList:
    """ONNX nodes and constants in order; needs the `onnx` package."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._count = 0

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"phi.{self._count}.{stem}"

    def constant(self, values: NDArray[np.generic]) -> str:
        from onnx import numpy_helper

        name = self.fresh("constant")
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        output = output or self.fresh(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def unit_rows(self, rows: str) -> str:
        # Mul, ReduceSum, Sqrt: the same at every opset from 13 on, unlike ReduceL2 with axes.
        squares = self.add("Mul", rows, rows)
        norms = self.add("Sqrt", self.add("ReduceSum", squares, self.whole(1), keepdims=1))
        return self.add("Div", rows, self.add("Max", norms, self.number(SMALLEST_NORM)))

    def rounded(self, values: str) -> str:
        """Round to the nearest integers, for values up to 2**22 in size."""
        shifted = self.add("Add", values, self.number(ROUNDING))
        return self.add("Sub", shifted, self.number(ROUNDING))

    def model(self, name: str, inputs: Ends, outputs: Ends) -> bytes:
        from onnx import TensorProto, helper

        ends = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in end.items()]
            for end in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, name, *ends, self.initializers)
        opset = [helper.make_opsetid("", OPSET)]
        return checked(helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION))


def checked(model: Any) -> bytes:
    """Return the bytes of a model with its weights. Raises the checker's error."""
    import onnx

    data: bytes = model.SerializeToString()
    onnx.checker.check_model(data)  # given a model, it would serialise again
    return data


_proven = partial(
    FeaturePart,
    parameters=PcaParameters,
    needs="to be the last of the features",
    privacy="proven",
    note="`noise: wishart` is claimed",
)
PARTS = (
    _proven(
        name="ldp_fpca",
        source="Cao et al. 2023 (DELM), alg. 2; Dwork et al. 2014 (Analyze Gauss)",
        reveals="each device's noised covariance",
        summary="One basis, from the average of the devices' noised covariances.",
        example="features: [{name: identity}, {name: ldp_fpca, keep: 0.5}]",
    ),
    _proven(
        name="ldp_pca",
        source="Cao et al. 2023 (DELM), comparison LDP-PCA",
        reveals="nothing except the model learned on the basis",
        summary="Each device uses the basis of its own noised covariance.",
        example="features: [{name: identity}, {name: ldp_pca, keep: 0.5}]",
    ),
    FeaturePart(
        name="local_pca",
        parameters=PcaParameters,
        source="Cao et al. 2023 (DELM), comparison local PCA",
        needs="to be the last of the features; privacy.accept_unproven",
        reveals="the basis without noise, through the model learned on it",
        privacy="claimed",
        summary="Each device uses its own basis, without noise.",
        example="features: [{name: identity}, {name: local_pca, keep: 0.5}]",
    ),
)
