"""Training methods: one idea per file, one table of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fl_core.algorithms.fm import FmCloud, FmDevice
from fl_core.algorithms.fm_paper import FmPaperParameters
from fl_core.algorithms.fm_paper_cloud import FmPaperCloud
from fl_core.algorithms.fm_paper_device import FmPaperDevice
from fl_core.algorithms.fm_parameters import FmParameters
from fl_core.algorithms.noise_only import NoiseOnlyCloud, NoiseOnlyDevice, NoiseOnlyParameters
from fl_core.algorithms.setting import Method, Setting
from fl_core.algorithms.updates.base import Trainer
from fl_core.algorithms.updates.cloud import UpdateCloud
from fl_core.algorithms.updates.device import UpdateDevice
from fl_core.algorithms.updates.dp_sgd import DpSgd, DpSgdParameters
from fl_core.algorithms.updates.fedprox import FedProx, FedProxParameters
from fl_core.algorithms.updates.gep import Gep, GepParameters
from fl_core.algorithms.updates.output_perturbation import (
    OutputPerturbation,
    OutputPerturbationParameters,
)
from fl_core.algorithms.updates.pso_dp_fl import PsoDpFl, PsoDpFlParameters
from fl_core.algorithms.updates.pso_dp_sgd import PsoDpSgd, PsoDpSgdParameters
from fl_core.algorithms.updates.rgp import Rgp, RgpParameters
from fl_core.algorithms.updates.sgd import Sgd, SgdParameters
from fl_core.registry import Table

__all__ = ["METHODS", "UPDATE_METHODS", "Method", "MethodParameters", "Setting"]


def _updates(parameters: type[Any], trainer: Callable[[Any, Setting], Trainer]) -> Method:
    """A method that trains a whole network and uploads its update."""
    return Method(parameters, lambda p, s: UpdateDevice(trainer(p, s), s), UpdateCloud)


METHODS: Table[Method] = Table(
    "method",
    {
        "fm": Method(FmParameters, FmDevice, FmCloud),
        "fm_paper": Method(FmPaperParameters, FmPaperDevice, FmPaperCloud),
        "sgd": _updates(SgdParameters, Sgd),
        "fedprox": _updates(FedProxParameters, FedProx),
        "dp_sgd": _updates(DpSgdParameters, DpSgd),
        "output_perturbation": _updates(OutputPerturbationParameters, OutputPerturbation),
        "pso_dp_sgd": _updates(PsoDpSgdParameters, PsoDpSgd),
        "pso_dp_fl": _updates(PsoDpFlParameters, PsoDpFl),
        "gep": _updates(GepParameters, Gep),
        "rgp": _updates(RgpParameters, Rgp),
        "noise_only": Method(NoiseOnlyParameters, NoiseOnlyDevice, NoiseOnlyCloud),
    },
)

MethodParameters = (
    FmParameters
    | FmPaperParameters
    | SgdParameters
    | FedProxParameters
    | DpSgdParameters
    | OutputPerturbationParameters
    | PsoDpSgdParameters
    | PsoDpFlParameters
    | GepParameters
    | RgpParameters
    | NoiseOnlyParameters
)

UPDATE_METHODS: frozenset[str] = frozenset(
    name for name in METHODS if METHODS[name].cloud is UpdateCloud
)
"""Methods that train the job's `model` and upload what changed."""
