"""The job of a local run: read, changed by the command line's options, and checked with them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from edgeveil.errors import ConfigError, UsageError
from edgeveil.jobs import Job
from edgeveil.parts.features import OnnxParameters
from edgeveil_tools.backbone.command import ensure_for_jobs
from edgeveil_tools.local.data import dealt_classes, source
from edgeveil_tools.local.local_run import (
    LocalJob,
    LocalRun,
    load_local_job,
    owners_policy,
    parse_local_job,
)
from edgeveil_tools.site.provision import SitePlan

_OF_THE_JOB = ("secure", "noise")  # not of its `local_run` block
_WHATEVER = 1e9


@dataclass(frozen=True)
class Overrides:
    """Options of `edgeveil run` that replace values of the `local_run` block; `secure` is the job's
    `aggregation.secure`.

    `noise` is the job's `privacy.noise`, for comparisons: with `shared` sums are secure, and owners
    who say nothing of the ε if all others collude accept what it comes to.
    """

    broker: str | None = None
    protocol: int | None = None
    devices: int | None = None
    workers: int | None = None
    cells: int | None = None
    seed: int | None = None
    simulate: bool | None = None
    engine: str | None = None
    ray_address: str | None = None
    data: Path | None = None
    secure: bool | None = None
    noise: Literal["local", "shared"] | None = None


def local_job(given: str | Path | Job, overrides: Overrides) -> tuple[Job, LocalRun]:
    """The job of a file, or a loaded one, with a `local_run` block. ConfigError names every problem
    of file and options, UsageError an option that would change nothing.

    Its paths are absolute afterwards: `--data` counts from here, a key from the job's folder.
    """
    if not isinstance(given, Job):
        ensure_for_jobs([Path(given)])
    job = given if isinstance(given, Job) else load_local_job(Path(given))[0]
    named = f"job {job.job}" if isinstance(given, Job) else str(given)
    folder = Path.cwd() if isinstance(given, Job) else Path(given).absolute().parent
    changes = {key: value for key, value in asdict(overrides).items() if value is not None}
    plain = job.model_dump(mode="json")
    _name_files(job, plain)
    run = job.local_run if isinstance(job, LocalJob) else None
    block = (run or LocalRun()).model_dump(mode="json")
    plain["local_run"] = {**block, **{k: v for k, v in changes.items() if k not in _OF_THE_JOB}}
    if overrides.secure is not None:
        plain["aggregation"]["secure"] = overrides.secure
    if overrides.data is not None:
        files = _files(block["data"], overrides.data.absolute())
        plain["local_run"]["data"] = {**block["data"], **files}
    plain["local_run"]["policy"] = owners_policy(job, run or LocalRun()).model_dump(mode="json")
    if overrides.noise is not None:
        _with_noise(plain, overrides.noise)
    devices = plain["local_run"]["devices"]
    if overrides.devices is not None and isinstance(devices, int) and devices > 0:
        # The run itself waits for its devices; fewer than asked for could never come.
        selection = plain["selection"]
        selection["min_devices"] = min(selection["min_devices"], devices)
    where = f"{named} with {_options(changes)}" if changes else named
    try:
        checked, _ = parse_local_job(_yaml(plain), where, folder=folder)
    except ConfigError as error:  # the lines are those of the changed text, which nobody has
        begin = re.compile(rf"{re.escape(where)}:\d+ ")
        raise ConfigError([begin.sub(f"{where}: ", line, 1) for line in error.problems]) from None
    run = checked.local_run or LocalRun()
    _refuse_unused(overrides, checked, run)
    return checked.alone, run


def _files(data: dict[str, Any], given: Path) -> dict[str, str]:
    """The paths that `--data` stands for: of a folder, those of the files that the job names."""
    named = {key: data[key] for key in ("path", "test_path") if data.get(key)}
    inside = {key: given / Path(path).name for key, path in named.items()}
    if given.is_dir() and inside and all(path.is_file() for path in inside.values()):
        return {key: str(path) for key, path in inside.items()}
    return {"path": str(given)}


def _with_noise(plain: dict[str, Any], noise: str) -> None:
    plain["privacy"]["noise"] = noise
    if noise == "shared":
        plain["aggregation"]["secure"] = True
        policy = plain["local_run"]["policy"]
        for key in ("max_collusion_epsilon_per_job", "lifetime_collusion_epsilon"):
            if policy[key] is None:
                policy[key] = _WHATEVER


def _refuse_unused(overrides: Overrides, job: Job, run: LocalRun) -> None:
    """Raise UsageError for options that would change nothing in this run."""
    name = run.data.source or job.data.source
    if overrides.data is not None and (name == "digits" or name.startswith("python:")):
        raise UsageError(
            f"the job's records are those of '{name}', which reads no file",
            where="--data",
            fix="leave it out",
        )
    asked = {key for key, value in asdict(overrides).items() if value is not None}
    if run.simulate and (unused := sorted(asked & {"broker", "protocol"})):
        raise UsageError(
            "a simulation has no brokers",
            where=", ".join(f"--{name}" for name in unused),
            fix="leave it out, or add --no-simulate",
        )
    if not run.simulate and "engine" in asked:
        raise UsageError("says what simulates", where="--engine", fix="add --simulate")
    if run.simulate and run.engine == "faithful" and "workers" in asked:
        raise UsageError(
            "the faithful engine has no worker processes",
            where="--workers",
            fix="leave it out, or use --engine processes",
        )
    if run.engine != "ray" and run.ray_address is not None:
        raise UsageError("names a Ray cluster", where="--address", fix="add --engine ray")


def submitted(job: Job) -> bytes:
    """The job's YAML as the cloud takes it: without `local_run`."""
    usual = job.priority == "normal"
    return _yaml(job.model_dump(mode="json") | ({} if usual else {"priority": job.priority}))


def whole_job(job: Job, run: LocalRun) -> bytes:
    """The job file that says all of it, so that running it again repeats the run."""
    plain = job.model_dump(mode="json") | {"priority": job.priority}
    _name_files(job, plain)
    return _yaml({**plain, "local_run": run.model_dump(mode="json")})


def _name_files(job: Job, plain: dict[str, Any]) -> None:
    """Say in `plain` where backbones and weights lie: it is no part of the job, which has their
    digests."""
    for entry, written in zip(job.features, plain["features"], strict=True):
        if isinstance(entry, OnnxParameters):
            written["file"] = entry.file
    if job.model is not None and job.model.state_dict is not None:
        plain["model"]["state_dict"]["file"] = job.model.state_dict.file


def site_of(job: Job, run: LocalRun, folder: Path, record_dir: Path | None = None) -> SitePlan:
    """The site of a run below `folder`; ports, broker and limits are its usual ones."""
    data = source(job, run)
    return SitePlan(
        folder=folder,
        devices=run.devices,
        infer_only=run.infer_only,
        source=data,
        partition=run.partition,
        classes=dealt_classes(job, data),
        seed=run.seed,
        policy=run.policy,
        min_batch_floor=min(3, job.round.min_batch),
        record_dir=record_dir,
    )


def _yaml(plain: dict[str, Any]) -> bytes:
    # Not JSON: there 1e-05 is a number, in YAML 1.1 it is text.
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text.encode()


def _options(changes: dict[str, Any]) -> str:
    return " ".join(f"--{key} {value}" for key, value in changes.items())
