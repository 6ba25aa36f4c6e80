"""Training methods: one file is one name. What a file needs to be one stands in `parts/setting.py`,
and for a method that trains the job's model in `update_method.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.setting import MethodParameters, MethodPart, Setting

__all__ = ["METHODS", "MethodParameters", "MethodPart", "Setting", "trains_model"]

METHODS = TABLE = PartTable(__name__, MethodPart)


def trains_model(name: str) -> bool:
    """Whether a method trains the job's `model` and uploads what changed."""
    return METHODS[name].learns_on == "model"
