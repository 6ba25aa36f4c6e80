"""A whole fleet on this machine, from keys to report: `edgeveil.run`, `simulate`, `edgeveil run`.

Two brokers, a cloud, a proxy and workers that host the devices, each a process of its own, talk
over MQTT exactly as on separate machines; or (`simulate`) the job is played in memory, without
brokers and encryption. The run's folder gets `job.yaml`, the job as it was run, `result.json`,
`events.jsonl`, `model.onnx`, `model.safetensors`, `report.html` and `logs/`. One that holds a
result is not written over unless asked to; its other files stay then too.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypedDict, Unpack

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
from edgeveil_tools.local.fleet import LocalFleet
from edgeveil_tools.local.job import Overrides, local_job, whole_job
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.recording import keep_run
from edgeveil_tools.local.run_log import Listener, RunProgress, RunStopped, unheard
from edgeveil_tools.local.simulated import check_engine, checkpoint_stamp, engine_of
from edgeveil_tools.result import Result, summary, write_json, write_whole, writing
from edgeveil_tools.simulation.checkpoint import CHECKPOINT, drop_checkpoint, load_checkpoint
from edgeveil_tools.site.brokers import choose_engine
from edgeveil_tools.tracking.course import CLOSE_S, Tracking, tracked
from edgeveil_tools.tracking.tracker import TrackTarget

if TYPE_CHECKING:
    from edgeveil_tools.local.run_page import RunPage

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


class RunOptions(TypedDict, total=False):
    """What `run`, `run_async` and `simulate` take beside the job; see `run`."""

    out: str | Path | None
    devices: int | None
    workers: int | None
    cells: int | None
    engine: Literal["auto", "faithful", "processes", "ray"] | None
    ray_address: str | None
    seed: int | None
    data: str | Path | None
    broker: Literal["auto", "amqtt", "mosquitto"] | None
    protocol: Literal[4, 5] | None
    reference: bool | None
    record: bool
    keep: bool
    resume: bool
    force: bool
    track: Sequence[str]
    report: bool
    progress: Listener


def run(
    job: str | Path | Job,
    *,
    out: str | Path | None = None,
    simulate: bool | None = None,
    devices: int | None = None,
    workers: int | None = None,
    cells: int | None = None,
    engine: Literal["auto", "faithful", "processes", "ray"] | None = None,
    ray_address: str | None = None,
    seed: int | None = None,
    data: str | Path | None = None,
    broker: Literal["auto", "amqtt", "mosquitto"] | None = None,
    protocol: Literal[4, 5] | None = None,
    reference: bool | None = None,
    record: bool = False,
    keep: bool = False,
    resume: bool = False,
    force: bool = False,
    track: Sequence[str] = (),
    report: bool = True,
    progress: Listener = unheard,
) -> Result:
    """Run a job with a whole fleet on this machine; returns when it has completed.

    job        a job file, or a job as `load_job` gives it
    out        folder for results; None: a new one below the system's temporary folder
    simulate   True: play the job in memory, without brokers and encryption, chance from `seed`:
               it shows what learning comes to and protects nobody; None: as the job says
    devices    devices to play; None, as below: as the job's `local_run` says
    workers    processes that host them
    cells      cells to divide them into, each with an edge broker and a proxy of its own
    engine     what simulates, the same model bit for bit: `faithful`, all parties in one process;
               `processes`, rounds alone over worker processes; `ray`, the same on a Ray cluster
    ray_address the cluster's address; None: a Ray that is started here
    seed       of the dealing of records; simulated, also of the noise
    data       the records: a data file, a folder of pictures, or that of a published set's files
    broker     the broker to start
    protocol   MQTT 5, or 4 for 3.1.1
    reference  train the noise-free reference beside it; None: of a published set only. Of other
               records it is an exact figure without any protection, as is who holds what
    record     keep what the cloud sees in `out`/recording, for `edgeveil attack`
    keep       keep keys, ledgers and stores too
    resume     go on with the simulation that was interrupted in `out`
    force      write over the result that `out` holds
    track      where to log parameters, guarantees, figures by round and files too:
               `mlflow:URI`, `tensorboard:DIR`, `wandb-offline:DIR`
    report     draw `report.html`
    progress   called with a RunProgress whenever something happens, and some times a second; from
               the thread that runs; what it raises ends the run

    In the main thread SIGINT and SIGTERM end the run meanwhile: everything is stopped, what there
    is so far is written, KeyboardInterrupt is raised.

    Raises ConfigError, UsageError, DataError or BrokerError before anything has started; JobFailed
    or BrokerError when the job failed, its `result.json` written.
    """
    return _run(
        job,
        out,
        Overrides(
            broker=broker,
            protocol=protocol,
            devices=devices,
            workers=workers,
            cells=cells,
            seed=seed,
            simulate=simulate,
            engine=engine,
            ray_address=ray_address,
            data=_path(data),
        ),
        reference=reference,
        record=record,
        keep=keep,
        resume=resume,
        force=force,
        track=track,
        report=report,
        hear=progress,
    )


def simulate(job: str | Path | Job, **options: Unpack[RunOptions]) -> Result:
    """`run` without brokers and encryption: seeded and repeatable."""
    return run(job, simulate=True, **options)


async def run_async(
    job: str | Path | Job, *, simulate: bool | None = None, **options: Unpack[RunOptions]
) -> Result:
    """`run`, awaited: the event loop goes on meanwhile, the run works in a thread of its own.

    `progress` is called from that thread. Cancelled, it stops the run and everything of it before
    CancelledError is raised. Of several at once each waits for the one before.
    """
    stop = threading.Event()
    more = RunOptions(**options)
    work = asyncio.create_task(
        asyncio.to_thread(
            _run,
            job,
            more.get("out"),
            Overrides(
                broker=more.get("broker"),
                protocol=more.get("protocol"),
                devices=more.get("devices"),
                workers=more.get("workers"),
                cells=more.get("cells"),
                seed=more.get("seed"),
                simulate=simulate,
                engine=more.get("engine"),
                ray_address=more.get("ray_address"),
                data=_path(more.get("data")),
            ),
            reference=more.get("reference"),
            record=more.get("record", False),
            keep=more.get("keep", False),
            resume=more.get("resume", False),
            force=more.get("force", False),
            track=more.get("track", ()),
            report=more.get("report", True),
            hear=more.get("progress", unheard),
            stop=stop,
        )
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        while not work.done():  # cancelled again it still waits: nothing may be left behind
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.exception()  # it has ended, however it did
        raise


# A simulation limits the numerical libraries to one thread and forks its workers: beside another
# run of the program numbers would be wrong, and a worker could wait for a lock for ever.
_ONE_RUN = threading.RLock()  # a listener may play a run of its own
_LOOK_S = 0.1


@needs_extra("tools")
def _run(job: str | Path | Job, out: str | Path | None, overrides: Overrides, **how: Any) -> Result:
    stop: threading.Event | None = how.get("stop")
    while not _ONE_RUN.acquire(timeout=_LOOK_S):
        if stop is not None and stop.is_set():
            raise RunStopped("the run was stopped")
        _say(how["hear"], "waiting for another run of this program")
    try:
        played = play(job, Path(out) if out else None, overrides, **how)
    finally:
        _ONE_RUN.release()
    if played.failure is not None:
        raise played.failure
    return played.result


def _path(data: str | Path | None) -> Path | None:
    return None if data is None else Path(data)


@dataclass(frozen=True)
class PlayedRun:
    """A run that has ended, `failure` being what ended it early."""

    result: Result
    failure: EdgeVeilError | KeyboardInterrupt | None


def unwatched(_fleet: LocalFleet) -> None:
    """For a run that is seen by its listener alone."""


def play(
    job: str | Path | Job,
    out: Path | None,
    overrides: Overrides,
    *,
    keep: bool = False,
    resume: bool = False,
    force: bool = False,
    reference: bool | None = None,
    record: bool = False,
    report: bool = True,
    track: Sequence[str] = (),
    command: str = "",
    hear: Listener = unheard,
    stop: threading.Event | None = None,
    watch: Callable[[LocalFleet], None] = unwatched,
) -> PlayedRun:
    """The run of `run`; no failure after its start is raised.

    `stop`, set from another thread, ends it as a failed one. `watch` is told of the fleet before
    it starts. `command`: the line that asked for it.
    """
    if out is not None:
        _keep_job_file(out)
        if not (resume or force):
            require_unused(out)
    targets = [TrackTarget.parse(one) for one in track]
    started_s = time.time()
    _say(hear, "reading the records")
    loaded, settings = local_job(job, overrides)
    published = is_published(loaded, settings)
    notes = check_data(loaded, settings)
    _say(hear, "playing the job on made-up records")
    # Devices play their own half before they price it: no torch here for processes' sake.
    path = None if isinstance(job, Job) else Path(job)
    limits = replace(usual_limits(), batch_bytes=1 << 62)  # the site is made for its uploads
    rehearse(compile_job(loaded), path, devices=settings.simulate, limits=limits)
    if settings.simulate:
        check_engine(engine_of(loaded, settings, keep=keep), settings)
    else:
        choose_engine(settings.broker)
    if resume:
        _check_resumed(out, loaded, settings, keep=keep, record=record)
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="edgeveil-out-"))
    prepare(out, resume=resume)
    with writing(out):
        write_whole(out / "job.yaml", whole_job(loaded, settings))
    record_dir = _recording(out, settings) if record else None
    # A second Ctrl-C must not leave children or files behind; stopping takes a few seconds at most.
    with signals(signal.SIG_IGN), scratch(keep=keep, in_memory=settings.simulate) as site:
        fleet = LocalFleet(
            loaded,
            settings,
            site,
            out,
            hear,
            stop,
            reference=published if reference is None else reference,
            record_dir=record_dir,
            keep=keep,
            resume=resume,
        )
        watch(fleet)
        for line in fleet.log.plan.notes:
            fleet.progress.note(f"Privacy: {line}")
        if fleet.log.plan.adapter_note:
            fleet.progress.note(fleet.log.plan.adapter_note)
        for note in notes:
            fleet.progress.note(f"Records{'' if published else ', for your eyes'}: {note}")
        if targets:
            fleet.log.tracking = _tracking(targets, fleet, loaded, settings)
        failure = _played(fleet)
    if keep:
        fleet.progress.note(f"The site is kept in {site}")
    interrupted = isinstance(failure, KeyboardInterrupt)
    run_facts = {
        "started": datetime.fromtimestamp(started_s, UTC).isoformat(timespec="seconds"),
        "seed": settings.seed,
        "job_sha256": loaded.digest().hex(),
        "command": command,
    }
    found = fleet.result("interrupted" if interrupted else str(failure or ""))
    result = Result({**found, "run": run_facts}, out)
    with writing(out):
        write_json(out / "result.json", result.content)
    try:
        if report and not interrupted:
            _say(hear, "drawing the report")
            dealing = (loaded, settings) if published or reference else None
            _report(result.content, fleet.log.record.events, result.report, dealing)
    finally:
        _hand_over(fleet, result, interrupted=interrupted)
    if failure is not None and not isinstance(failure, JobFailed | BrokerError | KeyboardInterrupt):
        failure = JobFailed(str(failure))
    return PlayedRun(result, failure)


def _tracking(
    targets: Sequence[TrackTarget], fleet: LocalFleet, job: Job, run: LocalRun
) -> Tracking:
    plain = {**job.model_dump(mode="json"), "local_run": run.model_dump(mode="json")}
    return Tracking(targets, tracked(f"{job.job}-seed-{run.seed}", plain, fleet.log.planned))


def _hand_over(fleet: LocalFleet, result: Result, *, interrupted: bool) -> None:
    """What the run came to, to its trackers; what they lack is told and changes nothing."""
    if fleet.log.tracking is None:
        return
    fleet.progress.doing("handing over to tracking")
    found = {
        "final.accuracy": result.accuracy,
        "reference.accuracy": result.reference_accuracy,
        "reference.rmse": result.reference_rmse,
        "run.seconds": result.content["seconds"],
        "run.memory_peak_bytes": result.content["memory_peak_bytes"],
    }
    told = fleet.log.tracking.close(
        "cancelled" if interrupted else result.status,
        {**result.privacy, "note": result.content["note"]},
        {key: float(value) for key, value in found.items() if value is not None},
        [result.folder / name for name in _KEPT_BY_TRACKERS],
        wait_s=_INTERRUPTED_S if interrupted else CLOSE_S,
    )
    for line in told:
        fleet.progress.note(line)


def _say(hear: Listener, what: str) -> None:
    """What goes on before and after the job."""
    hear(RunProgress(0, 0, 0, doing=what, kind="look"))


def _played(fleet: LocalFleet) -> EdgeVeilError | KeyboardInterrupt | None:
    """Run to the end; what ended it early, if anything. No process of it is left."""
    try:
        with signals(_interrupt):
            fleet.run()
    except (EdgeVeilError, KeyboardInterrupt) as stop:
        return stop
    finally:
        fleet.stop()
    return None


def _recording(out: Path, settings: LocalRun) -> Path:
    """DIR/recording, emptied, with how the records were dealt."""
    folder = (out / "recording").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    keep_run(folder, settings)
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
        by_class = dealing is not None and dealing[0].data.target is None
        write_report(result, events, path, holdings(*dealing) if dealing and by_class else None)
    except OSError as error:
        raise UsageError(
            f"the report cannot be written ({error.strerror}); result.json and the model are there",
            where=str(path),
            fix="make room on the disk and run again",
        ) from error


def require_unused(out: Path, name: str = "result.json") -> None:
    """Raise UsageError where the folder holds a result, or an interrupted run to go on with."""
    others = (out.with_name(f"{out.name}-{number}") for number in count(2))
    fresh = f"--out {next(one for one in others if not one.exists())}"
    if (out / CHECKPOINT).exists():
        what, first = "holds a run that was interrupted", "go on with --resume, name another folder"
    elif (out / name).exists():
        what, first = "holds a result already", "name another folder"
    else:
        return
    raise UsageError(what, where=str(out), fix=f"{first} ({fresh}), or write over it with --force")


def _keep_job_file(out: Path) -> None:
    """Raise UsageError where the folder's job.yaml was written by no run, but by somebody."""
    if (out / "job.yaml").exists() and not (out / "events.jsonl").exists():
        raise UsageError(
            "holds a job.yaml that a run would write over",
            where=str(out),
            fix="name another folder",
        )


def prepare(out: Path, *, resume: bool = False) -> None:
    """Make DIR and its `logs`, and take away what an earlier run left, but where one is gone on
    with its events and checkpoint. Raises UsageError."""
    with writing(out):
        (out / "logs").mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if name != "events.jsonl" or not resume:
                (out / name).unlink(missing_ok=True)
        for log in (out / "logs").glob("*.log"):
            log.unlink()
        if not resume:
            drop_checkpoint(out)
            write_whole(out / "events.jsonl", b"")


def _check_resumed(out: Path | None, job: Job, run: LocalRun, *, keep: bool, record: bool) -> None:
    """Raise UsageError where nothing can be gone on with."""
    why = ""
    if not run.simulate or engine_of(job, run, keep=keep) == "faithful":
        why = "goes on with a simulation by worker processes alone"
    elif out is None:
        why = "needs the folder of the run that was interrupted"
    elif record:
        why = "would leave a recording without its beginning"
    if why or out is None:
        raise UsageError(why, where="--resume", fix="leave it out")
    load_checkpoint(out, checkpoint_stamp(job, run))


@contextmanager
def signals(
    handler: Any, numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """These signals go to `handler` meanwhile, as in all processes of a site.

    In another thread than the main one, which alone may say so, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(n, signal.signal(n, handler)) for n in numbers]
    try:
        yield
    finally:
        for number, earlier in before:
            signal.signal(number, earlier)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# --- the command ---


class _Shown:
    """The page of a run while it is served. Where it is stays unsaid until there is a run."""

    def __init__(self, page: RunPage, tell: Callable[[], None]) -> None:
        self._page, self._tell = page, tell
        self.end = page.end

    def watch(self, fleet: LocalFleet) -> None:
        """The run is made, and nothing was refused."""
        self._page.show(fleet)
        self._tell()


@contextmanager
def _served(note: Callable[[str], None], *, browse: bool) -> Iterator[_Shown]:
    """The page of a run, served; `note` is told where."""
    from edgeveil_tools.local.run_page import RunPage, way_in

    page = RunPage()
    address = page.start()
    with ExitStack() as doors:
        doors.callback(page.stop)

        def tell() -> None:
            note(f"Watch it at {address}")
            if browse:
                webbrowser.open(doors.enter_context(way_in(address)).as_uri())

        yield _Shown(page, tell)


def run_local(
    path: Path,
    out: Path,
    overrides: Overrides,
    *,
    as_json: bool = False,
    keep: bool = False,
    reference: bool | None = None,
    record: bool = False,
    resume: bool = False,
    force: bool = False,
    track: Sequence[str] = (),
    brief: bool = False,
    page: bool = False,
    browse: bool = False,
    command: str = "",
    stream: IO[str] | None = None,
) -> int:
    """`edgeveil run`: `run` before a person's eyes; 0 when it completed, 130 after Ctrl-C.

    `stream` shows the progress: standard output, or the other one with `as_json`. `brief` leaves
    out what a completed run says at its end. `page`: it is also served to a browser on this machine
    meanwhile, which `browse` opens. Raises as `run` does.
    """
    from edgeveil_tools.display import RunDisplay

    display = RunDisplay(stream or (sys.stderr if as_json else sys.stdout))
    with display, _served(display.note, browse=browse) if page else nullcontext() as shown:
        played = play(
            path,
            out,
            overrides,
            keep=keep,
            resume=resume,
            force=force,
            reference=reference,
            record=record,
            track=track,
            command=command,
            hear=display,
            watch=shown.watch if shown else unwatched,
        )
        if shown:
            shown.end(played.result)
    if isinstance(played.failure, KeyboardInterrupt):
        kept = "; --resume goes on with it" if (out / CHECKPOINT).exists() else ""
        display.note(f"Interrupted; what there is so far is in {out}{kept}")
        return INTERRUPTED
    if as_json:
        print(json.dumps(played.result.content, allow_nan=False), flush=True)
    if played.failure is not None:
        raise played.failure
    if not brief:
        display.lines(summary(played.result.content))
        display.note(f"Files: {out}/ with {', '.join(FILES)}")
        display.note(f"Look at {played.result.report}")
        display.note(f"Next: edgeveil predict {played.result.model} {_records_of(path, overrides)}")
    return 0


def _records_of(path: Path, overrides: Overrides) -> str:
    """What the job's model may be tried on: the file of the run's own records, if it has one."""
    own = local_job(path, overrides)[1].data.path
    return "RECORDS" if own is None else os.path.relpath(own)
