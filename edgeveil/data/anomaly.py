"""Labels of anomaly detection: 0 for normal, classes above for anomalous, -1 for unlabelled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NORMAL, ANOMALOUS, UNLABELLED, UNKNOWN = 0, 1, -1, -2
NAMES = ("normal", "anomalous")
ALARM_RATE = "edgeveil.alarm_rate"
"""Property of a released anomaly model: the alarm rate on normal records behind its threshold."""


def learned_from(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (n,) of training records: normal or unlabelled."""
    return np.asarray((labels == NORMAL) | (labels == UNLABELLED))


def anomalous(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray(labels >= ANOMALOUS)
