"""`edgeveil job …`: jobs of a cloud, by its HTTP control.

For a desk that has the core's libraries alone; rich, where it is there, draws what is watched.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.errors import JobFailed, UsageError
from edgeveil_tools.cli.common import Subparsers, add_track, command, load_as
from edgeveil_tools.release_text import release_lines

if TYPE_CHECKING:
    from rich.table import Table

    from edgeveil_tools.cloud_client import Cloud

AWAY_S = 60.0  # a watch outlives a restart of the cloud
DEFAULT_CLOUD_CONFIG = Path("configs/cloud.yaml")
_EPSILONS = ("ε", "ε if all others collude")
COLUMNS = ("round", "answered", "figure", "loss", "score", "corrected", "seconds", "bytes")


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    job = command(
        commands,
        "job",
        "submit, list, watch, resume and cancel jobs, fetch models",
        examples=(
            "edgeveil job submit configs/jobs/quickstart.yaml --config site/cloud.yaml\n"
            "edgeveil job watch quickstart-1a2b3c4d --cloud http://127.0.0.1:8701 "
            "--token-file http.token\n"
            "edgeveil job resume quickstart-1a2b3c4d --config site/cloud.yaml\n"
            "edgeveil job fetch quickstart-1a2b3c4d --out model.onnx --config site/cloud.yaml"
        ),
    )
    parts = job.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    submit = command(parts, "submit", "queue a job; prints its id")
    submit.add_argument("file", type=Path, metavar="JOB", help="job file")
    submit.add_argument("--watch", action="store_true", help="follow it until it has ended")
    submit.add_argument(
        "--wait-s", type=float, default=0.0, metavar="S", help="wait so long for the cloud's start"
    )
    listed = command(
        parts,
        "list",
        "list all jobs",
        about="Where a job shares its noise also its ε, and the ε if all others collude.",
    )
    show = command(
        parts,
        "show",
        "show how a job stands and what its failed attempts lacked",
        about=(
            "Of each attempt that had to be repeated, and of the one that the job paused at, the\n"
            "counts: devices selected, uploads, declines, devices that were late or never came,\n"
            "and segments that did not count, by their reason. With shared noise both ε."
        ),
        examples="edgeveil job show quickstart-1a2b3c4d --config site/cloud.yaml",
    )
    watch = command(parts, "watch", "follow a job until it has ended")
    resume = command(
        parts,
        "resume",
        "let a paused job go on",
        about=(
            "A job pauses when devices, the proxy or the disk are missing for longer than its\n"
            "retries; `job list` says why. It goes on at its round, with the devices it had asked."
        ),
        examples="edgeveil job resume quickstart-1a2b3c4d --config site/cloud.yaml",
    )
    cancel = command(parts, "cancel", "cancel a job that has not ended")
    fetch = _add_fetch(parts)
    add_track(watch)
    for one in (show, watch, resume, cancel, fetch):
        one.add_argument("id", metavar="ID", help="a job's id, see `job list`")
    for one in (listed, watch):
        one.add_argument("--json", action="store_true", help="one JSON object a line")
    for one in (submit, listed, show, watch, resume, cancel, fetch):
        add_cloud(one)
    submit.set_defaults(handler=_submit, extra="client")
    listed.set_defaults(handler=_list, extra="client")
    show.set_defaults(handler=_show, extra="client")
    watch.set_defaults(handler=_watch, extra="client")
    resume.set_defaults(handler=_resume, extra="client")
    cancel.set_defaults(handler=_cancel, extra="client")
    fetch.set_defaults(handler=_fetch, extra="client")


def _add_fetch(parts: Subparsers) -> argparse.ArgumentParser:
    fetch = command(
        parts,
        "fetch",
        "download a completed job's model",
        about=(
            "The final model as ONNX, which `edgeveil predict` and every ONNX runtime take, or as\n"
            ".safetensors, the weights alone. Prints the file's name."
        ),
        examples="edgeveil job fetch quickstart-1a2b3c4d --out model.onnx",
    )
    fetch.add_argument(
        "--out", type=Path, metavar="FILE", help="FILE.onnx or FILE.safetensors; default ID.onnx"
    )
    return fetch


def add_cloud(one: argparse.ArgumentParser) -> None:
    """Add the options that say which cloud, and with which token."""
    one.add_argument(
        "--config",
        type=Path,
        default=None,
        metavar="FILE",
        help=f"the cloud's site file, for address and token (default {DEFAULT_CLOUD_CONFIG})",
    )
    one.add_argument(
        "--cloud",
        metavar="URL",
        default=os.environ.get("EDGEVEIL_CLOUD"),
        help="address instead: http://127.0.0.1:8701, https://HOST:8701 or unix:PATH"
        " (EDGEVEIL_CLOUD)",
    )
    one.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        default=_named("EDGEVEIL_TOKEN_FILE"),
        help="http-read.token, http-submit.token or http.token of the cloud's state_dir"
        " (EDGEVEIL_TOKEN_FILE)",
    )
    for option, what in (
        ("ca", "authorities that vouch for the cloud's certificate"),
        ("cert", "this client's own certificate, in place of a token"),
        ("key", "private key of that certificate"),
    ):
        variable = f"EDGEVEIL_{option.upper()}_FILE"
        one.add_argument(
            f"--{option}-file",
            type=Path,
            metavar="PEM",
            default=_named(variable),
            help=f"{what} ({variable})",
        )
    one.add_argument(
        "--insecure-http",
        action="store_true",
        help="send the token over http:// to another machine, readable on the way",
    )


def _named(variable: str) -> Path | None:
    """The file that an environment variable names."""
    name = os.environ.get(variable)
    return Path(name) if name else None


def cloud_of(args: argparse.Namespace, patience_s: float = 0.0) -> Cloud:
    """The cloud at the given address with the given token or certificate, else as its site file
    says.
    """
    from edgeveil_tools.cloud_client import Cloud, own_address

    url, token_file = args.cloud, args.token_file
    if not (url and (token_file or args.cert_file)):
        from edgeveil.sites.cloud import CloudSite

        site = load_as(CloudSite, args.config or DEFAULT_CLOUD_CONFIG)
        url = url or own_address(site.http)
        if token_file is None and args.cert_file is None:
            token_file = site.state_dir / "http.token"
    return Cloud(
        url,
        token_file,
        ca_file=args.ca_file,
        cert_file=args.cert_file,
        key_file=args.key_file,
        patience_s=patience_s,
        insecure_http=args.insecure_http,
    )


def _submit(args: argparse.Namespace) -> int:

    return submit(
        args.file,
        lambda patience_s: cloud_of(args, patience_s),
        wait_s=args.wait_s,
        follow=args.watch,
    )


def _list(args: argparse.Namespace) -> int:
    return list_jobs(cloud_of(args), as_json=args.json)


def _show(args: argparse.Namespace) -> int:
    return show_job(args.id, cloud_of(args))


def _watch(args: argparse.Namespace) -> int:
    return watch(args.id, cloud_of(args, AWAY_S), as_json=args.json, track=args.track)


def _resume(args: argparse.Namespace) -> int:
    return _print_status(cloud_of(args).resume(args.id))


def _cancel(args: argparse.Namespace) -> int:
    return _print_status(cloud_of(args).cancel(args.id))


def _print_status(job: Mapping[str, Any]) -> int:
    print(f"{job['id']}: {job['status']}")
    return 0


def _fetch(args: argparse.Namespace) -> int:
    print(cloud_of(args).fetch(args.id, args.out))
    return 0


def submit(
    path: Path, connect: Callable[[float], Cloud], *, wait_s: float = 0.0, follow: bool = False
) -> int:
    """Queue the job file `path`, print its id, and follow it to its end if `follow`.

    Waits up to `wait_s` for the cloud to answer. ConfigError lists every problem of the file, or
    says which stage of the job would fail, by made-up records, where the cloud's libraries are
    there; else the cloud says so, without the line.
    """
    from edgeveil.jobs.artifacts import read_artifacts
    from edgeveil.privacy.guarantee import guarantee_lines
    from edgeveil_tools.checks import plan_of, rehearse
    from edgeveil_tools.local.job import submitted

    plan = plan_of(path)
    rehearse(plan, path, needed=False)  # the file's problems are told before any cloud is asked
    backbones = read_artifacts(plan.job)
    cloud = _once_it_answers(connect, wait_s)
    job = cloud.submit_yaml(submitted(plan.job), backbones.values())
    print(job, flush=True)
    untested = [e["data"]["reason"] for e in cloud.events(job) if e["type"] == "untested"]
    quote = plan.quote()
    privacy = {"training": quote.training.plain, "inference": quote.inference.plain}
    for name, words in guarantee_lines(privacy):
        print(f"{name:18}{words}", file=sys.stderr)
    for line in (*plan.notes, *untested):
        print(f"{job}: {line}", file=sys.stderr)
    return watch(job, connect(AWAY_S)) if follow else 0


def _once_it_answers(connect: Callable[[float], Cloud], wait_s: float) -> Cloud:
    end = time.monotonic() + wait_s
    while True:
        try:
            cloud = connect(0.0)
            cloud.list()
            return cloud
        except UsageError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


def list_jobs(cloud: Cloud, *, as_json: bool = False) -> int:
    """Print all jobs, oldest first; as one JSON line each if `as_json`."""
    jobs = cloud.list()
    if as_json:
        for job in jobs:
            print(json.dumps(job))
        return 0
    shared = any("privacy" in job for job in jobs)
    rows = [("id", "status", "submitted", *_EPSILONS * shared, "reason")]
    for job in jobs:
        when = datetime.fromtimestamp(job["submitted_at"]).isoformat(" ", "seconds")
        reason = " ".join(_reason(cloud, job).split())
        rows.append((job["id"], job["status"], when, *_epsilons(job) * shared, reason))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if jobs else [("no jobs yet",)]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print(line.rstrip())
    return 0


def _epsilons(job: Mapping[str, Any]) -> tuple[str, str]:
    """Both ε of training where its noise is shared; of other jobs nothing is said here."""
    if "privacy" not in job:
        return "", ""
    from edgeveil.privacy.guarantee import up

    training = job["privacy"]["training"]
    if training["status"] != "proven":
        return "none proven", "none proven"
    found = (training["epsilon"], training["collusion_epsilon"])
    one, other = ("not bounded" if epsilon is None else up(epsilon) for epsilon in found)
    return one, other


def show_job(job: str, cloud: Cloud) -> int:
    """Print how a job stands, and the counts of the attempts that were not enough."""
    from edgeveil.privacy.guarantee import guarantee_lines

    entry, events = cloud.job(job), cloud.events(job)
    print(f"{'job':10}{entry['id']}\n{'status':10}{entry['status']}")
    print(f"{'rounds':10}{len(entry['exchanges'])} committed")
    if reason := _reason(cloud, entry):
        print(f"{'reason':10}{' '.join(reason.split())}")
    for name, words in guarantee_lines(entry["privacy"]) if "privacy" in entry else ():
        print(f"{name:18}{words}")
    for event in events:
        if answers := event["data"].get("answers"):
            inner = {"void", "causes"}
            row = {name: count for name, count in answers.items() if name not in inner}
            row |= {f"for {cause}": n for cause, n in answers.get("causes", {}).items()}
            row |= answers["void"]
            counts = ", ".join(f"{name} {count}" for name, count in row.items())
            print(f"{'paused' if event['type'] == 'job_paused' else 'repeated':10}{counts}")
    if release := entry.get("release"):
        print("\n".join(release_lines(release)))
    return 0


def watch(job: str, cloud: Cloud, *, as_json: bool = False, track: Sequence[str] = ()) -> int:
    """Follow a job until it has ended: a live table of its rounds, or its events as JSON lines.

    A pause is shown, and waited out: somebody may resume the job. `track`: log it there too.
    Returns 0 for a completed job; JobFailed for one that failed or was cancelled.
    """
    events: Iterable[Mapping[str, Any]] = cloud.watch(job)
    if track:
        from edgeveil_tools.tracking.watch import tracked

        events = tracked(cloud, job, track, events)
    if as_json:
        for event in events:
            print(json.dumps(event), flush=True)
    elif sys.stdout.isatty() and find_spec("rich") and not track:
        _draw(cloud, job)
    else:
        shown = 0
        for event in events:
            _say_stand(event)
            rows = list(_cells(cloud.job(job)["exchanges"]))
            for row in rows[shown:]:
                print(
                    "  ".join(
                        v if name == "figure" else f"{name} {v}"
                        for name, v in zip(COLUMNS, row, strict=True)
                        if v
                    )
                )
            sys.stdout.flush()
            shown = len(rows)
        print(f"{job}: {cloud.job(job)['status']}", flush=True)
    return _outcome(cloud.job(job))


def _draw(cloud: Cloud, job: str) -> None:
    from rich.live import Live

    with Live(_rounds(cloud.job(job)), auto_refresh=False) as live:
        for event in cloud.watch(job):
            if event["type"] == "job_waiting":
                live.console.print(_waiting(event["data"]))
            live.update(_rounds(cloud.job(job)), refresh=True)
        live.update(_rounds(cloud.job(job)), refresh=True)
    print()


def _reason(cloud: Cloud, job: Mapping[str, Any]) -> str:
    """Why a job stands as it does; of one that waits for devices the events tell."""
    if job["status"] == "queued":
        for event in reversed(cloud.events(job["id"])):
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
    from edgeveil.parts.exchange import short_label

    for record in exchanges:
        scores = record["scores"] or {}
        yield (
            short_label(record["phase"], record["number"]),
            str(record["uploads"]),
            record["figure"],
            _figure(record["loss"]),
            _figure(scores.get("score")),
            _figure(scores.get("corrected")),
            f"{record['seconds']:.1f}",
            f"{sum(record['bytes'].values()):,}",
        )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
