"""What a graph may take of the machine that runs it, whatever it asks for."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.parts.features.onnx import Backbone
from tests.kits.backbone_files import model, node

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
    return model(nodes, {"x": ("N", 64)}, {"features": ("N", 64)}, constants)


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
    grown_mb, said = done.stdout.split(maxsplit=1)
    assert said.strip() == "cannot be run on a record of zeros"
    assert int(grown_mb) < 2 * LIMIT_MB


def with_tensor(**fields):
    """A graph that adds the constant `c` to its record, with the fields of `c` changed."""
    ends = {"x": ("N", 4)}, {"features": ("N", 4)}
    sound = model([node("Add", ["x", "c"], ["features"])], *ends, {"c": np.ones(4, np.float32)})
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
    return model([*circle, end], {"x": (1, 4)}, {"features": (1, 4)})


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
