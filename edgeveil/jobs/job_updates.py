"""The blocks of a job whose devices upload updates of a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from edgeveil.errors import DataError, UsageError
from edgeveil.jobs.job_stages import stage_mixes
from edgeveil.parts.methods import UPDATE_METHODS
from edgeveil.parts.models import build_network
from edgeveil.settings.base import Block, Mix

if TYPE_CHECKING:
    from edgeveil.jobs.job import Job


class Proxy(Block):
    """What the proxy does with the uploads of a round."""

    shuffle: Literal["split", "whole", "none"] = "split"
    """`split`: each layer's segments are permuted alone. `whole`: a device's update stays one.

    `none`: uploads keep the order in which they came, so the cloud can tell which segments came
    together and may follow a device by when it answers; owners must allow it.
    """


def update_mixes(job: Job) -> Iterator[Mix]:
    """A model where none is trained, none where one is, or one that takes other records."""
    trains = job.train.method in UPDATE_METHODS
    if not trains:
        yield from _for_updates_alone(job)
        if not job.features and job.train.method != "noise_only":
            yield Mix(
                ("features", "train.method"),
                f"method '{job.train.method}' learns on public features; add for example "
                "`features: [{name: identity}]`",
            )
        return
    if job.features:
        yield Mix(
            ("features", "train.method"),
            f"method '{job.train.method}' trains a whole model on the records themselves; "
            "leave features out",
        )
    if job.model is None:
        yield Mix(
            ("model", "train.method"),
            f"method '{job.train.method}' trains a model and none is named; add for example "
            "`model: {name: mlp}`",
        )
        return
    try:
        build_network(job.model, job.data.input_shape, job.data.classes)
    except (DataError, UsageError) as error:
        yield Mix(("model", "data.input_shape"), f"{error.what}; {error.fix}")
        return
    yield from stage_mixes(job)


def _for_updates_alone(job: Job) -> Iterator[Mix]:
    for key, given in (
        ("model", job.model is not None),
        ("update", bool(job.update)),
        ("proxy.shuffle", job.proxy.shuffle == "whole"),
    ):
        if given:
            yield Mix(
                (key, "train.method"),
                f"is for methods that train a whole model, '{job.train.method}' does not; "
                "leave it out, or choose for example sgd",
            )
