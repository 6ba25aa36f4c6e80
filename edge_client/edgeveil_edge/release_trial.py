"""Trial of a final model: its graph is checked, then it runs on made-up records."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.schema import schema_in
from edgeveil.errors import DataError, EdgeVeilError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import SCORE, VALUE, OnnxModel

CHECKED = "the graph check refuses it: "  # prefix of `try_release`'s reason if the check failed
_TRIED_RECORDS = 8
_RECORD_NUMBERS = 1 << 24  # of one record: 64 MiB


def released_session(graph: bytes, where: str) -> OnnxModel:
    """Open a model with weights. Raises DataError for a graph that may not run here."""
    check_graph(graph, released=True)
    model = OnnxModel(graph)
    if names := sorted(model.weight_names):
        fix = "use a released model"
        raise DataError(f"has no weights of its own: {names}", where=where, fix=fix)
    return model


@lru_cache(maxsize=4)
def try_release(onnx: bytes) -> str:
    return run_trial(onnx)


def run_trial(onnx: bytes) -> str:
    """Run a model on made-up records; return why it is unusable, or "". May crash the process."""
    try:
        check_graph(onnx, released=True)
    except EdgeVeilError as error:
        return f"{CHECKED}{error}"
    try:
        model = released_session(onnx, "the release")
        shape = tuple(axis or 1 for axis in model.input_shape)
        if np.prod(shape, dtype=np.float64) > _RECORD_NUMBERS:
            raise DataError(f"takes records of shape {shape}", where="the release")
        schema_in(model.metadata, model.input_shape)
        chance = np.random.default_rng(0)
        for x in (np.zeros((1, *shape)), chance.normal(size=(_TRIED_RECORDS, *shape))):
            fault = _fault(model, model.answers(x.astype(np.float32), {}))
            if fault:
                raise DataError(f"gives made-up records {fault}", where="the release")
    except EdgeVeilError as error:
        return str(error)
    except Exception as error:
        return f"it cannot be run ({type(error).__name__})"
    return ""


def _fault(model: OnnxModel, found: NDArray[np.float64]) -> str:
    if model.output == SCORE:
        return "" if (np.isfinite(found) & (found >= 0)).all() else "no scores"
    if model.output == VALUE:
        schema = schema_in(model.metadata, model.input_shape)
        if schema is None or schema.target is None:
            return "a number, and its schema gives no range"
        low, high = np.float32(schema.target.low), np.float32(schema.target.high)
        return "" if ((found >= low) & (found <= high)).all() else "no number within its range"
    sound = np.isfinite(found).all() and np.allclose(found.sum(axis=1), 1, atol=1e-3)
    return "" if found.shape[1] >= 2 and sound else "no probabilities"
