"""SCAFFOLD: local steps corrected by control variates (Karimireddy et al. 2020; `scaffold`).

A device keeps c_i, its mean gradient of the last round it answered; c is the cloud's mean of them.
Each step follows ∇ℓ − c_i + c. The upload is (Δw, Δc_i) by option II of algorithm 1:
c_i⁺ = c_i − c − Δw/(η·‖a‖₁), where ‖a‖₁ is the number of steps, with momentum the sum of the
gradients' weights. Δw and Δc_i tell that number, and so the record count, which owners must allow.
c stays off by what a device reported that lost its state (c_i = 0), and by a Δc_i not counted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.method_context import MethodContext, size_of
from edgeveil.parts.methods.optimizers import gradient_share, plain_steps_only
from edgeveil.parts.methods.sgd import LocalEpochs, Sgd, SgdParameters
from edgeveil.parts.round import Array, Tensors
from edgeveil.parts.stage import Task, Update, flat, shaped
from edgeveil.parts.update import EXTRA, Float64, Server, trainer_part

CONTROL = "control"  # c in the broadcast, c_i in a device's memory: (d,) float32


class ScaffoldServer(Server):
    def __init__(self, parameters: SgdParameters, context: MethodContext) -> None:
        super().__init__(parameters, context)
        self.extra = size_of(context)

    def initial(self) -> dict[str, NDArray[np.float32]]:
        return {CONTROL: np.zeros(self.extra, np.float32)}

    def absorb(
        self, state: Tensors, update: dict[str, Float64], extra: Float64, uploads: int
    ) -> dict[str, Array]:
        """Move c by the mean Δc_i, times the share of the fleet that answered."""
        fleet = self.context.fleet
        share = min(1.0, uploads / fleet) if fleet else 1.0
        moved = np.asarray(state[CONTROL], np.float64) + share * extra
        return {CONTROL: moved.astype(np.float32)}


class Scaffold(Sgd):
    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return the change of the weights and of c_i, which the device keeps. Needs torch."""
        p, local = self.parameters, LocalEpochs(self.parameters, task)
        common = np.asarray(task.extra[CONTROL], np.float32)
        own = np.asarray(task.memory.get(CONTROL, np.zeros_like(common)), np.float32)
        weights, shift = local.leaves(start), shaped(start, (common - own).astype(np.float64))
        steps = local.run(weights, p.local_epochs, shift=local.fixed(shift))
        change, after = local.change(weights), own
        if steps.count:
            travelled = p.rate(task.round) * gradient_share(steps.count, p.momentum)
            after = (own - common - flat(change) / travelled).astype(np.float32)
        task.memory[CONTROL] = after
        return change | {EXTRA: after - own}


PART = trainer_part(
    name="scaffold",
    summary="SGD with every step corrected towards the fleet's mean gradient; no guarantee.",
    parameters=SgdParameters,
    trainer=Scaffold,
    server=ScaffoldServer,
    refuses=plain_steps_only,
    counts=True,
    source="Karimireddy et al. 2020, alg. 1, option II",
    needs="model; a device's memory; privacy.accept_unproven; policy.allow_record_counts;"
    " selection.min_devices as the fleet's size if not all take part",
    reveals="each device's update, change of its mean gradient, and so its number of records",
    privacy="none",
    example="train: {method: scaffold, learning_rate: 0.05}",
)
