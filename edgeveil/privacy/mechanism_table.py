"""The mechanisms by name, as the audit attacks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgeveil.privacy.duchi_mechanism import duchi_mechanism
from edgeveil.privacy.gaussian_mechanism import gaussian
from edgeveil.privacy.laplace_mechanism import laplace, softmax_laplace
from edgeveil.privacy.selection_mechanism import exponential_mechanism
from edgeveil.registry import Table

MECHANISMS: Table[Callable[..., tuple[Any, Any]]] = Table(
    "mechanism",
    {
        "gaussian": gaussian,
        "laplace": laplace,
        "softmax": softmax_laplace,
        "two_value": duchi_mechanism,
        "exponential": exponential_mechanism,
    },
)
