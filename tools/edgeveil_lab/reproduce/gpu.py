"""Experiments that no CPU finishes in reasonable time."""

from __future__ import annotations

from edgeveil.errors import UsageError
from edgeveil.parts.methods.local_steps import chosen_processor


def require_gpu(name: str) -> None:
    """Raise UsageError unless torch finds a GPU. Needs torch."""
    if chosen_processor("auto") == "cpu":
        raise UsageError(
            f"'{name}' needs a GPU (CUDA or MPS), and torch finds none: a gradient of every record "
            "in every step would take days without",
            where="edgeveil reproduce",
            fix="run it on a machine with a GPU; --quick shows that its rows run",
        )
