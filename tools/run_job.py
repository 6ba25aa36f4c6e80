"""The job of a local run: read, changed by the command line's options, and checked with them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_core.algorithms.base import Records
from fl_core.config import DataSource, Job, LocalRun, load_job, parse_job
from fl_core.data.device import dealt_records, held_records
from fl_core.data.partition import Shares
from fl_core.data.published import PUBLISHED
from fl_core.data.sources import Origin
from fl_core.errors import ConfigError, UsageError
from fl_core.features import OnnxParameters, backbone_digests
from fl_core.models import runs_python
from fl_core.plan import JobPlan
from tools.site_plan import SitePlan

PLACES = (Path("../shared/data"), Path("data"))  # looked at where no folder is named


@dataclass(frozen=True)
class Overrides:
    """Options of `edgeveil run` that replace values of the `local_run` block."""

    broker: str | None = None
    protocol: int | None = None
    devices: int | None = None
    workers: int | None = None
    seed: int | None = None
    simulate: bool | None = None
    data_dir: str | None = None


def local_job(path: Path, overrides: Overrides) -> tuple[Job, LocalRun]:
    """The job with a `local_run` block. ConfigError names every problem of file and options,
    UsageError an option that would change nothing.

    Its `data_dir` is absolute afterwards: `--data` counts from here, the key from the job's file.
    """
    job = load_job(path)
    changes = {key: value for key, value in asdict(overrides).items() if value is not None}
    if overrides.data_dir is not None:
        changes["data_dir"] = str(Path(overrides.data_dir).absolute())
    plain = job.model_dump(mode="json")
    for entry, written in zip(job.features, plain["features"], strict=True):
        if isinstance(entry, OnnxParameters):
            written["file"] = entry.file
    plain["local_run"] = {**(job.local_run or LocalRun()).model_dump(mode="json"), **changes}
    allowed = plain["local_run"]["policy"]["allowed_backbones"]
    allowed += [digest for digest in backbone_digests(job.features) if digest not in allowed]
    devices = plain["local_run"]["devices"]
    if overrides.devices is not None and isinstance(devices, int) and devices > 0:
        # The run itself waits for its devices; fewer than asked for could never come.
        selection = plain["selection"]
        selection["min_devices"] = min(selection["min_devices"], devices)
    where = f"{path} with {_options(changes)}" if changes else str(path)
    try:
        checked = parse_job(_yaml(plain), where, folder=path.absolute().parent)
    except ConfigError as error:  # the lines are those of the changed text, which nobody has
        begin = re.compile(rf"{re.escape(where)}:\d+ ")
        raise ConfigError([begin.sub(f"{where}: ", line, 1) for line in error.problems]) from None
    run = checked.local_run or LocalRun()
    _refuse_unused(overrides, checked, run)
    if run.data_dir is not None:
        run = run.model_copy(update={"data_dir": str((path.parent / run.data_dir).absolute())})
    return checked, run


def _refuse_unused(overrides: Overrides, job: Job, run: LocalRun) -> None:
    """Raise UsageError for options that would change nothing in this run."""
    if overrides.data_dir is not None and job.data.source not in PUBLISHED:
        raise UsageError(
            f"the job's records are those of '{job.data.source}', which reads no folder",
            where="--data",
            fix="leave it out",
        )
    unused = [n for n in ("broker", "protocol", "workers") if getattr(overrides, n) is not None]
    if run.simulate and unused:
        raise UsageError(
            "a simulation has no brokers and no worker processes",
            where=", ".join(f"--{name}" for name in unused),
            fix="leave it out, or add --no-simulate",
        )


def submitted(job: Job) -> bytes:
    """The job's YAML as the cloud takes it: without `local_run`."""
    return _yaml(job.model_dump(mode="json", exclude={"local_run"}))


def check_data(job: Job, run: LocalRun) -> None:
    """Raise UsageError or DataError unless the records fit the job; nothing has started yet."""
    if runs_python(job.model):
        JobPlan(job).graph()  # what the code is, shows only when it runs
    name = job.data.source
    if name != "digits" and name not in PUBLISHED and not name.startswith("python:"):
        raise UsageError(
            f"'{name}' cannot be dealt out on one machine",
            where="data.source",
            fix=f"use digits, {', '.join(PUBLISHED)} or `python: module:function`; or provision a "
            "site of your own",
        )
    pool, test = dealt(job, run)[0], held(job, run)
    for what, records in (("training", pool), ("test", test)):
        shape = tuple(records.x.shape[1:])
        if shape != job.data.input_shape:
            raise UsageError(
                f"is {list(job.data.input_shape)}, the {what} records of '{name}' have"
                f" {list(shape)}",
                where="data.input_shape",
                fix=f"write input_shape: {list(shape)}",
            )
    if len(pool) < run.devices:
        raise UsageError(
            f"{len(pool)} records cannot be dealt to {run.devices} devices",
            where="local_run.devices",
            fix=f"play at most {len(pool)}",
        )


def held(job: Job, run: LocalRun) -> Records:
    """The cloud's test records."""
    return held_records(source(job, run))


def dealt(job: Job, run: LocalRun) -> tuple[Records, Shares]:
    """All records as the devices hold them, and the indices into them of each device."""
    data = source(job, run)
    origin = Origin(path=data.path, test_records=data.test_records)
    return dealt_records(data.source, origin, run.devices, run.partition, run.seed)


def source(job: Job, run: LocalRun) -> DataSource:
    """The run's data set, as the sites of its processes name it. Raises UsageError."""
    name = job.data.source
    folder = _folder(name, run) if name in PUBLISHED else None
    return DataSource(name=name, source=name, path=folder, test_records=run.test_records)


def site_of(job: Job, run: LocalRun, folder: Path, record_dir: Path | None = None) -> SitePlan:
    """The site of a run below `folder`; ports, broker and limits are its usual ones."""
    data = source(job, run)
    return SitePlan(
        folder=folder,
        devices=run.devices,
        infer_only=run.infer_only,
        data_name=data.name,
        data_source=data.source,
        data_path=data.path,
        test_records=run.test_records,
        partition=run.partition,
        seed=run.seed,
        policy=run.policy,
        min_batch_floor=min(3, job.round.min_batch),
        record_dir=record_dir,
    )


def _folder(name: str, run: LocalRun) -> Path:
    if run.data_dir is not None:
        return Path(run.data_dir)
    files = PUBLISHED[name].files
    places = [place / name for place in PLACES]
    for place in places:
        if not files.missing(place):
            return place.absolute()
    raise UsageError(
        f"{name} is neither in {places[0]} nor in {places[1]}",
        where="data.source",
        fix=f"name the folder that holds {', '.join(files.names)} with --data DIR",
    )


def _yaml(plain: dict[str, Any]) -> bytes:
    # Not JSON: there 1e-05 is a number, in YAML 1.1 it is text.
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text.encode()


def _options(changes: dict[str, Any]) -> str:
    names = {"data_dir": "data"}
    return " ".join(f"--{names.get(key, key)} {value}" for key, value in changes.items())
