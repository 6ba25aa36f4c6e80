"""The last linear layer of a released model: find, read and replace it in the graph's bytes.

Needs no `onnx` package. In protobuf's wire format tensors of the same size are interchangeable, and
bytes after a message extend it: so a few bytes at the end add an output to a graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError
from edgeveil.evaluation import graph_check as wire

_DIMS = 1  # of TensorProto
_GRAPH_OUTPUT, _VALUE_NAME, _VALUE_TYPE = 12, 1, 2
_TENSOR_TYPE, _ELEMENT_TYPE = 1, 1
_LENGTH, _VARINT = 2, 0  # wire types


@dataclass(frozen=True)
class LinearHead:
    """softmax(h · weight + bias) of the tensor `features`, with `weight` (d, classes) float64."""

    features: str
    weight: NDArray[np.float64]
    bias: NDArray[np.float64] | None
    _weight_at: int
    _bias_at: int
    _transposed: bool

    def replaced(
        self, graph: bytes, weight: NDArray[np.float64], bias: NDArray[np.float64] | None
    ) -> bytes:
        """Return the graph with other values of the same shapes."""
        found = bytearray(graph)
        stored = weight.T if self._transposed else weight
        for at, values in ((self._weight_at, stored), (self._bias_at, bias)):
            if values is not None:
                raw = np.ascontiguousarray(values, "<f4").tobytes()
                found[at : at + len(raw)] = raw
        return bytes(found)


def find_head(graph: bytes) -> LinearHead:
    """Return the linear layer below `probabilities`. Raises DataError for other graphs."""
    parts = wire.fields(wire.message(wire.fields(memoryview(graph)), wire.GRAPH, "graph"))
    nodes = {node.output: node for node in map(wire.GraphNode, wire.messages(parts, wire.NODE))}
    tensors = {
        wire.text(one, wire.TENSOR_NAME): one
        for one in map(wire.fields, wire.messages(parts, wire.INITIALIZER))
    }
    for output, what in (("value", "a number"), ("score", "anomalies")):
        if output in nodes and "probabilities" not in nodes:
            raise _no_head(f"it predicts {what}, and only heads of classes are learned further")
    last = nodes.get("probabilities")
    layer = nodes.get(last.inputs[0]) if last and last.operator == "Softmax" else None
    bias = None
    if layer is not None and layer.operator == "Add":
        bias = next((name for name in layer.inputs if name in tensors), None)
        layer = next((nodes[name] for name in layer.inputs if name in nodes), None)
    if layer is None or layer.operator not in ("MatMul", "Gemm"):
        raise _no_head("its probabilities are no softmax of a linear layer")
    transposed = False
    if layer.operator == "Gemm":
        transposed = _plain_gemm(layer)
        bias = layer.inputs[2] if len(layer.inputs) > 2 else None
    features, weight = layer.inputs[0], layer.inputs[1]
    if weight not in tensors or (bias is not None and bias not in tensors):
        raise _no_head("its last layer's weights are computed")
    at, values = _tensor(graph, tensors[weight])
    if values.ndim != 2:
        raise _no_head("its last layer's weights are no matrix")
    bias_at, of_bias = _tensor(graph, tensors[bias]) if bias is not None else (-1, None)
    matrix = values.T if transposed else values
    if of_bias is not None and of_bias.shape != matrix.shape[1:]:
        raise _no_head("its last layer's bias does not have one value per class")
    return LinearHead(features, matrix, of_bias, at, bias_at, transposed)


def with_tensors(graph: bytes, values: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return the graph with other values of its weights. Raises DataError for other shapes."""
    parts = wire.fields(wire.message(wire.fields(memoryview(graph)), wire.GRAPH, "graph"))
    initial = map(wire.fields, wire.messages(parts, wire.INITIALIZER))
    tensors = {wire.text(one, wire.TENSOR_NAME): one for one in initial}
    found = bytearray(graph)
    for name, array in values.items():
        at, before = _tensor(graph, tensors[name]) if name in tensors else (0, np.zeros(0))
        if before.shape != array.shape:
            fix = "wait for the release of the job that this box trained in"
            what = f"has no weight '{name}' of shape {array.shape}"
            raise DataError(what, where="model", fix=fix)
        raw = np.ascontiguousarray(array, "<f4").tobytes()
        found[at : at + len(raw)] = raw
    return bytes(found)


def with_output(graph: bytes, name: str) -> bytes:
    """Return the graph with its float32 tensor `name` as a further output."""
    tensor = _field(_TENSOR_TYPE, _LENGTH, _field(_ELEMENT_TYPE, _VARINT, _varint(wire.FLOAT)))
    value = _field(_VALUE_NAME, _LENGTH, name.encode()) + _field(_VALUE_TYPE, _LENGTH, tensor)
    return graph + _field(wire.GRAPH, _LENGTH, _field(_GRAPH_OUTPUT, _LENGTH, value))


def _plain_gemm(layer: wire.GraphNode) -> bool:
    transposed = False
    for attribute in layer.attributes:
        name, whole = wire.text(attribute, 1), wire.number(attribute, 3)
        if name == "transB":
            transposed = whole == 1
        elif name != "transA" or whole:
            raise _no_head(f"its last layer has the attribute {name[:32]!r}")
    return transposed


def _tensor(graph: bytes, tensor: wire.Fields) -> tuple[int, NDArray[np.float64]]:
    raw = wire.messages(tensor, wire.RAW)
    if wire.number(tensor, wire.DATA_TYPE) != wire.FLOAT or len(raw) != 1:
        raise _no_head("its last layer's weights are no plain float32 numbers")
    shape: list[int] = []
    for value in tensor.get(_DIMS, ()):
        shape += [value] if isinstance(value, int) else wire.varints(value or memoryview(b""))
    if 4 * math.prod(shape) != len(raw[0]):
        raise _no_head("its last layer's weights are cut off")
    values = np.frombuffer(raw[0], "<f4")
    start = values.ctypes.data - np.frombuffer(graph, np.uint8).ctypes.data
    return start, values.reshape(shape).astype(np.float64)


def _field(number: int, kind: int, value: bytes) -> bytes:
    head = _varint(number << 3 | kind)
    return head + (_varint(len(value)) if kind == _LENGTH else b"") + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _no_head(what: str) -> DataError:
    what = f"has no head that could be learned further: {what}"
    return DataError(what, where="the release", fix="use the shared model")
