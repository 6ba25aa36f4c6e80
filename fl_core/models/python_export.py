"""A torch.nn.Module as ONNX nodes among others."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from fl_core.errors import DataError
from fl_core.features.onnx_nodes import OPSET

if TYPE_CHECKING:
    from fl_core.features.onnx_nodes import NodeList
    from fl_core.models.layers import Shape
    from fl_core.models.python_model import Module

_RECORDS = 2  # of the traced batch


def exported_nodes(layer: Module, name: str, graph: NodeList, x: str, given: Shape) -> str:
    """Adds the module's nodes to `graph`; its logits' name. DataError where it has no ONNX form.

    By the TorchScript exporter: the newer one needs packages that this needs for nothing else.
    """
    import onnx

    parts = onnx.load_model_from_string(_exported(layer, given)).graph
    weights = {name for name, _ in layer.parameters.weights}
    missing = weights - {value.name for value in parts.input}
    if missing:
        raise layer.refused(f"does not use its weights {', '.join(sorted(missing))}", "remove them")
    names = {"x": x, "": "", **{weight: f"{name}.{weight}" for weight in weights}}
    for constant in parts.initializer:
        if constant.name not in weights:
            names[constant.name] = constant.name = graph.fresh("constant")
            graph.initializers.append(constant)
    for node in parts.node:
        for index, given_name in enumerate(node.input):
            node.input[index] = names[given_name]
        for index, given_name in enumerate(node.output):
            names[given_name] = node.output[index] = graph.fresh(node.op_type)
        node.name = ""
        graph.nodes += _plain(node, graph)
    return names[parts.output[0].name]


def _plain(node: Any, graph: NodeList) -> list[Any]:
    """The node, or others that do the same in a time that is the same for all values."""
    from onnx import helper

    if node.op_type != "PRelu":
        return [node]
    x, slope = node.input
    below, above, turned, sloped = (graph.fresh("PRelu") for _ in range(4))
    return [
        helper.make_node("Relu", [x], [above]),
        helper.make_node("Neg", [x], [turned]),
        helper.make_node("Relu", [turned], [below]),
        helper.make_node("Mul", [slope, below], [sloped]),
        helper.make_node("Sub", [above, sloped], list(node.output)),
    ]


def _exported(layer: Module, given: Shape) -> bytes:
    import torch

    probe, file = torch.zeros(_RECORDS, *given), io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = layer.loaded()
            weights = {f"module.{name}": value for name, value in module.named_parameters()}
            layer.apply(weights, "module", probe)
            torch.onnx.export(
                module,
                (probe,),
                file,  # type: ignore[arg-type]  # a file object, which this exporter takes
                dynamo=False,
                opset_version=OPSET,
                input_names=["x"],
                output_names=["logits"],
                dynamic_axes={"x": {0: "N"}, "logits": {0: "N"}},
                keep_initializers_as_inputs=True,
                do_constant_folding=False,
            )
    except DataError:
        raise
    except Exception as error:  # the user's code and the exporter may raise anything
        why = f"does not take records of {list(given)} or has no ONNX form: {type(error).__name__}"
        raise layer.refused(f"{why}: {error}") from error
    return file.getvalue()
