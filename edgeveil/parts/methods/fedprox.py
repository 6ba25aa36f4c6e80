"""FedProx: local SGD held near the global weights (Li et al. 2020, `fedprox`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgeveil.parts.methods.sgd import LocalSgd, Sgd
from edgeveil.parts.methods.update_method import trainer_part
from edgeveil.parts.setting import Setting


class FedProxParameters(LocalSgd):
    """The `train` block of a job with `method: fedprox`."""

    method: Literal["fedprox"] = "fedprox"
    """SGD with the proximal term ½μ‖w − w_t‖², without noise; no guarantee."""
    mu: float = Field(default=0.01, gt=0, le=1000)
    """μ: how strongly local weights are held near the global ones."""


class FedProx(Sgd):
    """Sgd with a penalty."""

    def __init__(self, parameters: FedProxParameters, setting: Setting) -> None:
        super().__init__(parameters, setting)
        self.proximal = parameters.mu


PART = trainer_part(
    parameters=FedProxParameters,
    trainer=FedProx,
    source="Li et al. 2020",
    needs="model; an update stage that protects, or privacy.accept_unproven",
    reveals="each device's update, layers shuffled among the devices",
    privacy="none",
    note="an update stage may protect it",
    example="train: {method: fedprox, mu: 0.01}",
)
