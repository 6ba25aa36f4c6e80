"""Values are sent in half precision (`cast`), which halves what goes up.

Each value is rounded to the nearest float16 (IEEE 754 binary16: 11 bits of precision, steps of
2⁻²⁴ near 0, at most 65,504). What follows from the update alone tells nothing that the update does
not: after noise it is post-processing and free. The cloud widens the values again before it adds
them up.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.setting import Setting
from edgeveil.parts.update import BaseStage, StageParameters, StagePart, Task, Update

LARGEST = float(np.finfo(np.float16).max)


def in_half_precision(array: NDArray[np.generic]) -> NDArray[np.float16]:
    """Each value's nearest float16; what is larger than that holds is cut off, and stays finite."""
    cut: NDArray[np.generic] = np.clip(array, -LARGEST, LARGEST)
    return cut.astype(np.float16)


class CastParameters(StageParameters):
    """A `cast` entry of a job's `update` list."""

    name: Literal["cast"] = "cast"
    """Send values in half precision; the last of the stages."""
    dtype: Literal["float16"] = "float16"
    """The type in which values travel."""


class Cast(BaseStage):
    """Larger values are cut off at ±65,504."""

    def __init__(self, parameters: CastParameters, setting: Setting) -> None:
        self.wire = parameters.dtype

    def apply(self, task: Task, update: Update) -> Update:
        """The same, each value one that the type has."""
        return {name: in_half_precision(array).astype(np.float32) for name, array in update.items()}


PART = StagePart(
    parameters=CastParameters,
    build=Cast,
    source="IEEE 754-2019, binary16",
    needs="to be the last stage; uploads that are not summed under masks",
    reveals="nothing beyond the update",
    example="update: [{name: cast, dtype: float16}]",
)
