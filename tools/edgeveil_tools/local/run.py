"""`edgeveil.run`, `simulate` and `edgeveil run`: play a job with a fleet on this machine.

Two brokers, a cloud, a proxy and workers that host the devices are processes and talk over MQTT as
on separate machines; with `simulate` the rounds run without brokers and encryption. The run's
folder gets FILES and `logs/`; an existing result is overwritten only on request."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import IO, Any, Unpack

from edgeveil.errors import (
    INTERRUPTED,
    BrokerError,
    EdgeVeilError,
    JobFailed,
    UsageError,
    needs_extra,
)
from edgeveil.jobs import Job, compile_job
from edgeveil_tools.checks import rehearse, usual_limits
from edgeveil_tools.local.children import scratch
from edgeveil_tools.local.data import check_data, is_published
from edgeveil_tools.local.fleet import LocalFleet, refuse_unplayable
from edgeveil_tools.local.job import Overrides, local_job, whole_job
from edgeveil_tools.local.run_log import Listener, RunProgress, RunStopped, ignore_progress
from edgeveil_tools.result import Result, summary, write_json, write_whole, writing
from edgeveil_tools.site.brokers import choose_engine
from edgeveil_tools.tracking.feed import CLOSE_S, Tracking, check_target

FILES = (
    "job.yaml",
    "result.json",
    "events.jsonl",
    "model.onnx",
    "model.safetensors",
    "report.html",
)
_INTERRUPTED_S = 5.0  # for trackers, after Ctrl-C
_KEPT_BY_TRACKERS = ("job.yaml", "result.json", "model.onnx", "report.html")


class RunOptions(Overrides, total=False):
    """Options of `run`, `run_async` and `simulate`; see `run`."""

    out: str | Path | None
    reference: bool | None
    record: bool
    keep: bool
    force: bool
    track: Sequence[str]
    report: bool
    progress: Listener


def run(job: str | Path | Job, **options: Unpack[RunOptions]) -> Result:
    """Run a job with a whole fleet on this machine and return its result.

    In the main thread SIGINT and SIGTERM stop the run: partial results are written, and
    KeyboardInterrupt is raised.

    Args:
        job: job file, or a job loaded by `load_job`.
        simulate: play the rounds without brokers and encryption, seeded by `seed`: accuracy is
            realistic, nothing is protected. Default: as the job sets.
        out: folder for results; default: a new temporary one.
        devices: number of devices; this and the next parameters default to the job's `local_run`.
        workers: processes that host the devices.
        ray_address: HOST:PORT of a Ray cluster that simulates, or `local` to start Ray here.
        seed: seed of the partition; simulated, also of the noise.
        data: data file, folder of pictures, or folder of a published set's files; of a simulation
            also records in memory: (X, y), a DataFrame of pandas or polars, an Arrow table, dicts,
            a data set of torch or Hugging Face. A job with `data.schema` reads columns by name.
        fleet: who holds what, of records in memory: a column's name, or a list of holders, one for
            each record; each holder is a device. Default: the job's partition.
        test_data: records for the cloud's test, in the form of `data`; default: a held back share.
        broker: broker to start.
        accept_unprotected: let the run's devices accept a job without proven privacy.
        reference: also train the noise-free reference, by default only of a published set: of other
            records it and the partition are exact, unprotected figures.
        record: keep the cloud's view in `out`/recording, for `edgeveil attack`.
        keep: also keep keys, ledgers and stores.
        force: overwrite the result in `out`.
        track: trackers of figures and files: `mlflow:URI`, `tensorboard:DIR`.
        report: write `report.html`.
        progress: called with a RunProgress at each event and several times a second, in the
            thread that runs; an exception that it raises ends the run.

    Raises:
        ConfigError, UsageError, DataError, BrokerError: before anything has started.
        JobFailed, BrokerError: the job failed; its `result.json` is written.
    """
    return _run(job, options)


def simulate(job: str | Path | Job, **options: Unpack[RunOptions]) -> Result:
    """Run a job as `run` does, without brokers and encryption: seeded and repeatable."""
    return _run(job, {**options, "simulate": True})


async def run_async(job: str | Path | Job, **options: Unpack[RunOptions]) -> Result:
    """Await `run` in a thread; cancellation stops it, and concurrent runs take turns."""
    stop = threading.Event()
    work = asyncio.create_task(asyncio.to_thread(_run, job, options, stop))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        while not work.done():  # keep waiting if cancelled again: leave nothing behind
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.exception()  # mark an exception as retrieved
        raise


# A simulation limits the numerical libraries to one thread and forks its workers: a concurrent run
# could change figures, and a forked worker could wait for a lock for ever.
_ONE_RUN = threading.RLock()  # a listener may start a run of its own
_LOOK_S = 0.1


@needs_extra("tools")
def _run(job: str | Path | Job, options: RunOptions, stop: threading.Event | None = None) -> Result:
    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"run() got an unexpected keyword argument '{min(unknown)}'")
    given: dict[str, Any] = {**options}
    out, listener = given.pop("out", None), given.pop("progress", None) or ignore_progress
    changes: Any = {name: given.pop(name) for name in Overrides.__annotations__ if name in given}
    while not _ONE_RUN.acquire(timeout=_LOOK_S):
        if stop is not None and stop.is_set():
            raise RunStopped("the run was stopped")
        _report_step(listener, "waiting for another run of this program")
    try:
        where = Path(out) if out else None
        result, failure = play(job, where, changes, listener=listener, stop=stop, **given)
    finally:
        _ONE_RUN.release()
    if failure is not None:
        raise failure
    return result


def play(
    job: str | Path | Job, out: Path | None, overrides: Overrides, **how: Any
) -> tuple[Result, EdgeVeilError | KeyboardInterrupt | None]:
    """Play a run; returns its result, and the error that ended it early or None.

    Errors before the start are raised. `stop`, set from another thread, ends the run as failed."""
    with ExitStack() as held:  # the folder, until all is written
        return _play(job, out, overrides, held, **how)


def _play(
    job: str | Path | Job,
    out: Path | None,
    overrides: Overrides,
    held: ExitStack,
    *,
    keep: bool = False,
    force: bool = False,
    reference: bool | None = None,
    record: bool = False,
    report: bool = True,
    track: Sequence[str] = (),
    command: str = "",
    listener: Listener = ignore_progress,
    stop: threading.Event | None = None,
) -> tuple[Result, EdgeVeilError | KeyboardInterrupt | None]:
    if out is not None:
        require_unused(out, force=force)
    for target in track:
        check_target(target)
    started_s = time.time()
    _report_step(listener, "reading the records")
    loaded, settings = local_job(job, overrides)
    published = is_published(loaded, settings)
    notes = check_data(loaded, settings)
    _report_step(listener, "rehearsing the job on made-up records")
    # Device processes rehearse their own half before pricing: this process needs no torch.
    path = None if isinstance(job, Job) else Path(job)
    limits = replace(usual_limits(), batch_bytes=1 << 62)  # the site is sized for its uploads
    rehearse(compile_job(loaded), path, devices=settings.simulate, limits=limits)
    if settings.simulate:
        refuse_unplayable(loaded, settings, keep=keep)
    elif settings.data.given is not None:
        fix = "call edgeveil.simulate, or name a file"
        raise UsageError("records in memory are only simulated", where="data", fix=fix)
    else:
        choose_engine(settings.broker)
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="edgeveil-out-"))
    held.enter_context(prepared(out, force=force))
    with writing(out):
        write_whole(out / "job.yaml", whole_job(loaded, settings))
    record_dir = (out / "recording").absolute() if record else None
    if record_dir is not None:  # the partition's settings and paths, no record
        shutil.rmtree(record_dir, ignore_errors=True)
        record_dir.mkdir(mode=0o700, parents=True)
        text = json.dumps(settings.model_dump(mode="json"), indent=2)
        (record_dir / "run.json").write_text(f"{text}\n", "utf-8")
    # A second Ctrl-C must not leave children or files behind; stopping takes a few seconds at most.
    with signals(signal.SIG_IGN), scratch(keep=keep) as site:
        trained = published if reference is None else reference
        places: dict[str, Any] = {"reference": trained, "record_dir": record_dir}
        fleet = LocalFleet.of(loaded, settings, site, out, listener, stop, **places)
        log = fleet.log
        for note in log.plan.notes:
            log.note(f"Privacy: {note}")
        for note in notes:
            log.note(f"Records{'' if published else ' (not public)'}: {note}")
        if track:
            plain = loaded.model_dump(mode="json")
            plain["local_run"] = settings.model_dump(mode="json")
            log.tracking = Tracking(track, f"{loaded.job}-seed-{settings.seed}", plain, log.planned)
        failure: EdgeVeilError | KeyboardInterrupt | None = None
        try:
            with signals(signal.default_int_handler):
                fleet.play()
        except (EdgeVeilError, KeyboardInterrupt) as error:
            failure = error
        finally:
            fleet.stop()
    if keep:
        log.note(f"The site is kept in {site}")
    interrupted = isinstance(failure, KeyboardInterrupt)
    run_facts = {
        "started": datetime.fromtimestamp(started_s, UTC).isoformat(timespec="seconds"),
        "seed": settings.seed,
        "job_sha256": loaded.digest().hex(),
        "command": command,
    }
    content = fleet.result("interrupted" if interrupted else str(failure or ""))
    result = Result({**content, "run": run_facts}, out)
    with writing(out):
        write_json(out / "result.json", result.content)
    try:
        if report and not interrupted:
            _report_step(listener, "drawing the report")
            # Import late: drawing libraries are loaded once all child processes have ended.
            from edgeveil_tools.report.page import draw_report

            shown = (loaded, settings) if published or reference else None
            draw_report(result, log.record.events, shown)
    finally:
        if log.tracking is not None:
            log.doing("sending results to trackers")
            for line in _tracked(log.tracking, result, interrupted=interrupted):
                log.note(line)
    if failure is not None and not isinstance(failure, JobFailed | BrokerError | KeyboardInterrupt):
        failure = JobFailed(str(failure))
    return result, failure


def _tracked(tracking: Tracking, result: Result, *, interrupted: bool) -> list[str]:
    content, reference = result.content, result.content["reference"]
    found = {
        "final.accuracy": result.accuracy,
        "reference.accuracy": reference["accuracy"],
        "reference.rmse": reference.get("rmse"),
        "run.seconds": content["seconds"],
        "run.memory_peak_bytes": content["memory_peak_bytes"],
    }
    return tracking.close(
        "cancelled" if interrupted else result.status,
        {**result.privacy, "note": content["note"]},
        found,
        [result.folder / name for name in _KEPT_BY_TRACKERS],
        _INTERRUPTED_S if interrupted else CLOSE_S,
    )


def _report_step(listener: Listener, what: str) -> None:
    listener(RunProgress(0, 0, 0, doing=what, kind="look"))


# --- the folder ---


def require_unused(out: Path, *, force: bool = False) -> None:
    """Raise UsageError if the folder holds a result, or a job.yaml that no run wrote."""
    if (out / "job.yaml").exists() and not (out / "events.jsonl").exists():
        what = "holds a job.yaml that a run would overwrite"
        raise UsageError(what, where=str(out), fix="name another folder")
    if force or not (out / "result.json").exists():
        return
    others = (out.with_name(f"{out.name}-{number}") for number in count(2))
    fresh = f"--out {next(one for one in others if not one.exists())}"
    fix = f"name another folder ({fresh}), or overwrite it with --force"
    raise UsageError("already holds a result", where=str(out), fix=fix)


@contextmanager
def prepared(out: Path, *, force: bool = False) -> Iterator[None]:
    """Create `out` and its `logs`, remove an earlier run's files, and keep out other runs.

    Raises UsageError."""
    with writing(out):
        (out / "logs").mkdir(parents=True, exist_ok=True)
        folder = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what, fix = "another run is writing it", "name another folder with --out"
            raise UsageError(what, where=str(out), fix=fix) from None
        require_unused(out, force=force)  # the other one may have ended just now
        with writing(out):
            for name in FILES:
                (out / name).unlink(missing_ok=True)
            for log in (out / "logs").glob("*.log"):
                log.unlink()
            write_whole(out / "events.jsonl", b"")
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)  # children of the run may have the descriptor
        os.close(folder)


@contextmanager
def signals(
    handler: Any, numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Handle signals by `handler` within the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(n, signal.signal(n, handler)) for n in numbers]
    try:
        yield
    finally:
        for number, earlier in before:
            signal.signal(number, earlier)


# --- the command ---


def run_local(
    path: Path,
    out: Path,
    overrides: Overrides,
    *,
    as_json: bool = False,
    brief: bool = False,
    stream: IO[str] | None = None,
    **how: Any,
) -> int:
    """Run `edgeveil run`; returns 0 when the job completed, 130 after Ctrl-C.

    Progress goes to `stream`, default: standard output, or standard error with `as_json`."""
    from edgeveil_tools.display import RunDisplay

    display = RunDisplay(stream or (sys.stderr if as_json else sys.stdout))
    with display:
        result, failure = play(path, out, overrides, listener=display, **how)
    if isinstance(failure, KeyboardInterrupt):
        display.note(f"Interrupted; partial results are in {out}")
        return INTERRUPTED
    if failure is not None:
        raise failure
    if as_json:
        plain = {"command": "run", "ok": True, **result.content}
        print(json.dumps(plain, allow_nan=False), flush=True)
    if not brief:
        display.lines(summary(result.content))
        written = (name for name in FILES if (out / name).is_file())
        display.note(f"Files in {out}: {', '.join(written)}")
        display.note(f"Report: {result.report}")
        if "statistics" in result.content and not result.content["evaluations"]:
            display.note(f"Next: edgeveil draft --from-statistics {out} --label COLUMN")
            return 0
        own = local_job(path, overrides)[1].data.path
        records = "RECORDS" if own is None else os.path.relpath(own)
        display.note(f"Next: edgeveil predict {result.model} {records}")
    return 0
