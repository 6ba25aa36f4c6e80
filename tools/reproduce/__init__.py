"""Experiments of the texts, one per file; `edgeveil reproduce` runs them by name."""

from __future__ import annotations

from fl_core.registry import Table
from tools.reproduce import delm_table3, laplace_inference
from tools.reproduce.base import Experiment

EXPERIMENTS: Table[Experiment] = Table(
    "experiment",
    {
        "delm-table3": delm_table3.EXPERIMENT,
        "laplace-inference": laplace_inference.EXPERIMENT,
    },
)
