"""`edgeveil chaos`: one run from the job file to the verdict.

DIR gets `chaos.json`, `report.html` and `logs/`; with `keep` the whole site stays too.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import edgeveil_tools
from edgeveil.errors import UsageError
from edgeveil_lab.chaos import checks
from edgeveil_lab.chaos.course import Asked, Course
from edgeveil_lab.chaos.disks import own_disks
from edgeveil_lab.chaos.evidence import collect
from edgeveil_lab.chaos.report import write_report
from edgeveil_lab.chaos.result import result_of
from edgeveil_lab.chaos.view import View, show_result
from edgeveil_tools.local.data import check_data
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.run import INTERRUPTED, signals
from edgeveil_tools.result import write_json
from edgeveil_tools.scratch import scratch
from edgeveil_tools.site.brokers import choose_engine

JOB = Path(edgeveil_tools.__file__).parent / "templates" / "chaos.yaml"
FILES = ("chaos.json", "report.html")


def run_chaos(
    path: Path,
    out: Path,
    overrides: Overrides,
    asked: Asked,
    *,
    as_json: bool = False,
    keep: bool = False,
) -> int:
    """0 when every check holds, 1 on any violation, 130 after Ctrl-C with everything ended.

    Raises ConfigError, UsageError, DataError or BrokerError before anything has started, and
    JobFailed where the site did not start.
    """
    job, run = local_job(path, overrides)
    check_data(job, run)
    choose_engine(run.broker)
    logs = _prepare(out)
    view = View(sys.stderr if as_json else sys.stdout)
    # A second Ctrl-C must not leave processes behind; stopping takes a few seconds at most.
    with (
        signals(signal.SIG_IGN),
        scratch(keep=keep, in_memory=False) as folder,
        own_disks(folder, keep=keep) as disks,
    ):
        course: Course | None = None
        interrupted = False
        try:
            with signals(_interrupt), view:
                course = Course(job, run, asked, disks, folder, logs, view.show)
                view.note(f"{len(course.faults)} faults from seed {asked.seed}; logs in {logs}")
                course.run()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if course is not None:
                course.stop()
        if keep:
            view.note(f"The site is kept in {folder}")
        if interrupted or course is None:
            view.note("Interrupted; nothing was checked")
            return INTERRUPTED
        found = collect(course.site.site, logs)
        checked = checks.check_all(found, course.facts())
    broker = course.site.brokers["edge"].name
    result = result_of(course, found, checked, broker=broker, workers=run.workers)
    _tell(result, out, view, as_json=as_json)
    return 0 if result["ok"] else 1


def _tell(result: dict[str, Any], out: Path, view: View, *, as_json: bool) -> None:
    write_json(out / "chaos.json", result)
    write_report(result, out / "report.html")
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
    else:
        show_result(view.console, result)
        view.note(f"Files: {out}/ with {', '.join(FILES)}, logs/")


def _prepare(out: Path) -> Path:
    """Make DIR with an empty `logs`, and take away what an earlier run left. Raises UsageError."""
    logs = out.absolute() / "logs"
    try:
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        for name in FILES:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=str(error.filename or out),
            fix="name a folder that you may write to with --out",
        ) from error
    return logs


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
