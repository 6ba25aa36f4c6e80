"""Experiments of the texts, a file for each text; `edgeveil reproduce` runs them by name."""

from __future__ import annotations

from edgeveil.registry import Table
from edgeveil_lab.reproduce import anonymous_fl, delm, laplace_inference, pso, shared_noise
from edgeveil_lab.reproduce.experiment import Experiment

EXPERIMENTS: Table[Experiment] = Table(
    "experiment",
    {
        "delm-fig2": delm.FIG2,
        "delm-fig3": delm.FIG3,
        "delm-fig4": delm.FIG4,
        "delm-table3": delm.TABLE3,
        "delm-table4": delm.TABLE4,
        "delm-low-quality": delm.LOW_QUALITY,
        "anonymous-lambda": anonymous_fl.EXPERIMENT,
        "laplace-inference": laplace_inference.EXPERIMENT,
        "pso-fig4": pso.FIG4,
        "pso-fig5": pso.FIG5,
        "pso-fig8-9": pso.FIG8_9,
        "pso-table2": pso.TABLE2,
        "shared-noise": shared_noise.EXPERIMENT,
    },
)
