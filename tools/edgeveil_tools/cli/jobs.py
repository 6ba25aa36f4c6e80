"""`edgeveil job …`: jobs of a cloud, by its HTTP control; for a desk with the core's libraries."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.errors import JobFailed, UsageError
from edgeveil_tools.cli.common import answer, columns, load_as

if TYPE_CHECKING:
    from edgeveil_tools.cloud_client import Cloud

AWAY_S = 60.0  # a watch outlives a restart of the cloud
DEFAULT_CLOUD_CONFIG = Path("configs/cloud.yaml")
_EPSILONS = ("ε", "ε if all others collude")
_REPORTED = {
    "in_use": "in use",
    "refused_by_check": "refused by the check",
    "failed_trial": "failed the trial",
    "rolled_back": "rolled back",
    "refused_by_policy": "refused by an owner",
}
COLUMNS = ("round", "answered", "figure", "loss", "score", "seconds", "bytes")


def submit_command(args: argparse.Namespace) -> int:
    """`edgeveil job submit`."""
    return submit(
        args.file,
        lambda patience_s: cloud_of(args, patience_s),
        wait_s=args.wait_s,
        follow=args.watch,
        as_json=args.json,
    )


def _list(args: argparse.Namespace) -> int:
    """Every job, with the stage of its release."""
    cloud = cloud_of(args)
    jobs, releases = cloud.list(), {one["job"]: one for one in cloud.releases()}
    for job in jobs:
        if job["id"] in releases:
            job["release"] = releases[job["id"]]
    return answer(args, job_lines(cloud, jobs), {"jobs": jobs})


def show_command(args: argparse.Namespace) -> int:
    """`edgeveil job show`."""
    if args.track and not args.watch:
        fix = "add --watch: what a job comes to is logged as it goes"
        raise UsageError("follows no job", where="--track", fix=fix)
    if args.id is None:
        if args.watch:
            raise UsageError("follows one job", where="--watch", fix="name its ID")
        return _list(args)
    if args.watch:
        return watch(args.id, cloud_of(args, AWAY_S), as_json=args.json, track=args.track)
    cloud = cloud_of(args)
    entry, events = cloud.job(args.id), cloud.events(args.id)
    attempts = [
        {"type": event["type"], **event["data"]["answers"]}
        for event in events
        if event["data"].get("answers")
    ]
    return answer(args, shown(cloud, entry, attempts), {"job": entry, "attempts": attempts})


def change(args: argparse.Namespace) -> int:
    """`edgeveil job resume | cancel | release`."""
    done = getattr(cloud_of(args), getattr(args, "change", args.command.split()[1]))(args.id)
    if "stage" in done:
        return answer(args, [f"{'job':10}{done['job']}", *release_lines(done)], {"release": done})
    return answer(args, [f"{done['id']}: {done['status']}"], {"job": done})


def fetch(args: argparse.Namespace) -> int:
    """`edgeveil job fetch`."""
    file = str(cloud_of(args).fetch(args.id, args.out))
    return answer(args, [file], {"file": file})


def cloud_of(args: argparse.Namespace, patience_s: float = 0.0) -> Cloud:
    """The cloud at the given address with the given token or certificate, else as its site file
    says. Files of TLS are named by environment variables.
    """
    from edgeveil_tools.cloud_client import Cloud, own_address

    url = args.cloud or os.environ.get("EDGEVEIL_CLOUD")
    token_file = args.token_file or _named("EDGEVEIL_TOKEN_FILE")
    files = {f"{one}_file": _named(f"EDGEVEIL_{one.upper()}_FILE") for one in ("ca", "cert", "key")}
    if not (url and (token_file or files["cert_file"])):
        from edgeveil.config.cloud import CloudSite

        site = load_as(CloudSite, args.config or DEFAULT_CLOUD_CONFIG)
        url = url or own_address(site.http)
        if token_file is None and files["cert_file"] is None:
            token_file = site.state_dir / "http.token"
    return Cloud(
        url,
        token_file,
        **files,
        patience_s=patience_s,
        insecure_http=os.environ.get("EDGEVEIL_INSECURE_HTTP") == "1",
    )


def _named(variable: str) -> Path | None:
    """The file that an environment variable names."""
    name = os.environ.get(variable)
    return Path(name) if name else None


def submit(
    path: Path,
    connect: Callable[[float], Cloud],
    *,
    wait_s: float = 0.0,
    follow: bool = False,
    as_json: bool = False,
) -> int:
    """Queue the job file `path`, print its id, and follow it if `follow`; waits up to `wait_s` for
    the cloud. ConfigError lists every problem of the file."""
    from edgeveil.jobs.artifacts import read_artifacts
    from edgeveil.privacy.guarantee import guarantee_lines
    from edgeveil_tools.checks import plan_of, rehearse
    from edgeveil_tools.local.job import submitted

    plan = plan_of(path)
    rehearse(plan, path, needed=False)  # the file's problems are told before any cloud is asked
    backbones = read_artifacts(plan.job)
    cloud = _once_it_answers(connect, wait_s)
    job = cloud.submit_yaml(submitted(plan.job), backbones.values())
    print(
        json.dumps({"command": "job submit", "ok": True, "id": job}) if as_json else job, flush=True
    )
    untested = [e["data"]["reason"] for e in cloud.events(job) if e["type"] == "untested"]
    quote = plan.quote()
    privacy = {"training": quote.training.plain, "inference": quote.inference.plain}
    for name, words in guarantee_lines(privacy):
        print(f"{name:18}{words}", file=sys.stderr)
    for line in (*plan.notes, *untested):
        print(f"{job}: {line}", file=sys.stderr)
    return watch(job, connect(AWAY_S), as_json=as_json) if follow else 0


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


def job_lines(cloud: Cloud, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of jobs, oldest first."""
    shared = any("privacy" in job for job in jobs)
    released = any("release" in job for job in jobs)
    rows = [("id", "status", "submitted", *_EPSILONS * shared, *("release",) * released, "reason")]
    for job in jobs:
        when = datetime.fromtimestamp(job["submitted_at"]).isoformat(" ", "seconds")
        reason, release = " ".join(_reason(cloud, job).split()), job.get("release")
        stage = (_stage(release) if release else "",) * released
        rows.append((job["id"], job["status"], when, *_epsilons(job) * shared, *stage, reason))
    return columns(rows) if jobs else ["no jobs yet"]


def _stage(release: Mapping[str, Any]) -> str:
    """Where a release is, and what devices reported of it."""
    counts = counted(release["reports"].get(release["stage"], {}))
    return f"{release['stage']}, {counts}" if counts else str(release["stage"])


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


def shown(
    cloud: Cloud, entry: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """How a job stands, the counts of the attempts that were not enough, and its release."""
    from edgeveil.privacy.guarantee import guarantee_lines

    yield f"{'job':10}{entry['id']}"
    yield f"{'status':10}{entry['status']}"
    yield f"{'rounds':10}{len(entry['exchanges'])} committed"
    if reason := _reason(cloud, entry):
        yield f"{'reason':10}{' '.join(reason.split())}"
    for name, words in guarantee_lines(entry["privacy"]) if "privacy" in entry else ():
        yield f"{name:18}{words}"
    for answers in attempts:
        row = {name: n for name, n in answers.items() if name not in ("type", "void", "causes")}
        row |= {f"for {cause}": n for cause, n in answers.get("causes", {}).items()}
        row |= answers["void"]
        counts = ", ".join(f"{name} {count}" for name, count in row.items())
        yield f"{'paused' if answers['type'] == 'job_paused' else 'repeated':10}{counts}"
    if release := entry.get("release"):
        yield from release_lines(release)


def release_lines(release: Mapping[str, Any]) -> list[str]:
    """How far a release is, why, and the counts of the devices' reports."""
    stage = release["stage"]
    lines = [f"{'release':10}{stage}"]
    if release["reason"]:
        lines.append(f"{'why':10}{release['reason']}")
    if release["expires_at"] is not None:
        ends = datetime.fromtimestamp(release["expires_at"]).isoformat(" ", "seconds")
        lines.append(f"{'good until':10} {ends}")
    for reached, counts in sorted(release["reports"].items(), reverse=True):
        asked = f" of {release['canary']}" if reached == "canary" else ""
        lines.append(f"{reached:10}{sum(counts.values())}{asked} reported: {counted(counts)}")
    return lines


def counted(counts: Mapping[str, int]) -> str:
    """Outcomes in words."""
    return ", ".join(
        f"{counts[name]} {word}" for name, word in _REPORTED.items() if counts.get(name)
    )


def watch(job: str, cloud: Cloud, *, as_json: bool = False, track: Sequence[str] = ()) -> int:
    """Follow a job until it has ended, through pauses: a line for each round, or events as JSON and
    the job last. Returns 0 for a completed job; JobFailed for one that failed or was cancelled."""
    events: Iterable[Mapping[str, Any]] = cloud.watch(job)
    if track:
        from edgeveil_tools.tracking.watch import tracked

        events = tracked(cloud, job, track, events)
    if as_json:
        for event in events:
            print(json.dumps(event), flush=True)
        entry = cloud.job(job)
        ok = entry["status"] == "completed"
        print(json.dumps({"command": "job show", "ok": ok, "job": entry}))
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
            f"{record['seconds']:.1f}",
            f"{sum(record['bytes'].values()):,}",
        )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
