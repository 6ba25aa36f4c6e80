"""The `local_run` key of a job file: a whole fleet on one machine, hidden from devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from edgeveil import plugins
from edgeveil.config.base import Block, ImpossibleMixError, Mix, SitePath
from edgeveil.config.data import (
    DataFiles,
    Partition,
    SourceName,
    dealing_mixes,
    held_back_mixes,
    partition_mixes,
    source_name,
    unread_mixes,
)
from edgeveil.config.explain import Schema
from edgeveil.config.file import judged, read
from edgeveil.config.policy import AllowedPlugin, AllowedPythonModel, Policy
from edgeveil.config.site_files import load_policy
from edgeveil.errors import PrivacyError
from edgeveil.jobs import Job, KnownFleet, Plan, compile_job, job_schema, job_tree
from edgeveil.jobs.artifacts import carried_digests
from edgeveil.parts.aggregation import build_rule
from edgeveil.parts.partitions.dealing import needs_classes
from edgeveil.parts.sources import guessed_header
from edgeveil.privacy.one_run_audit import LEAST_CANARIES
from edgeveil.privacy.policy import Limits, check_job
from edgeveil.selection import how_many
from edgeveil_edge.consent import limits_of, refusals, too_few

_NO_LIMITS = Limits(math.inf, math.inf, math.inf, math.inf, True, True, math.inf, math.inf)
_ANY_EPSILON = 1e15  # of an owner in a simulation, who allows every job


class RunData(DataFiles):
    """The user's own records; not needed for digits and published sets in a usual place."""

    source: SourceName | None = Field(default=None, max_length=300, examples=["csv"])
    """Source of the records, as in a site file; null: the job's `data.source`. `images` without a
    form have that of `data.input_shape`."""
    test_path: SitePath | None = None
    """A separate file for the cloud's test, in the form of `path`, of which no record is then held
    back."""


class Audit(Block):
    """A lower bound on ε, measured in a simulated run on public records."""

    canaries: int = Field(ge=LEAST_CANARIES, le=10_000, examples=[1000])
    """Devices, from the first, that hold a canary and no records; the bound needs hundreds."""


class LocalRun(Block):
    """Settings of `edgeveil run` on this machine; omitted from a submitted job."""

    devices: int = Field(default=20, ge=1, le=10000)
    """Devices to play, each with its own keys, connection and records."""
    workers: int | None = Field(default=None, ge=0, le=256, examples=[2])
    """Processes that host the devices; null: 2, in a simulation one for each processor. 0: simulate
    in the calling process, without the second or two that starting one takes."""
    seed: int = Field(default=7, ge=0, lt=1 << 63)
    """Seed of the partition, and where `simulate` is true of the noise. Never of keys."""
    simulate: bool = False
    """Play the job in memory, without brokers and encryption, the noise seeded."""
    ray_address: str | None = Field(default=None, max_length=300, examples=["10.0.0.1:6379"])
    """HOST:PORT of a Ray cluster that simulates, or `local` for a Ray that is started for the run;
    null: worker processes of this machine."""
    data: RunData = RunData()
    """Records that are dealt to the devices."""
    infer_only: int = Field(default=0, ge=0, le=10000)
    """Number of devices with the role `infer`, which only take part in evaluation."""
    partition: Partition = Partition()
    """How the records are dealt to the devices."""
    test_records: int | None = Field(default=None, ge=1, le=10**9)
    """Records that no device gets and the cloud tests on, of digits and published sets; null: 360
    of digits, all of a published test half."""
    test_share: float | None = Field(default=None, ge=0, lt=1, examples=[0.2])
    """Share of your own files' records for the cloud's test, selected by a hash of each record;
    null: a fifth."""
    test_folds: int | None = Field(default=None, ge=2, le=1000, examples=[5])
    """Number of folds in place of a share; the run's seed selects the one held back. `edgeveil run
    --seeds 5` with five folds tests on every record once."""
    broker: Literal["auto", "amqtt", "mosquitto"] = "auto"
    """Broker to start; `auto`: mosquitto where it is installed, else amqtt."""
    audit: Audit | None = Field(default=None, examples=[{"canaries": 1000}])
    """Measure a lower bound on ε; above the printed one, the run fails. null: no audit."""
    policy: SitePath | None = Field(default=None, examples=["../policy.yaml"])
    """A policy file as for a device's `policy_file`, to check whether owners with it would take
    part; null: owners allow the job."""


class LocalJob(Job):
    """A job file on the machine that may play it."""

    local_run: LocalRun | None = None
    """How `edgeveil run` plays the job on one machine; no part of the job itself."""

    @property
    def alone(self) -> Job:
        """The job itself, as signed by the cloud and judged by devices."""
        given = {name: getattr(self, name) for name in Job.model_fields}
        return Job.model_construct(self.model_fields_set & given.keys(), **given)

    def with_(self, **changes: Any) -> LocalJob:
        """Return a checked copy with other values: `with_(epsilon=2, **{"train.rounds": 5})`.

        A key is dotted, or a short name of `privacy`, `train` or `local_run`. Raises UsageError for
        another name, ConfigError with all problems of the changed job."""
        from edgeveil_tools.local.job import changed

        return changed(self, changes)


def load_job(path: str | Path) -> LocalJob:
    """Load and validate a job file; raises ConfigError with all problems."""
    return load_local_job(Path(path))[0]


def load_local_job(path: Path, *, accept_unprotected: bool = False) -> tuple[LocalJob, Plan]:
    """Return a job file with its `local_run`, and its plan; raises ConfigError with all problems.

    Problems include refusals by the run's devices. `accept_unprotected` acts as
    `accept_unproven`."""
    options: Any = {"folder": path.absolute().parent, "accept_unprotected": accept_unprotected}
    return parse_local_job(read(path), str(path), **options)


def parse_local_job(
    text: str | bytes,
    where: str = "(posted)",
    *,
    folder: Path | None = None,
    accept_unprotected: bool = False,
) -> tuple[LocalJob, Plan]:
    """Load a job from YAML text; `where` is the file's name in problems."""
    tree = job_tree(text, where)
    if accept_unprotected:
        block = tree.value.setdefault("privacy", {})
        if isinstance(block, dict):  # else the loader refuses it
            block["accept_unproven"] = True
    return judged(LocalJob, _judge, tree, where, folder=folder, schema=local_job_schema)


def local_job_schema() -> Schema:
    return job_schema(LocalJob)


def _judge(found: LocalJob) -> tuple[LocalJob, Plan]:
    return found, compile_local(found.alone, found.local_run)


def compile_local(job: Job, run: LocalRun | None) -> Plan:
    """Return the plan of a job for this run; raises ImpossibleMixError with all reasons."""
    found = [] if run is None else list(_run_mixes(job, run))
    known = None
    if run is not None:
        source, trainers = run.data.source or job.data.source, run.devices - run.infer_only
        known = KnownFleet(run.devices, trainers, source, "local_run")
    try:
        plan = compile_job(job, known)
    except ImpossibleMixError as error:
        option = {"privacy.accept_unproven": ", or run it with --accept-unprotected"}
        mixes = [Mix(m.paths, m.text + option.get(m.paths[0], "")) for m in error.mixes]
        raise ImpossibleMixError([*mixes, *found]) from None
    if run is not None and run.audit is not None:
        found += _audit_mixes(plan, run, run.audit)
    if run is not None and run.policy is not None:
        found = found or list(_policy_mixes(plan, run))
    if found:
        raise ImpossibleMixError(found)
    return plan


def _run_mixes(job: Job, run: LocalRun) -> Iterator[Mix]:
    wanted = job.selection.devices
    if wanted != "all" and wanted > run.devices:
        yield Mix(
            ("selection.devices", "local_run.devices"),
            f"{wanted} devices are required in each round, but local_run has {run.devices}; "
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
    if job.data.target is not None and needs_classes(split):
        keys = ("local_run.partition", "data.schema.label.number")
        text = "deals or disturbs by class, and the label is a number; use iid or quantity_skew"
        yield Mix(keys, f"{text}, without lq_data")
    elif split.kind == "n_class" and split.classes_per_device > job.data.classes:
        yield Mix(
            ("local_run.partition.classes_per_device", "data.classes"),
            f"{split.classes_per_device} is more than the {job.data.classes} classes of the data; "
            f"set at most {job.data.classes}",
        )
    scored, tested = build_rule(job.aggregation).validation_records, run.test_records
    if tested is not None and 0 < tested <= scored:
        yield Mix(
            ("aggregation.validation_records", "local_run.test_records"),
            f"{scored} records score uploads, others test the model; there are only {tested}; "
            "set fewer, or raise local_run.test_records",
        )


def _audit_mixes(plan: Plan, run: LocalRun, audit: Audit) -> Iterator[Mix]:
    from edgeveil_tools.simulation import canaries  # imports parts, which an owner allows first

    if not run.simulate:
        text = "canaries are for a simulated fleet; set local_run.simulate, or leave audit out"
        yield Mix(("local_run.audit", "local_run.simulate"), text)
    if audit.canaries > (trainers := run.devices - run.infer_only):
        text = f"{audit.canaries} canaries are more than the {trainers} devices that train; raise"
        yield Mix(("local_run.audit.canaries", "local_run.devices"), f"{text} local_run.devices")
    if why := canaries.refusal(plan):
        yield Mix(
            ("local_run.audit", "train.method", "update", "features"), f"{why}, or leave audit out"
        )


def _source_mixes(job: Job, run: LocalRun) -> Iterator[Mix]:
    source = run.data.source or job.data.source
    try:
        source_name(source)
    except ValueError as error:
        yield Mix(
            ("data.source", "local_run"),
            f"{error}; set local_run.data.source for records of another name",
        )
        yield from partition_mixes(run.partition, "local_run.partition")
    else:
        named = "data.source"
        yield from unread_mixes(run.data, source, "local_run.data", named)
        yield from dealing_mixes(run.partition, source, "local_run.partition", named)
        yield from held_back_mixes(source, run.test_records, run.test_share, "local_run", named)
        folds = run.test_folds
        if folds is not None and run.test_share is not None:
            text = f"{folds} folds are shares of 1/{folds}; leave test_share out"
            yield Mix(("local_run.test_folds", "local_run.test_share"), text)
        if folds is not None:
            for mix in held_back_mixes(source, None, 1 / folds, "local_run", named):
                yield Mix(("local_run.test_folds", named), mix.text)
        for key in ("test_share", "test_folds"):
            if run.data.test_path is not None and getattr(run, key) is not None:
                text = f"names a file to test on, and {key} holds records back; leave one out"
                yield Mix(("local_run.data.test_path", f"local_run.{key}"), text)


def owners_policy(job: Job, run: LocalRun) -> Policy:
    if run.policy is not None:
        return load_policy(run.policy).with_room(job.data.nominal_records)
    parts = [
        *job.part_names,
        ("sources", run.data.source or job.data.source),
        ("partitions", run.partition.kind),
    ]
    return Policy(
        max_epsilon_per_job=_ANY_EPSILON,
        lifetime_epsilon=_ANY_EPSILON,
        max_collusion_epsilon_per_job="any",
        lifetime_collusion_epsilon="any",
        lifetime_delta=0.99,
        max_inference_epsilon=_ANY_EPSILON,
        accept_unproven=True,
        accept_unprotected=True,
        accept_unshuffled=True,
        allow_record_counts=True,
        allowed_methods=(job.train.method, *(["statistics"] if job.statistics else [])),
        allowed_backbones=tuple(carried_digests(job)),
        allowed_plugins=tuple(AllowedPlugin(**one._asdict()) for one in plugins.allowances(parts)),
        allowed_python_models=tuple(
            AllowedPythonModel(function=one, sha256=plugins.code_digest(one))
            for one in job.functions
        ),
        min_devices=1,
        max_budget_s=86400,
    ).with_room(job.data.nominal_records)


def _policy_mixes(plan: Plan, run: LocalRun) -> Iterator[Mix]:
    policy, asked = owners_policy(plan.job, run), plan.job.selection
    data, source = run.data, run.data.source or plan.job.data.source
    header = guessed_header(source, data.header, data.path, plan.job.data.schema_, data.form)
    fewer = too_few(policy, how_many(asked.devices, run.devices, asked.over_select))
    refused = refusals(policy, plan, trains=True, header=header is not False)
    for error in (*refused, *([fewer] if fewer else [])):
        yield _refusal(error.where, error.what)
    if policy.require_cover:
        yield _refusal("policy.require_cover", "a local run has no cover traffic")
    request = plan.request(plan.job.job)
    owner = limits_of(policy)
    for one in fields(Limits):  # `check_job` names only the first exceeded limit
        alone = replace(_NO_LIMITS, **{one.name: getattr(owner, one.name)})
        try:
            check_job(request, alone, ())
        except PrivacyError as error:
            yield _refusal(error.where, error.what)


def _refusal(where: str, why: str) -> Mix:
    return Mix(
        ("local_run.policy",),
        f"{where}: {why}, so every device of the run would decline; change the job or that policy",
    )
