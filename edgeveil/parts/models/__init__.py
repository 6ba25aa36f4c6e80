"""Models that are trained whole: one per file, one table of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgeveil.parts.models import alexnet, cnn, lenet, mlp, python_model, resnet
from edgeveil.parts.models.alexnet import AlexnetParameters
from edgeveil.parts.models.base import ModelParameters
from edgeveil.parts.models.cnn import CnnParameters
from edgeveil.parts.models.layers import Shape
from edgeveil.parts.models.lenet import LenetParameters
from edgeveil.parts.models.mlp import Mlp300100Parameters, MlpParameters
from edgeveil.parts.models.network import Network
from edgeveil.parts.models.python_model import PythonParameters
from edgeveil.parts.models.resnet import Resnet20Parameters
from edgeveil.registry import Table

__all__ = ["MODELS", "AnyModelParameters", "Model", "Network", "build_network", "runs_python"]


@dataclass(frozen=True)
class Model:
    """One entry: its parameters, and the network that they make for records of a shape."""

    parameters: type[ModelParameters]
    build: Callable[[Any, Shape, int], Network]


MODELS: Table[Model] = Table(
    "model",
    {
        "mlp": Model(MlpParameters, mlp.build),
        "mlp_300_100": Model(Mlp300100Parameters, mlp.build),
        "cnn": Model(CnnParameters, cnn.build),
        "lenet": Model(LenetParameters, lenet.build),
        "alexnet": Model(AlexnetParameters, alexnet.build),
        "resnet20": Model(Resnet20Parameters, resnet.build),
        "python": Model(PythonParameters, python_model.build),
    },
)

AnyModelParameters = (
    MlpParameters
    | Mlp300100Parameters
    | CnnParameters
    | LenetParameters
    | AlexnetParameters
    | Resnet20Parameters
    | PythonParameters
)


def build_network(parameters: AnyModelParameters, input_shape: Shape, classes: int) -> Network:
    """The network of a `model` block. Raises DataError for records that it does not take."""
    network = MODELS[parameters.name].build(parameters, input_shape, classes)
    network.weights  # noqa: B018 - shapes are checked here
    return network


def runs_python(parameters: AnyModelParameters | None) -> bool:
    """Whether a `model` block names Python code, which runs only where it is allowed."""
    return isinstance(parameters, PythonParameters)
