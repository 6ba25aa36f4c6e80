"""Aggregation rules that a job's method, devices or proxy leave no room for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgeveil.parts.aggregation import AGGREGATIONS
from edgeveil.parts.exchange import TRAIN
from edgeveil.parts.methods import UPDATE_METHODS
from edgeveil.settings.base import Mix

if TYPE_CHECKING:
    from edgeveil.jobs.job import Job
    from edgeveil.plan import JobPlan


def aggregation_mixes(job: Job, plan: JobPlan) -> Iterator[Mix]:
    """A rule that is undefined on what devices upload, or needs more uploads than can come."""
    rule, name = plan.rule, job.aggregation.name
    train = next(one for one in plan.planned if one.phase == TRAIN)
    if not rule.sums and plan.cloud.aim(plan.cloud.initial_state(), train) is None:
        others = [one for one in AGGREGATIONS if AGGREGATIONS[one].rule.sums]
        yield Mix(
            ("aggregation.name", "train.method"),
            f"'{name}' compares updates of weights, and is undefined on the noised sums that"
            f" method '{job.train.method}' uploads; use {', '.join(others)}, or another method",
        )
    elif rule.whole and len(plan.cloud.segments(train)) > 1:
        way = "set proxy.shuffle to whole" if job.train.method in UPDATE_METHODS else "use fedavg"
        yield Mix(
            ("aggregation.name", "proxy.shuffle"),
            f"'{name}' compares whole updates, but the proxy shuffles layer by layer, so the cloud "
            f"cannot tell which layers belong together; {way}",
        )
    if rule.least > max(job.round.min_batch, most := _most(job)):
        yield Mix(
            ("aggregation.k", "aggregation.malicious", "aggregation", "selection.devices"),
            f"'{name}' needs {rule.least} uploads as it is set, and at most {most:.0f} can come in "
            "a round; ask for fewer, or select more devices",
        )
    run, scored = job.local_run, rule.validation_records
    if run is not None and run.test_records is not None and 0 < run.test_records <= scored:
        yield Mix(
            ("aggregation.validation_records", "local_run.test_records"),
            f"{scored} records score uploads and others test the model, but there are "
            f"{run.test_records}; ask for fewer, or raise local_run.test_records",
        )


def _most(job: Job) -> float:
    """The most uploads that a round can have; infinite where that is for the site to say."""
    asked, run = job.selection.devices, job.local_run
    selected = math.inf if asked == "all" else math.ceil(asked * job.selection.over_select)
    return selected if run is None else min(selected, run.devices - run.infer_only)
