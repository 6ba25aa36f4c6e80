"""`edgeveil check`: validate files and records, and price jobs, before anything runs.

Findings about a device's own records are printed only on its owner's console."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from edgeveil.config.cloud import CloudLimits
from edgeveil.config.edge import EdgeSite
from edgeveil.config.explain import Schema
from edgeveil.config.file import only_block, parsed, read
from edgeveil.config.site_files import SITES, kind_of, load_policy, load_site, site_of
from edgeveil.data.check import check_records
from edgeveil.data.records import grouped
from edgeveil.data.split import SPLIT_KEY_FILE, load_split_key
from edgeveil.errors import (
    ConfigError,
    ConfigProblem,
    DataError,
    EdgeVeilError,
    JobFailed,
    UsageError,
)
from edgeveil.evaluation.figures import ACCURACY
from edgeveil.jobs import Job, Plan, compile_job, line_of, load_plan
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil.parts.features.onnx import backbone_path
from edgeveil.parts.models.network import SUFFIXES as STATE_DICT_SUFFIXES
from edgeveil.parts.own_records import device_records
from edgeveil.privacy.guarantee import Guarantee, up
from edgeveil.protocol.transfer import part_bytes
from edgeveil.registry import nearest
from edgeveil_tools.backbone.command import NAME, ensure_for_jobs, file_lines, weight_facts
from edgeveil_tools.backbone.command import facts as backbone_facts
from edgeveil_tools.cli.common import print_next
from edgeveil_tools.local.local_run import LocalJob, LocalRun, load_local_job, local_job_schema
from edgeveil_tools.result import PlainTable, privacy_of_plan

if TYPE_CHECKING:
    from edgeveil.config.policy import Policy
    from edgeveil.config.site_files import Site
    from edgeveil_cloud.broadcasts import BroadcastLimits
    from edgeveil_tools.site.fleet_spec import FleetSpec
    from edgeveil_tools.site.provision import LocalSpec

KINDS = ("job", *SITES, "policy", "fleet")
DEFAULT_SHARE = 0.1
SOON_DAYS = 30  # a certificate or trust that ends sooner is a problem
_MOST_CLASSES = 64  # counted one by one; numeric labels have thousands

# --- the command ---


@dataclass
class CheckedFile:
    """Findings of one file: `lines` for people, `fields` for JSON, `code` for the exit."""

    path: Path
    kind: str = ""
    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    site: EdgeSite | None = None
    code: int = ConfigError.exit_code


def command(args: argparse.Namespace) -> int:
    plan = "fleet.yaml"
    files = [one / plan if (one / plan).is_file() else one for one in args.files]
    yaml_files = [one for one in files if _other_kind(one) == ""]
    records = [one for one in files if _other_kind(one) == "records"]
    limits = site_limits(yaml_files)
    checked = {path: _checked(path, limits, records, show=args.show) for path in yaml_files}
    jobs = [one.plan.job for one in checked.values() if one.plan is not None]
    if args.estimate and not (jobs or any(one.problems for one in checked.values())):
        fix = "add the job's file"
        raise UsageError("no job to estimate", where="--estimate", fix=fix)
    for one in checked.values():
        if one.site is not None:
            _check_device(one, one.site, jobs)
    found = [
        checked[path] if path in checked else _checked_other(path, alone=not yaml_files)
        for path in dict.fromkeys(files)
    ]
    if any(one.problems for one in checked.values()):  # records are read by a job
        found = [one for one in found if one.kind != "records" or one.problems]
    failed = False
    for one in found:
        if not args.json:
            verdict = one.problems or [f"{one.path}: ok ({one.kind})"]
            print("\n".join([*verdict, *one.lines]), flush=True)
        if args.estimate and one.plan is not None:
            failed |= _estimate(one, args)
    codes = {one.code for one in found if one.problems}
    if args.json:
        rows = [
            {"file": str(one.path), "kind": one.kind or None, "ok": not one.problems}
            | {"problems": one.problems, **one.fields}
            for one in found
        ]
        print(json.dumps({"command": "check", "ok": not codes and not failed, "files": rows}))
    elif len(jobs) == len(files) == 1 and not (codes or failed):
        unplanned = args.estimate or jobs[0].measure != ACCURACY  # refused by `--estimate`
        then = "run" if unplanned else "check"
        print_next(f"edgeveil {then} {files[0]}{'' if unplanned else ' --estimate'}")
    order = (ConfigError.exit_code, DataError.exit_code, 1)
    return next((code for code in order if code in codes), JobFailed.exit_code if failed else 0)


def _other_kind(path: Path) -> str:
    if path.is_dir():
        return "bundle" if (path / "inventory.json").exists() else "records"
    if path.suffix == ".onnx" or (str(path) == NAME and not path.exists()):
        return "backbone"
    if path.suffix in STATE_DICT_SUFFIXES:
        return "weights"
    return "" if path.suffix in ("", ".yaml", ".yml") else "records"


def _checked(
    path: Path, limits: BroadcastLimits | None, records: Sequence[Path], *, show: bool
) -> CheckedFile:
    one = CheckedFile(path)
    try:
        one.kind, found, notes = _sound(path, limits, records)
    except ConfigError as error:
        one.problems = error.problems
        return one
    if isinstance(found, EdgeSite):
        one.site = found
    if not isinstance(found, tuple):
        return one
    job, one.plan = found
    one.lines = [f"  {line}" for line in job_notes(one.plan)]
    one.lines += [f"  records: {note}" for note in notes]
    if notes:
        one.fields["records"] = notes
    if show:
        one.fields["privacy"] = privacy_of_plan(one.plan, one.plan.quote())
        for which, part in one.fields["privacy"].items():
            if part["mu"] is not None:
                text = f"{up(part['mu'])}-Gaussian DP, {up(part['rho'])}-zCDP"
                one.lines.append(f"  {which}: {text}")
        one.fields["job"] = plain = job.model_dump(mode="json")
        one.lines.append(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip())
    return one


def _check_device(one: CheckedFile, site: EdgeSite, jobs: Sequence[Job]) -> None:
    from edgeveil import plugins
    from edgeveil_edge.self_check import self_check
    from edgeveil_tools.local.data import form_problems

    plugins.admit(site.policy.allowed_plugins)
    one.code = 1
    of_its_data = [job for job in jobs if job.data.source == site.data.name] or jobs
    asked_alike = {job.data.model_dump_json(): job for job in of_its_data}
    its_jobs: list[Job | None] = [*asked_alike.values()] or [None]
    for job in its_jobs:
        found = self_check(site, read_records=True, asked=None if job is None else job.data)
        one.problems += [text for text in found if text not in one.problems]
    readable = all(text.startswith("data.name: ") for text in one.problems)
    schemas = [None if job is None else job.data.schema_ for job in its_jobs]
    one.problems += dict.fromkeys(p for schema in schemas for p in form_problems(site.data, schema))
    if not readable:
        return  # the records cannot be read
    for job in its_jobs:
        try:
            lines, problems = device_records_check(site, job)
        except EdgeVeilError as error:
            lines, problems = [], str(error).splitlines()
        one.lines += [f"  {line}" for line in lines if f"  {line}" not in one.lines]
        one.problems += problems
    one.code = DataError.exit_code


def _checked_other(path: Path, *, alone: bool) -> CheckedFile:
    """Check a folder or a file that is not YAML; `alone`: no job defines how to read records."""
    one = CheckedFile(path, _other_kind(path), code=DataError.exit_code)
    try:
        if one.kind == "backbone":
            path = backbone_path(str(path), Path.cwd())
        if not path.exists():
            raise UsageError("is not there", where=str(path), fix="check the path")
        if one.kind == "bundle":
            from edgeveil_tools.site.bundles import problems_of

            one.problems, one.code = problems_of(path, SOON_DAYS), 1
        elif one.kind == "records":
            if alone and (path.is_dir() or path.suffix not in (".npz", ".npy")):
                from edgeveil_tools.describe import describe

                draft = describe(path)
                one.lines = [draft.text.rstrip()]
                if draft.stated:
                    one.lines.append(f"# In a device's site file: {', '.join(draft.stated)}")
                one.fields = {"draft": draft.text, "notes": draft.notes}
        else:
            facts = backbone_facts(path) if one.kind == "backbone" else weight_facts(path)
            one.fields, one.lines = facts, [f"  {line}" for line in file_lines(facts)]
    except EdgeVeilError as error:
        one.problems = str(error).splitlines()
    return one


def _estimate(one: CheckedFile, args: argparse.Namespace) -> bool:
    from edgeveil_tools.prospect import prospect, prospect_lines
    from edgeveil_tools.statistics.estimate import estimate_lines, foreseen, foreseen_beside

    if one.plan is not None and one.plan.job.data.asks:
        run = load_local_job(one.path)[0].local_run
        least = one.plan.job.round.min_batch
        devices = args.devices or (least if run is None else run.devices)
        if devices < least:
            what = (
                f"a round needs {least} uploads (round.min_batch), and there are {devices} devices"
            )
            raise UsageError(what, where="--devices", fix="name more, or lower round.min_batch")
        one.fields["estimate"] = answers = foreseen(one.plan, devices)
        if not args.json:
            print("\n".join(estimate_lines(answers)))
        return False

    def report(line: str) -> None:
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)

    found = prospect(one.path, report, devices=args.devices, seeds=args.seeds)
    one.fields["estimate"] = {**vars(found), "gain": found.gain}
    asked = None
    if one.plan is not None and one.plan.job.statistics is not None:
        one.fields["estimate"]["statistics"] = asked = foreseen_beside(one.plan, found.devices)
    if not args.json:
        print("\n".join([*prospect_lines(found), *(estimate_lines(asked) if asked else ())]))
    return bool(found.failure)


# --- files ---


def load(path: Path) -> tuple[str, tuple[LocalJob, Plan] | Site | Policy | FleetSpec | LocalSpec]:
    """Return a file's kind (`KINDS`) and content, for a job with its plan; raises ConfigError."""
    kind = kind_of(parsed(read(path), str(path)).value)
    if kind == "job":
        return kind, load_local_job(path)
    if kind == "load":
        text = f"a load test's scenario: edgeveil loadtest --scenario {path} checks it"
        raise ConfigError([f"{path}:1 load: {text}"])
    if kind == "fleet":
        from edgeveil_tools.site.fleet_spec import devices_of, read_spec

        plan = read_spec(path)
        devices_of(plan, str(path))
        return kind, plan
    if kind == "local":
        from edgeveil_tools.site.provision import LocalSpec

        return kind, only_block(LocalSpec, kind, parsed(read(path), str(path)), path)
    if kind == "policy":
        return kind, load_policy(path)
    return kind, load_site(path)


def _sound(
    path: Path, limits: BroadcastLimits | None = None, records: Sequence[Path] = ()
) -> tuple[str, Any, list[str]]:
    """Load a file as `load`; rehearse a job, and return notes on its records or on `records`."""
    kind, found = load(path)
    if not isinstance(found, tuple):
        return kind, found, []
    rehearse(found[1], path, limits=limits, needed=False)
    sources: Sequence[Path | None] = records or [None]
    return kind, found, [note for data in sources for note in record_notes(found[0], path, data)]


def validate(path: str | Path) -> list[ConfigProblem]:
    """Return every problem of a configuration file of any kind.

    A job is also rehearsed on made-up records, and its `local_run`'s own are read if present."""
    try:
        _sound(Path(path))
    except ConfigError as error:
        return error.places
    return []


def record_notes(job: LocalJob, path: Path, data: Path | None = None) -> list[str]:
    """Return notes on records that learning would drop or clip; raises ConfigError if it fails."""
    from edgeveil_tools.local.data import check_data, run_on

    run = job.local_run or LocalRun()
    own = run.data.path
    if data is None and (own is None or not own.exists()):
        return [f"{own} (local_run.data.path) is not there: no record was checked"] if own else []
    try:
        return check_data(job.alone, run if data is None else run_on(data, job))
    except (DataError, UsageError) as error:
        key = "local_run.data" if data is None else "data"
        raise _at_line(path, key, f"{error.where}: {error.what}", error.fix) from error


def _at_line(path: Path, key: str, what: str, fix: str) -> ConfigError:
    text = f"{path}:{line_of(path, key)} {key}: {what}{'; ' * bool(fix)}{fix}"
    return ConfigError([" ".join(text.split())])


def rehearse(
    plan: Plan,
    path: Path | None = None,
    *,
    devices: bool = True,
    limits: BroadcastLimits | None = None,
    needed: bool = True,
) -> None:
    """Play the job on made-up records; raises ConfigError if it would fail.

    `limits` are the cloud's, by default the usual ones; `devices` plays their half too. Without the
    cloud's libraries raises ModuleNotFoundError, or returns unless `needed`."""
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
        if path is not None:
            raise _at_line(path, error.where, error.what, error.fix) from error
        raise ConfigError([f"(job {plan.job.job}):0 {error}"]) from error


def usual_limits() -> BroadcastLimits:
    from edgeveil_cloud.broadcasts import BroadcastLimits

    usual = CloudLimits()
    parts = part_bytes(usual.packet_bytes)
    return BroadcastLimits(parts, usual.blob_bytes, batch_bytes=usual.spool_bytes)


def site_limits(paths: Iterable[Path]) -> BroadcastLimits | None:
    """Return limits of the first valid cloud site file; None without one or its libraries."""
    from edgeveil.config.cloud import CloudSite

    for path in paths:
        with suppress(ConfigError, ModuleNotFoundError):  # the file's own check reports it
            if kind_of(parsed(read(path), str(path)).value) == "cloud":
                from edgeveil_cloud.role import limits_of

                site = load_site(path)
                return limits_of(site) if isinstance(site, CloudSite) else None
    return None


def schema(kind: str) -> Schema:
    """Return the JSON Schema (2020-12) of a kind of configuration file; raises ConfigError."""
    if kind not in KINDS:
        raise ConfigError([f"unknown kind '{kind}', {nearest(kind, list(KINDS))}"])
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if kind == "job":
        return {**dialect, **local_job_schema()}
    if kind in SITES:
        inner = site_of(kind).model_json_schema()
    elif kind == "policy":
        from edgeveil.config.policy import Policy

        inner = Policy.model_json_schema()
    else:
        from edgeveil_tools.site.fleet_spec import FleetSpec

        inner = FleetSpec.model_json_schema()
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


# --- prices ---


@dataclass(frozen=True, repr=False)
class JobPrice:
    """The maximal cost of a job to one device: two guarantees, neither alone "the" ε.

    `inference_per_round` is the ε of one upload of inferences, None without noise. `rounds` has the
    price up to each round: both ε (None if unproven), with shared noise also `collusion`."""

    training: Guarantee
    inference: Guarantee
    inference_per_round: float | None
    rounds: PlainTable
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<JobPrice: training {self.training}; inference {self.inference}>"

    def __str__(self) -> str:
        lines = (f"training: {self.training}", f"inference: {self.inference}", *self.notes)
        return "\n".join(lines)


def price(job: str | Path | Job) -> JobPrice:
    """Return the cost of a job to one device; raises ConfigError or PrivacyError."""
    plan = plan_of(job)
    quote, rows = plan.quote(), []
    for round in plan.all_rounds:
        so_far = plan.quote(round.index)
        training, inference = so_far.training, so_far.inference
        row = {"phase": round.phase, "round": round.number}
        row["training"] = training.epsilon if training.proven else None
        if quote.training.if_colluding is not None:
            row["collusion"] = training.collusion_epsilon if training.proven else None
        rows.append({**row, "inference": inference.epsilon if inference.proven else None})
    shown = {f"training: {quote.training}", f"inference: {quote.inference}"}
    notes = tuple(note for note in job_notes(plan) if note not in shown)
    return JobPrice(quote.training, quote.inference, plan.softmax_epsilon, rows, notes)


def plan_of(job: str | Path | Job) -> Plan:
    if not isinstance(job, Job):
        ensure_for_jobs([Path(job)])
        return load_plan(Path(job))
    return compile_job(job.alone if isinstance(job, LocalJob) else job)


def job_notes(plan: Plan) -> tuple[str, ...]:
    """Return notes to read before a job runs: scales, claims and the credit of its shuffle."""
    found = [*plan.notes, *filter(None, (plan.aggregation_note,))]
    with suppress(ModuleNotFoundError):  # the clone bound is computed with scipy
        found += [f"after the shuffle, {credit}" for credit in shuffled(plan)]
    return tuple(found)


# --- records ---


def device_records_check(site: EdgeSite, job: Job | None = None) -> tuple[list[str], list[str]]:
    """Return lines about a device's records, read as site file and job define, and problems."""
    from edgeveil_tools.local.data import column_problems, form_of, places

    key_file = site.state_dir / SPLIT_KEY_FILE
    started = key_file.exists()  # a check must not make a device's key
    key = load_split_key(key_file) if started else secrets.token_bytes(32)
    share = DEFAULT_SHARE if job is None else job.data.evaluation_share
    schema = None if job is None else job.data.schema_
    training, evaluation = device_records(site.data, key, evaluation_share=share, schema=schema)
    asked = {} if job is None else form_of(job)
    report = check_records(training, evaluation, **asked)
    problems = report.problems + places(site.data, schema) + column_problems(site.data, schema)
    held, most = len(training) + len(evaluation), site.policy.max_records
    persons = None if schema is None or schema.person is None else (training, evaluation)
    if held > most:
        changes = "record then changes two" if persons is None else "person then changes others"
        problems.append(
            f"{held} records exceed policy.max_records, {most}: the rest is left out, and adding or"
            f" removing one {changes}"
        )
    about, by_class = "" if started else "about ", sorted(report.histogram.items())
    lines = [
        f"{report.records} records of shape {report.shape}, {report.usable} usable",
        f"split: {about}{report.training} training, {about}{report.evaluation} evaluation",
    ]
    if persons is not None:
        owners = [one for half in persons if (one := half.owners("person")) is not None]
        sizes = [len(own) for half in owners for own in grouped(half)]
        lines.append(f"{len(sizes)} persons, the largest has {max(sizes, default=0)} records")
    if len(by_class) <= _MOST_CLASSES:
        by = ", ".join(f"{'none' if label < 0 else label}: {n}" for label, n in by_class)
        lines.append(f"usable records by class: {by or 'none'}")
    if report.not_learned:
        lines.append(f"{report.not_learned} of them are labelled anomalous: not trained on")
    return lines, problems
