"""Labels where what is usual is learned: 0 for normal, any class above for anomalous; a record
without a label is learned from too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NORMAL, ANOMALOUS, UNLABELLED, UNKNOWN = 0, 1, -1, -2
NAMES = ("normal", "anomalous")
ALARM_RATE = "edgeveil.alarm_rate"
"""Property of a released model whose score above 1 is an alarm: the share of normal records that
its threshold was made for."""


def learned_from(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask (n,): normal, or without a label. Each decides alone."""
    return np.asarray((labels == NORMAL) | (labels == UNLABELLED))


def anomalous(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray(labels >= ANOMALOUS)
