"""Values of a job's `local_run` block that its other half does not allow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from edgeveil.data.published import PUBLISHED
from edgeveil.errors import PrivacyError
from edgeveil.parts.models import runs_python
from edgeveil.privacy.policy import Limits, check_job
from edgeveil.settings.base import Mix
from edgeveil.sites.data import (
    dealing_mixes,
    held_back_mixes,
    partition_mixes,
    source_name,
    unread_mixes,
)

if TYPE_CHECKING:
    from edgeveil.jobs.job import Job
    from edgeveil.jobs.local_run import LocalRun

FORMS = {
    "digits": ((64,), 10),
    **{name: (PUBLISHED[name].shape, PUBLISHED[name].classes) for name in PUBLISHED},
}
"""Shape of a record and classes of the data sets that a run brings along or finds in a folder."""
_NO_LIMITS = Limits(math.inf, math.inf, math.inf, math.inf, True, True)


def run_mixes(job: Job, run: LocalRun) -> Iterator[Mix]:
    """What a run could not play: its devices, their dealing and their records."""
    wanted = job.selection.devices
    if wanted != "all" and wanted > run.devices:
        yield Mix(
            ("selection.devices", "local_run.devices"),
            f"{wanted} devices are wanted in each round but local_run plays {run.devices}; "
            "raise local_run.devices or lower selection.devices",
        )
    if job.selection.min_devices > run.devices:
        yield Mix(
            ("selection.min_devices", "local_run.devices"),
            f"the cloud waits for {job.selection.min_devices} devices but local_run plays "
            f"{run.devices}, so it would wait for ever; lower selection.min_devices",
        )
    trainers = run.devices - run.infer_only
    if trainers < 0:
        yield Mix(
            ("local_run.infer_only", "local_run.devices"),
            f"{run.infer_only} is more than the {run.devices} devices of the run; lower it",
        )
    elif job.round.min_batch > trainers:
        yield Mix(
            ("round.min_batch", "local_run.devices", "local_run.infer_only"),
            f"a batch needs {job.round.min_batch} uploads (round.min_batch) but local_run plays "
            f"{trainers} training devices, so no round could ever close; raise local_run.devices "
            "or lower round.min_batch",
        )
    yield from _source_mixes(job, run)
    split = run.partition
    if split.kind == "n_class" and split.classes_per_device > job.data.classes:
        yield Mix(
            ("local_run.partition.classes_per_device", "data.classes"),
            f"{split.classes_per_device} is more than the {job.data.classes} classes of the data; "
            f"set at most {job.data.classes}",
        )


def _source_mixes(job: Job, run: LocalRun) -> Iterator[Mix]:
    """Records that cannot be read, or files that are not."""
    source = run.data.source or job.data.source
    try:
        source_name(source)
    except ValueError as error:
        yield Mix(
            ("data.source", "local_run"),
            f"{error}; local_run.data.source may say what records of another name are read from",
        )
        yield from partition_mixes(run.partition, "local_run.partition")
    else:
        named = "data.source"
        yield from unread_mixes(run.data, source, "local_run.data", named)
        yield from dealing_mixes(run.partition, source, "local_run.partition", named)
        yield from held_back_mixes(source, run.test_records, run.test_share, "local_run", named)


def shape_mixes(job: Job) -> Iterator[Mix]:
    """A wrong form of records that the run brings along."""
    if job.local_run is None:
        return
    name = job.local_run.data.source or job.data.source
    if name not in FORMS:
        return
    shape, classes = FORMS[name]
    if job.data.input_shape != shape:
        yield Mix(
            ("data.input_shape", "data.source", "local_run"),
            f"is {list(job.data.input_shape)}, records of {name} have {list(shape)}; "
            f"write input_shape: {list(shape)}",
        )
    if job.data.classes < classes:
        yield Mix(
            ("data.classes", "data.source", "local_run"),
            f"is {job.data.classes}, {name} has {classes} classes; write classes: {classes}",
        )


def policy_mixes(job: Job, run: LocalRun) -> Iterator[Mix]:
    """Why the run's own devices would decline the job, as `edgeveil_edge.consent` judges it."""
    from edgeveil.plan import JobPlan  # builds on the configuration

    policy, method = run.policy, job.train.method
    if method not in policy.allowed_methods:
        yield _refusal("allowed_methods", f"method '{method}' is not among those allowed")
    if runs_python(job.model) and not policy.allow_python_models:
        yield _refusal("allow_python_models", "the job's model is Python code")
    budget_s = job.round.time_budget_s
    if budget_s > policy.max_budget_s:
        longest = f"{policy.max_budget_s:g} s"
        yield _refusal(
            "max_budget_s", f"round.budget_s is {budget_s:g} s, the owner's cap {longest}"
        )
    asked = job.selection.devices
    wanted = math.inf if asked == "all" else math.ceil(asked * job.selection.over_select)
    selected = min(wanted, run.devices)
    if selected < policy.min_devices:
        yield _refusal(
            "min_devices",
            f"{selected} devices are selected, the owner asks for {policy.min_devices}",
        )
    if job.proxy.shuffle == "none" and not policy.accept_unshuffled:
        yield _refusal("accept_unshuffled", "the proxy would not mix the uploads (proxy.shuffle)")
    if policy.require_cover:
        yield _refusal("require_cover", "a local run's proxy asks for no cover traffic")
    request = JobPlan(job).request(job.job)
    owner = Limits(**{one.name: getattr(policy, one.name) for one in fields(Limits)})
    try:
        check_job(request, owner, ())
    except PrivacyError:  # it names the first limit passed; a person wants them all
        for one in fields(Limits):
            alone = replace(_NO_LIMITS, **{one.name: getattr(owner, one.name)})
            try:
                check_job(request, alone, ())
            except PrivacyError as error:
                yield _refusal(one.name, error.what)


def _refusal(key: str, why: str) -> Mix:
    return Mix(
        (f"local_run.policy.{key}", "local_run.policy", "local_run"),
        f"{why}, so no device of the run would take part; change the job or local_run.policy.{key}",
    )
