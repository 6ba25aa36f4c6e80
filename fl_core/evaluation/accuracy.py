"""Accuracy of a model on test data that the cloud itself holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_core.errors import DataError
from fl_core.evaluation.onnx_session import OnnxModel


def accuracy_onnx(
    model: OnnxModel | bytes,
    weights: Mapping[str, NDArray[Any]],
    x: NDArray[np.float32],
    y: NDArray[np.int64],
) -> float:
    """Share in [0, 1] of records x (n, ...) whose largest probability is at label y (n,).

    A record whose output is not finite counts as wrong. Raises DataError if there is no record
    or the graph does not fit.
    """
    if len(y) == 0 or len(x) != len(y):
        raise DataError(
            f"{len(x)} records and {len(y)} labels", where="test data", fix="pass one label each"
        )
    session = model if isinstance(model, OnnxModel) else OnnxModel(model)
    found = session.probabilities(x, weights)
    right = (np.argmax(found, axis=1) == y) & np.isfinite(found).all(axis=1)
    return float(right.mean())
