"""FedNova: updates per local step, and apart their number (Wang et al. 2020; `fednova`).

A device uploads Δ/r and r, its number of steps relative to that of `data.nominal_records` records;
with momentum r compares the sums of the gradients' weights, ‖a‖₁. The cloud adds mean(Δ/r)·mean(r),
so that devices with many steps do not pull the model towards their own optimum. r follows from the
record count, which owners must allow; of secure sums the cloud sees only the sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.method_context import network_of
from edgeveil.parts.methods.optimizers import gradient_share, plain_steps_only
from edgeveil.parts.methods.sgd import LocalEpochs, Sgd, SgdParameters
from edgeveil.parts.round import Array, Tensors
from edgeveil.parts.stage import Task, Update
from edgeveil.parts.update import EXTRA, Float64, Server, trainer_part


class NovaServer(Server):
    extra = 1

    def absorb(
        self, state: Tensors, update: dict[str, Float64], extra: Float64, uploads: int
    ) -> dict[str, Array]:
        for name in update.keys() - network_of(self.context).statistics:
            update[name] = update[name] * extra[0]
        return {}


class Nova(Sgd):
    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return the change per nominal number of steps, and the number. Needs torch."""
        p, local = self.parameters, LocalEpochs(self.parameters, task)
        weights = local.leaves(start)
        steps = local.run(weights, p.local_epochs).count
        nominal = p.local_epochs * -(-self.context.nominal_records // p.batch_size)
        ratio = gradient_share(steps, p.momentum) / gradient_share(nominal, p.momentum)
        change, still = local.change(weights), task.network.statistics  # which are plain means
        change |= {n: one / max(ratio, 1e-9) for n, one in change.items() if n not in still}
        return change | {EXTRA: np.array([ratio])}


PART = trainer_part(
    name="fednova",
    summary="SGD whose updates are averaged per local step, for devices of unlike size; no"
    " guarantee.",
    parameters=SgdParameters,
    trainer=Nova,
    server=NovaServer,
    refuses=plain_steps_only,
    counts=True,
    source="Wang et al. 2020, eq. 9",
    needs="model; privacy.accept_unproven; the owner's policy.allow_record_counts",
    reveals="each device's update, and its number of records",
    privacy="none",
    example="train: {method: fednova, momentum: 0.9}",
)
