"""A user's own model (`python`): a torch.nn.Module from an installed Python package.

The code is never sent, and runs only with permission (`allowed_python_models` of a device's policy,
`allow_python_models` of the cloud). Weights and ONNX form are computed in a separate process. The
job carries names and shapes of the weights, so that it can be judged without the code."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, ValidationInfo, model_validator
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgeveil.config.policy import FUNCTION
from edgeveil.errors import OF_OTHERS_CODE, DataError
from edgeveil.own_process import is_own, run_apart
from edgeveil.parts.features.feature_map import OPSET, NodeList
from edgeveil.parts.models.layers import Layer, Shape, Weight
from edgeveil.parts.models.network import START_SEED, ModelParameters, ModelPart, Network
from edgeveil.parts.part import as_tuples, import_function

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.models.layers import Tensors

LOAD_S = 180.0  # includes the import of torch on a slow device
_CALLS = Lock()  # functional_call swaps weights inside the shared module
_Size = Annotated[int, Field(ge=1, le=1 << 24)]
_Named = tuple[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,128}$")],
    Annotated[tuple[_Size, ...], Field(max_length=8)],
]


class PythonParameters(ModelParameters):
    """The `model` block of a job with `name: python`."""

    runs_python: ClassVar[bool] = True

    name: Literal["python"]
    """Your own torch.nn.Module, installed on the devices and allowed by their owners."""
    function: str = Field(
        pattern=FUNCTION,
        max_length=256,
        examples=["mypackage.models:Net"],
    )
    """`module:function` or `module:Class`; called without arguments, it returns the module."""
    weights: tuple[_Named, ...] = Field(default=(), max_length=512)
    """Names and shapes of the module's parameters; filled in where the job file is read."""

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any, info: ValidationInfo) -> Any:
        """Query the module while a job file is read; a sent job runs no code."""
        given = as_tuples(given)
        function = given.get("function") if isinstance(given, dict) else None
        if not isinstance(function, str) or not re.match(FUNCTION, function, re.ASCII):
            return given
        if (info.context or {}).get("folder") is None:
            return given
        try:
            weights = json.loads(_run(weights_apart, function, {}))
        except DataError as error:
            raise ValueError(str(error)) from error
        return {**given, "weights": as_tuples(weights)}

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not self.weights:
            raise ValueError("names no weights; submit it with edgeveil job submit")
        return self


@dataclass(frozen=True)
class Module(Layer):
    """The user's module as one layer; its code is loaded only to train or export."""

    parameters: PythonParameters
    classes: int

    def output_shape(self, given: Shape) -> Shape:
        return (self.classes,)

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return tuple(Weight(f"{name}.{one}", shape) for one, shape in self.parameters.weights)

    def apply(self, weights: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
        from torch.func import functional_call

        own = {one: weights[f"{name}.{one}"] for one, _ in self.parameters.weights}
        module = self.loaded()
        with _CALLS:  # devices of one process train concurrently
            found: torch.Tensor = functional_call(module, own, (x,), strict=True)
        if found.shape != (len(x), self.classes):
            raise self.refused(f"gives {list(found.shape[1:])} a record, not [{self.classes}]")
        return found

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return exported_nodes(self, name, graph, x, given)

    def loaded(self) -> torch.nn.Module:
        module = loaded(self.parameters.function)
        here = tuple((name, tuple(value.shape)) for name, value in module.named_parameters())
        if here != self.parameters.weights:
            raise self.refused("has other weights here than in the job", "install one version")
        return module

    def refused(self, what: str, fix: str = "correct the function") -> DataError:
        return _refused(self.parameters.function, what, fix)


class PythonNetwork(Network):
    def prepare(self) -> None:
        """Create the module now: its random first weights are forbidden inside a transform."""
        for _, layer in self.layers:
            if isinstance(layer, Module):
                layer.loaded()

    def saved_name(self, weight: str) -> str:
        return weight.partition(".")[2]

    def drawn(self) -> dict[str, Any]:
        first: dict[str, Any] = {}
        for name, layer in self.layers:
            if isinstance(layer, Module):
                given = {"parameters": layer.parameters.model_dump(mode="json")}
                try:
                    found = load(_run(initial_apart, layer.parameters.function, given))
                except SafetensorError as error:
                    raise layer.refused("gave no arrays") from error
                wanted = dict(layer.parameters.weights)
                if {one: array.shape for one, array in found.items()} != wanted:
                    raise layer.refused("returned other weights than it declares")
                first.update({f"{name}.{one}": found[one] for one in wanted})
        return first


def build(parameters: PythonParameters, input_shape: Shape, classes: int) -> Network:
    layers = (("module", Module(parameters, classes)),)
    return PythonNetwork(layers, input_shape, classes, parameters.input_scale)


@lru_cache(maxsize=4)
def loaded(function: str) -> torch.nn.Module:
    """Return the module that `module:function` gives, in eval mode. Raises DataError."""
    import torch

    make = import_function(function, f"model python: {function}")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(START_SEED)
            module = make()
    except OF_OTHERS_CODE as error:  # the user's code may raise anything
        raise _refused(function, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise _refused(function, "did not give a torch.nn.Module")
    wrong = [n for n, value in module.named_parameters() if value.dtype != torch.float32]
    if wrong or not dict(module.named_parameters()):
        raise _refused(function, "has no parameters, or some that are not float32")
    if dict(module.named_buffers()):
        raise _refused(
            function,
            "has buffers, as batch normalisation does, which mixes records",
            "use GroupNorm or LayerNorm, and constants in place of buffers",
        )
    return module.eval()


def _refused(function: str, what: str, fix: str = "correct the function") -> DataError:
    return DataError(what, where=f"model python: {function}", fix=fix)


# Uses of the code besides training, in a separate process (`edgeveil.own_process`).


def _run(apart: Callable[[bytes], bytes], function: str, given: Mapping[str, Any]) -> bytes:
    request = json.dumps({"function": function, **given}).encode()
    if is_own():
        return apart(request)
    return _ran(f"{__name__}:{apart.__name__}", request, f"model python: {function}")


@lru_cache(maxsize=8)  # a job repeats its requests
def _ran(target: str, request: bytes, where: str) -> bytes:
    return run_apart(target, request, LOAD_S, where)


def weights_apart(request: bytes) -> bytes:
    module = loaded(json.loads(request)["function"])
    return json.dumps([[n, list(value.shape)] for n, value in module.named_parameters()]).encode()


def initial_apart(request: bytes) -> bytes:
    found = _module_of(request, 1).loaded().named_parameters()
    return bytes(save({name: value.detach().cpu().numpy().copy() for name, value in found}))


def exported_apart(request: bytes) -> bytes:
    asked = json.loads(request)
    return _exported(_module_of(request, asked["classes"]), tuple(asked["shape"]))


def _module_of(request: bytes, classes: int) -> Module:
    return Module(PythonParameters.model_validate(json.loads(request)["parameters"]), classes)


_RECORDS = 2  # of the traced batch
_PRINTS = "_jit_onnx_log"
_CHANCE = frozenset(  # operators of random output
    f"{name}{like}"
    for name in ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")
    for like in ("", "Like")
)


def exported_nodes(layer: Module, name: str, graph: NodeList, x: str, given: Shape) -> str:
    """Add the module's nodes to `graph`; return the name of its logits. Raises DataError."""
    import onnx

    weights = {name for name, _ in layer.parameters.weights}
    asked = {
        "parameters": layer.parameters.model_dump(mode="json"),
        "classes": layer.classes,
        "shape": list(given),
    }
    raw = _run(exported_apart, layer.parameters.function, asked)
    try:
        parts = onnx.load_model_from_string(raw).graph
    except ValueError as error:  # the process also ran the user's code
        raise layer.refused("gave no ONNX model") from error
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
    """Replace nodes that depend on no input by arrays: the exporter's shape computations."""
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

    probe = torch.zeros(_RECORDS, *given)
    try:
        with torch.no_grad():
            module = layer.loaded()
            weights = {f"module.{name}": value for name, value in module.named_parameters()}
            layer.apply(weights, "module", probe)
        return exported_onnx(module, probe, "logits", weights_as_inputs=True)
    except DataError:
        raise
    except OF_OTHERS_CODE as error:  # the user's code and the exporter may raise anything
        why = f"does not take records of {list(given)} or has no ONNX form: {type(error).__name__}"
        first = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise layer.refused(f"{why}: {first}", "use layers that docs/models.md lists") from error


def exported_onnx(
    module: torch.nn.Module, probe: torch.Tensor, output: str, *, weights_as_inputs: bool
) -> bytes:
    """Return the module traced on `probe` (n, …), from `x` to `output`, with a free batch axis."""
    import torch

    file = io.BytesIO()
    with torch.no_grad(), _plainly():
        torch.onnx.export(
            module,
            (probe,),
            file,  # type: ignore[arg-type]  # a file object, which this exporter takes
            dynamo=False,
            opset_version=OPSET,
            input_names=["x"],
            output_names=[output],
            dynamic_axes={"x": {0: "N"}, output: {0: "N"}},
            keep_initializers_as_inputs=weights_as_inputs,
            do_constant_folding=not weights_as_inputs,
        )
    return file.getvalue()


@contextmanager
def _plainly() -> Iterator[None]:
    """Silence the exporter, and disable fused attention, which has no ONNX form."""
    import torch

    fused, inner = torch.backends.mha.get_fastpath_enabled(), torch._C
    print_graph = getattr(inner, _PRINTS, None)  # prints unsupported graphs to standard output
    torch.backends.mha.set_fastpath_enabled(False)
    setattr(inner, _PRINTS, lambda *_: None)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        setattr(inner, _PRINTS, print_graph)


PART = ModelPart(
    parameters=PythonParameters,
    build=build,
    source="the user's own code",
    needs="a function that owners have installed themselves",
    example='model: {name: python, function: "mypackage.models:Net"}',
)
