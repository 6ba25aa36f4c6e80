"""The global model on this device's own records, under ONNX Runtime. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import flat_rows
from edgeveil.data.split import EMPTY
from edgeveil.errors import DataError, ProtocolError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import MAX_GRAPH_BYTES, OnnxModel, RunLimit, aligned
from edgeveil.privacy.laplace_mechanism import probability_sum
from edgeveil.subnormals import flushed


class InferenceSession:
    """A session for one job's graph; each round only brings new weights.

    Raises ProtocolError("graph_size" | "graph_digest"), or DataError for an unfit graph."""

    def __init__(
        self, graph: bytes, digest: bytes, *, classes: int, max_bytes: int = MAX_GRAPH_BYTES
    ) -> None:
        if len(graph) > max_bytes:
            raise ProtocolError("graph_size", f"the graph has {len(graph)} bytes")
        if not compare_digest(sha256(graph).digest(), digest):
            raise ProtocolError("graph_digest", "the graph is not the one the job names")
        check_graph(graph)
        self.digest, self.classes = digest, classes
        self._model = OnnxModel(graph, max_bytes)

    def require_probabilities(
        self, x: NDArray[np.float32], weights: Mapping[str, NDArray[Any]]
    ) -> None:
        """Raise DataError unless each public record x (n, ...) gets probabilities."""
        found = self._model.probabilities(x, weights)
        if len(_distributions(found, self.classes)) < len(x):
            what = f"returns no probabilities over {self.classes} classes for made-up records"
            fix = "return finite logits, one per class"
            raise DataError(what, where="ONNX graph", fix=fix)

    @flushed()
    def summed_softmax(
        self, x: NDArray[np.float32], weights: Mapping[str, NDArray[Any]], row_s: float = math.inf
    ) -> NDArray[np.int64]:
        """Return the `probability_sum` (classes,) over records x (n, ...).

        A record's addend depends on itself alone, bit for bit; NaN, a failed run, one longer than
        `row_s` seconds and invalid probabilities add 0. Raises DataError only if a zero record
        fails."""
        return probability_sum(self._softmax(x, weights, np.arange(len(x)), 0.0, row_s))

    def _softmax(
        self,
        x: NDArray[np.float32],
        weights: Mapping[str, NDArray[Any]],
        held: NDArray[np.int64],
        otherwise: float,
        row_s: float,
    ) -> NDArray[np.float64]:
        rows = np.full((len(held), self.classes), otherwise)
        finite = np.append(np.isfinite(flat_rows(x)).all(axis=1), False)  # last: for EMPTY
        for place, output in self._single(x, weights, held, row_s):
            found = _distributions(output, self.classes)
            if finite[held[place]] and len(found):
                rows[place] = found[0]
        return rows

    def _single(
        self,
        x: NDArray[np.float32],
        weights: Mapping[str, NDArray[Any]],
        held: Iterable[int],
        row_s: float,
        width: int | None = None,
    ) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield (index in `held`, output (1, k)) of one run per record; EMPTY runs zeros.

        Each run has one record at an aligned address, as neighbours could change the order of sums.
        A run that fails or takes longer than `row_s` yields nothing. Raises DataError if a zero
        record fails."""
        weights = {name: aligned(np.asarray(value)) for name, value in weights.items()}
        run = self._model.probabilities if width is None else self._model.answers
        blank = np.zeros((1, *(axis or 1 for axis in self._model.input_shape)), np.float32)
        given = run(blank, weights).shape[1]
        if width is not None and given != width:
            raise DataError(f"gives no {width} values a record", where="ONNX graph")
        with RunLimit(row_s) as limit:
            for place, index in enumerate(held):
                record = blank if index == EMPTY else x[index : index + 1]
                try:
                    output = run(np.asarray(record, np.float32), weights, limit=limit)
                except Exception:  # noqa: S112 - caused by this record, affects its row alone
                    continue
                yield place, output

    @flushed()
    def slot_softmax(
        self,
        x: NDArray[np.float32],
        weights: Mapping[str, NDArray[Any]],
        held: NDArray[np.int64],
        row_s: float = math.inf,
    ) -> NDArray[np.float64]:
        """Return probabilities (slots, classes) of records `held`; uniform for an empty slot."""
        return self._softmax(x, weights, held, 1.0 / self.classes, row_s)

    @flushed()
    def single_outputs(
        self,
        x: NDArray[np.float32],
        weights: Mapping[str, NDArray[Any]],
        width: int,
        row_s: float = math.inf,
    ) -> NDArray[np.float64]:
        """Return the output (n, width) for each record of x (n, ...) alone; NaN if it fails."""
        rows = np.full((len(x), width), np.nan)
        for index, output in self._single(x, weights, range(len(x)), row_s, width):
            rows[index] = output[0]
        return rows


def _distributions(found: NDArray[np.float64], classes: int) -> NDArray[np.float64]:
    """Return the rows of `found` that are distributions over `classes`, each scaled to sum 1."""
    if found.shape[1] != classes:
        return np.zeros((0, classes))
    sums = found.sum(axis=1)
    sound = np.isfinite(found).all(axis=1) & (found >= 0).all(axis=1) & (np.abs(sums - 1) < 1e-3)
    return np.asarray(found[sound] / sums[sound, None])
