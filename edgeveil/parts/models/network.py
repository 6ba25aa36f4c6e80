"""A trained network: layers, weights, goal, torch and ONNX forms; and files of weights.

A state_dict of PyTorch is read without running code. A job names weights by the SHA-256 of one
canonical form, safetensors with sorted names, independent of the file's format."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgeveil.errors import DataError
from edgeveil.parts.features.feature_map import NodeList
from edgeveil.parts.features.onnx import MAX_BACKBONE_BYTES, sha256_hex
from edgeveil.parts.models.heads import THRESHOLD
from edgeveil.parts.models.layers import Dense, Layer, Shape, Weight, placed
from edgeveil.parts.part import BlockPart, Keys, filled_from_file, omittable

if TYPE_CHECKING:
    from torch import Tensor

    from edgeveil.parts.features import FeatureMap
    from edgeveil.parts.models.layers import Tensors
    from edgeveil.privacy.sampler import RandomBytes


@dataclass(frozen=True)
class Classes:
    """Classification: layers give logits, the loss is the cross-entropy in nats."""

    output = "probabilities"
    inputs: tuple[str, ...] = ()

    def width(self, classes: int) -> int:
        return classes

    def loss(self, found: Tensor, given: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of outputs (n, k) for scaled inputs (n, ...), labels y (n,)."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(found, y)

    def nodes(self, graph: NodeList, found: str, given: str, shape: Shape) -> None:
        graph.add("Softmax", found, output=self.output, axis=1)


@dataclass(frozen=True)
class Reconstruction:
    """Autoencoding: loss and score (divided by the threshold) are the mean squared error."""

    output = "score"
    inputs = (THRESHOLD,)

    def width(self, classes: int) -> int:
        return 1

    def loss(self, found: Tensor, given: Tensor, y: Tensor) -> Tensor:
        return (found - given.flatten(1)).square().mean()

    def nodes(self, graph: NodeList, found: str, given: str, shape: Shape) -> None:
        flat = graph.add("Reshape", given, graph.whole(-1, math.prod(shape)))
        away = graph.add("Sub", found, flat)
        squares = graph.add("Mul", away, away)
        mean = graph.add("ReduceMean", squares, axes=[1], keepdims=1)
        graph.add("Div", mean, THRESHOLD, output=self.output)


Goal = Classes | Reconstruction
CLASSES = Classes()


START_SEED = 0  # of the first weights, which are public
_DRAWN = 1 << 16  # values drawn at a time


@dataclass(frozen=True)
class Network:
    """Logits of records of `input_shape` / `input_scale`; weights are passed by name, float32."""

    layers: tuple[tuple[str, Layer], ...]
    input_shape: Shape
    classes: int
    input_scale: float = 1.0
    goal: Goal = CLASSES
    packed: bytes | None = field(default=None, repr=False)
    """Packed state_dict of the first weights; None on a device, which receives all weights."""
    gain: float = 2.0
    """Variance of a first weight times its fan-in: 2 for ReLU, 1 for tanh."""

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Names and shapes of all weights, in order. Raises DataError for impossible shapes."""
        found: list[Weight] = []
        for name, layer, given in placed(self.layers, self.input_shape):
            found += layer.weights(name, given)
        return tuple(found)

    @cached_property
    def statistics(self) -> frozenset[str]:
        """Names of the weights without gradient, of batch normalisations."""
        return frozenset(one.name for one in self.weights if one.statistic)

    @cached_property
    def batch_norms(self) -> tuple[str, ...]:
        """Names of all weights of batch normalisations, in order."""
        layers = {name.rpartition(".")[0] for name in self.statistics}
        return tuple(one.name for one in self.weights if one.name.rpartition(".")[0] in layers)

    def prepare(self) -> None:
        """Load code that must not first run inside a transform of torch.func."""

    def initial(self) -> dict[str, NDArray[np.float32]]:
        return self.drawn() if self.packed is None else self.pretrained()

    def pretrained(self, optional: Iterable[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the state_dict's weights without `optional` ones. Raises DataError."""
        if self.packed is None:
            what = "the weights that the job names are not here"
            fix = "submit the job file again with edgeveil job submit"
            raise DataError(what, where="model.state_dict", fix=fix)
        saved = {self.saved_name(one.name): one for one in self.weights}
        wanted = {name: one.shape[::-1] if one.turned else one.shape for name, one in saved.items()}
        found = fitted(wanted, unpacked(self.packed), map(self.saved_name, optional))
        if any(array.dtype != np.float32 for array in found.values()):
            raise DataError("holds other types than float32", where="model.state_dict")
        return {
            saved[name].name: np.array(array.T if saved[name].turned else array, order="C")
            for name, array in found.items()
        }

    def drawn(self) -> dict[str, NDArray[np.float32]]:
        """Return first weights by He et al. 2015 (normal, by fan-in), the same in every job."""
        chance = np.random.default_rng(START_SEED)
        result = {}
        for weight in self.weights:
            values = np.full(math.prod(weight.shape), weight.start, np.float32)
            if weight.fan_in:
                # In blocks: float64 and its product would take four times the result's memory.
                for start in range(0, values.size, _DRAWN):
                    part = values[start : start + _DRAWN]
                    part[:] = chance.standard_normal(part.size) * np.sqrt(self.gain / weight.fan_in)
            result[weight.name] = values.reshape(weight.shape)
        return result

    def saved_name(self, weight: str) -> str:
        return weight

    def saved(self, weights: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        return {
            self.saved_name(one.name): weights[one.name].T if one.turned else weights[one.name]
            for one in self.weights
        }

    def merged(self, weights: Mapping[str, NDArray[np.generic]]) -> Mapping[str, Any]:
        return weights

    def logits(self, weights: Tensors, x: Tensor, training: RandomBytes | None = None) -> Tensor:
        """Return logits (n, classes) of x (n, *input_shape).

        A pure function of each record, for torch.func, unless `training` gives random bytes: then
        dropout drops, and batch normalisation uses the batch and moves its `statistics`."""
        x = x / self.input_scale
        for name, layer in self.layers:
            x = layer.apply(weights, name, x)
        return x

    def loss(
        self, weights: Tensors, x: Tensor, y: Tensor, training: RandomBytes | None = None
    ) -> Tensor:
        return self.goal.loss(self.logits(weights, x, training), x / self.input_scale, y)

    def graph(self, front: tuple[FeatureMap, Shape] | None = None) -> bytes:
        """Return the ONNX model: `x` (N, *input_shape) and all weights in, the goal's output out.

        With `front`, `x` is records of its shape and the network gets the map's features."""
        parts = NodeList()
        shape, x = self.input_shape, "x"
        if front is not None:
            features, shape = front
            x = features.onnx_nodes(parts, x, shape)
        scaled = x = parts.add("Div", x, parts.number(self.input_scale))
        for name, layer, given in placed(self.layers, self.input_shape):
            x = layer.nodes(parts, name, x, given)
        self.goal.nodes(parts, x, scaled, self.input_shape)

        inputs: dict[str, Sequence[int | str]] = {"x": ("N", *shape)}
        inputs |= {weight.name: weight.shape for weight in self.weights}
        inputs |= dict.fromkeys(self.goal.inputs, (1,))
        outputs = {self.goal.output: ("N", self.goal.width(self.classes))}
        return parts.model("network", inputs, outputs)


def classifier(
    layers: Iterable[tuple[str, Layer]],
    parameters: ModelParameters,
    shape: Shape,
    classes: int,
    gain: float = 2.0,
) -> Network:
    """Return the network of these layers and a dense one for the classes, `output`."""
    whole = (*layers, ("output", Dense(classes)))
    return Network(whole, shape, classes, parameters.input_scale, gain=gain)


class StateDictFile(Keys):
    file: str | None = Field(default=None, min_length=1, max_length=4096, exclude=True)
    """Path of the file, from the job file's folder."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The digest of its weights; filled in from `file`."""

    @model_validator(mode="before")
    @classmethod
    def _digested(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, str):
            given = {"file": given}
        return filled_from_file(given, info, _facts)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        whole = handler(schema)
        return {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 4096}, whole]}


def _facts(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = (folder / Path(given["file"]).expanduser()).resolve()
    return {"file": str(path), "sha256": sha256_hex(packed_state_dict(path))}


class AdapterParameters(Keys):
    """The `adapters` of a `model` block; all of it is public."""

    rank: int = Field(default=4, ge=0, le=1024)
    """r: rows of A and columns of B. 0: no adapters, only the head is trained."""
    alpha: float = Field(default=8.0, gt=0, le=1e6, allow_inf_nan=False)
    """α: an adapted weight is W + (α/r)·B·A."""
    targets: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] = Field(
        default=("*",), min_length=1, max_length=64, examples=[["hidden*.weight"]]
    )
    """Names of the weights that get an adapter, as patterns with `*`; of at least two dimensions. A
    matrix smaller than its adapter stays frozen."""
    head: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] = Field(
        default=(), max_length=64, examples=[["output.*"]]
    )
    """Names of the weights that are trained whole, as patterns with `*`; empty: the last layer."""
    head_start: Literal["state_dict", "new"] = "state_dict"
    """`new`: do not start the head from `state_dict`, which may lack it or hold another shape; for
    other classes."""


class ModelParameters(Keys):
    runs_python: ClassVar[bool] = False
    """Whether the block names code that owners must have installed and allowed."""

    name: str
    input_scale: float = Field(default=1.0, ge=1e-30, le=1e30, allow_inf_nan=False, examples=[255])
    """Divides the raw values: the largest that a value can be."""
    state_dict: StateDictFile | None = omittable(None, examples=["pretrained.safetensors"])
    """The first weights: path of a PyTorch state_dict, `.safetensors` or `.pt`, from the job file's
    folder."""
    adapters: AdapterParameters | None = omittable(None, examples=[{"rank": 4, "alpha": 8}])
    """Train only low-rank adapters and the head; the other weights of `state_dict` stay fixed."""

    @model_validator(mode="after")
    def _based(self) -> Self:
        if self.adapters is not None and self.state_dict is None:
            raise ValueError("adapters need frozen weights; add state_dict: FILE")
        return self


@dataclass(frozen=True, kw_only=True)
class ModelPart(BlockPart):
    family: ClassVar[str] = "models"
    key: ClassVar[str] = "model"
    what: ClassVar[str] = "model"
    block: ClassVar[type[BaseModel]] = ModelParameters

    build: Callable[[Any, Shape, int], Network]
    anomaly: bool = False


MAX_BYTES = MAX_BACKBONE_BYTES
_HEAD_BYTES = 8  # of safetensors: the header's length
_MOST_HEADER_BYTES = 1 << 22  # JSON takes many times its size in memory
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *_TORCH)
_COUNTER = "num_batches_tracked"  # of batch normalisations; an integer that no model here uses
_MOST_NAMES = 5  # in one error text
_SAVE = "save only the weights: torch.save(model.state_dict(), FILE)"
_FLOAT = "save model.float()'s"
_NUMPY = {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}

Arrays = dict[str, NDArray[Any]]


def packed_state_dict(path: Path) -> bytes:
    """Return the canonical bytes of a `.safetensors` or `.pt` file, without running code.

    Raises DataError for another file, one beyond MAX_BYTES, or weights that are not finite float32.
    """
    try:
        _bounded(path, path.stat().st_size)
        raw = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise _refused(path, what, "check the path") from error
    found = _from_torch(path) if path.suffix in _TORCH else _from_safetensors(raw, path)
    found = {name: one for name, one in found.items() if name.rpartition(".")[2] != _COUNTER}
    if not found:
        raise _refused(path, "holds no tensors", _SAVE)
    other = [f"{name} ({one.dtype})" for name, one in found.items() if one.dtype != np.float32]
    if other:
        raise _refused(path, f"holds other types than float32: {_some(other)}", _FLOAT)
    broken = [name for name, one in found.items() if not np.isfinite(one).all()]
    if broken:
        raise _refused(path, f"holds values that are not finite: {_some(broken)}", "train it again")
    return bytes(save({name: found[name] for name in sorted(found)}))


def unpacked(raw: bytes) -> Arrays:
    return _from_safetensors(raw, Path("model.state_dict"))


def _from_safetensors(raw: bytes, path: Path) -> Arrays:
    try:
        length = int.from_bytes(raw[:_HEAD_BYTES], "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(raw[_HEAD_BYTES : _HEAD_BYTES + length])
        types = {name: one["dtype"] for name, one in header.items() if name != "__metadata__"}
        other = [f"{name} ({kind})" for name, kind in types.items() if kind not in _NUMPY]
        if other:
            raise _refused(path, f"holds types that are not read: {_some(other)}", _FLOAT)
        return {name: np.asarray(array) for name, array in load(raw).items()}
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fix = "write it with safetensors.torch.save_file, or name a .pt file of torch.save"
        raise _refused(path, "is no safetensors file", fix) from None


def _from_torch(path: Path) -> Arrays:
    """Read by `torch.load` with `weights_only`, which creates only tensors and containers."""
    try:
        with zipfile.ZipFile(path) as file:
            size = sum(one.file_size for one in file.infolist())
    except (zipfile.BadZipFile, OSError):
        raise _refused(path, "is no file of torch.save", _SAVE) from None
    _bounded(path, size)
    try:
        import torch
    except ImportError:
        fix = "install torch, or save it as .safetensors"
        raise _refused(path, "needs torch to be read", fix) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle's, zip's and its own errors
        what = f"holds more than tensors ({type(error).__name__}), and nothing else is read"
        raise _refused(path, what, _SAVE) from None
    if not isinstance(found, Mapping):
        raise _refused(path, f"holds a {type(found).__name__}", _SAVE)
    inner = [str(name) for name, one in found.items() if not isinstance(one, torch.Tensor)]
    if inner:
        what = f"is a checkpoint, with other things than tensors: {_some(inner)}"
        raise _refused(path, what, _SAVE)
    # A view of few stored values may have any size.
    _bounded(path, sum(one.numel() * one.element_size() for one in found.values()))
    arrays = {}
    for name, tensor in found.items():
        try:
            arrays[str(name)] = np.array(tensor.detach().numpy(), order="C")
        except (TypeError, RuntimeError):  # bfloat16, sparse, quantised
            kind = str(tensor.dtype).removeprefix("torch.")
            what = f"holds a type that is not read: {name} ({kind})"
            raise _refused(path, what, _FLOAT) from None
    return arrays


def fitted(
    wanted: Mapping[str, Shape], found: Mapping[str, NDArray[Any]], optional: Iterable[str] = ()
) -> Arrays:
    """Return the `wanted` arrays of `found`. Raises DataError unless all but `optional` fit."""
    free = set(optional)
    missing = [name for name in wanted if name not in found and name not in free]
    unexpected = [name for name in found if name not in wanted and name not in free]
    sizes = [
        f"{name} is {list(found[name].shape)}, the model has {list(shape)}"
        for name, shape in wanted.items()
        if name in found and name not in free and found[name].shape != shape
    ]
    problems = [f"lacks {_some(missing)}"] if missing else []
    problems += [f"has {_some(unexpected)} that the model has not"] if unexpected else []
    problems += [_some(sizes)] if sizes else []
    if problems:
        raise DataError(
            f"does not fit the model: {'; '.join(problems)}",
            where="model.state_dict",
            fix="name the model that these weights were saved from, or save them under its names,"
            " without a wrapper's prefix, and dense ones as (out, in)",
        )
    return {name: found[name] for name in wanted if name not in free}


def _bounded(path: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise _refused(path, f"holds more than {MAX_BYTES >> 20} MiB", "use a smaller model")


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _refused(path: Path, what: str, fix: str) -> DataError:
    return DataError(what, where=str(path), fix=fix)
