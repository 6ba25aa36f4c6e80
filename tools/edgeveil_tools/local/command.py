"""`edgeveil run JOB --out DIR`: a whole fleet on this machine, from keys to report.

Two brokers, a cloud, a proxy and workers that host the devices, each a process of its own, talk
over MQTT exactly as on separate machines; or (`simulate`) all parties are played in this process,
in memory and without encryption. DIR gets `result.json`, `events.jsonl`, `model.onnx`,
`model.safetensors`, `report.html` and `logs/`; files of an earlier run are replaced, others stay.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from edgeveil.errors import BrokerError, EdgeVeilError, JobFailed, UsageError
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.shuffle_amplification import ShuffleCredit
from edgeveil_tools.local.data import check_data, is_published
from edgeveil_tools.local.fleet import Fleet
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.recording import keep_run
from edgeveil_tools.local.simulated import Simulation
from edgeveil_tools.progress import Progress
from edgeveil_tools.rehearsed import USUAL_LIMITS, rehearse_file
from edgeveil_tools.result import MEASURED_ON, course_text, guarantee_text, write_json, write_whole
from edgeveil_tools.scratch import scratch
from edgeveil_tools.site.brokers import choose_engine

FILES = ("result.json", "events.jsonl", "model.onnx", "model.safetensors", "report.html")
INTERRUPTED = 130
_LIMITS = replace(USUAL_LIMITS, batch_bytes=1 << 62)  # a run's site is made for its uploads


def run_local(
    path: Path,
    out: Path,
    overrides: Overrides,
    *,
    as_json: bool = False,
    keep: bool = False,
    reference: bool | None = None,
    record: bool = False,
    brief: bool = False,
    stream: IO[str] | None = None,
) -> int:
    """Run the job file `path`; 0 when it completed, 130 after Ctrl-C.

    `stream` shows the progress: standard output, or the other one with `as_json`. `brief` leaves
    out what a completed run says at its end. `reference`: whether to train the noise-free
    reference; None: of a published set only. Of other records neither that nor who holds what is
    computed unless it is true: both are exact figures of them.

    Raises ConfigError, UsageError, DataError or BrokerError before anything has started;
    JobFailed (or BrokerError) when the job failed, its `result.json` written.
    """
    job, run = local_job(path, overrides)
    published = is_published(job, run)
    with Console(stderr=True).status("reading the records"):
        notes = check_data(job, run)
    with Console(stderr=True).status("playing the job on made-up records"):
        # Devices play their own half before they price it: no torch here for processes' sake.
        rehearse_file(path, compile_job(job), devices=run.simulate, limits=_LIMITS)
    if not run.simulate:
        choose_engine(run.broker)
    prepare(out)
    record_dir = _recording(out, run) if record else None
    kind, shown = Simulation if run.simulate else Fleet, sys.stderr if as_json else sys.stdout
    # A second Ctrl-C must not leave children or files behind; stopping takes a few seconds at most.
    with signals(signal.SIG_IGN), scratch(keep=keep, in_memory=run.simulate) as site:
        fleet = kind(
            job,
            run,
            site,
            out,
            stream or shown,
            reference=published if reference is None else reference,
            record_dir=record_dir,
        )
        for line in fleet.course.plan.notes:
            fleet.progress.note(f"Privacy: {line}")
        for note in notes:
            fleet.progress.note(f"Records{'' if published else ', for your eyes'}: {note}")
        failure = _played(fleet)
    if keep:
        fleet.progress.note(f"The site is kept in {site}")
    interrupted = isinstance(failure, KeyboardInterrupt)
    result = fleet.result("interrupted" if interrupted else str(failure or ""))
    write_json(out / "result.json", result)
    if interrupted:
        fleet.progress.note(f"Interrupted; what there is so far is in {out}")
        return INTERRUPTED
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
    if failure is None and not brief:
        show(fleet.progress, result)
    with fleet.progress.console.status("drawing the report"):
        dealing = (job, run) if published or reference else None
        _report(result, fleet.course.record.events, out / "report.html", dealing)
    if failure is not None:
        known = isinstance(failure, JobFailed | BrokerError)
        raise failure if known else JobFailed(str(failure))
    if not brief:
        fleet.progress.note(f"Files: {out}/ with {', '.join(FILES)}")
        fleet.progress.note(f"Look at {out / 'report.html'}")
    return 0


def _played(fleet: Fleet | Simulation) -> EdgeVeilError | KeyboardInterrupt | None:
    """Run to the end; what ended it early, if anything. No process of it is left."""
    try:
        with signals(_interrupt), fleet.progress:
            fleet.run()
    except (EdgeVeilError, KeyboardInterrupt) as stop:
        return stop
    finally:
        fleet.stop()
    return None


def _recording(out: Path, run: LocalRun) -> Path:
    """DIR/recording, emptied, with how the records were dealt."""
    folder = (out / "recording").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    keep_run(folder, run)
    return folder


def _report(
    result: dict[str, Any],
    events: list[dict[str, Any]],
    path: Path,
    dealing: tuple[Job, LocalRun] | None,
) -> None:
    """Draw it, with who holds what where `dealing` says how that came."""
    # Not above: what draws is loaded when no process runs beside it any more.
    from edgeveil_tools.report.holdings import holdings
    from edgeveil_tools.report.page import write_report

    try:
        write_report(result, events, path, holdings(*dealing) if dealing else None)
    except OSError as error:
        raise UsageError(
            f"the report cannot be written ({error.strerror}); result.json and the model are there",
            where=str(path),
            fix="make room on the disk and run again",
        ) from error


def prepare(out: Path) -> None:
    """Make DIR and its `logs`, and take away what an earlier run left. Raises UsageError."""
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (out / name).unlink(missing_ok=True)
        for log in (out / "logs").glob("*.log"):
            log.unlink()
        write_whole(out / "events.jsonl", b"")
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=str(error.filename or out),
            fix="name a folder that you may write to with --out",
        ) from error


def show(progress: Progress, result: dict[str, Any]) -> None:
    """The run in a short table."""
    table = Table.grid(padding=(0, 2))
    for name, value in summary(result):
        table.add_row(name, value)
    progress.console.print()
    progress.console.print(table)
    progress.console.print()


def summary(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of that table. Training and inference guarantee always stand together."""
    rounds = result["rounds"]
    uploads = sum(row["uploads"] for row in rounds + result["phases"])
    hops, final, reference = result["bytes"], result["final"], result["reference"]
    own = "" if final["measured_on"] == MEASURED_ON[True] else f", on {final['measured_on']}"
    unprotected = f", {reference['note']}" if reference["note"] else ""
    why = f"; {result['reason']}" if result["reason"] else ""
    return [
        *([("note", result["note"])] if result["note"] else []),
        ("final accuracy", _share(final["accuracy"]) + own),
        *(
            []
            if reference["accuracy"] is None
            else [("without noise", _share(reference["accuracy"]) + unprotected)]
        ),
        ("training guarantee", guarantee_text(result["privacy"], "training")),
        ("inference guarantee", guarantee_text(result["privacy"], "inference")),
        *[
            ("after the shuffle", str(ShuffleCredit(**credit)))
            for credit in result.get("shuffle", ())
        ],
        ("course", f"{course_text(result)}{why}"),
        ("uploads", f"{uploads} from {result['devices']} devices"),
        *([("bytes", f"{sum(hops.values()):,}")] if hops else []),
        ("memory, peak", f"{(result['memory_peak_bytes'] or 0) / (1 << 20):,.0f} MiB"),
        ("seconds", f"{result['seconds']:.1f}"),
    ]


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


@contextmanager
def signals(handler: Any) -> Iterator[None]:
    """SIGINT and SIGTERM go to `handler` meanwhile, as in all processes of a site."""
    before = [(n, signal.signal(n, handler)) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, earlier in before:
            signal.signal(number, earlier)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
