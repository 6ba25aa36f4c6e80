"""`edgeveil job …`: control of a cloud's jobs over HTTP, with the core's libraries."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.errors import JobFailed, UsageError
from edgeveil_tools.cli.common import answer, columns, load_as

if TYPE_CHECKING:
    from edgeveil_tools.cloud_client import Cloud

AWAY_S = 60.0  # a watch continues over a restart of the cloud
DEFAULT_CLOUD_CONFIG = Path("configs/cloud.yaml")
_EPSILONS = ("ε", "ε if all others collude")
_REPORTED = {
    "in_use": "in use",
    "refused_by_check": "refused by the check",
    "failed_trial": "failed the trial",
    "rolled_back": "rolled back",
    "refused_by_policy": "refused by an owner",
}


def show_command(args: argparse.Namespace) -> int:
    if args.track and not args.watch:
        fix = "add --watch"
        raise UsageError("requires --watch", where="--track", fix=fix)
    if args.id is None and args.watch:
        raise UsageError("follows a single job", where="--watch", fix="name its ID")
    if args.watch:
        return watch(args.id, cloud_of(args, AWAY_S), as_json=args.json, track=args.track)
    cloud = cloud_of(args)
    if args.id is None:
        jobs, releases = cloud.list(), {one["job"]: one for one in cloud.releases()}
        for job in jobs:
            if job["id"] in releases:
                job["release"] = releases[job["id"]]
        return answer(args, _job_lines(cloud, jobs), {"jobs": jobs})
    entry, events = cloud.job(args.id), cloud.events(args.id)
    attempts = [
        {"type": event["type"], **event["data"]["answers"]}
        for event in events
        if event["data"].get("answers")
    ]
    from edgeveil_tools.statistics.answers import Statistics

    found = Statistics.of_events(events)
    lines = [*_shown(cloud, entry, attempts), *([str(found)] if found else ())]
    asked = {"statistics": found.content, "drift": found.drift} if found else {}
    return answer(args, lines, {"job": entry, "attempts": attempts, **asked})


def change(args: argparse.Namespace) -> int:
    done = getattr(cloud_of(args), getattr(args, "change", args.command.split()[1]))(args.id)
    if "stage" in done:
        return answer(args, [f"{'job':10}{done['job']}", *_release_lines(done)], {"release": done})
    return answer(args, [f"{done['id']}: {done['status']}"], {"job": done})


def fetch(args: argparse.Namespace) -> int:
    file = str(cloud_of(args).fetch(args.id, args.out))
    return answer(args, [file], {"file": file})


def cloud_of(args: argparse.Namespace, patience_s: float = 0.0) -> Cloud:
    """Return the cloud by the given address and credentials; default: its site file's."""
    from edgeveil_tools.cloud_client import Cloud, own_address

    def named(key: str) -> Path | None:
        name = os.environ.get(f"EDGEVEIL_{key.upper()}")
        return Path(name) if name else None

    url = args.cloud or os.environ.get("EDGEVEIL_CLOUD")
    token_file = args.token_file or named("token_file")
    files = {key: named(key) for key in ("ca_file", "cert_file", "key_file")}
    if not (url and (token_file or files["cert_file"])):
        from edgeveil.config.cloud import CloudSite

        site = load_as(CloudSite, args.config or DEFAULT_CLOUD_CONFIG)
        url = url or own_address(site.http)
        if not (token_file or files["cert_file"]):
            token_file = site.state_dir / "http.token"
    return Cloud(
        url,
        token_file,
        **files,
        patience_s=patience_s,
        insecure_http=os.environ.get("EDGEVEIL_INSECURE_HTTP") == "1",
    )


def submit(args: argparse.Namespace) -> int:
    from edgeveil.jobs.artifacts import read_artifacts
    from edgeveil.privacy.guarantee import guarantee_lines
    from edgeveil_tools.checks import plan_of, rehearse
    from edgeveil_tools.local.job import submitted

    plan = plan_of(args.file)
    rehearse(plan, args.file, needed=False)  # report its problems before contacting a cloud
    backbones = read_artifacts(plan.job)
    end = time.monotonic() + args.wait_s
    while True:
        try:
            cloud = cloud_of(args)
            cloud.list()
            break
        except UsageError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)
    job = cloud.submit_yaml(submitted(plan.job), backbones.values())
    answer(args, [job], {"id": job})
    sys.stdout.flush()
    quote = plan.quote()
    privacy = {"training": quote.training.plain, "inference": quote.inference.plain}
    untested = [e["data"]["reason"] for e in cloud.events(job) if e["type"] == "untested"]
    lines = [f"{name:18}{words}" for name, words in guarantee_lines(privacy)]
    lines += [f"{job}: {line}" for line in (*plan.notes, *untested)]
    print("\n".join(lines), file=sys.stderr)
    return watch(job, cloud_of(args, AWAY_S), as_json=args.json) if args.watch else 0


def _job_lines(cloud: Cloud, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not jobs:
        return ["no jobs yet"]
    rows: list[dict[str, str]] = []
    for job in jobs:
        row = {"id": job["id"], "status": job["status"], "submitted": _time(job["submitted_at"])}
        if any("privacy" in one for one in jobs):
            row |= zip(_EPSILONS, _epsilons(job), strict=True)
        if any("release" in one for one in jobs):
            release = job.get("release") or {"stage": "", "reports": {}}
            counts = _counted(release["reports"].get(release["stage"], {}))
            row["release"] = f"{release['stage']}, {counts}" if counts else release["stage"]
        rows.append({**row, "reason": " ".join(_reason(cloud, job).split())})
    return columns([[*rows[0]], *([*row.values()] for row in rows)])


def _time(stamp: float) -> str:
    return datetime.fromtimestamp(stamp).isoformat(" ", "seconds")


def _epsilons(job: Mapping[str, Any]) -> list[str]:
    """Return both ε of training with shared noise; empty for other jobs."""
    if "privacy" not in job:
        return ["", ""]
    from edgeveil.privacy.guarantee import up

    training = job["privacy"]["training"]
    if training["status"] != "proven":
        return ["no proven ε"] * 2
    found = (training["epsilon"], training["collusion_epsilon"])
    return ["not bounded" if epsilon is None else up(epsilon) for epsilon in found]


def _shown(
    cloud: Cloud, entry: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
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
        counts = ", ".join(f"{name} {count}" for name, count in (row | answers["void"]).items())
        yield f"{'paused' if answers['type'] == 'job_paused' else 'repeated':10}{counts}"
    if release := entry.get("release"):
        yield from _release_lines(release)


def _release_lines(release: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'release':10}{release['stage']}"
    if release["reason"]:
        yield f"{'why':10}{release['reason']}"
    if release["expires_at"] is not None:
        yield f"{'valid until':12} {_time(release['expires_at'])}"
    for reached, counts in sorted(release["reports"].items(), reverse=True):
        asked = f" of {release['canary']}" if reached == "canary" else ""
        yield f"{reached:10}{sum(counts.values())}{asked} reported: {_counted(counts)}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[k]} {word}" for k, word in _REPORTED.items() if counts.get(k))


def watch(job: str, cloud: Cloud, *, as_json: bool = False, track: Sequence[str] = ()) -> int:
    """Follow a job through pauses to its end; returns 0, raises JobFailed unless completed."""
    events: Iterable[Mapping[str, Any]] = cloud.watch(job)
    if track:
        from edgeveil_tools.tracking.watch import tracked

        events = tracked(cloud, job, track, events)
    shown = 0
    for event in events:
        if as_json:
            print(json.dumps(event), flush=True)
            continue
        if event["type"] == "job_waiting":
            print(_waiting(event["data"]))
        elif event["type"] == "job_paused":
            print(f"paused: {event['data'].get('reason', '')}")
        elif event["type"] == "job_resumed":
            print("resumed")
        records = cloud.job(job)["exchanges"]
        for record in records[shown:]:
            print(_round_line(record))
        sys.stdout.flush()
        shown = len(records)
    entry = cloud.job(job)
    ok = entry["status"] == "completed"
    text = json.dumps({"command": "job show", "ok": ok, "job": entry})
    print(text if as_json else f"{job}: {entry['status']}", flush=True)
    if not ok:
        raise JobFailed(entry["reason"] or entry["status"], where=job)
    return 0


def _reason(cloud: Cloud, job: Mapping[str, Any]) -> str:
    if job["status"] == "queued":
        for event in reversed(cloud.events(job["id"])):
            if event["type"] == "job_waiting":
                return _waiting(event["data"])
    return str(job["reason"])


def _waiting(data: Mapping[str, Any]) -> str:
    return f"waits for devices: {data['enrolled']} of {data['wanted']} are enrolled"


def _round_line(record: Mapping[str, Any]) -> str:
    from edgeveil.parts.round import short_label

    loss, score = record["loss"], (record["scores"] or {}).get("score")
    cells = (
        f"round {short_label(record['phase'], record['number'])}",
        f"answered {record['uploads']}",
        record["figure"],
        "" if loss is None else f"loss {loss:.3f}",
        "" if score is None else f"score {score:.3f}",
        f"seconds {record['seconds']:.1f}",
        f"bytes {sum(record['bytes'].values()):,}",
    )
    return "  ".join(cell for cell in cells if cell)
