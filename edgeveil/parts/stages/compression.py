"""Stages that shrink an upload or a download; after noise they are free post-processing.

`cast`: to the nearest float16 (IEEE 754 binary16); the cloud widens values before adding them.
`upload_top_k`: λ_u of Zhao et al. 2021; before the noise, *which* values are chosen depends on the
records. `stc`: sparse ternary compression with error feedback (Sattler et al. 2020, alg. 1 and 2),
for uploads only. `download_random`: λ_d of Zhao et al. 2021; the first round starts from all
weights."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.part import only_for, some_names
from edgeveil.parts.stage import (
    BaseStage,
    StageParameters,
    StagePart,
    Task,
    Update,
    flat,
    largest,
    shaped,
)

LARGEST = float(np.finfo(np.float16).max)


class CompressionParameters(StageParameters):
    """An entry of a job's `update` list that shrinks an upload or a download."""

    name: Literal["cast", "upload_top_k", "stc", "download_random"]
    """Which stage; `edgeveil methods` describes each."""
    share: Annotated[
        float, Field(gt=0, le=1), only_for(upload_top_k=0.1, stc=0.01, download_random=0.5)
    ] = some_names()
    """The share of all values that `upload_top_k` keeps (0.1 by default), that `stc` sends (0.01),
    or that `download_random` takes from the global model (0.5)."""


class Cast(BaseStage):
    """Rounding to float16; values are clipped to ±65,504."""

    wire = "float16"

    def apply(self, task: Task, update: Update) -> Update:
        cut = {name: np.clip(array, -LARGEST, LARGEST) for name, array in update.items()}
        return {n: array.astype(np.float16).astype(np.float32) for n, array in cut.items()}


class TopK(BaseStage):
    chooses = True

    def apply(self, task: Task, update: Update) -> Update:
        values = flat(update)
        return shaped(update, np.where(largest(values, self.parameters.share), values, 0.0))


UNSENT = "stc"  # the residual's name in the device's memory


class Stc(BaseStage):
    chooses = True
    remembers = True

    def apply(self, task: Task, update: Update) -> Update:
        values = flat(update)
        unsent = task.memory.get(UNSENT)
        if unsent is not None:
            values = values + np.asarray(unsent, np.float64)
        kept = largest(values, self.parameters.share)
        mean = float(np.abs(values[kept]).mean())
        sent = shaped(update, np.where(kept, np.sign(values) * mean, 0.0))
        task.memory[UNSENT] = (values - flat(sent)).astype(np.float32)
        return sent


OWN = "own/"  # before a weight's name in the device's memory


class DownloadRandom(BaseStage):
    """Training from a random share of the global weights, drawn anew each round."""

    leads = True

    def start(self, task: Task) -> dict[str, NDArray[np.float32]] | None:
        weights = task.weights
        if any(OWN + name not in task.memory for name in weights):
            return None
        both = flat(weights), flat({name: task.memory[OWN + name] for name in weights})
        keys = np.frombuffer(task.random_bytes(8 * both[0].size), "<u8")
        count = int(np.ceil(self.parameters.share * keys.size))
        drawn = np.zeros(keys.size, bool)
        drawn[np.argsort(keys, kind="stable")[:count]] = True
        return shaped(weights, np.where(drawn, *both))

    def apply(self, task: Task, update: Update) -> Update:
        for name, change in update.items():
            task.memory[OWN + name] = (task.weights[name] + change).astype(np.float32)
        return update


PARTS = (
    StagePart(
        name="cast",
        summary="Send values in half precision; the last of the stages.",
        settled={"dtype": "float16"},
        parameters=CompressionParameters,
        build=Cast,
        source="IEEE 754-2019, binary16",
        needs="to be the last stage; uploads that are not summed under masks",
        reveals="nothing beyond the update",
        example="update: [{name: cast}]",
    ),
    StagePart(
        name="upload_top_k",
        summary="Keep the values of largest magnitude, set the others to 0; free after a stage of"
        " noise.",
        parameters=CompressionParameters,
        build=TopK,
        source="Zhao et al. 2021, anonymous federated learning, λ_u",
        needs="to follow the noise, or privacy.accept_unproven",
        reveals="which values are largest; free after the noise",
        example="update: [{name: upload_top_k, share: 0.1}]",
    ),
    StagePart(
        name="stc",
        summary="Send the largest values as −μ or μ, the others as 0; the rest waits on the"
        " device.",
        parameters=CompressionParameters,
        build=Stc,
        source="Sattler et al. 2020, alg. 1 and 2",
        needs="to follow the noise, or privacy.accept_unproven; a device's memory",
        reveals="which values are largest, with their signs",
        example="update: [{name: stc, share: 0.01}]",
    ),
    StagePart(
        name="download_random",
        summary="Train from a random share of the global weights; the first of the stages.",
        parameters=CompressionParameters,
        build=DownloadRandom,
        source="Zhao et al. 2021, anonymous federated learning, λ_d",
        needs="to be the first stage; a device's memory",
        example="update: [{name: download_random, share: 0.5}]",
    ),
)
