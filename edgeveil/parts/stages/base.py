"""What update stages share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from edgeveil.parts.exchange import Exchange
from edgeveil.parts.update import Task, Update
from edgeveil.privacy.events import Event


class StageBlock(BaseModel):
    """One entry of a job's `update` list."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Plain:
    """A stage without a price that leaves the start of training as it is."""

    protects = False
    chooses = False
    leads = False
    remembers = False

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """Nothing."""
        return ()

    def start(self, task: Task) -> dict[str, NDArray[np.float32]] | None:
        """Training starts where it would."""
        return None


def flat(update: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    """All values in a row, in the weights' order."""
    return np.concatenate([np.asarray(array, np.float64).ravel() for array in update.values()])


def shaped(update: Mapping[str, NDArray[np.float32]], values: NDArray[np.float64]) -> Update:
    """`values` (d,) in the shapes of `update`, float32."""
    result, start = {}, 0
    for name, array in update.items():
        part = values[start : start + array.size].reshape(array.shape)
        result[name] = part.astype(np.float32)
        start += array.size
    return result


def largest(values: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Which values (d,) are the largest in magnitude, a `share` of them, rounded up.

    Of equal ones the earlier.
    """
    kept = np.zeros(values.size, bool)
    count = int(np.ceil(share * values.size))
    kept[np.argsort(-np.abs(values), kind="stable")[:count]] = True
    return kept
