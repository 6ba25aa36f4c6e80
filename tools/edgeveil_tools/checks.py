"""What can be said of files and records before anything runs: problems, prices, schemas, faults.

A job is played on made-up records, one round of each kind, so that whatever would fail after
budget was spent fails here. What is found in a device's own records is private: it is printed on
its owner's console, and nothing of it is stored or sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.data.check import DataReport, check_records
from edgeveil.data.split import SPLIT_KEY_FILE, load_split_key
from edgeveil.errors import ConfigError, ConfigProblem, DataError, UsageError
from edgeveil.jobs import Job, Plan, compile_job, line_of, load_plan
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil.parts.own_records import device_records
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.protocol.transfer import part_bytes
from edgeveil.registry import nearest
from edgeveil.settings.explain import Schema
from edgeveil.settings.file import parsed, read
from edgeveil.sites.cloud import CloudLimits
from edgeveil.sites.edge import EdgeSite
from edgeveil.sites.files import SITES, kind_of, load_policy, load_site, site_of
from edgeveil_tools.backbone.command import ensure_for_jobs
from edgeveil_tools.local.local_run import LocalJob, LocalRun, load_local_job, local_job_schema
from edgeveil_tools.result import PlainTable, html_table

if TYPE_CHECKING:
    from edgeveil.sites.files import Site
    from edgeveil.sites.policy import Policy
    from edgeveil_cloud.broadcasts import BroadcastLimits
    from edgeveil_tools.site.fleet_plan import FleetPlan

KINDS = ("job", *SITES, "policy", "fleet")
DEFAULT_SHARE = 0.1

# --- files ---


def load(path: Path) -> tuple[str, tuple[LocalJob, Plan] | Site | Policy | FleetPlan]:
    """Read a file of any kind; returns the kind's name, one of `KINDS`, with it.

    Of a job what its file says, and its plan. Raises ConfigError with all problems.
    """
    kind = kind_of(parsed(read(path), str(path)).value)
    if kind == "job":
        return kind, load_local_job(path)
    if kind == "load":
        text = f"a load test's scenario: edgeveil loadtest --scenario {path} checks it"
        raise ConfigError([f"{path}:1 load: {text}"])
    if kind == "fleet":
        from edgeveil_tools.site.fleet_plan import devices_of, read_plan

        plan = read_plan(path)
        devices_of(plan, str(path))
        return kind, plan
    if kind == "policy":
        return kind, load_policy(path)
    return kind, load_site(path)


def validate(
    path: str | Path, limits: BroadcastLimits | None = None, data: Path | None = None
) -> list[ConfigProblem]:
    """Every problem of a configuration file of any kind; [] where it is sound.

    `limits` are those of the site that would play a job (`site_limits`), None the usual ones.
    A job is also played on made-up records, where the cloud's libraries are installed. Whether the
    keys, passwords and data that a site file names exist is for the process to see when it starts.
    Records that its `local_run` names are read, where their file is there; in their place those of
    the file `data`, if one is given.
    Nothing is trained: that the public encoder of digits is not made yet is a problem too.
    Nothing is raised for what a file holds.
    """
    try:
        _, found = load(Path(path))
        if isinstance(found, tuple):
            rehearse(found[1], Path(path), limits=limits, needed=False)
            record_notes(found[0], Path(path), data)
    except ConfigError as error:
        return error.places
    return []


def record_notes(job: LocalJob, path: Path, data: Path | None = None) -> list[str]:
    """What a person should know of the records that the job's `local_run` names, where their file
    is there, or of those of the file `data`: what learning would drop or clip. For the console of
    the one who has them.

    Raises ConfigError, `file:line key: what, fix`, where the job cannot learn from them.
    """
    from edgeveil_tools.local.data import check_data, run_on

    run, key = job.local_run, "local_run.data"
    if data is None and (run is None or run.data.path is None or not run.data.path.exists()):
        return []
    try:
        if data is not None:
            run, key = run_on(data, job), "data"
        return check_data(job.alone, run or LocalRun())
    except (DataError, UsageError) as error:
        place = f"{path}:{line_of(path, key)} {key}"
        fix = f"; {error.fix}" if error.fix else ""
        text = f"{place}: {error.where}: {error.what}{fix}"
        raise ConfigError([" ".join(text.split())]) from error


def rehearse(
    plan: Plan,
    path: Path | None = None,
    *,
    devices: bool = True,
    limits: BroadcastLimits | None = None,
    needed: bool = True,
) -> None:
    """Raise ConfigError, `file:line key: why, fix`, unless the job of the file `path` can be
    done.

    `limits` are those of its cloud, None the usual ones; `devices` as `rehearse_job` has it. Where
    the cloud's libraries are missing ModuleNotFoundError is raised, or, if it is not `needed`,
    nothing is tried.
    """
    try:
        from edgeveil_cloud.rehearsal import RefusedJobError, rehearse_job
    except ModuleNotFoundError:
        if needed:
            raise
        return
    whole = plan.with_artifacts(read_artifacts(plan.job))
    try:
        rehearse_job(whole, limits or usual_limits(), devices=devices)
    except RefusedJobError as error:
        fix = f"; {error.fix}" if error.fix else ""
        place = f"{path}:{line_of(path, error.where)}" if path else f"(job {plan.job.job}):0"
        text = " ".join(f"{place} {error.where}: {error.what}{fix}".split())
        raise ConfigError([text]) from error


def usual_limits() -> BroadcastLimits:
    """What a cloud takes whose site file says nothing else."""
    from edgeveil_cloud.broadcasts import BroadcastLimits

    usual = CloudLimits()
    parts = part_bytes(usual.packet_bytes)
    return BroadcastLimits(parts, usual.blob_bytes, batch_bytes=usual.spool_bytes)


def site_limits(paths: Iterable[Path], devices: int = 0) -> BroadcastLimits | None:
    """What the cloud and the proxy of these files take of a round, their brokers' quotas too.

    `devices` are connected to the proxy's edge broker; 0: as many as a round has at least. None
    where no file is a sound cloud's or proxy's, or the cloud's libraries are missing.
    """
    from edgeveil.sites.cloud import CloudSite
    from edgeveil.sites.proxy import ProxySite

    sites: list[Site] = []
    for path in paths:
        with suppress(ConfigError):  # told of the file itself
            if kind_of(parsed(read(path), str(path)).value) in ("cloud", "proxy"):
                sites.append(load_site(path))
    if not sites:
        return None
    try:
        from edgeveil.jobs.round_traffic import BrokerUse
        from edgeveil_cloud.role import limits_of
    except ModuleNotFoundError:
        return None
    clouds = [limits_of(site) for site in sites if isinstance(site, CloudSite)]
    limits, found = (clouds or [usual_limits()])[0], []
    for site in sites:
        if isinstance(site, ProxySite):
            link, parts = site.edge_broker, part_bytes(site.limits.packet_bytes)
            least = max(devices, site.min_batch_floor)
            found.append(BrokerUse("proxy.edge_broker", link.profile, parts, link.links, least))
    return replace(limits, brokers=(*limits.brokers, *found))


def schema(kind: str) -> Schema:
    """JSON Schema (2020-12) of one kind of configuration file, for editors. Raises ConfigError."""
    if kind not in KINDS:
        raise ConfigError([f"unknown kind '{kind}', {nearest(kind, list(KINDS))}"])
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if kind == "job":
        return {**dialect, **local_job_schema()}
    inner = _inner_schema(kind)
    definitions = inner.pop("$defs", {})
    return {
        **dialect,
        "title": f"EdgeVeil {kind}{' site' if kind in SITES else ''}",
        "type": "object",
        "properties": {kind: inner},
        "required": [kind],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _inner_schema(kind: str) -> Schema:
    if kind in SITES:
        return site_of(kind).model_json_schema()
    if kind == "policy":
        from edgeveil.sites.policy import Policy

        return Policy.model_json_schema()
    from edgeveil_tools.site.fleet_plan import FleetPlan

    return FleetPlan.model_json_schema()


# --- prices ---


@dataclass(frozen=True, repr=False)
class JobPrice:
    """What a job costs one device at most: two guarantees, of which neither alone is "the" ε.

    `inference_per_round` is the ε of one upload of inferences, None where it has no noise. `notes`
    are what a person should read of it; `exchanges` is the price up to and with each exchange,
    which is progress and no guarantee for a job that ends there.
    """

    training: Guarantee
    inference: Guarantee
    inference_per_round: float | None
    exchanges: PlainTable
    notes: tuple[str, ...]

    def table(self) -> PlainTable:
        """A row for each exchange: phase, round, and both ε so far, None where unproven.

        With shared noise also `collusion`: training's ε if all others collude.
        """
        return self.exchanges

    def __repr__(self) -> str:
        return f"<JobPrice: training {self.training}; inference {self.inference}>"

    def __str__(self) -> str:
        lines = (f"training: {self.training}", f"inference: {self.inference}", *self.notes)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            {"of": name, "guarantee": str(one)}
            for name, one in (("training", self.training), ("inference", self.inference))
        ]
        return html_table(rows) + html_table([{"note": note} for note in self.notes])


def price(job: str | Path | Job) -> JobPrice:
    """What a job costs one device, by its file or as it was loaded; reads no record.

    Raises ConfigError for a file with problems, PrivacyError for a price that cannot be made.
    """
    plan = plan_of(job)
    quote, rows = plan.quote(), []
    shared = quote.training.if_colluding is not None
    for exchange in plan.exchanges:
        so_far = plan.quote(exchange.index)
        alone = so_far.training.collusion_epsilon if so_far.training.proven else None
        rows.append(
            {
                "phase": exchange.phase,
                "round": exchange.number,
                "training": so_far.training.epsilon if so_far.training.proven else None,
                **({"collusion": alone} if shared else {}),
                "inference": so_far.inference.epsilon if so_far.inference.proven else None,
            }
        )
    said = {f"training: {quote.training}", f"inference: {quote.inference}"}
    notes = tuple(note for note in job_notes(plan) if note not in said)
    return JobPrice(quote.training, quote.inference, plan.softmax_epsilon, rows, notes)


def plan_of(job: str | Path | Job) -> Plan:
    """The plan of a job file, or of a job as it was loaded. Raises ConfigError."""
    if not isinstance(job, Job):
        ensure_for_jobs([Path(job)])
        return load_plan(Path(job))
    return compile_job(job.alone if isinstance(job, LocalJob) else job)


def job_notes(plan: Plan) -> tuple[str, ...]:
    """What a person should read of a job before it runs: scales, claims, what its shuffle earns."""
    from edgeveil_tools.local.data import published_largest, scale_notes

    found = [*plan.notes, *scale_notes(plan.job, published_largest(plan.job.data.source))]
    found += filter(None, (plan.aggregation_note, plan.adapter_note, plan.evaluation_note))
    with suppress(ModuleNotFoundError):  # the clone bound is computed with scipy
        found += [f"after the shuffle, {credit}" for credit in shuffled(plan)]
    return tuple(found)


# --- records ---


def data_check(edge_site: Path, job_file: Path | None = None) -> int:
    """Read the device's records as the site file says, and print what learning would drop.

    With a job, its classes, record shape and scale are checked too. Returns 0 if all records
    are usable, DataError's exit code if not; writes nothing. Raises ConfigError, DataError or
    UsageError.
    """
    from edgeveil_tools.local.data import column_problems, input_range, places

    site = load_site(edge_site)
    if not isinstance(site, EdgeSite):
        raise UsageError("is no edge site file", where=str(edge_site), fix="name configs/edge.yaml")
    job = None if job_file is None else load_plan(job_file).job
    key_file = site.state_dir / SPLIT_KEY_FILE
    started = key_file.exists()  # a check must not make a device's key
    key = load_split_key(key_file) if started else secrets.token_bytes(32)
    share = DEFAULT_SHARE if job is None else job.data.evaluation_share
    schema = None if job is None else job.data.schema_
    training, evaluation = device_records(site.data, key, evaluation_share=share, schema=schema)
    report = check_records(
        training,
        evaluation,
        classes=None if job is None else job.data.classes,
        input_shape=None if job is None else job.data.input_shape,
        input_range=input_range(job),
        anomaly=job is not None and job.anomaly,
    )
    problems = report.problems + places(site.data, schema)
    problems += [] if schema is None else column_problems(site.data, schema)
    held, most = len(training) + len(evaluation), site.policy.max_records
    if held > most:
        problems.append(
            f"these are {held} records, policy.max_records lets the box hold {most}: the others are"
            " left out, and one record more or less then changes two"
        )
    if job is not None and job.data.source != site.data.name:
        problems.append(
            f"the job learns from '{job.data.source}', this device's data set is called "
            f"'{site.data.name}': it would sit the job out"
        )
    _print(report, problems, exact_split=started)
    return DataError.exit_code if problems else 0


_MOST_CLASSES = 64  # that are counted one by one; a number has thousands


def _print(report: DataReport, problems: list[str], *, exact_split: bool) -> None:
    about = "" if exact_split else "about "
    print(f"{report.records} records of shape {report.shape}, {report.usable} usable")
    print(f"split: {about}{report.training} training, {about}{report.evaluation} evaluation")
    if len(report.histogram) <= _MOST_CLASSES:
        by = ", ".join(
            f"{'none' if label < 0 else label}: {count}"
            for label, count in sorted(report.histogram.items())
        )
        print(f"usable records by class: {by or 'none'}")
    if report.not_learned:
        print(f"{report.not_learned} of them are labelled anomalous: not learned from")
    for problem in problems:
        print(f"✗ {problem}")
    if not problems:
        print("✓ all records are usable")
