"""`edgeveil table JOB…`: each job simulated with several seeds, and what came of it in one table.

DIR/<job>/seed-<n>/ holds what `edgeveil run --simulate` writes. A seed that has completed is not
run again while its job file says the same, so a table that was interrupted goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from edgeveil.errors import EdgeVeilError, JobFailed, UsageError
from edgeveil.jobs import Job, load_job
from edgeveil.parts.sources import published_files
from edgeveil_lab.table.claims import chosen_note, claims, was_tuned
from edgeveil_lab.table.output import FILES, show, write_table
from edgeveil_tools.local.data import check_data, is_published
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.run import INTERRUPTED, run_local
from edgeveil_tools.result import MEASURED_ON, UNPROTECTED, versions

STAMP = "table.stamp"


@dataclass(frozen=True)
class Study:
    """One job file of the table: the job, its run and its folder."""

    path: Path
    job: Job
    run: LocalRun
    folder: Path

    def stamp(self, seed: int) -> str:
        """Digest of all that decides what a run gives, but for the code."""
        run = self.run.model_copy(update={"seed": seed, "simulate": True})
        return hashlib.sha256(self.job.canonical() + run.model_dump_json().encode()).hexdigest()


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    seeds: int
    out: Path
    data: Path | None = None
    force: bool = False
    as_json: bool = False
    reference: bool | None = None  # of the first seed; None: of a published set

    def overrides(self, job: Job) -> Overrides:
        """For all runs of this job; the folder is for those that read one."""
        data = self.data if job.data.source in published_files() else None
        return Overrides(simulate=True, data=data)


def table(paths: Sequence[Path], asked: Asked) -> int:
    """Run what is missing, write the table; 0, or 6 where a run failed, 130 after Ctrl-C.

    Every job file is checked before the first one runs: ConfigError, UsageError, DataError.
    """
    if asked.seeds < 1:
        raise UsageError("no seed to run", where="--seeds", fix="use 1 or more")
    studies = [study_of(path, asked) for path in paths]
    names = [study.folder for study in studies]
    if len(set(names)) < len(names):
        raise UsageError(
            "two job files have one name", where=str(asked.out), fix="rename one of them"
        )
    stream = sys.stderr if asked.as_json else sys.stdout
    failures: list[str] = []
    for study in studies:
        for number in range(asked.seeds):
            try:
                if run_seed(study, number, asked, stream) == INTERRUPTED:
                    return INTERRUPTED
            except EdgeVeilError as error:
                failures.append(f"{study.path}, seed {study.run.seed + number}: {error}")
                print(f"edgeveil: {failures[-1]}", file=sys.stderr)
    content = {
        "rows": [row(study, asked.seeds) for study in studies],
        "notes": notes(studies),
        "failures": failures,
        "versions": versions(),
    }
    write_table(content, asked.out)
    if asked.as_json:
        print(json.dumps(content, allow_nan=False), flush=True)
    show(content, stream)
    print(f"Files: {asked.out}/ with {', '.join(FILES)}", file=stream)
    return JobFailed.exit_code if failures else 0


def row(study: Study, seeds: int) -> dict[str, Any]:
    """One row of `table.json`, of the runs that completed."""
    results = [found for n in range(seeds) if (found := done(study, study.run.seed + n))]
    accuracies = [r["final"]["accuracy"] for r in results if r["final"]["accuracy"] is not None]
    references = [r["reference"]["accuracy"] for r in results]
    known = [value for value in references if value is not None]
    training = results[0]["privacy"]["training"] if results else {}
    privacy = study.job.privacy
    return {
        "job": study.job.job,
        "features": " + ".join(entry.name for entry in study.job.features),
        "method": study.job.train.method,
        "epsilon": training.get("epsilon") or privacy.epsilon,  # null: training adds no noise
        "delta": privacy.delta,
        "unit": training.get("unit", "record"),
        "status": training.get("status", "unknown"),
        "devices": study.run.devices,
        "rounds": study.job.rounds,
        "seeds": [study.run.seed + n for n in range(seeds)],
        "accuracies": accuracies,
        "median": statistics.median(accuracies) if accuracies else None,
        "reference": known[0] if known else None,
        "seconds": statistics.median(r["seconds"] for r in results) if results else None,
        "memory_peak_bytes": max((r["memory_peak_bytes"] or 0 for r in results), default=None),
        "claims": [{"text": claim.text, **vars(claim)} for claim in claims(study.job.job)],
    }


def notes(studies: Sequence[Study]) -> list[str]:
    """What must be read beside the rows: where settings were chosen, and figures of own records."""
    tuned = [s.job.job for s in studies if was_tuned(s.job.job, s.job.data.source)]
    own = [study.job.job for study in studies if not is_published(study.job, study.run)]
    found = [chosen_note(tuned)] if tuned else []
    if own:
        found.append(f"accuracies of {', '.join(own)}: on {MEASURED_ON[False]}")
        found.append(f"{', '.join(own)} without noise, where it stands: {UNPROTECTED}")
    return found


def study_of(path: Path, asked: Asked) -> Study:
    """The job file, checked with its records. ConfigError, UsageError or DataError."""
    job, run = local_job(path, asked.overrides(load_job(path)))
    check_data(job, run)
    return Study(path, job, run, asked.out / path.stem)


def run_seed(study: Study, number: int, asked: Asked, stream: IO[str]) -> int:
    """Run the seed `number` from 0, unless it has completed; 0 or 130. Raises EdgeVeilError."""
    seed = study.run.seed + number
    folder = study.folder / f"seed-{seed}"
    if not asked.force and done(study, seed):
        print(f"{study.path}, seed {seed}: done before", file=stream)
        return 0
    (folder / STAMP).unlink(missing_ok=True)
    code = run_local(
        study.path,
        folder,
        replace(asked.overrides(study.job), seed=seed),
        reference=asked.reference if number == 0 else False,  # one seed's is like another's
        brief=True,
        stream=stream if stream.isatty() else io.StringIO(),  # one line a run is enough in a file
    )
    if code == 0:
        (folder / STAMP).write_text(study.stamp(seed), "utf-8")
        result = json.loads((folder / "result.json").read_bytes())
        accuracy = result["final"]["accuracy"]
        shown = "not tested" if accuracy is None else f"accuracy {accuracy:.4f}"
        which = f"{study.path}, seed {seed} ({number + 1} of {asked.seeds})"
        print(f"{which}: {shown}, {result['seconds']:.0f} s", file=stream, flush=True)
    return code


def done(study: Study, seed: int) -> Mapping[str, Any] | None:
    """The result of a completed run of this very job, or None."""
    folder = study.folder / f"seed-{seed}"
    try:
        if (folder / STAMP).read_text("utf-8") != study.stamp(seed):
            return None
        found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found
