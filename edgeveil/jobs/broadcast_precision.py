"""In which precision a round's model goes out to devices (`broadcast.dtype`).

float16 (11 bits, steps of 2⁻²⁴ near 0, at most 65,504) halves a package. Devices upload their
change of what they were sent, and the cloud adds it to weights of full precision, so roundings do
not add up. It has no price: a guarantee holds for any model that a round begins with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from edgeveil.jobs.job import Job
from edgeveil.parts.exchange import Tensors
from edgeveil.parts.methods import trains_model
from edgeveil.parts.stages.compression import in_half_precision
from edgeveil.settings.base import Mix

if TYPE_CHECKING:
    from edgeveil.jobs.plan import Plan


def as_sent(plan: Plan, tensors: Tensors) -> Tensors:
    """Of the cloud's tensors what goes out: weights in the job's precision, all others exactly."""
    weights = _narrow(plan)
    return {
        name: in_half_precision(array) if name in weights else array
        for name, array in tensors.items()
    }


def as_received(plan: Plan, tensors: Tensors) -> Tensors:
    """What a device takes it for: weights in float32 again."""
    weights = _narrow(plan)
    return {
        name: array.astype(np.float32) if name in weights else array
        for name, array in tensors.items()
    }


def as_learned_from(plan: Plan, tensors: Tensors) -> Tensors:
    """The cloud's tensors as devices have them."""
    return as_received(plan, as_sent(plan, tensors))


def _narrow(plan: Plan) -> frozenset[str]:
    """What does not travel in full precision."""
    network = plan.setting.network
    if plan.job.broadcast.dtype == "float32" or network is None:
        return frozenset()
    return frozenset(weight.name for weight in network.weights)


def impossible(job: Job) -> Iterator[Mix]:
    """What goes out of a method that trains no whole model are exact sums."""
    if job.broadcast.dtype != "float32" and not trains_model(job.train.method):
        yield Mix(
            ("broadcast.dtype", "train.method"),
            f"method '{job.train.method}' sends exact values out and no weights of a network; "
            "leave broadcast out, or choose for example sgd",
        )
