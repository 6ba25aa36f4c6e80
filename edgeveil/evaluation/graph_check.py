"""ONNX graphs that a device runs on its records: plain layers, nothing controlled by values.

An operator that loops, indexes or shapes by a record's values could fail, last or grow by the
record's content. Allowed: the operators of `OPERATORS`, no subgraphs, one output each, integers and
shapes from the graph's own constants, and batch statistics that it holds. Values become integers in
one pattern alone, which cannot fail: rows of a table, `Gather(W, Cast(Clip(Where(IsNaN(v), c, v),
low, high)))` with constants 0 <= low <= high < rows of W (`_table_indices`).

Nor may a kernel's time depend on values (docs/threat-model.md, "What the time of an operator
tells"): `Pow` only with exponents 2 and 3, `Equal` only of constants, no `PRelu`, `GRU`, `RNN`, no
half precision, no integer division.

A graph is read from protobuf's wire format more strictly than by protobuf: input that two readers
could parse differently is refused, so the graph checked here is the one that ONNX Runtime runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError

FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11  # TensorProto.DataType
FLOATS = frozenset({FLOAT, 10, DOUBLE, 16})  # float16 and bfloat16 among them
_TYPES: dict[int, np.dtype[Any]] = {
    FLOAT: np.dtype("<f4"),
    INT32: np.dtype("<i4"),
    INT64: np.dtype("<i8"),
    DOUBLE: np.dtype("<f8"),
}

OPERATORS = frozenset(
    """
    Abs Add And AveragePool BatchNormalization Cast Clip Concat Constant ConstantOfShape Conv
    ConvTranspose DepthToSpace Div Elu Equal Erf Exp Expand Flatten Gather Gelu Gemm
    GlobalAveragePool GlobalMaxPool Greater HardSigmoid HardSwish Identity InstanceNormalization
    IsNaN LayerNormalization LeakyRelu Less Log LogSoftmax MatMul Max MaxPool Mean Min Mul Neg Not
    Or Pad Pow Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize Selu Shape
    Sigmoid Slice Softmax Softplus Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where
    """.split()  # noqa: SIM905
)
# Positions of inputs that give indices or sizes: they must be constants of the graph.
_CONSTANT_INPUTS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Gather": (1,),
    "Pad": (1, 3),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
}
# Operators that may skip an input by an empty name. Elsewhere there is no need for one, and ONNX
# Runtime 1.31 crashes on a LayerNormalization with an empty name for its bias.
_LEAVES_OUT = frozenset({"Clip", "Pad", "Resize", "Slice"})
_CAST_TO = frozenset({FLOAT, BOOL, DOUBLE})
_EXPONENTS = frozenset({2.0, 3.0})  # ONNX Runtime multiplies here, and calls pow() for others
_TRUTH = frozenset({"And", "Equal", "Greater", "IsNaN", "Less", "Not", "Or"})  # give booleans
_UNROLL = "write the steps out by MatMul, Sigmoid and Tanh, as edgeveil.nn.unrolled does"
_INSTEAD = {
    "PRelu": "write it as Relu(x) - slope * Relu(-x)",
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _UNROLL),
}
_PLAIN = "use plain layers with constant shapes"
_STANDARD = frozenset({"", "ai.onnx"})

# Field numbers of onnx.proto, in the order of the messages.
GRAPH, _TRAINING, _FUNCTIONS = 7, 20, 25
NODE, INITIALIZER, _INPUT, _SPARSE_INITIALIZER = 1, 5, 11, 15
_NODE_INPUT, _NODE_OUTPUT, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
_VALUE_NAME, TENSOR_NAME = 1, 8
_DIMS = 1  # of a tensor
_TO_SHAPE, _AXIS, _AXIS_SIZE = (2, 1, 2), 1, 1  # of a value: type, tensor, shape; its axes
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TENSOR = 1, 3, 5
_SUBGRAPHS = frozenset({6, 11, 21, 22, 23})  # graphs, outer references, sparse tensors
DATA_TYPE, RAW = 2, 9
_PACKED = {FLOAT: 4, INT32: 5, INT64: 7, DOUBLE: 10}  # the typed data field of each type
_MOST_BYTES = 1 << 10  # of a constant with values that are read
MAX_FIELDS = 100_000  # of one message; a graph of plain layers has some hundreds
_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5  # wire types
Fields = dict[int, list[int | memoryview | None]]
"""Values of one message by field number; None for fixed-size types."""


def check_graph(graph: bytes, *, released: bool = False) -> None:
    """Raise DataError unless the model has plain layers alone; a `released` one may add `label`."""
    model = fields(memoryview(graph))
    if _TRAINING in model or _FUNCTIONS in model:
        raise _refused("holds functions or training steps of its own")
    parts = fields(message(model, GRAPH, "graph"))
    if _SPARSE_INITIALIZER in parts:
        raise _refused("holds sparse tensors")
    nodes = [GraphNode(node) for node in messages(parts, NODE)]
    if released and nodes and nodes[-1].is_label:
        del nodes[-1]
    tensors = [fields(t) for t in messages(parts, INITIALIZER)]
    names = Counter(text(t, TENSOR_NAME) for t in tensors)
    known = {text(t, TENSOR_NAME): ConstantTensor.from_tensor(t) for t in tensors}
    names.update(text(fields(v), _VALUE_NAME) for v in messages(parts, _INPUT))
    names.update(node.output for node in nodes)
    known |= {
        node.output: ConstantTensor.from_attributes(node.attributes)
        for node in nodes
        if node.operator == "Constant"
    }
    # A name used twice is no constant, even if one use is.
    single = {name for name, count in names.items() if count == 1}
    constants = {name: tensor for name, tensor in known.items() if name in single}
    indices = _table_indices([node for node in nodes if node.output in single], constants)
    rows = {text(t, TENSOR_NAME): _first_axis(t) for t in tensors}
    rows |= {text(v, _VALUE_NAME): _input_rows(v) for v in map(fields, messages(parts, _INPUT))}
    rows = {name: count for name, count in rows.items() if name in single}
    for node in nodes:
        node.check(constants, indices)
        if used := [name for name in node.inputs if name in indices]:
            node.check_lookup(indices[used[0]], rows)
        if node.output in single and node.is_constant(constants):
            constants.setdefault(node.output, ConstantTensor(node.kind(constants)))
    if any(t.kind not in FLOATS for name, t in known.items() if name not in single):
        raise _refused("gives a name to whole numbers and to something else")


class GraphNode:
    def __init__(self, raw: memoryview) -> None:
        parts = fields(raw)
        self.operator = text(parts, _OP_TYPE)
        self.domain = text(parts, _DOMAIN)
        self.inputs = [_name(raw) for raw in messages(parts, _NODE_INPUT)]
        self.outputs = [_name(raw) for raw in messages(parts, _NODE_OUTPUT)]
        self.output = self.outputs[0] if self.outputs else ""
        self.attributes = [fields(raw) for raw in messages(parts, _ATTRIBUTE)]

    @property
    def is_label(self) -> bool:
        """Whether the node is the most likely class in a released model."""
        plain = self.domain in _STANDARD and self.inputs == ["probabilities"]
        return plain and self.operator == "ArgMax" and self.outputs == ["label"]

    def is_constant(self, constants: Mapping[str, ConstantTensor]) -> bool:
        """Return whether the output is the same for all records: a shape, or made of constants."""
        return self.operator == "Shape" or all(name in constants for name in self.inputs if name)

    def kind(self, constants: Mapping[str, ConstantTensor]) -> int:
        """Return the TensorProto.DataType of a constant output, 0 if unknown."""
        if self.operator == "Shape":
            return INT64
        if self.operator == "Cast":
            return self._cast_to() or 0
        if self.operator in _TRUTH:
            return BOOL
        if self.operator == "ConstantOfShape":
            given = self.attributes
            return ConstantTensor.from_attributes(given).kind if given else FLOAT
        if self.operator == "Where":
            return next((constants[n].kind for n in self.inputs[1:] if n in constants), 0)
        return next((constants[name].kind for name in self.inputs if name in constants), 0)

    def check(self, constants: Mapping[str, ConstantTensor], indices: Mapping[str, float]) -> None:
        """Raise DataError unless this operator works the same way on every record."""
        name = self.operator[:32]
        if self.domain not in _STANDARD or self.operator not in OPERATORS:
            what = f"uses the operator {name!r}, which a device does not run"
            raise _refused(what, _INSTEAD.get(name, _PLAIN))
        if not all(self.inputs) and self.operator not in _LEAVES_OUT:
            raise _refused(f"leaves an input of {name!r} without a name")
        if self.operator == "BatchNormalization" and len(self.outputs) > 1:
            raise _refused("is in training mode", fix="export the model in eval mode")
        if len(self.outputs) != 1:  # the further ones are indices or random masks
            raise _refused(f"asks {name!r} for {len(self.outputs)} outputs instead of 1")
        if any(not _SUBGRAPHS.isdisjoint(attribute) for attribute in self.attributes):
            raise _refused(f"has a graph or a sparse tensor inside {name!r}")
        if self.output in indices:
            return  # a Cast that `_table_indices` has checked
        if self.operator == "Resize" and any(self.inputs[1:2]):
            raise _refused("resizes a region, which may lie anywhere", "resize the whole tensor")
        if not self.is_constant(constants):
            self._check_values(constants)
        elif self.operator == "Div":
            self._check_division(constants)
        if self.operator == "BatchNormalization" and self._trains():
            what = "normalises by the batch, so that records change each other's results"
            raise _refused(what, fix="export the model in eval mode")
        for place in _CONSTANT_INPUTS.get(self.operator, ()):
            steering = self.inputs[place] if place < len(self.inputs) else ""
            if steering and steering not in constants and steering not in indices:
                raise _refused(f"steers {name!r} by a value that is no constant of the graph")

    def _check_values(self, constants: Mapping[str, ConstantTensor]) -> None:
        if self.operator == "Cast" and self._cast_to() not in _CAST_TO:
            fix = "use float32 or float64, and edgeveil.nn.TokenEmbedding for tokens"
            raise _refused("turns values into whole numbers or halves", fix)
        if self.operator == "Equal":
            what = "compares values by 'Equal', whose time follows from them"
            raise _refused(what, "write it as Not(Or(Greater, Less))")
        if self.operator == "Where" and any(
            constants[name].kind not in FLOATS for name in self.inputs[1:] if name in constants
        ):
            what = "chooses by values among constants that may be whole numbers"
            raise _refused(what, "make the constants float32 initializers")
        if self.operator == "Pow":
            exponent = constants.get(self.inputs[1]) if len(self.inputs) == 2 else None
            values = None if exponent is None else exponent.values
            if values is None or values.size != 1 or float(values[0]) not in _EXPONENTS:
                what = "raises values to another power than 2 or 3, whose time follows from them"
                raise _refused(what, "multiply, use Sqrt or Reciprocal, or Exp and Log")

    def _check_division(self, constants: Mapping[str, ConstantTensor]) -> None:
        """Refuse divisors that may be -1: the least integer divided by -1 kills the process."""
        if self.kind(constants) in FLOATS:
            return
        divisor = constants[self.inputs[1]].values if len(self.inputs) == 2 else None
        if divisor is None or not all(int(value) > 0 for value in divisor):
            what = "divides integers by a value that may not be above 0"
            raise _refused(what, "write the quotient")

    def check_lookup(self, highest: float, rows: Mapping[str, int]) -> None:
        """Raise DataError unless indices up to `highest` choose rows of a table here."""
        axis = [a for a in self.attributes if text(a, _ATTRIBUTE_NAME) == "axis"]
        by_row = not any(number(a, _ATTRIBUTE_INT) or 0 for a in axis)
        table, *places = [*self.inputs, ""]
        fits = places[:-1] and highest < rows.get(table, 0)
        if self.operator != "Gather" or len(places) != 2 or not (by_row and fits):
            what = "uses whole numbers made of values other than as rows of a large enough table"
            raise _refused(what, "take edgeveil.nn.TokenEmbedding")

    def cast_indices(
        self, makers: Mapping[str, GraphNode], constants: Mapping[str, ConstantTensor]
    ) -> float | None:
        """Return the bound of a Cast to integers in [0, bound] whatever the values; else None."""
        clip = makers.get(self.inputs[0]) if len(self.inputs) == 1 else None
        if self._cast_to() != INT64 or clip is None or clip.operator != "Clip":
            return None
        where = makers.get(clip.inputs[0]) if len(clip.inputs) == 3 else None
        if where is None or where.operator != "Where" or len(where.inputs) != 3:
            return None
        nan = makers.get(where.inputs[0])
        same = nan is not None and nan.operator == "IsNaN" and nan.inputs == where.inputs[2:]
        instead, low, high = (
            constants[name].only if name in constants else None
            for name in (where.inputs[1], *clip.inputs[1:])
        )
        if not same or instead is None or low is None or high is None:
            return None
        return high if instead == instead and 0 <= low <= high else None

    def _trains(self) -> bool:
        named = (a for a in self.attributes if text(a, _ATTRIBUTE_NAME) == "training_mode")
        return any(number(a, _ATTRIBUTE_INT) != 0 for a in named)

    def _cast_to(self) -> int | None:
        wanted: list[Fields] = [a for a in self.attributes if text(a, _ATTRIBUTE_NAME) == "to"]
        return number(wanted[0], _ATTRIBUTE_INT) if len(wanted) == 1 else None


def _table_indices(
    nodes: list[GraphNode], constants: Mapping[str, ConstantTensor]
) -> dict[str, float]:
    """Return the bounds of all integers that are made of values safely, by name.

    `Clip` alone would pass NaN on, whose integer differs between processors, so that `IsNaN` has to
    stand before it, on the same values."""
    makers = {node.output: node for node in nodes}
    casts = [node for node in nodes if node.operator == "Cast" and not node.is_constant(constants)]
    bounds = {node.output: node.cast_indices(makers, constants) for node in casts}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _first_axis(tensor: Fields) -> int:
    """Return the first dimension of a tensor, packed or not; 0 without one."""
    first = next(iter(tensor.get(_DIMS, ())), 0)
    if isinstance(first, memoryview):
        return next(iter(varints(first)), 0)
    return first or 0


def _input_rows(value: Fields) -> int:
    """Return the first dimension of a graph input; 0 if it is free."""
    for step in _TO_SHAPE:
        inner = messages(value, step)
        if len(inner) != 1:
            return 0
        value = fields(inner[0])
    axes = messages(value, _AXIS)
    return (number(fields(axes[0]), _AXIS_SIZE) if axes else 0) or 0


def _name(raw: memoryview) -> str:
    return bytes(raw).decode("utf-8", "surrogateescape")


def _refused(what: str, fix: str = _PLAIN) -> DataError:
    return DataError(what, where="ONNX graph", fix=fix)


class ConstantTensor:
    """A constant of a TensorProto.DataType (0: unknown), with `values` (n,) if few and plain."""

    def __init__(self, kind: int, values: NDArray[np.generic] | None = None) -> None:
        self.kind, self.values = kind, values

    @property
    def only(self) -> float | None:
        """The value of a constant of one float; else None."""
        one = self.values if self.kind in FLOATS else None
        return float(one[0]) if one is not None and one.size == 1 else None

    @classmethod
    def from_tensor(cls, tensor: Fields) -> ConstantTensor:
        kind = number(tensor, DATA_TYPE) or 0
        found = [*tensor.get(RAW, ()), *tensor.get(_PACKED.get(kind, 0), ())]
        if kind not in _TYPES or len(found) != 1 or not isinstance(found[0], memoryview):
            return cls(kind)
        data = found[0]
        if len(data) > _MOST_BYTES:
            return cls(kind)
        if kind in (INT32, INT64) and not messages(tensor, RAW):
            return cls(kind, np.array(varints(data), np.uint64).astype(_TYPES[kind]))
        if len(data) % _TYPES[kind].itemsize:
            raise DataError("holds a constant that is cut off", where="ONNX graph")
        return cls(kind, np.frombuffer(data, _TYPES[kind]))

    @classmethod
    def from_attributes(cls, attributes: list[Fields]) -> ConstantTensor:
        """Read the constant from a Constant node's attributes."""
        if len(attributes) != 1:
            return cls(0)
        named = text(attributes[0], _ATTRIBUTE_NAME)
        if named == "value" and len(found := messages(attributes[0], _ATTRIBUTE_TENSOR)) == 1:
            return cls.from_tensor(fields(found[0]))
        return cls(FLOAT if named in ("value_float", "value_floats") else 0)


def fields(raw: memoryview) -> Fields:
    """Return the fields of one message, in order. Raises DataError if malformed."""
    found: Fields = {}
    at, end, count = 0, len(raw), 0
    while at < end:
        if count == MAX_FIELDS:
            raise _malformed(f"a message has more than {MAX_FIELDS} fields")
        tag, at = _varint(raw, at, 5)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise _malformed("a field's number is out of range")
        value: int | memoryview | None = None
        if kind == _VARINT:
            value, at = _varint(raw, at, 10)
        elif kind == _LENGTH:
            size, at = _varint(raw, at, 5)
            value, at = raw[at : at + size], at + size
        elif kind in (_I64, _I32):
            at += 8 if kind == _I64 else 4
        else:
            raise _malformed(f"a field has the wire type {kind}")
        if at > end:
            raise _malformed("a field ends past its message")
        found.setdefault(number, []).append(value)
        count += 1
    return found


def messages(parts: Fields, number: int) -> list[memoryview]:
    values = parts.get(number, [])
    whole = [value for value in values if isinstance(value, memoryview)]
    if len(whole) != len(values):
        raise _malformed(f"field {number} has another type")
    return whole


def message(parts: Fields, number: int, what: str) -> memoryview:
    """Return the value of a field that must occur exactly once."""
    found = messages(parts, number)
    if len(found) != 1:
        raise _malformed(f"it has {len(found)} fields '{what}' instead of 1")
    return found[0]


def text(parts: Fields, number: int) -> str:
    """Return a string field, default empty; invalid UTF-8 is kept as surrogates."""
    found = messages(parts, number)
    if len(found) > 1:
        raise _malformed(f"field {number} is given twice")
    return bytes(found[0]).decode("utf-8", "surrogateescape") if found else ""


def number(parts: Fields, number: int) -> int | None:
    """Return an integer field; None if absent."""
    found = parts.get(number, [])
    if len(found) > 1 or not all(isinstance(value, int) for value in found):
        raise _malformed(f"field {number} is given twice or has another type")
    return found[0] if found and isinstance(found[0], int) else None


def varints(raw: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(raw):
        value, at = _varint(raw, at, 10)
        found.append(value % 2**64)
    return found


def _varint(raw: memoryview, at: int, longest: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(raw[at : at + longest]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _malformed("a number is cut off or too long")


def _malformed(what: str) -> DataError:
    return DataError(f"is no ONNX model: {what}", where="ONNX graph", fix="export or copy it again")
