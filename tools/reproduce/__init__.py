"""Experiments of the texts, one per file; `edgeveil reproduce` runs them by name."""

from __future__ import annotations

from fl_core.registry import Table
from tools.reproduce import (
    delm_fig2,
    delm_fig3,
    delm_fig4,
    delm_low_quality,
    delm_table3,
    delm_table4,
    laplace_inference,
)
from tools.reproduce.base import Experiment

EXPERIMENTS: Table[Experiment] = Table(
    "experiment",
    {
        "delm-fig2": delm_fig2.EXPERIMENT,
        "delm-fig3": delm_fig3.EXPERIMENT,
        "delm-fig4": delm_fig4.EXPERIMENT,
        "delm-table3": delm_table3.EXPERIMENT,
        "delm-table4": delm_table4.EXPERIMENT,
        "delm-low-quality": delm_low_quality.EXPERIMENT,
        "laplace-inference": laplace_inference.EXPERIMENT,
    },
)
