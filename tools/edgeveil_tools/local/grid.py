"""`edgeveil run JOB --seeds N --sweep KEY=A,B`: runs in DIR/POINT/seed-N, and a comparison.

Completed runs of the same job file are kept."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import IO, Any

import yaml

from edgeveil.errors import INTERRUPTED, EdgeVeilError, JobFailed, UsageError
from edgeveil.evaluation.figures import leading, leading_text
from edgeveil.jobs import Job
from edgeveil.units import seconds_text
from edgeveil_tools.cli.common import columns
from edgeveil_tools.local.data import check_data
from edgeveil_tools.local.fleet import refuse_unplayable
from edgeveil_tools.local.job import Overrides, local_job, whole_job
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.run import run_local
from edgeveil_tools.report.compare import (
    COMPARISON,
    TABLE,
    choice_note,
    compared,
    heads,
    write_comparison,
    write_table,
)
from edgeveil_tools.result import Result, writing
from edgeveil_tools.tracking.feed import check_target

_SHORT = (0, 1, 3, 4, 5)  # columns of the table that fit a terminal


@dataclass(frozen=True)
class GridRun:
    path: Path
    folder: Path
    overrides: Overrides
    job: Job
    run: LocalRun

    @property
    def done(self) -> Result | None:
        try:
            if (self.folder / "job.yaml").read_bytes() != whole_job(self.job, self.run):
                return None
            found = Result.load(self.folder)
        except (OSError, UsageError):
            return None
        return found if found.status == "completed" else None


def sweep_of(text: str) -> tuple[str, list[Any]]:
    """Parse `privacy.epsilon=0.5,1` to a key and its YAML values; raises UsageError."""
    key, sign, values = text.partition("=")
    try:
        found = yaml.safe_load(f"[{values}]")
    except yaml.YAMLError:
        found = None
    if not (key and sign and found):
        what, fix = f"'{text}' is not KEY=A,B", "write privacy.epsilon=0.5,1,2"
        raise UsageError(what, where="--sweep", fix=fix)
    return key, found


def grid_of(
    path: Path, out: Path, overrides: Overrides, seeds: int, sweeps: Sequence[str]
) -> list[GridRun]:
    """Return all runs, checked with their records; raises ConfigError, UsageError, DataError."""
    if seeds < 1:
        raise UsageError("no seed to run", where="--seeds", fix="use 1 or more")
    swept = dict(map(sweep_of, sweeps))
    first = local_job(path, overrides)[1].seed
    found = []
    for values in product(*swept.values()):
        point = dict(zip(swept, values, strict=True))
        texts = [v if isinstance(v, str) else json.dumps(v).replace(" ", "") for v in values]
        name = ",".join(map("{}={}".format, point, texts)) or path.stem
        at: Overrides = {**overrides, "settings": tuple(point.items())}
        for seed in range(first, first + seeds):
            folder = out / name.replace("/", "_") / f"seed-{seed}"
            options: Overrides = {**at, "seed": seed}
            found.append(GridRun(path, folder, options, *local_job(path, options)))
        check_data(found[-1].job, found[-1].run)
        if found[-1].run.simulate:
            refuse_unplayable(found[-1].job, found[-1].run)
    return found


def run_grid(
    path: Path,
    out: Path,
    overrides: Overrides,
    seeds: int,
    sweeps: Sequence[str],
    *,
    as_json: bool = False,
    reference: bool | None = None,
    track: Sequence[str] = (),
    **how: Any,
) -> int:
    """Run missing runs and compare all; returns 0, 6 if a run failed, 130 after Ctrl-C."""
    stream = sys.stderr if as_json else sys.stdout
    failures: list[str] = []
    for target in track:
        check_target(target)
    runs = grid_of(path, out, overrides, seeds, sweeps)
    for number, one in enumerate(runs):
        trained = reference if number % seeds == 0 else False  # it hardly depends on the seed
        if run_one(one, stream, failures, reference=trained, track=track, **how) == INTERRUPTED:
            print("Interrupted; repeat the command to continue", file=stream)
            return INTERRUPTED
    rows = compared([result for one in runs if (result := one.done)])
    if rows:
        write_table(rows, out, failures)
        with writing(out):
            write_comparison(rows, out / COMPARISON)
        shown = [[cells[at] for at in _SHORT] for cells in (heads(rows), *(r.cells for r in rows))]
        print("\n".join(columns(shown)), file=stream)
        if choice := choice_note(rows):
            print(choice, file=stream)
        print(f"Files: {out}/ with {TABLE} and {COMPARISON}", file=stream)
    if as_json:
        plain: dict[str, Any] = {"command": "run", "ok": not failures}
        plain |= {"rows": [row.plain for row in rows], "failures": failures}
        print(json.dumps(plain, allow_nan=False), flush=True)
    return JobFailed.exit_code if failures else 0


def run_one(
    one: GridRun, stream: IO[str], failures: list[str], *, force: bool = False, **how: Any
) -> int:
    """Run unless completed; returns 0 or 130, and adds a failure to `failures`."""
    if not force and one.done:
        print(f"{one.folder}: done before", file=stream)
        return 0
    try:
        code = run_local(
            one.path,
            one.folder,
            one.overrides,
            force=True,  # completed runs have returned above
            brief=True,
            stream=stream if stream.isatty() else io.StringIO(),  # a line a run is enough in a file
            **how,
        )
    except EdgeVeilError as error:
        failures.append(f"{one.folder}: {error}")
        print(f"edgeveil: {failures[-1]}", file=sys.stderr)
        return 0
    if code == 0:
        content = Result.load(one.folder).content
        measure, value = leading(content["final"])
        figure = leading_text(measure, value, content["final"].get("figures"))
        outcome = "not tested" if value is None else f"{measure} {figure}"
        print(
            f"{one.folder}: {outcome}, {seconds_text(content['seconds'])}", file=stream, flush=True
        )
    return code
