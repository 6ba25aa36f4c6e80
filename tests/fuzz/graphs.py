"""Targets: ONNX graphs, as any bytes and as graphs of any operators."""

import struct
from itertools import pairwise

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import MAX_FIELDS, OPERATORS, check_graph, fields
from edgeveil.parts.features.onnx import LARGEST_OUTPUT, Backbone
from tests.fuzz.target import Tape, Target, demand

_PLAIN = tuple(sorted(OPERATORS))
_FOREIGN = ("If", "Loop", "Scan", "NonZero", "Tile", "GRU", "TopK", "RandomNormal", "")
_VALUES = ("x", "a", "b", "c", "ints", "floats", "", "y")
_ATTRIBUTES = ("axis", "axes", "to", "shape", "pads", "keepdims", "kernel_shape", "training_mode")
_FLOAT, _INT64 = 1, 7


def _varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _part(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value & 2**64 - 1)
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def _tensor(name, kind, shape, raw):
    return (
        b"".join(_part(1, axis) for axis in shape) + _part(2, kind) + _part(8, name) + _part(9, raw)
    )


def _value(name, shape):
    axes = b"".join(_part(1, _part(1, axis)) for axis in shape)
    return _part(1, name) + _part(2, _part(1, _part(1, _FLOAT) + _part(2, axes)))


def _whole(nodes, constants, extra=b""):
    graph = b"".join(_part(1, node) for node in nodes) + _part(2, "g")
    graph += b"".join(_part(5, constant) for constant in constants)
    graph += _part(11, _value("x", (1, 4))) + _part(12, _value("y", (1, 4))) + extra
    return _part(1, 8) + _part(7, graph) + _part(8, _part(1, "") + _part(2, 17))


def _node(operator, inputs, output, attributes=()):
    parts = [_part(1, name) for name in inputs] + [_part(2, output), _part(4, operator)]
    return b"".join([*parts, *(_part(5, attribute) for attribute in attributes)])


def _attribute(tape):
    name, value = tape.choice(_ATTRIBUTES), tape.number(256) - 2
    if tape.number(2):
        return _part(1, name) + _part(3, value) + _part(20, 2)
    return _part(1, name) + b"".join(_part(8, value + k) for k in range(3)) + _part(20, 7)


def _made(tape):
    """A graph of up to eight operators over few names; most of them do not fit together."""
    ints = [tape.choice((0, 1, -1, 2, 4, 2**31, 2**62)) for _ in range(tape.number(4))]
    constants = [
        _tensor("ints", _INT64, [len(ints)], b"".join(struct.pack("<q", i) for i in ints)),
        _tensor("floats", _FLOAT, tape.choice(((4,), (4, 4), (2**40,), ())), tape.take(16)),
    ]
    nodes = []
    for _ in range(tape.number(8)):
        operator = tape.choice(_PLAIN if tape.number(8) else _FOREIGN)
        inputs = [tape.choice(_VALUES) for _ in range(tape.number(4))]
        attributes = [_attribute(tape) for _ in range(tape.number(3))]
        nodes.append(_node(operator, inputs, tape.choice(("a", "b", "c", "x")), attributes))
    nodes.append(_node(tape.choice(_PLAIN), [tape.choice(_VALUES)], "y"))
    return _whole(nodes, constants, tape.rest() if tape.number(8) == 7 else b"")


def _bytes_of(data):
    tape = Tape(data)
    return tape.rest() if not tape.number(4) else _made(tape)


def _wire(data):
    _walk(memoryview(data), 4)


def _walk(raw, levels):
    found = fields(raw)
    values = [value for several in found.values() for value in several]
    demand(len(values) <= min(MAX_FIELDS, len(raw)), "no more fields than bytes")
    for value in values:
        if isinstance(value, memoryview):
            demand(len(value) < len(raw), "a field lies inside its message")
            if levels:
                try:
                    _walk(value, levels - 1)
                except DataError:
                    continue


def _check(data):
    check_graph(_bytes_of(data))


def _backbone(data):
    made = Backbone(_bytes_of(data))
    demand(1 <= made.form.output_dim <= LARGEST_OUTPUT, "a backbone's output is bounded")


def _doubled(times):
    names = ["x", *(f"c{n}" for n in range(times)), "y"]
    axis = _part(1, "axis") + _part(3, 1) + _part(20, 2)
    pairs = pairwise(names)
    return _whole([_node("Concat", [a, a], b, [axis]) for a, b in pairs], [])


def _sound():
    weights = _tensor("floats", _FLOAT, (4, 4), struct.pack("<16f", *range(16)))
    shape = _tensor("ints", _INT64, (2,), struct.pack("<qq", 1, 4))
    yield _whole([_node("MatMul", ["x", "floats"], "y")], [weights])
    yield _whole(
        [
            _node("Relu", ["x"], "a"),
            _node("Reshape", ["a", "ints"], "b"),
            _node("Tanh", ["b"], "y"),
        ],
        [shape],
    )
    yield _whole([_node("Softmax", ["x"], "y")], [])


def _seeds():
    yield from (b"\0" + graph for graph in _sound())
    yield b"\0" + _doubled(8)
    yield b"\1" + bytes(range(1, 120))
    yield b"\1" + bytes(range(200, 80, -1))


_WORDS = tuple(name.encode() for name in (*_PLAIN, *_FOREIGN[:-1], "location", "training_mode"))
TARGETS = {
    "onnx_wire": Target(_wire, lambda: [b"", *_sound()], (DataError,), 1024),
    "graph_check": Target(_check, _seeds, (DataError,), 1024, _WORDS),
    "backbone": Target(_backbone, _seeds, (DataError,), 512, _WORDS),
}
