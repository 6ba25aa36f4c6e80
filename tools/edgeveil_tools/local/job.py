"""The job of a local run: read, changed by command-line options, and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np
import yaml
from numpy.typing import NDArray

from edgeveil.data.encoding import Encoded, Given
from edgeveil.errors import ConfigError, UsageError
from edgeveil.jobs import Job
from edgeveil.parts.features import OnnxParameters
from edgeveil.parts.sources import SOURCES
from edgeveil.parts.sources.memory import Arrays, Frame, holders_of, opened, read_opened
from edgeveil.registry import nearest
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
    """Options of `edgeveil run` over `local_run`; `settings` are other keys of the job.

    Only in Python `data` may be records in memory, with `fleet` and `test_data`."""

    broker: str | None
    devices: int | None
    workers: int | None
    seed: int | None
    simulate: bool | None
    ray_address: str | None
    data: Any
    fleet: Any
    test_data: Any
    accept_unprotected: bool | None
    settings: tuple[tuple[str, Any], ...] | None


_NOT_OF_RUN = ("settings", "accept_unprotected")


def local_job(given: str | Path | Job, overrides: Overrides) -> tuple[Job, LocalRun]:
    """Return a job with its `local_run`; all paths are absolute.

    Raises ConfigError with all problems of file and options, UsageError for an unused option."""
    asked: dict[str, Any] = {key: one for key, one in overrides.items() if one is not None}
    of_run, accept = dict(asked), bool(asked.get("accept_unprotected"))
    settings, _ = (of_run.pop(key, ()) for key in _NOT_OF_RUN)
    memory = _InMemory.of(of_run)
    if isinstance(given, Job):
        job, named, folder = given, f"job {given.job}", Path.cwd()
    elif not isinstance(given, str | Path):
        fix = "pass the path of a job file, or a job of edgeveil.load_job"
        raise UsageError(f"is {type(given).__name__}", where="job", fix=fix)
    else:
        ensure_for_jobs([Path(given)])
        job = load_local_job(Path(given), accept_unprotected=accept)[0]
        named, folder = str(given), Path(given).absolute().parent
    run = (job.local_run if isinstance(job, LocalJob) else None) or LocalRun()
    plain, block = _plain(job), run.model_dump(mode="json")
    holders = None if memory is None else memory.replace(block, of_run)
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
    asked = {key: one for key, one in asked.items() if key in {*of_run, *_NOT_OF_RUN}}
    where = f"{named} with {_options(asked)}" if asked else named
    checked = _parsed(plain, where, folder, accept_unprotected=accept)
    run = checked.local_run or LocalRun()
    _refuse_unused(asked, checked, run)
    if memory is not None:
        held = memory.given(checked, run.data.label_column, holders)
        run = run.model_copy(update={"data": run.data.holding(held)})
    return checked.alone, run


def changed(job: LocalJob, changes: Mapping[str, Any]) -> LocalJob:
    """Return a checked copy of a job with other values; see `LocalJob.with_`."""
    plain = _plain(job) | {"priority": job.priority}
    if job.local_run is not None:
        plain["local_run"] = job.local_run.model_dump(mode="json")
    settings = [(_full_key(name, job), _plain_value(one)) for name, one in changes.items()]
    for key, value in settings:
        _set(plain, key, value)
    where = f"job {job.job} with {', '.join(f'{key}={value}' for key, value in settings)}"
    return _parsed(plain, where, Path.cwd())


def job_of(plain: dict[str, Any]) -> LocalJob:
    """Return a job of plain values, as in its YAML; raises ConfigError with all problems."""
    return _parsed(plain, f"job {plain['job']}", Path.cwd())


def _parsed(
    plain: dict[str, Any], where: str, folder: Path, *, accept_unprotected: bool = False
) -> LocalJob:
    how: Any = {"folder": folder, "accept_unprotected": accept_unprotected}
    try:
        return parse_local_job(_yaml(plain), where, **how)[0]
    except ConfigError as error:  # line numbers are of the changed text: drop them
        begin = re.compile(rf"{re.escape(where)}:\d+ ")
        raise ConfigError([begin.sub(f"{where}: ", line, 1) for line in error.problems]) from None


def _full_key(name: str, job: LocalJob) -> str:
    """Return the dotted key of a short name: a key of `privacy`, `train` or `local_run`."""
    if "." in name or name in type(job).model_fields:
        return name
    blocks = {"privacy": job.privacy, "train": job.train, "local_run": job.local_run or LocalRun()}
    found = [key for key, block in blocks.items() if name in type(block).model_fields]
    if len(found) == 1:
        return f"{found[0]}.{name}"
    if found:
        fix = f"write **{{'{found[0]}.{name}': …}}"
        raise UsageError(f"is a key of {' and '.join(found)}", where=name, fix=fix)
    known = [key for block in blocks.values() for key in type(block).model_fields]
    fix = f"{nearest(name, known)} Others are dotted, such as **{{'round.min_batch': 5}}"
    raise UsageError("is no key of privacy, train or local_run", where=name, fix=fix)


def _plain_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.absolute())
    found = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    return [_plain_value(one) for one in found] if isinstance(found, list | tuple) else found


@dataclass(frozen=True)
class _InMemory:
    """Records of `simulate(job, data=…)`, before the job says how to read them."""

    data: Frame | Arrays
    test: Frame | Arrays | None
    fleet: Any

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self | None:
        """Take `data`, `fleet` and `test_data` from options; None for a file or none of them."""
        data, fleet, test = (options.get(key) for key in ("data", "fleet", "test_data"))
        if data is None or isinstance(data, str | Path):
            for name in options.keys() & {"fleet", "test_data"}:
                raise UsageError("is only for records in memory", where=name, fix="pass data")
            return None
        for name in options.keys() & {"data", "fleet", "test_data"}:
            del options[name]
        return cls(opened(data), None if test is None else opened(test, "test_data"), fleet)

    def replace(self, run: dict[str, Any], options: dict[str, Any]) -> NDArray[np.int64] | None:
        """Replace the files of `local_run` by the records; returns the records' holders."""
        label = run["data"].get("label_column")
        run |= {"test_records": None, "data": {"source": "memory", "label_column": label}}
        if self.test is not None:
            run |= {"test_share": None, "test_folds": None}
        if self.fleet is None:
            return None
        holders = holders_of(self.data, self.fleet)
        count = int(holders.max(initial=-1)) + 1
        if options.setdefault("devices", count) != count:
            what = f"{options['devices']} is not the number of holders in fleet, {count}"
            raise UsageError(what, where="devices", fix="leave it out")
        return holders

    def given(self, job: Job, label: str | None, holders: NDArray[np.int64] | None) -> Given:
        """Return the records as the job reads them; raises DataError."""
        whole = self._read(self.data, "data", job, label)
        found = replace(whole, records=replace(whole.records, holders=holders))
        if self.test is None:
            return Given(found)
        return Given(found, self._read(self.test, "test_data", job, label).records)

    def _read(self, data: Frame | Arrays, where: str, job: Job, label: str | None) -> Encoded:
        if isinstance(data, Frame) and isinstance(self.fleet, str):
            data = data.without([self.fleet])
        return read_opened(data, job.data.schema_, where, label_column=label)


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
    if not run.simulate and run.workers == 0:
        fix = "name 1 or more, or add --simulate"
        raise UsageError("devices need a process", where="local_run.workers", fix=fix)
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
        own_metric=job.test_metric is not None,
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
