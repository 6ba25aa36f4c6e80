"""Whether a final model can be run: its graph is checked, then it runs on made-up records."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from edgeveil.errors import DataError, EdgeVeilError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel

CHECKED = "the graph check refuses it: "  # how a reason of `try_release` begins that it gave
_TRIED_RECORDS = 8
_RECORD_NUMBERS = 1 << 24  # of one record: 64 MiB


@lru_cache(maxsize=4)
def try_release(onnx: bytes) -> str:
    """As `run_trial`, once for each model."""
    return run_trial(onnx)


def run_trial(onnx: bytes) -> str:
    """Run a model on made-up records; why it cannot be used, or "". Reads no record.

    Not in a device's own process, where it may take for ever or end it.
    """
    try:
        check_graph(onnx, released=True)
    except EdgeVeilError as error:
        return f"{CHECKED}{error}"
    try:
        model = OnnxModel(onnx)
        if model.weight_names:
            raise DataError("has no weights of its own", where="the release")
        shape = tuple(axis or 1 for axis in model.input_shape)
        if np.prod(shape, dtype=np.float64) > _RECORD_NUMBERS:
            raise DataError(f"takes records of shape {shape}", where="the release")
        chance = np.random.default_rng(0)
        for x in (np.zeros((1, *shape)), chance.normal(size=(_TRIED_RECORDS, *shape))):
            found = model.probabilities(x.astype(np.float32), {})
            sound = np.isfinite(found).all() and np.allclose(found.sum(axis=1), 1, atol=1e-3)
            if len(found) != len(x) or found.shape[1] < 2 or not sound:
                raise DataError("gives made-up records no probabilities", where="the release")
    except EdgeVeilError as error:
        return str(error)
    except Exception as error:
        return f"it cannot be run ({type(error).__name__})"
    return ""
