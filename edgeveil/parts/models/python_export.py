"""A torch.nn.Module as ONNX nodes among others."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeveil.errors import DataError
from edgeveil.parts.features.onnx_nodes import OPSET

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList
    from edgeveil.parts.models.layers import Shape
    from edgeveil.parts.models.python_model import Module

_RECORDS = 2  # of the traced batch
_PRINTS = "_jit_onnx_log"
_CHANCE = frozenset(  # operators without one value
    f"{name}{like}"
    for name in ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")
    for like in ("", "Like")
)


def exported_nodes(layer: Module, name: str, graph: NodeList, x: str, given: Shape) -> str:
    """Adds the module's nodes to `graph`; its logits' name. DataError where it has no ONNX form.

    By the TorchScript exporter: the newer one needs packages that this needs for nothing else.
    """
    import onnx

    weights = {name for name, _ in layer.parameters.weights}
    parts = onnx.load_model_from_string(_exported(layer, given)).graph
    for node in parts.node:
        if any(one.HasField("g") for one in node.attribute):
            why = f"has no plain ONNX form: a branch or a loop (operator '{node.op_type}')"
            raise layer.refused(why, "use layers that docs/models.md lists")
    _fold(parts, weights | {"x"})
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


def _fold(graph: Any, given: set[str]) -> None:
    """Put arrays in place of nodes that follow from no input, in place; `given` names the inputs.

    The exporter computes shapes and pads by steps, with operators that devices do not run.
    """
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    known = {array.name for array in graph.initializer} - given
    fixed, others = [], []
    for node in graph.node:
        same = all(name in known for name in node.input if name)
        if same and node.op_type not in _CHANCE:
            fixed.append(node)
            known.update(node.output)
        else:
            others.append(node)
    wanted = sorted(known & {name for node in others for name in node.input})
    made = {name for node in fixed for name in node.output}
    names = [name for name in wanted if name in made]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names]
    arrays = [array for array in graph.initializer if array.name not in given]
    part = helper.make_graph(fixed, "fixed", [], outputs, arrays)
    model = helper.make_model(part, opset_imports=[helper.make_opsetid("", OPSET)])
    found = ReferenceEvaluator(model).run(None, {}) if names else []
    for name, value in zip(names, found, strict=True):
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    del graph.node[:]
    graph.node.extend(others)


def _exported(layer: Module, given: Shape) -> bytes:
    import torch

    probe, file = torch.zeros(_RECORDS, *given), io.BytesIO()
    try:
        with torch.no_grad(), _plainly():
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
        first = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise layer.refused(f"{why}: {first}", "use layers that docs/models.md lists") from error
    return file.getvalue()


@contextmanager
def _plainly() -> Iterator[None]:
    """Without the exporter's talk, and without attention in one step, which has no ONNX form."""
    import torch

    fused, inner = torch.backends.mha.get_fastpath_enabled(), torch._C
    print_graph = getattr(inner, _PRINTS, None)  # of what cannot be exported, to standard output
    torch.backends.mha.set_fastpath_enabled(False)
    setattr(inner, _PRINTS, lambda *_: None)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        setattr(inner, _PRINTS, print_graph)
