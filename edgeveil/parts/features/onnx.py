"""A frozen backbone as an ONNX file: parameters, map, inlining, and matching by digest."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, model_validator

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import aligned, open_session, run_session
from edgeveil.parts.features.feature_map import (
    OPSET,
    Artifacts,
    FeaturePart,
    Float64,
    MapParameters,
    NodeList,
    unit_rows,
    usable,
)
from edgeveil.parts.part import filled_from_file
from edgeveil.subnormals import flushed


class OnnxParameters(MapParameters):
    """An `onnx` entry of a job's `features`; a sent job has digest and form, enough for a price."""

    name: Literal["onnx"]
    """A frozen ONNX model whose output, at unit norm, is the features."""
    file: str | None = Field(default=None, min_length=1, max_length=4096, exclude=True)
    """Path of the model, from the job file's folder; `digits`: the encoder that EdgeVeil trains."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The model's digest; filled in from `file`."""
    input_form: tuple[Annotated[int, Field(ge=1, le=1 << 24)], ...] = Field(
        default=(), max_length=4, examples=[[1, 28, 28]]
    )
    """Shape that the model takes for one record; filled in from `file`."""
    output_dim: int = Field(default=0, ge=0, le=1 << 14)
    """Features that the model gives; filled in from `file`."""
    input_scale: float = Field(default=255.0, ge=1e-30, le=1e30, allow_inf_nan=False)
    """Divides the raw values before the model gets them."""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, given: Any, info: ValidationInfo) -> Any:
        return filled_from_file(given, info, _facts)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not (self.sha256 and self.input_form and self.output_dim):
            raise ValueError("names no model; add `file: PATH`")
        return self


def _facts(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = backbone_path(given["file"], folder)
    graph = read_backbone(path)
    form = opened(graph).form
    check_batches(graph)
    found = {"sha256": sha256_hex(graph), "input_form": form.input_shape}
    return {**found, "output_dim": form.output_dim, "file": str(path)}


class _OnnxMap:
    """φ(x) = f/‖f‖, f the model's output for x/input_scale; 0 if not finite.

    One aligned record per run, in one thread, so that the result is independent of the batch."""

    name = "onnx"

    def __init__(self, parameters: OnnxParameters, graph: bytes | None = None) -> None:
        self.parameters = parameters
        self._graph = graph

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        wanted = self.parameters.input_form
        if math.prod(input_shape) != math.prod(wanted):
            what = f"the backbone takes {list(wanted)}, a record has the shape {list(input_shape)}"
            raise DataError(what, fix="use a backbone for records of this shape")
        return self.parameters.output_dim

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        found = np.zeros((len(x), self.output_dim(x.shape[1:])))
        rows, valid = usable(x)
        backbone = opened(self.graph())
        shape = (1, *self.parameters.input_form)
        with np.errstate(over="ignore"):
            scaled = rows / np.float32(self.parameters.input_scale)
        record = aligned(np.zeros(shape, np.float32))  # reused: `run` would copy each record
        for index in np.flatnonzero(valid):
            record[...] = scaled[index].reshape(shape)
            features = backbone.run(record)
            if features is not None and len(features) == found.shape[1]:
                found[index] = features
        return unit_rows(found)

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        self.output_dim(input_shape)
        shaped = graph.add("Reshape", x, graph.whole(-1, *self.parameters.input_form))
        scaled = graph.add("Div", shaped, graph.number(self.parameters.input_scale))
        output = inline(self.graph(), graph, scaled)
        return graph.unit_rows(graph.add("Flatten", output, axis=1))

    def graph(self) -> bytes:
        """Return the backbone. Raises DataError if missing or different from the job's."""
        p = self.parameters
        if self._graph is None and p.file is not None:
            self._graph = read_backbone(Path(p.file))
        if self._graph is None:
            raise DataError("the backbone is not here", where=p.sha256, fix="submit it again")
        if sha256_hex(self._graph) != p.sha256:
            raise DataError("another backbone than the job names", where=p.sha256)
        if opened(self._graph).form != Form(p.input_form, p.output_dim):
            raise DataError("the backbone has another form than in the job", where=p.sha256)
        return self._graph


CACHED = ("digits",)
MAX_BACKBONE_BYTES = 32 << 20
LARGEST_OUTPUT = 1 << 14
Float32 = NDArray[np.float32]


def cached_backbone(name: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "edgeveil" / "backbones" / f"{name}.onnx"


def backbone_path(file: str, folder: Path) -> Path:
    if file in CACHED:
        return cached_backbone(file)
    return (folder / Path(file).expanduser()).resolve()


def read_backbone(path: Path) -> bytes:
    """Return the file's bytes. Raises DataError if unreadable or too large."""
    try:
        with path.open("rb") as file:
            graph = file.read(MAX_BACKBONE_BYTES + 1)
    except OSError as error:
        fix = "check the path"
        if path.stem in CACHED and path == cached_backbone(path.stem):
            fix = f"create it with `edgeveil backbone {path.stem}`"
        what = f"cannot be read ({error.strerror or error})"
        raise DataError(what, where=str(path), fix=fix) from error
    check_size(graph)
    return graph


def check_size(graph: bytes | bytearray) -> None:
    if len(graph) > MAX_BACKBONE_BYTES:
        what = f"has more than {MAX_BACKBONE_BYTES} bytes"
        raise DataError(what, where="backbone", fix="use a smaller one")


def sha256_hex(graph: bytes) -> str:
    return hashlib.sha256(graph).hexdigest()


@dataclass(frozen=True)
class Form:
    input_shape: tuple[int, ...]
    output_dim: int


class Backbone:
    """One backbone under ONNX Runtime.

    Raises DataError unless the graph has only plain layers (`check_graph`), one float32 input and
    output, a first (batch) axis that is 1 or free, and features for zeros."""

    def __init__(self, graph: bytes) -> None:
        check_size(graph)
        check_graph(graph)
        self._session = open_session(graph)
        self._input, shape = _only(self._session.get_inputs(), "input")
        self._output, _ = _only(self._session.get_outputs(), "output")
        batch, *rest = shape or [0]
        if not rest or not all(isinstance(axis, int) and axis > 0 for axis in rest):
            raise _refused(f"takes an input of shape {shape}", "fix all its axes but the first")
        if isinstance(batch, int) and batch != 1:
            raise _refused(f"takes batches of exactly {batch}", "export it with a free batch axis")
        blank = self.run(np.zeros((1, *rest), np.float32))
        if blank is None or not 1 <= blank.size <= LARGEST_OUTPUT:
            what = "cannot be run" if blank is None else f"gives {blank.size} features"
            raise _refused(f"{what} on a record of zeros", f"give 1 to {LARGEST_OUTPUT} features")
        self.form = Form(tuple(rest), int(blank.size))

    def run(self, record: Float32) -> Float32 | None:
        """Return features (d,) of one record (1, *input_shape); None if the run fails."""
        try:
            found = run_session(self._session, self._output, {self._input: aligned(record)})
        except Exception:  # ONNX Runtime's own exceptions have no common root
            return None
        return np.asarray(found, dtype=np.float32).reshape(-1)


@lru_cache(maxsize=4)
def opened(graph: bytes) -> Backbone:
    return Backbone(graph)


def _only(items: Any, what: str) -> tuple[str, list[Any]]:
    if len(items) != 1:
        raise _refused(f"has {len(items)} {what}s", f"export it with one {what}")
    if items[0].type != "tensor(float)":
        raise _refused(f"has an {what} of type {items[0].type}", "use float32")
    return str(items[0].name), list(items[0].shape)


def _refused(what: str, fix: str) -> DataError:
    return DataError(what, where="backbone", fix=fix)


_PROBES = 3
_TOLERANCE = 1e-3


def inline(backbone: bytes, graph: NodeList, x: str) -> str:
    """Add `backbone` to `graph`; return its output's name. Raises DataError if not convertible."""
    import onnx
    from onnx import version_converter

    model = onnx.load_model_from_string(backbone)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset != OPSET:
        try:
            model = version_converter.convert_version(model, OPSET)
        except Exception as error:  # the converter's exceptions have no common root
            what = f"opset {opset} cannot be brought to {OPSET}"
            raise DataError(what, where="backbone", fix=f"export it with opset {OPSET}") from error
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
    """Raise DataError unless the graph treats a batch, too, as single records."""
    alone: Backbone = opened(backbone)
    shape = alone.form.input_shape
    parts = NodeList()
    features = parts.add("Flatten", inline(backbone, parts, "x"), axis=1)
    outputs = {features: ("N", alone.form.output_dim)}
    raw = parts.model("backbone", {"x": ("N", *shape)}, outputs)
    probes = np.random.default_rng(0).random((_PROBES, *shape), dtype=np.float32)
    check_graph(raw)
    try:
        single = [one for probe in probes if (one := alone.run(probe[None])) is not None]
        both = np.stack(single), run_session(open_session(raw), features, {"x": probes})
    except Exception:  # ONNX Runtime's own exceptions have no common root
        both = np.ones(1, np.float32), np.zeros(1)
    wanted, found = (np.nan_to_num(one, posinf=0.0, neginf=0.0) for one in both)
    size = np.abs(wanted).max(initial=1.0)
    if found.shape != wanted.shape or not np.allclose(found / size, wanted / size, atol=_TOLERANCE):
        what = "gives a batch other features than its single records"
        fix = "export it with a free batch axis, and reshape by -1 and not by 1"
        raise DataError(what, where="backbone", fix=fix)


NONE: Artifacts = MappingProxyType({})
_ARTIFACTS = "backbones and weights"


def backbone_digests(entries: Iterable[Any]) -> tuple[str, ...]:
    named = (entry.sha256 for entry in entries if isinstance(entry, OnnxParameters))
    return tuple(dict.fromkeys(named))


def read_backbones(entries: Iterable[Any]) -> dict[str, bytes]:
    files = {e.sha256: e.file for e in entries if isinstance(e, OnnxParameters) and e.file}
    found = {digest: read_backbone(Path(file)) for digest, file in files.items()}
    for digest, graph in found.items():
        if sha256_hex(graph) != digest:
            raise DataError("changed while it was read", where=files[digest], fix="start again")
    return found


def match_artifacts(wanted: Iterable[str], given: Iterable[bytes]) -> dict[str, bytes]:
    """Return `given` by digest. Raises DataError unless these are exactly `wanted`."""
    found, digests = {sha256_hex(one): one for one in given}, tuple(wanted)
    if sum(map(len, found.values())) > MAX_BACKBONE_BYTES:
        raise DataError(f"have more than {MAX_BACKBONE_BYTES} bytes together", where=_ARTIFACTS)
    for digest in digests:
        if digest not in found:
            what = "the backbone, or the weights, that the job names is not here"
            fix = "submit the job file again with edgeveil job submit"
            raise DataError(what, where=digest, fix=fix)
    if len(found) > len(digests):
        raise DataError("hold one that the job does not name", where=_ARTIFACTS)
    return found


def check_backbones(entries: Iterable[Any], artifacts: Artifacts) -> None:
    """Raise DataError unless each backbone has plain layers and the job's form."""
    for entry in entries:
        if isinstance(entry, OnnxParameters):
            _OnnxMap(entry, artifacts.get(entry.sha256)).graph()


PART = FeaturePart(
    parameters=OnnxParameters,
    build=lambda parameters, found: _OnnxMap(parameters, found.get(parameters.sha256)),
    source="any public extractor, as a file",
    needs="an ONNX file that owners allow",
    example="features: [{name: onnx, file: encoder.onnx}]",
)
