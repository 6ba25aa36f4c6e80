"""The job of a local run: read, changed by the command line's options, and checked with them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_core.algorithms.base import Records
from fl_core.config import DataSource, Job, LocalRun, load_job, parse_job
from fl_core.data.device import held_records
from fl_core.data.sources import Origin, load_records
from fl_core.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Overrides:
    """Options of `edgeveil run` that replace values of the `local_run` block."""

    broker: str | None = None
    protocol: int | None = None
    devices: int | None = None
    workers: int | None = None
    seed: int | None = None


def local_job(path: Path, overrides: Overrides) -> tuple[Job, LocalRun]:
    """The job with a `local_run` block. ConfigError names every problem of file and options."""
    job = load_job(path)
    changes = {key: value for key, value in asdict(overrides).items() if value is not None}
    plain = job.model_dump(mode="json")
    plain["local_run"] = {**(job.local_run or LocalRun()).model_dump(mode="json"), **changes}
    devices = plain["local_run"]["devices"]
    if overrides.devices is not None and isinstance(devices, int) and devices > 0:
        # The run itself waits for its devices; fewer than asked for could never come.
        selection = plain["selection"]
        selection["min_devices"] = min(selection["min_devices"], devices)
    where = f"{path} with {_options(changes)}" if changes else str(path)
    try:
        checked = parse_job(_yaml(plain), where)
    except ConfigError as error:  # the lines are those of the changed text, which nobody has
        begin = re.compile(rf"{re.escape(where)}:\d+ ")
        raise ConfigError([begin.sub(f"{where}: ", line, 1) for line in error.problems]) from None
    return checked, checked.local_run or LocalRun()


def submitted(job: Job) -> bytes:
    """The job's YAML as the cloud takes it: without `local_run`."""
    return _yaml(job.model_dump(mode="json", exclude={"local_run"}))


def check_data(job: Job, run: LocalRun) -> None:
    """Raise UsageError or DataError unless the records fit the job; nothing has started yet."""
    name = job.data.source
    if name != "digits" and not name.startswith("python:"):
        raise UsageError(
            f"'{name}' cannot be dealt out on one machine",
            where="data.source",
            fix="use digits, or `python: module:function`; or provision a site with own files",
        )
    pool, test = load_records(name, Origin(test_records=run.test_records)), held(job, run)
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
    name = job.data.source
    return held_records(DataSource(name=name, source=name, test_records=run.test_records))


def _yaml(plain: dict[str, Any]) -> bytes:
    # Not JSON: there 1e-05 is a number, in YAML 1.1 it is text.
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text.encode()


def _options(changes: dict[str, Any]) -> str:
    return " ".join(f"--{key} {value}" for key, value in changes.items())
