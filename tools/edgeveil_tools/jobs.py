"""`edgeveil job submit | list | watch | resume | cancel | fetch`: by the cloud's HTTP control.

For a desk that has the core's libraries alone; rich, where it is there, draws what is watched.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.errors import JobFailed, UsageError
from edgeveil.jobs import load_plan
from edgeveil.parts.features import read_backbones
from edgeveil_tools.cloud_client import CloudClient
from edgeveil_tools.local.job import submitted
from edgeveil_tools.result import write_whole

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("round", "answered", "accuracy", "loss", "score", "corrected", "seconds", "bytes")
MODEL_KINDS = ("onnx", "safetensors")
AWAY_S = 60.0  # a watch outlives a restart of the cloud


def submit(
    path: Path, cloud_url: str, token_file: Path, *, wait_s: float = 0.0, follow: bool = False
) -> int:
    """Queue the job file `path`, print its id, and follow it to its end if `follow`.

    Waits up to `wait_s` for the cloud to answer. ConfigError lists every problem of the file, or
    says which stage of the job would fail, by made-up records, where the cloud's libraries are
    there; else the cloud says so, without the line.
    """
    plan = load_plan(path)
    found = plan.job
    try:
        from edgeveil_tools.rehearsed import rehearse_file
    except ModuleNotFoundError:
        pass
    else:
        rehearse_file(path, plan)
    backbones = read_backbones(found.features)
    client = _once_it_answers(cloud_url, token_file, wait_s)
    job = client.submit(submitted(found), backbones.values())
    print(job, flush=True)
    for line in plan.notes:
        print(f"{job}: {line}", file=sys.stderr)
    return watch(job, cloud_url, token_file) if follow else 0


def _once_it_answers(cloud_url: str, token_file: Path, wait_s: float) -> CloudClient:
    end = time.monotonic() + wait_s
    while True:
        try:
            client = CloudClient(cloud_url, token_file)
            client.jobs()
            return client
        except UsageError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


def list_jobs(cloud_url: str, token_file: Path, *, as_json: bool = False) -> int:
    """Print all jobs, oldest first; as one JSON line each if `as_json`."""
    client = CloudClient(cloud_url, token_file)
    jobs = client.jobs()
    if as_json:
        for job in jobs:
            print(json.dumps(job))
        return 0
    rows = [("id", "status", "submitted", "reason")]
    for job in jobs:
        when = datetime.fromtimestamp(job["submitted_at"]).isoformat(" ", "seconds")
        rows.append((job["id"], job["status"], when, " ".join(_reason(client, job).split())))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if jobs else [("no jobs yet",)]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print(line.rstrip())
    return 0


def watch(job: str, cloud_url: str, token_file: Path, *, as_json: bool = False) -> int:
    """Follow a job until it has ended: a live table of its rounds, or its events as JSON lines.

    A pause is shown, and waited out: somebody may resume the job.
    Returns 0 for a completed job; JobFailed for one that failed or was cancelled.
    """
    client = CloudClient(cloud_url, token_file, patience_s=AWAY_S)
    if as_json:
        for event in client.follow(job):
            print(json.dumps(event), flush=True)
    elif sys.stdout.isatty() and find_spec("rich"):
        _draw(client, job)
    else:
        shown = 0
        for event in client.follow(job):
            _say_stand(event)
            rows = list(_cells(client.job(job)["exchanges"]))
            for row in rows[shown:]:
                print("  ".join(f"{name} {v}" for name, v in zip(COLUMNS, row, strict=True) if v))
            sys.stdout.flush()
            shown = len(rows)
        print(f"{job}: {client.job(job)['status']}", flush=True)
    return _outcome(client.job(job))


def _draw(client: CloudClient, job: str) -> None:
    from rich.live import Live

    with Live(_rounds(client.job(job)), auto_refresh=False) as live:
        for event in client.follow(job):
            if event["type"] == "job_waiting":
                live.console.print(_waiting(event["data"]))
            live.update(_rounds(client.job(job)), refresh=True)
        live.update(_rounds(client.job(job)), refresh=True)
    print()


def cancel(job: str, cloud_url: str, token_file: Path) -> int:
    """Cancel a job that waits or runs."""
    entry = CloudClient(cloud_url, token_file).cancel(job)
    print(f"{entry['id']}: {entry['status']}")
    return 0


def resume(job: str, cloud_url: str, token_file: Path) -> int:
    """Let a paused job go on at the round where it stood."""
    entry = CloudClient(cloud_url, token_file).resume(job)
    print(f"{entry['id']}: {entry['status']}")
    return 0


def fetch(job: str, cloud_url: str, token_file: Path, out: Path | None = None) -> int:
    """Write the final model to `out`, ID.onnx where none is named; `.safetensors`: weights alone.

    Raises UsageError for another ending, a job without a model, a file that cannot be written.
    """
    path = out or Path(f"{job}.onnx")
    kind = path.suffix.removeprefix(".")
    if kind not in MODEL_KINDS:
        raise UsageError(
            f"a model is no '{path.suffix}' file",
            where="--out",
            fix="end it in .onnx (for edgeveil predict) or .safetensors (weights alone)",
        )
    content = CloudClient(cloud_url, token_file).model(job, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=str(path),
            fix="name a file that you may write to with --out",
        ) from error
    print(path)
    return 0


def _reason(client: CloudClient, job: Mapping[str, Any]) -> str:
    """Why a job stands as it does; of one that waits for devices the events tell."""
    if job["status"] == "queued":
        for event in reversed(client.events(job["id"])):
            if event["type"] == "job_waiting":
                return _waiting(event["data"])
    return str(job["reason"])


def _waiting(data: Mapping[str, Any]) -> str:
    return f"waits for devices: {data['enrolled']} are enrolled, it asks for {data['wanted']}"


def _say_stand(event: Mapping[str, Any]) -> None:
    """Why no round comes, and that one will."""
    if event["type"] == "job_waiting":
        print(_waiting(event["data"]))
    elif event["type"] == "job_paused":
        print(f"paused: {event['data'].get('reason', '')}")
    elif event["type"] == "job_resumed":
        print("resumed")


def _outcome(job: Mapping[str, Any]) -> int:
    if job["status"] == "completed":
        return 0
    raise JobFailed(job["reason"] or job["status"], where=job["id"])


def _rounds(job: Mapping[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    title = f"{job['id']}: {job['status']}" + (f" ({job['reason']})" if job["reason"] else "")
    table = Table(title=escape(title), box=None, pad_edge=False, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in _cells(job["exchanges"]):
        table.add_row(*row)
    return table


def _cells(exchanges: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, ...]]:
    for record in exchanges:
        scores = record["scores"] or {}
        yield (
            str(record["number"]) if record["number"] else record["phase"],
            str(record["uploads"]),
            _figure(record["accuracy"]),
            _figure(record["loss"]),
            _figure(scores.get("score")),
            _figure(scores.get("corrected")),
            f"{record['seconds']:.1f}",
            f"{sum(record['bytes'].values()):,}",
        )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
