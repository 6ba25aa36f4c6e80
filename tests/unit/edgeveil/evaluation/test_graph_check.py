"""Graphs a device runs: plain layers pass; what values steer, or what takes too much, does not."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import OPERATORS, check_graph
from edgeveil.evaluation.onnx_session import aligned, open_session, run_session
from edgeveil.parts.features.onnx import Backbone
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import build_graph
from tests.kits.backbone_files import model as built

node = helper.make_node
SHIPPED = build_graph(Identity(IdentityParameters(input_scale=16, shift=-0.3)), (4,), 3)
INTS = {"ints": [0], "axes": [1], "shape": [-1, 3], "pads": [0, 0, 0, 0]}


def model(*nodes, inputs=("x",), functions=(), **graph):
    tensors = [
        helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        for name, values in INTS.items()
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in inputs]
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 3])
    body = helper.make_graph(list(nodes), "g", values, [output], tensors, **graph)
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(body, opset_imports=opset, functions=functions)


def refused(*nodes, **parts):
    with pytest.raises(DataError, match="ONNX graph") as caught:
        check_graph(model(*nodes, **parts).SerializeToString())
    return str(caught.value)


def branch(name):
    value = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3])
    return helper.make_graph([node("Identity", ["x"], [name])], name, [], [value])


PLAIN = {
    "layers with constant shapes": (
        node("Constant", [], ["flat"], value_ints=[-1, 3]),
        node("Reshape", ["x", "shape"], ["a"]),
        node("Reshape", ["a", "flat"], ["b"]),
        node("Gather", ["b", "ints"], ["c"], axis=0),
        node("Slice", ["c", "ints", "axes", "axes"], ["d"]),
        node("Pad", ["d", "pads"], ["e"]),
        node("Cast", ["e"], ["f"], to=TensorProto.DOUBLE),
        node("ReduceSum", ["f", "axes"], ["g"]),
        node("Softmax", ["g"], ["probabilities"], domain="ai.onnx"),
    ),
    "what is made of shapes of values": (
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "ints"], ["n"], axis=0),
        node("Cast", ["n"], ["whole"], to=TensorProto.INT64),
        node("Concat", ["whole", "axes"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["probabilities"]),
    ),
    "an input left out before others": (node("Clip", ["x", "", "ints"], ["probabilities"]),),
}


STEERED = """
    If Loop Scan NonZero Compress TopK Tile LSTM GRU RNN Range GatherND GatherElements OneHot
    ScatterElements ArgMax Unique
"""


def test_operators_that_values_can_steer_are_refused():
    assert not OPERATORS & set(STEERED.split())
    for operator in ("If", "TopK"):
        assert f"'{operator}'" in refused(node(operator, ["x"], ["probabilities"]))


@pytest.mark.parametrize("to", [TensorProto.INT64, TensorProto.UINT8, 99])
def test_values_never_become_whole_numbers(to):
    assert "whole numbers" in refused(node("Cast", ["x"], ["probabilities"], to=to))


GATHER = node("Gather", ["x", "ints"], ["probabilities"])
SHAPE, BY_SHAPE = node("Shape", ["x"], ["s"]), node("Reshape", ["x", "s"], ["probabilities"])
FED = {"inputs": ("x", "ints")}


@pytest.mark.parametrize(
    ("nodes", "parts"),
    [
        *(
            ([node(name, ["x", *rest], ["probabilities"])], {})
            for name, *rest in (
                ("Gather", "x"),
                ("Reshape", "x"),
                ("Pad", "pads", "", "x"),
                ("Slice", "ints", "x"),
                ("Slice", "ints", "axes", "axes", "x"),
                ("ReduceSum", "x"),
                ("Squeeze", "x"),
                ("Unsqueeze", "nowhere"),
                ("Expand", "x"),
                ("Resize", "", "x"),
                ("Resize", "", "", "x"),
            )
        ),
        # a constant that is fed or computed beside
        ([GATHER], FED),
        ([node("Abs", ["x"], ["ints"]), GATHER], {}),
        # of shapes and of values, too late, or twice
        ([SHAPE, node("Mul", ["s", "x"], ["m"]), node("Reshape", ["x", "m"], ["y"])], {}),
        ([BY_SHAPE, SHAPE], {}),
        ([SHAPE, node("Abs", ["x"], ["s"]), BY_SHAPE], {}),
    ],
)
def test_places_and_shapes_come_from_constants(nodes, parts):
    assert "no constant" in refused(*nodes, **parts)


@pytest.mark.parametrize("mode", [{}, {"training_mode": 0}, {"training_mode": 1}], ids=str)
def test_batch_normalisation_uses_the_statistics_it_holds(mode):
    norm = node("BatchNormalization", ["x", *(["ints"] * 4)], ["probabilities"], **mode)
    if mode.get("training_mode"):
        assert "normalises by the batch" in refused(norm)
    else:
        check_graph(model(norm).SerializeToString())


TWO_CASTS = node("Cast", ["x"], ["probabilities"], to=TensorProto.FLOAT)
TWO_CASTS.attribute.append(helper.make_attribute("to", TensorProto.INT64))
SPARSE = helper.make_sparse_tensor(
    helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]),
    helper.make_tensor("i", TensorProto.INT64, [1], [0]),
    [3],
)
OWN = helper.make_function(
    "own", "F", ["a"], ["b"], [node("Abs", ["a"], ["b"])], [helper.make_opsetid("", 17)]
)
ABS = node("Abs", ["x"], ["probabilities"])


@pytest.mark.parametrize(
    ("one", "message", "parts"),
    [
        (node("Softmax", ["x"], ["probabilities"], domain="own"), "does not run", {}),
        (TWO_CASTS, "whole numbers", {}),
        (node("Cast", ["x"], ["probabilities"]), "whole numbers", {}),
        (node("MaxPool", ["x"], ["probabilities", "i"], kernel_shape=[1]), "2 outputs", {}),
        (node("Abs", ["x"], []), "0 outputs", {}),
        (node("LayerNormalization", ["x", "ints", ""], ["probabilities"]), "without a name", {}),
        (node("Sum", ["x", "ints", ""], ["probabilities"]), "without a name", {}),
        (node("Identity", ["x"], ["y"], body=branch("y")), "inside 'Identity'", {}),
        (node("Identity", ["x"], ["y"], bodies=[branch("y")]), "inside 'Identity'", {}),
        (node("Resize", ["x", "ints"], ["probabilities"]), "a region", {}),
        (ABS, "functions", {"functions": [OWN]}),
        (ABS, "sparse", {"sparse_initializer": [SPARSE]}),
    ],
)
def test_more_than_a_plain_layer_is_refused(one, message, parts):
    assert message in refused(one, **parts)


OP = b"\x22\x03Abs"  # field 4, the operator's name


def wrapped(body):
    """A model of one graph of one node with these bytes."""
    one = b"\x0a" + bytes([len(body)]) + body
    return b"\x3a" + bytes([len(one)]) + one


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"\x3a",
        b"\x3a\x05",
        wrapped(OP + b"\x12\x01p") * 2,  # two graphs: protobuf would merge them
        wrapped(OP + OP + b"\x12\x01p"),
        wrapped(b"\x22\x04LoopX" + b"\x12\x01p"),
        wrapped(OP + b"\x08\x01" + b"\x12\x01p"),  # an input's name as a number
        wrapped(OP + b"\x12\x01p\x2b\x2c"),  # a group
        wrapped(OP + b"\x12\x01p\xb2\x80\x80\x80\x80\x00\x03Abs"),  # an over-long tag
        wrapped(OP + b"\x12\x01p\xb2\x80\x80\x80\x10\x03Abs"),  # a tag past 32 bits
        wrapped(OP + b"\x12\x01p" + b"\x08" + b"\xff" * 10),
        b"\x08\x01" * 200_000,  # a message of crumbs
    ],
    ids=range(13),
)
def test_bytes_that_two_readers_could_take_differently_are_refused(raw):
    check_graph(wrapped(OP + b"\x12\x01p"))
    with pytest.raises(DataError, match="ONNX graph"):
        check_graph(raw)


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(SHIPPED)), st.integers(0, 6), st.binary(max_size=12)),
        max_size=3,
    )
)
def test_what_passes_is_what_onnx_reads(edits):
    raw = SHIPPED
    for at, cut, more in edits:
        raw = raw[:at] + more + raw[at + cut :]
    try:
        check_graph(raw)
    except DataError:
        return
    try:
        theirs = onnx.load_model_from_string(raw)
    except Exception:  # no model for onnx either, for instance names that are no UTF-8
        return
    assert {one.op_type for one in theirs.graph.node} <= OPERATORS
    assert {one.domain for one in theirs.graph.node} <= {"", "ai.onnx"}
    assert not theirs.functions
    assert not any(
        attribute.HasField("g") or attribute.graphs
        for one in theirs.graph.node
        for attribute in one.attribute
    )


def constant(name, kind, values):
    return helper.make_tensor(name, kind, [len(values)], values)


def given(name, kind, values):
    return node("Constant", [], [name], value=constant(name, kind, values))


FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
POWER = node("Pow", ["x", "p"], ["probabilities"])


@pytest.mark.parametrize(
    "nodes",
    [
        *([given("p", FLOAT, [one])] for one in (0.5, -1, 2.5, 1, float("nan"))),
        [given("p", FLOAT, [2, 3])],
        [given("p", FLOAT, [])],
        [node("Identity", ["x"], ["p"])],
        [given("q", FLOAT, [-2]), node("Neg", ["q"], ["p"])],
        [node("Constant", [], ["p"], value_float=2.0)],
    ],
)
def test_other_powers_are_refused(nodes):
    assert "another power" in refused(*nodes, POWER)


DIVISION = [
    node("Div", ["a", "b"], ["c"]),
    node("Cast", ["c"], ["d"], to=FLOAT),
    node("Add", ["x", "d"], ["probabilities"]),
]
LEAST = {INT32: -(2**31), INT64: -(2**63)}


@pytest.mark.parametrize(
    "nodes",
    [
        *(
            [given("a", kind, [LEAST[kind]]), given("b", kind, divisor)]
            for kind in LEAST
            for divisor in ([-1], [0], [2, 0])
        ),
        [given("a", INT64, [7]), given("n", INT64, [2]), node("Neg", ["n"], ["b"])],
        [node("Shape", ["x"], ["a"]), node("Shape", ["x"], ["b"])],
    ],
)
def test_whole_numbers_are_divided_by_constants_above_zero_alone(nodes):
    assert "divides integers" in refused(*nodes, *DIVISION)


ROOT = [given("p", FLOAT, [0.5]), node("Pow", ["p", "p"], ["q"])]
HALVES = [given("a", FLOAT, [7]), given("n", FLOAT, [2]), node("Sqrt", ["n"], ["b"])]


@pytest.mark.parametrize(
    "nodes",
    [
        *PLAIN.values(),
        *([given("p", kind, [2]), POWER] for kind in (FLOAT, INT32, INT64, TensorProto.DOUBLE)),
        [given("p", FLOAT, [3]), POWER],
        # constants may be divided and have any power
        *([given("a", kind, [LEAST[kind]]), given("b", kind, [2]), *DIVISION] for kind in LEAST),
        [*ROOT, node("Mul", ["x", "q"], ["probabilities"])],
        [*HALVES, *DIVISION],
    ],
)
def test_plain_layers_squares_and_cubes_pass(nodes):
    check_graph(SHIPPED)
    check_graph(model(*nodes).SerializeToString())


def test_whole_numbers_that_may_be_fed_are_refused():
    cube = model(POWER)
    cube.graph.initializer.append(constant("p", FLOAT, [3]))
    check_graph(cube.SerializeToString())
    raw = model(*DIVISION, inputs=("x", "a"))
    raw.graph.initializer.extend([constant("a", INT64, [5]), constant("b", INT64, [-1])])
    with pytest.raises(DataError, match="whole numbers and to something else"):
        check_graph(raw.SerializeToString())


# Rows of a table by value: the one safe pattern, and graphs that miss it by one thing.

ROWS = 8
LOOKUP = {
    "IsNaN": ["v"],
    "Where": ["IsNaN", "zero", "v"],
    "Clip": ["Where", "zero", "highest"],
    "Cast": ["Clip"],
    "Gather": ["table", "Cast"],
}
NUMBERS = {"zero": 0.0, "highest": ROWS - 1.0, "more": float(ROWS), "less": -1.0, "nan": np.nan}


def lookup(*more, fed=(), axis=0, to=TensorProto.INT64, table=(ROWS, 2), leave=(), **changed):
    """The pattern on v (N, 3), with other inputs of a node, or nodes after it."""
    chosen = {"Cast": {"to": to}, "Gather": {"axis": axis}}
    nodes = [
        node(name, changed.get(name, given), [name], **chosen.get(name, {}))
        for name, given in LOOKUP.items()
        if name not in leave
    ]
    constants = {name: np.float32(value) for name, value in NUMBERS.items()}
    constants |= {"whole": np.array([3], np.int64), "two": np.array([0, 1], np.float32)}
    ends = {"v": ("N", 3), **dict.fromkeys(fed, (1,))}, {"features": None}
    if table is not None and "table" not in fed:
        constants["table"] = np.zeros(table, np.float32)
    last = node("Identity", ["Gather"], ["features"])
    return built([*nodes, *more, last], *ends, constants)


def test_rows_of_a_table_by_value_answer_every_value():
    rows = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    raw = ModelProto.FromString(lookup())
    (table,) = [one for one in raw.graph.initializer if one.name == "table"]
    table.raw_data = rows.tobytes()
    check_graph(raw.SerializeToString())
    values = [np.nan, np.inf, -np.inf, 1e30, -1, ROWS, 0.9, 6.999, 1e-40, -0.0, 5, 2**24]
    given = aligned(np.array(values, np.float32).reshape(4, 3))
    found = run_session(open_session(raw.SerializeToString()), "features", {"v": given})
    wanted = [0, 7, 0, 7, 0, 7, 0, 6, 0, 0, 5, 7]
    np.testing.assert_array_equal(found.reshape(-1, 2), rows[wanted])
    fed = helper.make_tensor_value_info("table", TensorProto.FLOAT, [ROWS, 2])
    raw.graph.initializer.remove(table)  # the table as a weight that each round brings
    raw.graph.input.append(fed)
    check_graph(raw.SerializeToString())
    for size in (ROWS - 1, "N"):
        fed = helper.make_tensor_value_info("table", TensorProto.FLOAT, [size, 2])
        raw.graph.input[-1].CopyFrom(fed)
        with pytest.raises(DataError):
            check_graph(raw.SerializeToString())


MISSES = {
    "no clip": lookup(Cast=["Where"]),
    "no test of NaN": lookup(Clip=["v", "zero", "highest"]),
    "NaN of other values": lookup(node("Neg", ["v"], ["w"]), Where=["IsNaN", "zero", "w"]),
    "NaN instead of NaN": lookup(Where=["IsNaN", "nan", "v"]),
    "chosen the other way": lookup(Where=["IsNaN", "v", "zero"]),
    "one row too many": lookup(Clip=["Where", "zero", "more"]),
    "a bound below 0": lookup(Clip=["Where", "less", "highest"]),
    "bounds exchanged": lookup(Clip=["Where", "highest", "zero"]),
    "a bound of NaN": lookup(Clip=["Where", "zero", "nan"]),
    "two bounds in one": lookup(Clip=["Where", "zero", "two"]),
    "no lower bound": lookup(Clip=["Where", "", "highest"]),
    "no upper bound": lookup(Clip=["Where", "zero"]),
    "a bound of values": lookup(Clip=["Where", "zero", "v"]),
    "a bound that may be fed": lookup(fed=("highest",)),
    "changed after the clip": lookup(node("Neg", ["Clip"], ["n"]), Cast=["n"]),
    "another type": lookup(to=TensorProto.INT32),
    "bytes": lookup(to=TensorProto.UINT8),
    "another axis": lookup(axis=1),
    "a smaller table": lookup(table=(ROWS - 1, 2)),
    "an empty table": lookup(table=(0, 2)),
    "a number as table": lookup(table=()),
    "a computed table": lookup(Gather=["v", "Cast"]),
    "indices of nothing": lookup(leave=("Cast",)),
    "indices as table": lookup(Gather=["Cast", "Cast"]),
    "a name used twice": lookup(node("Neg", ["v"], ["Clip"])),
    "arithmetic on indices": lookup(node("Div", ["whole", "Cast"], ["d"])),
    "a shape of indices": lookup(node("Reshape", ["v", "Cast"], ["d"])),
    "places of a slice": lookup(node("Slice", ["v", "Cast", "whole"], ["d"])),
    "indices as values": lookup(node("Cast", ["Cast"], ["d"], to=TensorProto.FLOAT)),
    "chosen whole numbers": lookup(node("Where", ["IsNaN", "whole", "whole"], ["d"])),
}


@pytest.mark.parametrize("graph", MISSES.values(), ids=list(MISSES))
def test_a_lookup_that_misses_the_safe_pattern_is_refused(graph):
    check_graph(lookup())
    with pytest.raises(DataError):
        check_graph(graph)


LIMIT_MB = 64
CHILD = f"""
import resource, sys
from pathlib import Path
import edgeveil.evaluation.onnx_session as sessions
from edgeveil.errors import DataError
from edgeveil.parts.features.onnx import Backbone
sessions.MAX_RUN_BYTES = {LIMIT_MB} << 20
graph = Path(sys.argv[1]).read_bytes()
Backbone(Path(sys.argv[2]).read_bytes())  # the libraries are loaded from here on
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Backbone(graph)
    said = "taken"
except DataError as error:
    said = error.what
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, said)
"""


def doubling(times, start):
    """Each operator gives twice what the one before it gave; the sum of the last is one value."""
    names = [start, *(f"v{n}" for n in range(times))]
    nodes = [node("Concat", [one, one], [two], axis=1) for one, two in pairwise(names)]
    nodes += [
        node("ReduceMean", [names[-1]], ["mean"], axes=[1], keepdims=1),
        node("Add", ["x", "mean"], ["features"]),
    ]
    constants = {"c": np.ones((1, 64), np.float32)}
    return built(nodes, {"x": ("N", 64)}, {"features": ("N", 64)}, constants)


@pytest.mark.parametrize("start", ["x", "c"], ids=["of the record", "of constants"])
def test_a_graph_that_asks_for_gigabytes_is_refused_before_it_has_them(tmp_path, start):
    bomb, small = doubling(24, start), doubling(3, "x")  # 4 GiB from 64 values
    check_graph(bomb)
    for name, graph in (("bomb", bomb), ("small", small)):
        (tmp_path / name).write_bytes(graph)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "bomb", tmp_path / "small"],
        capture_output=True,
        text=True,
        check=True,
    )
    grown_mb, message = done.stdout.split(maxsplit=1)
    assert message.strip() == "cannot be run on a record of zeros"
    assert int(grown_mb) < 2 * LIMIT_MB


def with_tensor(**fields):
    """A graph that adds the constant `c` to its record, with the fields of `c` changed."""
    ends = {"x": ("N", 4)}, {"features": ("N", 4)}
    sound = built([node("Add", ["x", "c"], ["features"])], *ends, {"c": np.ones(4, np.float32)})
    changed = ModelProto.FromString(sound)
    tensor = changed.graph.initializer[0]
    for name, value in fields.items():
        if name == "dims":
            tensor.dims[:] = value
        elif name == "location":
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=value)
    return changed.SerializeToString()


def feeding_itself():
    circle = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])]
    end = node("Add", ["a", "b"], ["features"])
    return built([*circle, end], {"x": (1, 4)}, {"features": (1, 4)})


def nested(times):
    graph = b""
    for _ in range(times):
        size, length = len(graph), bytearray()
        while size >= 0x80:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        graph = b"\x3a" + bytes((*length, size)) + graph
    return graph


LARGER = ([2**40], [2**31, 2**31], [-1], [2**62, 4])


@pytest.mark.parametrize(
    "graph",
    [*(with_tensor(dims=shape) for shape in LARGER), feeding_itself(), nested(5_000)],
    ids=["2^40", "2^62", "-1", "2^64", "a circle", "fields in fields"],
)
def test_tensors_larger_than_their_bytes_and_graphs_without_end_are_refused(graph):
    with pytest.raises(DataError, match="cannot be loaded"):
        Backbone(graph)


def test_a_tensor_in_a_file_beside_the_graph_is_refused(tmp_path, monkeypatch):
    (tmp_path / "weights").write_bytes(bytes(16))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="outside itself"):
        Backbone(with_tensor(location="weights"))
