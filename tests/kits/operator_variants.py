"""Graph operators in each variant that has a kernel, and special values for them."""

from dataclasses import dataclass, field

import numpy as np

SHAPE = (1, 16, 64, 64)
OPSET, IR_VERSION = 20, 9
_FLOAT, _FLOAT16, _DOUBLE, _INT64, _BOOL, _BFLOAT16 = 1, 10, 11, 7, 9, 16


@dataclass(frozen=True)
class OperatorVariant:
    """One operator with its attributes, on x and further constants.

    `more`: inputs after x (before x if `before`): arrays, `None` for one left out, `...` for x.
    `kind`: the type of x inside the graph, float or double. `flat`: x with two axes. `rows`: x as
    indices below this number, made safely. `truth`: x as booleans, x > 0. `shaped`: x's shape."""

    operator: str
    about: str = ""
    more: tuple = ()
    attributes: dict = field(default_factory=dict)
    before: bool = False
    kind: int = _FLOAT
    flat: bool = False
    rows: int = 0
    truth: bool = False
    shaped: bool = False

    @property
    def name(self):
        wide = "double" * (self.kind == _DOUBLE)
        about = ", ".join(filter(None, (self.about, wide)))
        return f"{self.operator} ({about})" if about else self.operator

    def graph(self):
        """Return an ONNX model y = operator(x, …) for x float32 with four axes."""
        from onnx import helper, numpy_helper

        nodes, constants, inner = [], [], "x"
        if self.kind != _FLOAT:
            inner = "wide"
            nodes.append(helper.make_node("Cast", ["x"], [inner], to=self.kind))
        if self.flat:
            nodes.append(helper.make_node("Flatten", [inner], ["rows"], axis=3))
            inner = "rows"
        if self.rows:
            bounds = {"zero": 0, "highest": self.rows - 1}
            constants += [numpy_helper.from_array(_number(v)[0], n) for n, v in bounds.items()]
            nodes += [
                helper.make_node("IsNaN", [inner], ["nan"]),
                helper.make_node("Where", ["nan", "zero", inner], ["number"]),
                helper.make_node("Clip", ["number", "zero", "highest"], ["within"]),
                helper.make_node("Cast", ["within"], ["index"], to=_INT64),
            ]
            inner = "index"
        if self.truth:
            constants.append(numpy_helper.from_array(_number(0)[0], "zero"))
            nodes.append(helper.make_node("Greater", [inner, "zero"], ["true"]))
            inner = "true"
        if self.shaped:
            nodes.append(helper.make_node("Shape", [inner], ["shape"]))
            inner = "shape"
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
        # Cast to float at the end, as a model's output is.
        nodes.append(helper.make_node("Cast", ["raw"], ["y"], to=_FLOAT))
        x = helper.make_tensor_value_info("x", _FLOAT, list(SHAPE))
        y = helper.make_tensor_value_info("y", _FLOAT, None)
        made = helper.make_graph(nodes, "g", [x], [y], constants)
        opset = [helper.make_opsetid("", OPSET)]
        whole = helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION)
        return whole.SerializeToString()


def _number(*values):
    return np.array(values, np.float32)


def _whole(*values):
    return np.array(values, np.int64)


_ELEMENTWISE = """
    Abs Elu Erf Exp HardSigmoid HardSwish Identity LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid
    Softplus Sqrt Tanh
    """.split()  # noqa: SIM905
_DOUBLE_TOO = "Abs Exp Log Neg Reciprocal Relu Sigmoid Sqrt Tanh".split()  # noqa: SIM905
_PAIRS = ("Add", "Sub", "Mul", "Div", "Max", "Min")


def variants():
    of = OperatorVariant
    yield from map(of, _ELEMENTWISE)
    yield from (of(name, kind=_DOUBLE) for name in _DOUBLE_TOO)
    # of pairs
    third = (_number(1 / 3),)
    for kind in (_FLOAT, _DOUBLE):
        yield from (of(name, "x, ⅓", third, kind=kind) for name in _PAIRS)
        yield of("Div", "⅓, x", third, before=True, kind=kind)
        for exponent in (2.0, 3.0, 0.5, -1.0, 2.5):
            yield of("Pow", f"constant exponent {exponent:g}", (_number(exponent),), kind=kind)
        yield of("Pow", "⅓ to the x", third, before=True, kind=kind)
    yield of("Pow", "x to the x", (...,))
    yield of("Pow", "whole exponent 2", (_whole(2),))
    yield from (of(name, "x, x", (...,)) for name in ("Add", "Mul", "Div"))
    yield from (of(name, "x, ⅓", third) for name in ("Mean", "Sum"))
    yield of("PRelu", "", third)
    yield from (of(name, "x, ⅓", third) for name in ("Equal", "Greater", "Less"))
    yield of("Equal", "of a shape", (_whole(64),), shaped=True)
    yield from (of(name, "", (...,), truth=True) for name in ("And", "Or"))
    yield of("Not", truth=True)
    yield of("IsNaN")
    yield of("Where", "x > 0, ⅓, 0", (_number(1 / 3), _number(0)), truth=True)
    for rows, width in ((4096, 16), (256, 64)):
        table = np.full((rows, width), 1 / 3, np.float32)
        yield of("Gather", f"{rows} rows by value", (table,), before=True, rows=rows)
    yield of("Clip", "-1, 1", (np.float32(-1).reshape(()), np.float32(1).reshape(())))
    yield of("Gelu", "erf", attributes={"approximate": "none"})
    yield of("Gelu", "tanh", attributes={"approximate": "tanh"})
    for kind, name in (
        (_DOUBLE, "double"),
        (_BOOL, "bool"),
        (_FLOAT16, "float16"),
        (_BFLOAT16, "bfloat16"),
    ):
        yield of("Cast", f"to {name}", attributes={"to": kind})
    # over axes
    channels, width = SHAPE[1], SHAPE[3]
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    for name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"):
        yield of(name, "channels", (_whole(1),))
        yield from (of(name, "last axis", (_whole(3),), kind=kind) for kind in (_FLOAT, _DOUBLE))
    for name in ("Softmax", "LogSoftmax"):
        yield of(name, "last axis", attributes={"axis": 3})
        yield of(name, "channels", attributes={"axis": 1})
    third = (np.full((width, width), 1 / 3, np.float32),)
    yield from (of("MatMul", "", third, kind=kind) for kind in (_FLOAT, _DOUBLE))
    yield of("Gemm", "", third, flat=True)
    yield of("Conv", "3×3", (np.full((channels, channels, 3, 3), 1 / 3, np.float32),))
    yield of("ConvTranspose", "3×3", (np.full((channels, channels, 3, 3), 1 / 3, np.float32),))
    for name in ("MaxPool", "AveragePool"):
        yield of(name, "3×3", attributes={"kernel_shape": [3, 3], "strides": [1, 1]})
    yield from map(of, ("GlobalAveragePool", "GlobalMaxPool"))
    yield of("BatchNormalization", "", (one, zero, zero, one))
    yield of("InstanceNormalization", "", (one, zero))
    yield of("LayerNormalization", "", (np.ones(width, np.float32),) * 2)
    # of shape
    yield of("Concat", "x, x", (...,), {"axis": 1})
    yield of("Constant", attributes={"value_floats": [0.0] * 4096})
    yield from map(of, ("Flatten", "Shape"))
    yield of("ConstantOfShape", shaped=True)
    yield of("DepthToSpace", attributes={"blocksize": 2})
    yield of("Expand", "", (_whole(2, *SHAPE[1:]),))
    for mode in ("nearest", "linear"):
        yield of("Resize", mode, (None, _number(1, 1, 2, 2)), {"mode": mode})
    yield of("Gather", "", (_whole(*range(SHAPE[1] - 1, -1, -1)),), {"axis": 1})
    for mode in ("constant", "edge", "reflect"):
        yield of("Pad", mode, (_whole(0, 0, 2, 2, 0, 0, 2, 2),), {"mode": mode})
    yield of("Reshape", "", (_whole(1, -1),))
    yield of("Slice", "", (_whole(0), _whole(32), _whole(3), _whole(1)))
    yield from (of(name, "", (_whole(0),)) for name in ("Squeeze", "Unsqueeze"))
    yield of("Transpose", "", (), {"perm": [0, 3, 2, 1]})


def families(shape=SHAPE):
    """Return arrays of one shape by kind of value, from `ones` to special floats."""
    chance, one = np.random.default_rng(0), np.ones(shape, np.float32)
    info = np.finfo(np.float32)
    normal = chance.normal(size=shape).astype(np.float32)
    alternating = one.copy().reshape(-1)
    alternating[::2] = -1
    rows = np.arange(normal.size, dtype=np.float32).reshape(shape) % 4096
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, info.max, -info.max, 1e-40], np.float32)
    return {
        "ones": one,
        "zeros": one * 0,
        "normal": normal,
        "0 … 1": chance.random(shape, dtype=np.float32),
        "sorted": np.sort(normal.reshape(-1)).reshape(shape),
        "alternating": alternating.reshape(shape),
        "whole": np.rint(normal * 100),
        "rows": chance.permutation(rows.reshape(-1)).reshape(shape),
        "large": normal * np.float32(1e30),
        "small": normal * np.float32(1e-30),
        "±90": normal * np.float32(90),
        "near 1": 1 + normal * np.float32(1e-6),
        "largest": one * info.max,
        "-largest": one * info.min,
        "least normal": one * info.smallest_normal,
        "subnormal": np.full(shape, 12345, np.uint32).view(np.float32),
        "NaN": one * np.float32(np.nan),
        "inf": one * np.float32(np.inf),
        "-inf": one * np.float32(-np.inf),
        "special": chance.choice(special, shape),
    }
