"""The job of a local run: read, changed by command-line options, and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import yaml

from edgeveil.errors import ConfigError, UsageError
from edgeveil.jobs import Job
from edgeveil.parts.features import OnnxParameters
from edgeveil.parts.sources import SOURCES
from edgeveil_tools.backbone.command import ensure_for_jobs
from edgeveil_tools.local.data import dealt_classes, source, source_of
from edgeveil_tools.local.local_run import (
    LocalJob,
    LocalRun,
    load_local_job,
    owners_policy,
    parse_local_job,
)
from edgeveil_tools.site.provision import SiteSpec


class Overrides(TypedDict, total=False):
    """Options of `edgeveil run` over `local_run`; `settings` are other keys of the job."""

    broker: str | None
    devices: int | None
    workers: int | None
    seed: int | None
    simulate: bool | None
    ray_address: str | None
    data: str | Path | None
    accept_unprotected: bool | None
    settings: tuple[tuple[str, Any], ...] | None


def local_job(given: str | Path | Job, overrides: Overrides) -> tuple[Job, LocalRun]:
    """Return a job with its `local_run`; all paths are absolute.

    Raises ConfigError with all problems of file and options, UsageError for an unused option."""
    asked: dict[str, Any] = {key: one for key, one in overrides.items() if one is not None}
    of_run, accept = dict(asked), bool(asked.get("accept_unprotected"))
    settings = of_run.pop("settings", ())
    of_run.pop("accept_unprotected", None)
    if isinstance(given, Job):
        job, named, folder = given, f"job {given.job}", Path.cwd()
    else:
        ensure_for_jobs([Path(given)])
        job = load_local_job(Path(given), accept_unprotected=accept)[0]
        named, folder = str(given), Path(given).absolute().parent
    run = (job.local_run if isinstance(job, LocalJob) else None) or LocalRun()
    plain, block = _plain(job), run.model_dump(mode="json")
    if "data" in of_run:
        named = block["data"]["source"] or job.data.source
        given_at = Path(of_run["data"]).absolute()
        of_run["data"] = {**block["data"], **_files(block["data"], given_at, named)}
    plain["local_run"] = {**block, **of_run}
    for key, value in settings:
        _set(plain, key, value)
    devices = plain["local_run"]["devices"]
    if "devices" in of_run and isinstance(devices, int) and devices > 0:
        # The run waits for its own devices, so a larger minimum could never be met.
        selection = plain["selection"]
        selection["min_devices"] = min(selection["min_devices"], devices)
    where = f"{named} with {_options(asked)}" if asked else named
    try:
        checked, _ = parse_local_job(_yaml(plain), where, folder=folder, accept_unprotected=accept)
    except ConfigError as error:  # line numbers are of the changed text: drop them
        begin = re.compile(rf"{re.escape(where)}:\d+ ")
        raise ConfigError([begin.sub(f"{where}: ", line, 1) for line in error.problems]) from None
    run = checked.local_run or LocalRun()
    _refuse_unused(asked, checked, run)
    return checked.alone, run


def _files(data: dict[str, Any], given: Path, source: str) -> dict[str, Any]:
    """Return the paths for `--data`: in a folder, those of the files that the job names."""
    named = {key: data[key] for key in ("path", "test_path") if data.get(key)}
    inside = {key: given / Path(path).name for key, path in named.items()}
    if given.is_dir() and inside and all(path.is_file() for path in inside.values()):
        return {key: str(path) for key, path in inside.items()}
    found: dict[str, Any] = {"path": str(given)}
    if named.get("path") and given.name != Path(named["path"]).name:  # the form is of that one
        found |= {"form": None, "header": None}
    if given.is_file() and source in SOURCES:
        found["source"] = source_of(given, source)
    return found


def _set(plain: dict[str, Any], key: str, value: Any) -> None:
    *blocks, last = key.split(".")
    at: Any = plain
    for name in blocks:
        if isinstance(at, list):
            at = at[int(name)] if name.isdecimal() and int(name) < len(at) else {}
            continue
        if not isinstance(at.get(name), dict | list):
            at[name] = {}
        at = at[name]
    if isinstance(at, dict):
        at[last] = value


def _refuse_unused(asked: Mapping[str, Any], job: Job, run: LocalRun) -> None:
    name = run.data.source or job.data.source
    if "data" in asked and (name == "digits" or name.startswith("python:")):
        what = f"the job's records are those of '{name}', which reads no file"
        raise UsageError(what, where="--data", fix="leave it out")
    if run.simulate and "broker" in asked:
        fix = "leave it out, or add --no-simulate"
        raise UsageError("a simulation has no brokers", where="--broker", fix=fix)
    if not run.simulate and "ray_address" in asked:
        raise UsageError("a run over brokers has no Ray", where="--ray", fix="add --simulate")


def submitted(job: Job) -> bytes:
    """Return the job's YAML for the cloud, without `local_run`."""
    usual = job.priority == "normal"
    return _yaml(job.model_dump(mode="json") | ({} if usual else {"priority": job.priority}))


def whole_job(job: Job, run: LocalRun) -> bytes:
    plain = _plain(job) | {"priority": job.priority}
    return _yaml({**plain, "local_run": run.model_dump(mode="json")})


def _plain(job: Job) -> dict[str, Any]:
    """Return the job with paths of its backbones and weights, not only their digests."""
    plain = job.model_dump(mode="json")
    for entry, written in zip(job.features, plain["features"], strict=True):
        if isinstance(entry, OnnxParameters):
            written["file"] = entry.file
    if job.model is not None and job.model.state_dict is not None:
        plain["model"]["state_dict"]["file"] = job.model.state_dict.file
    return plain


def site_of(job: Job, run: LocalRun, folder: Path, record_dir: Path | None = None) -> SiteSpec:
    data = source(job, run)
    return SiteSpec(
        folder=folder,
        devices=run.devices,
        infer_only=run.infer_only,
        source=data,
        partition=run.partition,
        classes=dealt_classes(job, data),
        seed=run.seed,
        policy=owners_policy(job, run),
        min_batch_floor=min(3, job.round.min_batch),
        record_dir=record_dir,
    )


def _yaml(plain: dict[str, Any]) -> bytes:
    # Not JSON: there 1e-05 is a number, in YAML 1.1 it is text.
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text.encode()


def _options(changes: Mapping[str, Any]) -> str:
    found = []
    for key, value in changes.items():
        option = "ray" if key == "ray_address" else key.replace("_", "-")
        if key == "settings":
            found += [f"--sweep {name}={one}" for name, one in value]
        elif isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
        else:
            found.append(f"--{option} {value}")
    return " ".join(found)
