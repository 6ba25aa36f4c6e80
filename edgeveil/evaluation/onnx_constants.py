"""The few values of an ONNX graph's own constants that decide what an operator does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError
from edgeveil.evaluation.onnx_wire import Field, fields, messages, number, text, varints

FLOAT, INT32, INT64, DOUBLE = 1, 6, 7, 11  # TensorProto.DataType
FLOATS = frozenset({FLOAT, 10, DOUBLE, 16})  # float16 and bfloat16 among them
_TYPES: dict[int, np.dtype[Any]] = {
    FLOAT: np.dtype("<f4"),
    INT32: np.dtype("<i4"),
    INT64: np.dtype("<i8"),
    DOUBLE: np.dtype("<f8"),
}
_DATA_TYPE, _RAW = 2, 9
_PACKED = {FLOAT: 4, INT32: 5, INT64: 7, DOUBLE: 10}  # the field of a type's own
_NAME, _TENSOR = 1, 5
_MOST_BYTES = 1 << 10


class ConstantTensor:
    """A constant's type, and its values where they are few and stand in it plainly.

    `kind` is its TensorProto.DataType, 0 if unknown; `values` (n,) is None if unknown.
    """

    def __init__(self, kind: int, values: NDArray[np.generic] | None = None) -> None:
        self.kind, self.values = kind, values

    @classmethod
    def from_tensor(cls, tensor: list[Field]) -> ConstantTensor:
        """Of a TensorProto's fields."""
        kind = number(tensor, _DATA_TYPE) or 0
        wanted = {_RAW, _PACKED.get(kind)}
        found = [field.value for field in tensor if field.number in wanted]
        if kind not in _TYPES or len(found) != 1 or not isinstance(found[0], memoryview):
            return cls(kind)
        data = found[0]
        if len(data) > _MOST_BYTES:
            return cls(kind)
        if kind in (INT32, INT64) and not messages(tensor, _RAW):
            return cls(kind, np.array(varints(data), np.uint64).astype(_TYPES[kind]))
        if len(data) % _TYPES[kind].itemsize:
            raise DataError("holds a constant that is cut off", where="ONNX graph")
        return cls(kind, np.frombuffer(data, _TYPES[kind]))

    @classmethod
    def from_attributes(cls, attributes: list[list[Field]]) -> ConstantTensor:
        """Of a Constant node's attributes."""
        if len(attributes) != 1:
            return cls(0)
        named = text(attributes[0], _NAME)
        if named == "value" and len(found := messages(attributes[0], _TENSOR)) == 1:
            return cls.from_tensor(fields(found[0]))
        return cls(FLOAT if named in ("value_float", "value_floats") else 0)
