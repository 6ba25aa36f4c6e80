"""Runs an experiment's trials as `edgeveil table` runs jobs; puts text and measurement in rows."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from edgeveil.errors import EdgeVeilError, JobFailed, UsageError
from edgeveil.jobs import load_job
from edgeveil.registry import nearest
from edgeveil_lab.reproduce import EXPERIMENTS
from edgeveil_lab.reproduce.base import Experiment, Trial
from edgeveil_lab.reproduce.data import folder_of, refuse, without_files
from edgeveil_lab.reproduce.gpu import require_gpu
from edgeveil_lab.reproduce.output import FILES, kept_rows, markdown, write
from edgeveil_lab.reproduce.rows import Played, not_run, rows_of
from edgeveil_lab.table.claims import chosen_note
from edgeveil_lab.table.command import Asked, run_seed, study_of
from edgeveil_tools.backbone.command import ensure_for_jobs
from edgeveil_tools.local.run import INTERRUPTED
from edgeveil_tools.result import versions, write_whole


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for; `only` names trials, none for all of them.

    `rounds` caps the training rounds of every trial; None: as many as the text plays.
    """

    out: Path
    seeds: int = 3
    data: Path | None = None
    quick: bool = False
    only: Sequence[str] = ()
    rounds: int | None = None
    as_json: bool = False

    def command(self, name: str) -> str:
        """The command that asks for this: no path of the machine is in it, and no row's name."""
        parts = ["edgeveil", "reproduce", name]
        parts += ["--data", "DIR"] if self.data is not None else []
        parts += ["--quick"] if self.quick else []
        parts += ["--seeds", str(self.seeds)]
        parts += [] if self.rounds is None else ["--rounds", str(self.rounds)]
        return shlex.join(parts)


def reproduce(name: str, wanted: Wanted) -> int:
    """Run what is missing and write the table; 0, 6 where a trial failed, 130 after Ctrl-C.

    Rows that are not asked for stay as a former run into the same folder left them. UsageError
    for an unknown name or trial, and for a GPU or data files that nothing runs without.
    """
    experiment = EXPERIMENTS[name]
    for value, option in ((wanted.seeds, "--seeds"), (wanted.rounds, "--rounds")):
        if value is not None and value < 1:
            raise UsageError(f"no {option[2:-1]} to run", where=option, fix="use 1 or more")
    trials = experiment.trials(wanted.quick)
    chosen = _chosen(trials, wanted.only)
    if experiment.needs_gpu and not wanted.quick:
        require_gpu(name)
    stream = sys.stderr if wanted.as_json else sys.stdout
    lacking = without_files(trials, wanted.data)
    able = [trial for trial in chosen if trial.source not in lacking]
    left_out = {one.source: lacking[one.source] for one in chosen if one.source in lacking}
    if left_out and (wanted.only or not able):
        refuse(left_out)
    for files in left_out.values():
        print(f"left out, for want of files: {files}", file=stream)
    played = [_prepared(trial, wanted) for trial in able]
    failures: list[str] = []
    for one in played:
        if _run(one, wanted, stream, failures) == INTERRUPTED:
            print("edgeveil: interrupted; the same command goes on", file=sys.stderr)
            return INTERRUPTED
    made = {one.trial.name: rows_of(experiment, one, wanted.command(name)) for one in played}
    kept = kept_rows(wanted.out, name, wanted.quick)
    rows = [
        row
        for trial in trials
        for row in made.get(trial.name) or kept.get(trial.name) or not_run(trial, lacking)
    ]
    _show(_content(name, experiment, wanted, rows, failures), wanted, stream)
    return JobFailed.exit_code if failures else 0


def _chosen(trials: tuple[Trial, ...], only: Sequence[str]) -> list[Trial]:
    names = [trial.name for trial in trials]
    for name in only:
        if name not in names:
            raise UsageError(f"unknown trial '{name}'", where="--only", fix=nearest(name, names))
    return [trial for trial in trials if not only or trial.name in only]


def _prepared(trial: Trial, wanted: Wanted) -> Played:
    """The trial's job file, written, cut to the rounds asked for, and checked with its records."""
    path = wanted.out / "jobs" / f"{trial.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    job = dict(trial.job)
    _dump(path, job)
    ensure_for_jobs([path])
    full = load_job(path).rounds
    if wanted.rounds is not None and wanted.rounds < full:
        _dump(path, {**job, "train": {**job.get("train", {}), "rounds": wanted.rounds}})
    folder = folder_of(trial.source, wanted.data)
    asked = Asked(wanted.seeds, wanted.out, folder, as_json=wanted.as_json, reference=False)
    return Played(trial, study_of(path, asked), asked, full)


def _dump(path: Path, job: dict[str, Any]) -> None:
    write_whole(path, yaml.safe_dump(job, sort_keys=False).encode())


def _run(one: Played, wanted: Wanted, stream: IO[str], failures: list[str]) -> int:
    for number in range(wanted.seeds):
        try:
            if run_seed(one.study, number, one.asked, stream) == INTERRUPTED:
                return INTERRUPTED
        except EdgeVeilError as error:
            failures.append(f"{one.trial.name}, seed {one.study.run.seed + number}: {error}")
            print(f"edgeveil: {failures[-1]}", file=sys.stderr)
    return 0


def _content(
    name: str,
    experiment: Experiment,
    wanted: Wanted,
    rows: list[dict[str, Any]],
    failures: list[str],
) -> dict[str, Any]:
    return {
        "experiment": name,
        "title": experiment.title,
        "source": experiment.source,
        "figure": experiment.figure,
        "remark": experiment.remark,
        "chosen": chosen_note(tuned_rows(rows, experiment.trials(wanted.quick))),
        "picture": experiment.picture,
        "x_label": experiment.x_label,
        "x_log": experiment.x_log,
        "quick": wanted.quick,
        "rows": rows,
        "failures": failures,
        "versions": versions(),
    }


def tuned_rows(rows: Sequence[dict[str, Any]], trials: Sequence[Trial]) -> list[str]:
    """The measured rows whose settings were chosen on the same images: those of `fm` on MNIST."""
    ours = (t for t in trials if t.source == "mnist")
    tuned = {t.name for t in ours if t.job.get("train", {}).get("method") == "fm"}
    measured = (row for row in rows if row["trial"] in tuned and row["values"])
    return list(dict.fromkeys(f"`{row['trial']}`" for row in measured))


def _show(content: dict[str, Any], wanted: Wanted, stream: IO[str]) -> None:
    write(content, wanted.out)
    if wanted.as_json:
        print(json.dumps(content, allow_nan=False), flush=True)
    print(markdown(content), file=stream)
    print(f"Files: {wanted.out}/ with {', '.join(FILES)}", file=stream)
