"""A backbone's graph inside another: names of their own, one opset, any number of records."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import open_session, run_session
from edgeveil.parts.features.backbone import Backbone, opened
from edgeveil.parts.features.onnx_nodes import IR_VERSION, OPSET, NodeList

_PROBES = 3
_TOLERANCE = 1e-3


def inline(backbone: bytes, graph: NodeList, x: str) -> str:
    """Add `backbone` to `graph`, fed by the tensor named `x` (N, *input_shape) float32.

    Returns the name of its output. Raises DataError where it cannot be brought to opset 17.
    """
    import onnx
    from onnx import version_converter

    model = onnx.load_model_from_string(backbone)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset != OPSET:
        try:
            model = version_converter.convert_version(model, OPSET)
        except Exception as error:  # the converter raises RuntimeError and worse
            raise DataError(
                f"opset {opset} cannot be brought to {OPSET}",
                where="backbone",
                fix=f"export it with opset {OPSET}",
            ) from error
    inner = model.graph
    constants = {tensor.name for tensor in inner.initializer}
    names = {one.name: x for one in inner.input if one.name not in constants}

    def renamed(name: str) -> str:
        if name and name not in names:
            names[name] = graph.fresh("backbone")
        return names[name] if name else ""

    for tensor in inner.initializer:
        tensor.name = renamed(tensor.name)
        graph.initializers.append(tensor)
    for node in inner.node:
        node.name = ""
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
        graph.nodes.append(node)
    return renamed(inner.output[0].name)


@lru_cache(maxsize=4)
def check_batches(backbone: bytes) -> None:
    """Raise DataError unless the inlined graph gives several records what each gets alone.

    A graph exported for one record may hold its shape in constants.
    """
    from onnx import TensorProto, helper

    alone: Backbone = opened(backbone)
    shape = alone.form.input_shape
    parts = NodeList()
    features = parts.add("Flatten", inline(backbone, parts, "x"), axis=1)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *rest])
        for name, rest in (("x", shape), (features, (alone.form.output_dim,)))
    ]
    graph = helper.make_graph(parts.nodes, "backbone", ends[:1], ends[1:], parts.initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    probes = np.random.default_rng(0).random((_PROBES, *shape), dtype=np.float32)
    raw = model.SerializeToString()
    check_graph(raw)
    try:
        wanted = np.stack([_features(alone, probe[None]) for probe in probes])
        found = run_session(open_session(raw), features, {"x": probes})
    except Exception:  # ONNX Runtime's own exceptions have no common root
        wanted, found = np.ones(1, np.float32), np.zeros(1)
    wanted, found = (np.nan_to_num(one, posinf=0.0, neginf=0.0) for one in (wanted, found))
    size = np.abs(wanted).max(initial=1.0)
    if found.shape != wanted.shape or not np.allclose(found / size, wanted / size, atol=_TOLERANCE):
        raise DataError(
            "gives several records other features than each alone",
            where="backbone",
            fix="export it with a free batch axis, and reshape by -1 and not by 1",
        )


def _features(backbone: Backbone, record: NDArray[np.float32]) -> NDArray[np.float32]:
    found = backbone.run(record)
    if found is None:
        raise DataError("cannot be run", where="backbone")
    return found
