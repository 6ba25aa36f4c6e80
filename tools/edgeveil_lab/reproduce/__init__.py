"""Experiments of the texts, one per file; `edgeveil reproduce` runs them by name."""

from __future__ import annotations

from edgeveil.registry import Table
from edgeveil_lab.reproduce import (
    anonymous_lambda,
    delm_fig2,
    delm_fig3,
    delm_fig4,
    delm_low_quality,
    delm_table3,
    delm_table4,
    laplace_inference,
    pso_fig4_5,
    pso_fig8_9,
    pso_table2,
)
from edgeveil_lab.reproduce.base import Experiment

EXPERIMENTS: Table[Experiment] = Table(
    "experiment",
    {
        "delm-fig2": delm_fig2.EXPERIMENT,
        "delm-fig3": delm_fig3.EXPERIMENT,
        "delm-fig4": delm_fig4.EXPERIMENT,
        "delm-table3": delm_table3.EXPERIMENT,
        "delm-table4": delm_table4.EXPERIMENT,
        "delm-low-quality": delm_low_quality.EXPERIMENT,
        "anonymous-lambda": anonymous_lambda.EXPERIMENT,
        "laplace-inference": laplace_inference.EXPERIMENT,
        "pso-fig4": pso_fig4_5.FIG4,
        "pso-fig5": pso_fig4_5.FIG5,
        "pso-fig8-9": pso_fig8_9.EXPERIMENT,
        "pso-table2": pso_table2.EXPERIMENT,
    },
)
