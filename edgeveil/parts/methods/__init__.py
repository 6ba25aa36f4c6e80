"""Training methods, each declared by the file that implements it; see `method_context.py`."""

from __future__ import annotations

from edgeveil.parts.method_context import MethodContext as MethodContext
from edgeveil.parts.method_context import MethodParameters as MethodParameters
from edgeveil.parts.method_context import MethodPart as MethodPart
from edgeveil.parts.part import PartTable

METHODS = TABLE = PartTable(__name__, MethodPart)


def trains_model(name: str) -> bool:
    return METHODS[name].learns_on == "model"
