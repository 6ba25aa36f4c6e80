"""A frozen backbone: any feature extractor, trained on public data, as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, model_validator

from edgeveil.errors import DataError
from edgeveil.evaluation.onnx_session import aligned
from edgeveil.parts.features.backbone import Form, backbone_path, opened, read_backbone, sha256_hex
from edgeveil.parts.features.base import Float64, MapParameters, size_of, unit_rows, usable
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from edgeveil.parts.features.onnx_nodes import NodeList


class OnnxParameters(MapParameters):
    """An `onnx` entry of a job's `features`; all of it is public.

    A file says where the backbone lies; the job that is sent names it by its digest alone, with
    what it takes and gives, so that a device can price the job before it has the backbone.
    """

    name: Literal["onnx"]
    """A frozen ONNX model whose output, at unit norm, is the features."""
    file: str | None = Field(default=None, min_length=1, max_length=4096, exclude=True)
    """Path of the model, from the job file's folder; `digits`: the encoder EdgeVeil trains."""
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
        """Fill in what `file` says, where a job file is read; nowhere else is a file opened."""
        if not isinstance(given, dict):
            return given
        if isinstance(given.get("input_form"), list):  # JSON knows no tuples
            given = {**given, "input_form": tuple(given["input_form"])}
        if not isinstance(given.get("file"), str):
            return given
        folder = (info.context or {}).get("folder")
        if folder is None:
            raise ValueError("a job that is sent names no file; submit it with edgeveil job submit")
        path = backbone_path(given["file"], Path(folder))
        try:
            filled = _facts(read_backbone(path))
        except DataError as error:
            raise ValueError(f"{path}: {error.what}; {error.fix}") from error
        for key, value in filled.items():
            if key in given and given[key] != value:
                raise ValueError(f"the file's {key} is {value}, not as given; leave {key} out")
        return {**given, **filled, "file": str(path)}

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not (self.sha256 and self.input_form and self.output_dim):
            raise ValueError("names no model; add `file: PATH`")
        return self


def _facts(graph: bytes) -> dict[str, Any]:
    """What a job says of a backbone. Raises DataError for one that cannot be used."""
    from edgeveil.parts.features.backbone_graph import check_batches

    form = opened(graph).form
    check_batches(graph)
    return {
        "sha256": sha256_hex(graph),
        "input_form": form.input_shape,
        "output_dim": form.output_dim,
    }


class OnnxMap:
    """φ(x) = f/‖f‖, f the model's output for x/input_scale; 0 where it is not finite.

    One record a run, at an aligned address, and one thread: ONNX Runtime then does the same for a
    record whatever stands beside it and wherever it stands. Without `graph` the file is read that
    the job file named, if it did.
    """

    name = "onnx"

    def __init__(self, parameters: OnnxParameters, graph: bytes | None = None) -> None:
        self.parameters = parameters
        self._graph = graph

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """What the job says; DataError unless records have as many values as the model takes."""
        wanted = self.parameters.input_form
        if size_of(input_shape) != size_of(wanted):
            raise DataError(
                f"the backbone takes {list(wanted)}, a record has the shape {list(input_shape)}",
                fix="use a backbone for records of this shape",
            )
        return self.parameters.output_dim

    @flushed()
    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) float64 of records (n, ...)."""
        found = np.zeros((len(x), self.output_dim(x.shape[1:])))
        rows, valid = usable(x)
        backbone = opened(self.graph())
        shape = (1, *self.parameters.input_form)
        with np.errstate(over="ignore"):
            scaled = rows / np.float32(self.parameters.input_scale)
        record = aligned(np.zeros(shape, np.float32))  # one place for all: as `run` would copy each
        for index in np.flatnonzero(valid):
            record[...] = scaled[index].reshape(shape)
            features = backbone.run(record)
            if features is not None and len(features) == found.shape[1]:
                found[index] = features
        return unit_rows(found)

    def onnx_nodes(self, graph: NodeList, x: str, input_shape: tuple[int, ...]) -> str:
        """The backbone itself, inlined."""
        from edgeveil.parts.features.backbone_graph import inline

        self.output_dim(input_shape)
        shaped = graph.add("Reshape", x, graph.whole(-1, *self.parameters.input_form))
        scaled = graph.add("Div", shaped, graph.number(self.parameters.input_scale))
        output = inline(self.graph(), graph, scaled)
        return graph.unit_rows(graph.add("Flatten", output, axis=1))

    def graph(self) -> bytes:
        """The backbone. Raises DataError if it is not there or not what the job says."""
        p = self.parameters
        if self._graph is None and p.file is not None:
            self._graph = read_backbone(Path(p.file))
        if self._graph is None:
            raise DataError("the backbone is not here", where=p.sha256, fix="submit it again")
        if sha256_hex(self._graph) != p.sha256:
            raise DataError("another backbone than the job names", where=p.sha256)
        if opened(self._graph).form != Form(p.input_form, p.output_dim):
            raise DataError("the backbone has another form than the job says", where=p.sha256)
        return self._graph
