"""Frozen feature extractors as ONNX files: what they take and give, and where they lie."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import aligned, open_session, run_session

CACHED = ("digits",)
MAX_BACKBONE_BYTES = 32 << 20
LARGEST_OUTPUT = 1 << 14
Float32 = NDArray[np.float32]


def cached_backbone(name: str) -> Path:
    """Where this user's copy of a backbone that EdgeVeil trains itself lies, present or not."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "edgeveil" / "backbones" / f"{name}.onnx"


def backbone_path(file: str, folder: Path) -> Path:
    """The file that a job's `file` means: a cached backbone's name, or a path from `folder`."""
    if file in CACHED:
        return cached_backbone(file)
    return (folder / Path(file).expanduser()).resolve()


def read_backbone(path: Path) -> bytes:
    """The file's bytes. Raises DataError if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            graph = file.read(MAX_BACKBONE_BYTES + 1)
    except OSError as error:
        fix = "check the path"
        if path.stem in CACHED and path == cached_backbone(path.stem):
            fix = f"make it with `edgeveil backbone train {path.stem}`"
        raise DataError(
            f"cannot be read ({error.strerror or error})", where=str(path), fix=fix
        ) from error
    check_size(graph)
    return graph


def check_size(graph: bytes | bytearray) -> None:
    """Raise DataError for a backbone over `MAX_BACKBONE_BYTES`."""
    if len(graph) > MAX_BACKBONE_BYTES:
        raise DataError(
            f"has more than {MAX_BACKBONE_BYTES} bytes", where="backbone", fix="use a smaller one"
        )


def sha256_hex(graph: bytes) -> str:
    """The digest under which jobs and policies name a backbone."""
    return hashlib.sha256(graph).hexdigest()


@dataclass(frozen=True)
class Form:
    """What a backbone takes and gives for one record: shapes without the batch axis."""

    input_shape: tuple[int, ...]
    output_dim: int


class Backbone:
    """One backbone under ONNX Runtime, run on one record at a time with one thread.

    Each record is handed over at an aligned address. So its features can depend neither on the
    batch nor on where the record stands in it. Raises DataError unless the bytes are plain layers
    (`check_graph`) with one float32 input and one float32 output, a batch axis of 1 or any size
    first, and give features for a record of zeros.
    """

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
        """Features (d,) of one record (1, *input_shape); None where the run fails."""
        try:
            found = run_session(self._session, self._output, {self._input: aligned(record)})
        except Exception:  # ONNX Runtime's own exceptions have no common root
            return None
        return np.asarray(found, dtype=np.float32).reshape(-1)


@lru_cache(maxsize=4)
def opened(graph: bytes) -> Backbone:
    """The backbone of these bytes, opened once in a process."""
    return Backbone(graph)


def _only(items: Any, what: str) -> tuple[str, list[Any]]:
    if len(items) != 1:
        raise _refused(f"has {len(items)} {what}s", f"export it with one {what}")
    if items[0].type != "tensor(float)":
        raise _refused(f"has an {what} of type {items[0].type}", "use float32")
    return str(items[0].name), list(items[0].shape)


def _refused(what: str, fix: str) -> DataError:
    return DataError(what, where="backbone", fix=fix)
