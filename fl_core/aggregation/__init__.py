"""Aggregation rules: one idea per file, one table of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fl_core.aggregation import fedavg
from fl_core.registry import Table

__all__ = ["AGGREGATIONS", "Aggregation"]

Aggregation = Callable[
    [Mapping[str, Sequence[NDArray[np.generic]]]], dict[str, NDArray[np.float64]]
]

AGGREGATIONS: Table[Aggregation] = Table("aggregation", {"fedavg": fedavg.mean})
