"""Runs an experiment's trials as `edgeveil table` runs jobs; puts text and measurement in rows."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from fl_core.errors import EdgeVeilError, JobFailed, UsageError
from tools.backbone import ensure_for_jobs
from tools.reproduce import EXPERIMENTS
from tools.reproduce.base import Experiment, Trial
from tools.reproduce.output import FILES, markdown, write
from tools.result import guarantee_text, versions, write_whole
from tools.run_local import INTERRUPTED
from tools.table import Asked, Study, done, run_seed, study_of


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for; `only` names trials, none for all of them."""

    out: Path
    seeds: int = 3
    data: str | None = None
    quick: bool = False
    only: Sequence[str] = ()
    as_json: bool = False


def reproduce(name: str, wanted: Wanted) -> int:
    """Run what is missing and write the table; 0, 6 where a trial failed, 130 after Ctrl-C.

    UsageError for an unknown name or trial, and where files of data are missing (it names them).
    """
    experiment = EXPERIMENTS[name]
    if wanted.seeds < 1:
        raise UsageError("no seed to run", where="--seeds", fix="use 1 or more")
    trials = _chosen(experiment.trials(wanted.quick), wanted.only)
    asked = Asked(wanted.seeds, wanted.out, wanted.data, as_json=wanted.as_json)
    studies = [_study(trial, asked) for trial in trials]
    stream = sys.stderr if wanted.as_json else sys.stdout
    failures: list[str] = []
    for trial, study in zip(trials, studies, strict=True):
        for number in range(wanted.seeds):
            try:
                if run_seed(study, number, asked, stream) == INTERRUPTED:
                    return INTERRUPTED
            except EdgeVeilError as error:
                failures.append(f"{trial.name}, seed {study.run.seed + number}: {error}")
                print(f"edgeveil: {failures[-1]}", file=sys.stderr)
    content = {
        "experiment": name,
        "title": experiment.title,
        "source": experiment.source,
        "figure": experiment.figure,
        "remark": experiment.remark,
        "quick": wanted.quick,
        "rows": [_row(experiment, *pair) for pair in zip(trials, studies, strict=True)],
        "failures": failures,
        "versions": versions(),
    }
    _show(content, wanted, stream)
    return JobFailed.exit_code if failures else 0


def _chosen(trials: tuple[Trial, ...], only: Sequence[str]) -> list[Trial]:
    names = [trial.name for trial in trials]
    for name in only:
        if name not in names:
            raise UsageError(f"unknown trial '{name}'", where="--only", fix=", ".join(names))
    return [trial for trial in trials if not only or trial.name in only]


def _study(trial: Trial, asked: Asked) -> Study:
    path = asked.out / "jobs" / f"{trial.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, yaml.safe_dump(dict(trial.job), sort_keys=False).encode())
    ensure_for_jobs([path])
    return study_of(path, asked)


def _row(experiment: Experiment, trial: Trial, study: Study) -> dict[str, Any]:
    seeds = range(study.run.seed, study.run.seed + 10_000)
    results = []
    for seed in seeds:
        found = done(study, seed)
        if found is None:
            break
        results.append(found)
    values = [value for found in results if (value := experiment.measure(found)) is not None]
    privacy = results[0]["privacy"] if results else None
    return {
        "trial": trial.name,
        "label": trial.label,
        "claimed": trial.claimed,
        "ours": statistics.median(values) if values else None,
        "values": values,
        "claimed_privacy": trial.claimed_privacy,
        "proven_privacy": guarantee_text(privacy, experiment.guarantee) if privacy else None,
        "rounds": study.job.rounds,
        "seconds": statistics.median(f["seconds"] for f in results) if results else None,
    }


def _show(content: dict[str, Any], wanted: Wanted, stream: IO[str]) -> None:
    write(content, wanted.out)
    if wanted.as_json:
        print(json.dumps(content, allow_nan=False), flush=True)
    print(markdown(content), file=stream)
    print(f"Files: {wanted.out}/ with {', '.join(FILES)}", file=stream)
