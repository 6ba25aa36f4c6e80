"""Update stages that are fine alone and impossible together, or in this order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeveil.errors import PrivacyError
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.methods import METHODS
from edgeveil.parts.setting import Setting
from edgeveil.privacy.events import UnprotectedEvent
from edgeveil.settings.base import Mix

if TYPE_CHECKING:
    from edgeveil.jobs.job import Job
    from edgeveil.parts.update import Stage


def stage_mixes(job: Job) -> Iterator[Mix]:
    """What no device could do with the job's `update` list; the model is known to be possible."""
    from edgeveil.plan import JobPlan  # builds on the configuration

    plan = JobPlan(job)
    names = [entry.name for entry in job.update]
    stages = list(zip(names, plan.setting.stages, strict=True))
    for index, (name, stage) in enumerate(stages):
        at = f"update.{index}"
        if name in names[:index]:
            yield Mix((at, "update"), f"'{name}' stands twice; leave one of them out")
        if stage.leads and index:
            yield Mix(
                (at, "update"),
                f"'{name}' decides where training starts and keeps what it led to, so nothing may "
                "have changed the update yet; put it first",
            )
    noisy = [name for name, stage in stages if stage.protects]
    if len(noisy) > 1:
        yield Mix(
            ("update",),
            f"{' and '.join(noisy)} would each spend the whole of privacy.epsilon on the same "
            "update; keep one of them",
        )
    elif noisy and _noised_already(job, plan.setting):
        yield Mix(
            ("update", "train.method"),
            f"method '{job.train.method}' adds noise of its own, so '{noisy[0]}' would spend "
            "privacy.epsilon a second time; leave it out, or train with for example sgd",
        )
    if not job.privacy.accept_unproven:
        yield from _chosen_before_noise(stages)


def _noised_already(job: Job, setting: Setting) -> bool:
    device = METHODS[job.train.method].device(job.train, replace(setting, stages=()))
    try:
        alone = device.price(Exchange(1, TRAIN, 1))
    except PrivacyError:
        return True  # its own noise cannot be met
    return any(not isinstance(event, UnprotectedEvent) for event in alone)


def _chosen_before_noise(stages: Sequence[tuple[str, Stage]]) -> Iterator[Mix]:
    """Free after the noise; before it, the choice itself tells of records."""
    for index, (name, stage) in enumerate(stages):
        later = [other for other, after in stages[index + 1 :] if after.protects]
        if stage.chooses and later:
            yield Mix(
                (f"update.{index}", "update", "privacy.accept_unproven"),
                f"'{name}' chooses values before '{later[0]}' adds noise, and which it chose is "
                f"told without noise; put it after '{later[0]}', where it is free, or set "
                "privacy.accept_unproven to true",
            )
