"""Builds the nodes of an ONNX graph, each tensor under a name of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.features.feature_map import SMALLEST_NORM

OPSET = 17
IR_VERSION = 8
ROUNDING = float(3 << 22)  # float32 holds no fractions here


class NodeList:
    """Nodes and constants in order; needs the `onnx` package."""

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
        """Add an int64 vector: a shape, axes, pads."""
        return self.constant(np.array(values, np.int64))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        from onnx import helper

        output = self.fresh(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def unit_rows(self, rows: str) -> str:
        # Mul, ReduceSum, Sqrt: the same at every opset from 13 on, unlike ReduceL2 with axes.
        squares = self.add("Mul", rows, rows)
        norms = self.add("Sqrt", self.add("ReduceSum", squares, self.whole(1), keepdims=1))
        return self.add("Div", rows, self.add("Max", norms, self.number(SMALLEST_NORM)))

    def rounded(self, values: str) -> str:
        """To the nearest integers, for values up to 2**22 in size."""
        shifted = self.add("Add", values, self.number(ROUNDING))
        return self.add("Sub", shifted, self.number(ROUNDING))


def serialise(graph: Any) -> bytes:
    from onnx import helper

    opset = [helper.make_opsetid("", OPSET)]
    return checked(helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION))


def checked(model: Any) -> bytes:
    """The bytes of a model, of its weights too; the checker's error for one that is none."""
    import onnx

    data: bytes = model.SerializeToString()
    onnx.checker.check_model(data)  # given the model it would make its bytes once more
    return data
