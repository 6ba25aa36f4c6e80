"""The mechanisms by name: everything that adds noise to what leaves a device, or chooses.

Each takes integers (the softmax mechanism: probabilities), an event that prices the noise, or
its ε, and random bytes, and returns the noised values with their event. An audit attacks all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgeveil.privacy.duchi_mechanism import duchi_mechanism
from edgeveil.privacy.gaussian_mechanism import gaussian
from edgeveil.privacy.laplace_mechanism import laplace, softmax_laplace
from edgeveil.privacy.selection_mechanism import exponential_mechanism, report_noisy_max
from edgeveil.registry import Table

MECHANISMS: Table[Callable[..., tuple[Any, Any]]] = Table(
    "mechanism",
    {
        "gaussian": gaussian,
        "laplace": laplace,
        "softmax": softmax_laplace,
        "two_value": duchi_mechanism,
        "exponential": exponential_mechanism,
        "report_noisy_max": report_noisy_max,
    },
)
