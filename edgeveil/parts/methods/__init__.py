"""Training methods, each declared by the file that implements it. What a file needs for that stands
in `parts/method_context.py`, and for a method that trains the job's model in `update_method.py`."""

from __future__ import annotations

from edgeveil.parts.method_context import MethodContext, MethodParameters, MethodPart
from edgeveil.parts.part import PartTable

__all__ = ["METHODS", "MethodContext", "MethodParameters", "MethodPart", "trains_model"]

METHODS = TABLE = PartTable(__name__, MethodPart)


def trains_model(name: str) -> bool:
    """Whether a method trains the job's `model` and uploads what changed."""
    return METHODS[name].learns_on == "model"
