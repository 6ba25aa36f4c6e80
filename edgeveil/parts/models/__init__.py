"""Models that are trained whole, each declared by the file that implements it; see `network.py`."""

from __future__ import annotations

from dataclasses import replace

from edgeveil.parts.features import NONE, Artifacts
from edgeveil.parts.models.adapters import AdaptedNetwork as AdaptedNetwork
from edgeveil.parts.models.layers import Shape as Shape
from edgeveil.parts.models.network import ModelParameters as ModelParameters
from edgeveil.parts.models.network import ModelPart as ModelPart
from edgeveil.parts.models.network import Network as Network
from edgeveil.parts.part import PartTable

MODELS = TABLE = PartTable(__name__, ModelPart)


def build_network(
    parameters: ModelParameters, input_shape: Shape, classes: int, artifacts: Artifacts = NONE
) -> Network:
    """Return the network of a `model` block. Raises DataError if records or adapters do not fit."""
    network = MODELS[parameters.name].build(parameters, input_shape, classes)
    network.weights  # noqa: B018 - shapes are checked here
    if parameters.state_dict is None:
        return network
    network = replace(network, packed=artifacts.get(parameters.state_dict.sha256))
    if parameters.adapters is None:
        return network
    same = (network.layers, input_shape, classes, network.input_scale, network.goal, network.packed)
    adapted = AdaptedNetwork(*same, base=network, adapters=parameters.adapters)
    adapted.weights  # noqa: B018
    return adapted


def python_function(parameters: ModelParameters | None) -> str | None:
    if parameters is None or not parameters.runs_python:
        return None
    return str(getattr(parameters, "function", ""))


def runs_python(parameters: ModelParameters | None) -> bool:
    """Return whether a `model` block names Python code, which needs permission to run."""
    return parameters is not None and parameters.runs_python
