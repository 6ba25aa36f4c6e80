"""Training methods: one idea per file, one table of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_paper import FmPaperParameters
from edgeveil.parts.methods.fm_paper_cloud import FmPaperCloud
from edgeveil.parts.methods.fm_paper_device import FmPaperDevice
from edgeveil.parts.methods.fm_parameters import FmParameters
from edgeveil.parts.methods.noise_only import NoiseOnlyCloud, NoiseOnlyDevice, NoiseOnlyParameters
from edgeveil.parts.methods.updates.cloud import UpdateCloud
from edgeveil.parts.methods.updates.device import UpdateDevice
from edgeveil.parts.methods.updates.dp_sgd import DpSgd, DpSgdParameters
from edgeveil.parts.methods.updates.fedprox import FedProx, FedProxParameters
from edgeveil.parts.methods.updates.gep import Gep, GepParameters
from edgeveil.parts.methods.updates.output_perturbation import (
    OutputPerturbation,
    OutputPerturbationParameters,
)
from edgeveil.parts.methods.updates.pso_dp_fl import PsoDpFl, PsoDpFlParameters
from edgeveil.parts.methods.updates.pso_dp_sgd import PsoDpSgd, PsoDpSgdParameters
from edgeveil.parts.methods.updates.rgp import Rgp, RgpParameters
from edgeveil.parts.methods.updates.sgd import Sgd, SgdParameters
from edgeveil.parts.setting import Method, Setting
from edgeveil.parts.update import Trainer
from edgeveil.registry import Table

__all__ = ["METHODS", "UPDATE_METHODS", "Method", "MethodParameters"]


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
