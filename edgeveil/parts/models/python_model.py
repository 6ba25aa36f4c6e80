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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field, ValidationInfo, model_validator
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgeveil.config.policy import FUNCTION
from edgeveil.errors import OF_OTHERS_CODE, DataError
from edgeveil.own_process import is_own, run_apart
from edgeveil.parts.features.feature_map import OPSET, NodeList
from edgeveil.parts.models.layers import Layer, Shape, Weight, row_nodes
from edgeveil.parts.models.network import START_SEED, ModelParameters, ModelPart, Network
from edgeveil.parts.part import as_tuples, import_function, omittable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from edgeveil.parts.models.layers import Tensors
    from edgeveil.privacy.sampler import RandomBytes

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
    function: str = Field(pattern=FUNCTION, max_length=256, examples=["mypackage.models:Net"])
    """`module:function` or `module:Class`; called without arguments, it returns the module."""
    weights: tuple[_Named, ...] = Field(default=(), max_length=512)
    """Names and shapes of the module's parameters, then of its `statistics`; filled in where the
    job file is read."""
    statistics: tuple[Annotated[str, Field(max_length=128)], ...] = omittable((), max_length=512)
    """Names of the running means and variances of batch normalisations among `weights`; filled in
    too."""

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
            found = json.loads(_run(weights_apart, function, {}))
        except DataError as error:
            raise ValueError(str(error)) from error
        return {**given, **as_tuples(found)}

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
        still = frozenset(self.parameters.statistics)
        return tuple(
            Weight(f"{name}.{one}", shape, statistic=one in still)
            for one, shape in self.parameters.weights
        )

    def apply(
        self, weights: Tensors, name: str, x: Tensor, training: RandomBytes | None = None
    ) -> Tensor:
        from torch.func import functional_call

        module = self.loaded()
        # Copies, so that a call that writes to a constant leaves no state.
        own = {one: value.to(x.device, copy=True) for one, value in module.named_buffers()}
        own |= {one: weights[f"{name}.{one}"] for one, _ in self.parameters.weights}
        with _CALLS, self._mode(module, training):  # devices of one process train concurrently
            found: Tensor = functional_call(module, own, (x,), strict=True)
        if found.shape != (len(x), self.classes):
            raise self.refused(f"gives {list(found.shape[1:])} a record, not [{self.classes}]")
        return found

    @contextmanager
    def _mode(self, module: torch.nn.Module, training: RandomBytes | None) -> Iterator[None]:
        """Put the module in training mode, but frozen batch normalisations; with chance given."""
        if training is None:
            yield
            return
        import torch

        from edgeveil.nn import normalises_batches

        module.train()
        if self.parameters.adapters is not None:
            for layer in filter(normalises_batches, module.modules()):
                layer.eval()
        try:
            with torch.random.fork_rng():
                torch.manual_seed(int.from_bytes(training(8)))
                yield
        finally:
            module.eval()

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        return exported_nodes(self, name, graph, x, given)

    def loaded(self) -> torch.nn.Module:
        module = loaded(self.parameters.function)
        here = tuple((name, tuple(value.shape)) for name, value in _weights(module))
        if here != self.parameters.weights:
            raise self.refused("has other weights here than in the job", "install one version")
        return module

    def refused(self, what: str, fix: str = "correct the function") -> DataError:
        return _refused(self.parameters.function, what, fix)


class PythonNetwork(Network):
    """Network whose one layer is the user's module."""

    @property
    def module(self) -> Module:
        return cast(Module, self.layers[0][1])

    def prepare(self) -> None:
        """Create the module now: its random first weights are forbidden inside a transform."""
        self.module.loaded()

    def logits(self, weights: Tensors, x: Tensor, training: RandomBytes | None = None) -> Tensor:
        return self.module.apply(weights, "module", x / self.input_scale, training)

    def saved_name(self, weight: str) -> str:
        return weight.partition(".")[2]

    def drawn(self) -> dict[str, Any]:
        parameters = self.module.parameters
        given = {"parameters": parameters.model_dump(mode="json")}
        try:
            found = load(_run(initial_apart, parameters.function, given))
        except SafetensorError as error:
            raise self.module.refused("gave no arrays") from error
        wanted = dict(parameters.weights)
        if {one: array.shape for one, array in found.items()} != wanted:
            raise self.module.refused("returned other weights than it declares")
        return {f"module.{one}": found[one] for one in wanted}


def build(parameters: PythonParameters, input_shape: Shape, classes: int) -> Network:
    layers = (("module", Module(parameters, classes)),)
    return PythonNetwork(layers, input_shape, classes, parameters.input_scale)


@lru_cache(maxsize=4)
def loaded(function: str) -> torch.nn.Module:
    """Return the module that `module:function` gives, in eval mode, of plain layers.

    Raises DataError."""
    import torch

    from edgeveil.nn import normalises_batches, plain_layers

    make = import_function(function, f"model python: {function}")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(START_SEED)
            module = make()
    except OF_OTHERS_CODE as error:  # the user's code may raise anything
        raise _refused(function, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise _refused(function, "did not give a torch.nn.Module")
    for layer in filter(normalises_batches, module.modules()):
        if layer.momentum is None:
            raise _refused(function, "has a batch normalisation without momentum", "set momentum")
        layer._buffers["num_batches_tracked"] = None  # no float32, and unused with a momentum
    wrong = [n for n, value in _weights(module) if value.dtype != torch.float32]
    if wrong or not dict(module.named_parameters()):
        raise _refused(function, "has no parameters, or some that are not float32")
    return plain_layers(module).eval()


def _weights(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters, then the statistics of batch normalisations, by name."""
    from edgeveil.nn import normalises_batches

    norms = [name for name, one in module.named_modules() if normalises_batches(one)]
    still = [(n, b) for n, b in module.named_buffers() if n.rpartition(".")[0] in norms]
    return [*module.named_parameters(), *still]


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
    found, learned = _weights(module), dict(module.named_parameters())
    answer: dict[str, Any] = {"weights": [[name, list(value.shape)] for name, value in found]}
    if still := [name for name, _ in found if name not in learned]:
        answer["statistics"] = still
    return json.dumps(answer).encode()


def initial_apart(request: bytes) -> bytes:
    found = _weights(_module_of(request, 1).loaded())
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
    shared: dict[bytes, str] = {}  # the steps of a loop bring the same constants
    for constant in parts.initializer:
        if (own := constant.name) not in weights:
            constant.name = ""
            if (same := constant.SerializeToString()) not in shared:
                shared[same] = constant.name = graph.fresh("constant")
                graph.initializers.append(constant)
            names[own] = shared[same]
    casts: dict[str, str] = {}
    for node in parts.node:
        for index, given_name in enumerate(node.input):
            node.input[index] = names[given_name]
        for index, given_name in enumerate(node.output):
            names[given_name] = node.output[index] = graph.fresh(node.op_type)
        node.name = ""
        _add_plain(node, graph, casts)
    used = {name for node in graph.nodes for name in node.input}
    graph.nodes[:] = [node for node in graph.nodes if node.output[0] not in casts.keys() - used]
    return names[parts.output[0].name]


def _add_plain(node: Any, graph: NodeList, casts: dict[str, str]) -> None:
    """Add the node, or nodes that a device runs in its place; `casts`: integers and their values.

    A lookup of int64 tokens, clipped to a table's rows, becomes one of float32 values."""
    from onnx import TensorProto, numpy_helper

    given, result = list(node.input), node.output[0]
    if node.op_type == "PRelu":
        x, slope = given
        below = graph.add("Mul", slope, graph.add("Relu", graph.add("Neg", x)))
        graph.add("Sub", graph.add("Relu", x), below, output=result)
    elif node.op_type == "Equal":
        other = graph.add("Or", graph.add("Greater", *given), graph.add("Less", *given))
        graph.add("Not", other, output=result)
    elif node.op_type == "Clip" and given[0] in casts:
        known = {one.name: one for one in graph.initializers}
        low, high = (int(numpy_helper.to_array(known[one])) for one in given[1:])
        row_nodes(graph, casts[given[0]], low, high, output=result)
    else:
        graph.nodes.append(node)
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.INT64:
            casts[result] = given[0]


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
            weights = {f"module.{name}": value for name, value in _weights(module)}
            layer.apply(weights, "module", probe)
        return exported_onnx(module, probe, "logits", weights_as_inputs=True)
    except DataError:
        raise
    except OF_OTHERS_CODE as error:  # the user's code and the exporter may raise anything
        why = f"does not take records of {list(given)} or has no ONNX form: {type(error).__name__}"
        first = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise layer.refused(f"{why}: {first}", "use layers that docs/models.md lists") from error


def exported_onnx(
    module: torch.nn.Module, probe: Tensor, output: str, *, weights_as_inputs: bool
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
