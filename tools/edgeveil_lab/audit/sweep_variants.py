"""The operators that a graph may use, and what stands beside them in doubt, as small graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHAPE = (1, 16, 64, 64)
OPSET, IR_VERSION = 20, 9
_FLOAT, _FLOAT16, _DOUBLE, _INT64, _BFLOAT16 = 1, 10, 11, 7, 16


@dataclass(frozen=True)
class Variant:
    """One operator with its attributes, on x and further constants."""

    operator: str
    about: str = ""
    more: tuple[Any, ...] = ()
    """Inputs after x: arrays, `None` for one left out, `...` for x itself."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    before: bool = False
    """Whether the further inputs stand before x."""
    kind: int = _FLOAT
    """The type of x inside the graph: float or double."""
    flat: bool = False
    """Whether the operator gets x with its last axis and all others as one."""

    @property
    def name(self) -> str:
        """What a person reads."""
        wide = "double" * (self.kind == _DOUBLE)
        about = ", ".join(filter(None, (self.about, wide)))
        return f"{self.operator} ({about})" if about else self.operator

    def graph(self) -> bytes:
        """An ONNX model y = operator(x, …) for x float32 of any shape of four axes."""
        from onnx import helper, numpy_helper

        nodes, constants, inner = [], [], "x"
        if self.kind != _FLOAT:
            inner = "wide"
            nodes.append(helper.make_node("Cast", ["x"], [inner], to=self.kind))
        if self.flat:
            nodes.append(helper.make_node("Flatten", [inner], ["rows"], axis=3))
            inner = "rows"
        names = []
        for place, given in enumerate(self.more):
            if given is None or given is ...:
                names.append("" if given is None else inner)
                continue
            wide = self.kind == _DOUBLE and given.dtype == np.float32
            array = given.astype(np.float64) if wide else given
            constants.append(numpy_helper.from_array(array, f"c{place}"))
            names.append(f"c{place}")
        inputs = [*names, inner] if self.before else [inner, *names]
        if self.operator == "Constant":
            inputs = []
        nodes.append(helper.make_node(self.operator, inputs, ["raw"], **self.attributes))
        # Whatever its type: float at the end, as a model's answer is.
        nodes.append(helper.make_node("Cast", ["raw"], ["y"], to=_FLOAT))
        x = helper.make_tensor_value_info("x", _FLOAT, list(SHAPE))
        y = helper.make_tensor_value_info("y", _FLOAT, None)
        made = helper.make_graph(nodes, "g", [x], [y], constants)
        opset = [helper.make_opsetid("", OPSET)]
        whole = helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION)
        found: bytes = whole.SerializeToString()
        return found


def _number(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def _whole(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


_ELEMENTWISE = """
    Abs Elu Erf Exp HardSigmoid HardSwish Identity LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid
    Softplus Sqrt Tanh
    """.split()  # noqa: SIM905
_DOUBLE_TOO = "Abs Exp Log Neg Reciprocal Relu Sigmoid Sqrt Tanh".split()  # noqa: SIM905
_PAIRS = ("Add", "Sub", "Mul", "Div", "Max", "Min")


def variants() -> Iterator[Variant]:
    """Every allowed operator, and what stands beside it in doubt."""
    yield from (Variant(name) for name in _ELEMENTWISE)
    yield from (Variant(name, kind=_DOUBLE) for name in _DOUBLE_TOO)
    yield from _of_pairs()
    yield from _over_axes()
    yield from _of_shape()


def _of_pairs() -> Iterator[Variant]:
    third = (_number(1 / 3),)
    for kind in (_FLOAT, _DOUBLE):
        yield from (Variant(name, "x, ⅓", third, kind=kind) for name in _PAIRS)
        yield Variant("Div", "⅓, x", third, before=True, kind=kind)
        for exponent in (2.0, 3.0, 0.5, -1.0, 2.5):
            about = f"constant exponent {exponent:g}"
            yield Variant("Pow", about, (_number(exponent),), kind=kind)
        yield Variant("Pow", "⅓ to the x", third, before=True, kind=kind)
    yield Variant("Pow", "x to the x", (...,))
    yield Variant("Pow", "whole exponent 2", (_whole(2),))
    yield Variant("Add", "x, x", (...,))
    yield Variant("Mul", "x, x", (...,))
    yield Variant("Div", "x, x", (...,))
    yield Variant("Mean", "x, ⅓", third)
    yield Variant("Sum", "x, ⅓", third)
    yield Variant("PRelu", "", third)
    yield Variant("Clip", "-1, 1", (np.float32(-1).reshape(()), np.float32(1).reshape(())))
    yield Variant("Gelu", "erf", attributes={"approximate": "none"})
    yield Variant("Gelu", "tanh", attributes={"approximate": "tanh"})
    for kind, name in ((_DOUBLE, "double"), (_FLOAT16, "float16"), (_BFLOAT16, "bfloat16")):
        yield Variant("Cast", f"to {name}", attributes={"to": kind})


def _over_axes() -> Iterator[Variant]:
    channels, width = SHAPE[1], SHAPE[3]
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    for name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"):
        yield Variant(name, "last axis", (_whole(3),))
        yield Variant(name, "channels", (_whole(1),))
        yield Variant(name, "last axis", (_whole(3),), kind=_DOUBLE)
    for name in ("Softmax", "LogSoftmax"):
        yield Variant(name, "last axis", attributes={"axis": 3})
        yield Variant(name, "channels", attributes={"axis": 1})
    third = np.full((width, width), 1 / 3, np.float32)
    yield Variant("MatMul", "", (third,))
    yield Variant("MatMul", "", (third,), kind=_DOUBLE)
    yield Variant("Gemm", "", (third,), flat=True)
    yield Variant("Conv", "3×3", (np.full((channels, channels, 3, 3), 1 / 3, np.float32),))
    window = {"kernel_shape": [3, 3], "strides": [1, 1]}
    yield Variant("MaxPool", "3×3", attributes=window)
    yield Variant("AveragePool", "3×3", attributes=window)
    yield Variant("GlobalAveragePool")
    yield Variant("GlobalMaxPool")
    yield Variant("BatchNormalization", "", (one, zero, zero, one))
    yield Variant("InstanceNormalization", "", (one, zero))
    wide = np.ones(width, np.float32)
    yield Variant("LayerNormalization", "", (wide, wide))


def _of_shape() -> Iterator[Variant]:
    yield Variant("Concat", "x, x", (...,), {"axis": 1})
    yield Variant("Constant", attributes={"value_floats": [0.0] * 4096})
    yield Variant("Flatten")
    yield Variant("Gather", "", (_whole(*range(SHAPE[1] - 1, -1, -1)),), {"axis": 1})
    for mode in ("constant", "edge", "reflect"):
        yield Variant("Pad", mode, (_whole(0, 0, 2, 2, 0, 0, 2, 2),), {"mode": mode})
    yield Variant("Reshape", "", (_whole(1, -1),))
    yield Variant("Shape")
    yield Variant("Slice", "", (_whole(0), _whole(32), _whole(3), _whole(1)))
    yield Variant("Squeeze", "", (_whole(0),))
    yield Variant("Transpose", "", (), {"perm": [0, 3, 2, 1]})
    yield Variant("Unsqueeze", "", (_whole(0),))
