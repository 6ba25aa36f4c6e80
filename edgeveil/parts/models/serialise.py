"""An ONNX graph as checked bytes."""

from __future__ import annotations

from typing import Any

from edgeveil.parts.features.onnx_nodes import IR_VERSION, OPSET


def serialise(graph: Any) -> bytes:
    """The model of one graph; the checker's error for a graph that is none."""
    import onnx
    from onnx import helper

    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data
