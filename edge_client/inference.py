"""The global model on this device's own records, under ONNX Runtime. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_core.data.limits import flat_rows
from fl_core.errors import ProtocolError
from fl_core.evaluation.onnx_session import MAX_GRAPH_BYTES, OnnxModel


class InferenceSession:
    """One session for one job's graph; each round only brings new weights.

    `digest` is the graph's SHA-256 as the signed job states it. Raises
    ProtocolError("graph_size" | "graph_digest") if the bytes are not that graph, DataError if
    ONNX Runtime cannot use it.
    """

    def __init__(
        self, graph: bytes, digest: bytes, *, classes: int, max_bytes: int = MAX_GRAPH_BYTES
    ) -> None:
        if len(graph) > max_bytes:
            raise ProtocolError("graph_size", f"the graph has {len(graph)} bytes")
        if not compare_digest(sha256(graph).digest(), digest):
            raise ProtocolError("graph_digest", "the graph is not the one the job names")
        self.digest, self.classes = digest, classes
        self._model = OnnxModel(graph, max_bytes)

    def mean_softmax(
        self, x: NDArray[np.float32], weights: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float64]:
        """Mean probabilities (classes,) over records x (n, ...); non-negative, with sum 1.

        Total in the records: one that holds NaN or whose output is no distribution is dropped,
        and without any left the answer is uniform, so an upload's form never depends on data.
        Raises DataError only for a graph or weights that cannot be run on any record.
        """
        valid = np.isfinite(flat_rows(x)).all(axis=1) & self._model.fits(x)
        # One record of zeros always stands first, so that a graph that cannot run fails on an
        # empty data set too.
        blank = np.zeros((1, *(axis or 1 for axis in self._model.input_shape)), np.float32)
        batch = np.concatenate([blank, x[valid]]) if valid.any() else blank
        found = self._model.probabilities(batch, weights)[1:]
        kept = _distributions(found, self.classes)
        if not len(kept):
            return np.full(self.classes, 1.0 / self.classes)
        mean = kept.mean(axis=0)
        return np.asarray(mean / mean.sum(), dtype=np.float64)


def _distributions(found: NDArray[np.float64], classes: int) -> NDArray[np.float64]:
    """The rows of `found` that are distributions over `classes`, each with sum 1."""
    if found.shape[1] != classes:
        return np.zeros((0, classes))
    sums = found.sum(axis=1)
    sound = np.isfinite(found).all(axis=1) & (found >= 0).all(axis=1) & (np.abs(sums - 1) < 1e-3)
    return np.asarray(found[sound] / sums[sound, None])
