"""Methods with weights that a device keeps to itself: `fedbn`, `fedrep` and `ditto`.

`fedbn` (Li et al. 2021): the layers of normalisation stay. `fedrep` (Collins et al. 2021, alg. 1):
the head stays; a round trains it on the broadcast body, then the body under it. `ditto` (Li et al.
2021, alg. 1): the shared model is FedAvg's, and a whole model of the device's own is trained beside
it, held near the broadcast one by ½μ‖v − w_t‖².

Own weights lie in the device's state of the job. Rounds of evaluation count with them, and
`edgeveil edge personalise` puts them into the release. They never leave the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.method_context import MethodContext, network_of
from edgeveil.parts.methods.optimizers import local_refusals
from edgeveil.parts.methods.sgd import LocalEpochs, Sgd, SgdParameters
from edgeveil.parts.models.adapters import AdaptedNetwork
from edgeveil.parts.round import PERSONAL
from edgeveil.parts.stage import Task, Update
from edgeveil.parts.update import trainer_part


class FedRep(Sgd):
    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return the change after epochs of the head, then of the body. Needs torch."""
        p, local = self.parameters, LocalEpochs(self.parameters, task)
        head, weights = self.context.local, local.leaves(start)
        local.run(weights, p.head_epochs, trained=head)
        local.run(weights, p.local_epochs, trained=[name for name in weights if name not in head])
        return local.change(weights)


class Ditto(Sgd):
    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return the shared model's change, and train the device's own model. Needs torch."""
        p, memory, own = self.parameters, task.memory, dict[str, NDArray[np.float32]]()
        for name, array in task.weights.items():
            own[name] = np.asarray(memory.get(PERSONAL + name, array), np.float32)
        local = LocalEpochs(p, task)
        weights = local.leaves(own)
        local.run(weights, p.local_epochs, pull=p.mu)
        found = {name: value.detach().cpu().numpy() for name, value in weights.items()}
        if all(np.isfinite(value).all() for value in found.values()):
            memory |= {PERSONAL + name: value for name, value in found.items()}
        return super().train(task, start)


def refusals(block: SgdParameters, context: MethodContext) -> Iterator[tuple[tuple[str, ...], str]]:
    yield from local_refusals(block, context)
    network, local = network_of(context), context.local
    names = [one.name for one in network.weights]
    if block.method != "ditto" and len(local) in (0, len(names)):
        text = f"names {'all' if local else 'none'} of the model's weights, {', '.join(names)}"
        yield ("train.local", "train.method", "model"), f"{text}; name those that stay"
    base = network.base.weights if isinstance(network, AdaptedNetwork) else network.weights
    if not {one.name for one in base}.issuperset(local or names):
        text = "releases hold merged weights, in which a device's own adapters have no place; name"
        yield ("model.adapters", "train.local", "train.method"), f"{text} weights of the head only"


_part = partial(
    trainer_part,
    parameters=SgdParameters,
    refuses=refusals,
    personal=True,
    needs="model; a device's memory; an update stage that protects, or privacy.accept_unproven",
    privacy="none",
    note="an update stage may protect what is shared",
)
PARTS = (
    _part(
        name="fedbn",
        summary="SGD of all weights, of which those of normalisation stay on the device.",
        trainer=Sgd,
        source="Li et al. 2021 (FedBN)",
        reveals="each device's update of the other weights",
        example='train: {method: fedbn, local: ["*norm*"]}',
    ),
    _part(
        name="fedrep",
        summary="SGD of a head that stays on the device, then of the shared body under it.",
        trainer=FedRep,
        source="Collins et al. 2021, alg. 1",
        reveals="each device's update of the body",
        example="train: {method: fedrep, head_epochs: 5}",
    ),
    _part(
        name="ditto",
        summary="FedAvg, and beside it a model of each device's own, held near the shared one.",
        trainer=Ditto,
        source="Li et al. 2021 (Ditto), alg. 1",
        reveals="each device's update of the shared model",
        example="train: {method: ditto, mu: 0.1}",
    ),
)
