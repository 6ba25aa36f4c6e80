"""A training function of the user's own (`custom`), such as a script's `fit(model, loader)`.

The function is installed on the devices and allowed by their owners, as own models are. It gets a
torch.nn.Module with the broadcast weights, a DataLoader of the device's records, and the job's
`settings` as keyword arguments, with `round` if it takes one; it trains in place, or returns the
module. A device without records does not call it. Torch is seeded anew for each answer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.config.policy import FUNCTION
from edgeveil.errors import DataError
from edgeveil.parts.method_context import MethodContext, MethodParameters
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.models.network import Network
from edgeveil.parts.models.python_model import PythonNetwork
from edgeveil.parts.part import import_function
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.stage import Task, Update
from edgeveil.parts.update import trainer_part
from edgeveil.privacy.events import Event, UnprotectedEvent

if TYPE_CHECKING:
    import torch

_CALLS = Lock()  # torch's chance is the process's, and devices of one process train concurrently
_SEED_BYTES = 7


class CustomParameters(MethodParameters):
    """The `train` block of a job with `method: custom`; all of it is public."""

    method: Literal["custom"]
    """A training function of your own, installed on the devices and allowed by their owners."""
    rounds: int = Field(default=10, ge=1, le=10_000)
    """Training rounds."""
    function: str = Field(pattern=FUNCTION, max_length=256, examples=["mypackage.training:fit"])
    """`module:function`, called with (model, loader) and the `settings`."""
    batch_size: int = Field(default=32, ge=1, le=1 << 20)
    """Records of one batch of the loader, which shuffles them in every pass."""
    settings: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=64)], bool | int | float | str
    ] = Field(default={}, max_length=64, examples=[{"epochs": 1, "lr": 0.05}])
    """Further arguments of the function, by name."""

    @property
    def functions(self) -> tuple[str, ...]:
        return (self.function,)


class Custom:
    def __init__(self, parameters: CustomParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (UnprotectedEvent(what="update without noise", unit="record"),)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return the change by the function. Raises DataError for another result than a model."""
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        p, network, records = self.parameters, task.network, task.records
        if not len(records):
            return {name: array - task.weights[name] for name, array in start.items()}
        function, settings = import_function(p.function, "train.function"), dict(p.settings)
        if "round" in inspect.signature(function).parameters:
            settings["round"] = task.round.number
        processor = chosen_processor(task.processor)
        seed = int.from_bytes(task.random_bytes(_SEED_BYTES), "big")
        with _CALLS, torch.random.fork_rng():
            torch.manual_seed(seed)
            module = module_of(network)
            own, state = isinstance(network, PythonNetwork), module.state_dict()
            names = {name: network.saved_name(name) if own else name for name in start}
            for name, array in start.items():
                state[names[name]].copy_(torch.tensor(array))  # the module's own tensors
            given = _shapes(module.to(processor))
            x = torch.as_tensor(records.x / np.float32(network.input_scale)).to(processor)
            data = TensorDataset(x, torch.as_tensor(records.y).to(processor))
            loader = DataLoader(data, batch_size=p.batch_size, shuffle=True)
            found = function(module.train(), loader, **settings)
        if found is None:
            found = module
        if not isinstance(found, torch.nn.Module) or _shapes(found) != given:
            is_model = isinstance(found, torch.nn.Module)
            what = "another architecture" if is_model else f"a {type(found).__name__}"
            fix = "train the module that it got, and return it or nothing"
            raise DataError(f"{p.function} returned {what}", where="train.function", fix=fix)
        trained = {n: one.detach().float().cpu().numpy() for n, one in found.state_dict().items()}
        return {name: trained[names[name]] - task.weights[name] for name in start}


def _shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in module.state_dict().items()}


def module_of(network: Network) -> torch.nn.Module:
    """Return a network as a module for records / `input_scale`: a user's own one is copied."""
    import torch

    if isinstance(network, PythonNetwork):
        return copy.deepcopy(network.module.loaded())

    class Wrapped(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return network.logits(dict(self.named_parameters()), x * network.input_scale)

    whole = Wrapped()
    for weight in network.weights:
        *path, last = weight.name.split(".")
        inner: torch.nn.Module = whole
        for part in path:
            if not hasattr(inner, part):
                inner.add_module(part, torch.nn.Module())
            inner = getattr(inner, part)
        inner.register_parameter(last, torch.nn.Parameter(torch.zeros(weight.shape)))
    return whole


PART = trainer_part(
    name="custom",
    parameters=CustomParameters,
    trainer=Custom,
    source="the user's own code",
    needs="model; a function that owners have installed themselves; an update stage that protects,"
    " or privacy.accept_unproven",
    reveals="each device's update",
    privacy="none",
    note="`gradient_gaussian` protects the whole device",
    example='train: {method: custom, function: "mypackage.training:fit"}',
)
