"""Training methods, each declared by its file; see `parts/method_context.py` and, for those that
train the job's model, `update_method.py`."""

from __future__ import annotations

from edgeveil.parts.method_context import MethodContext, MethodParameters, MethodPart
from edgeveil.parts.part import PartTable

__all__ = ["METHODS", "MethodContext", "MethodParameters", "MethodPart", "trains_model"]

METHODS = TABLE = PartTable(__name__, MethodPart)


def trains_model(name: str) -> bool:
    """Whether a method trains the job's `model` and uploads what changed."""
    return METHODS[name].learns_on == "model"
