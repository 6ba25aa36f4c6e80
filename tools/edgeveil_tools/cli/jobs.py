"""`edgeveil run | job | predict`: learning, and using what was learned."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command, load_as

DEFAULT_CLOUD_CONFIG = Path("configs/cloud.yaml")


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    _add_run(commands)
    _add_job(commands)
    predict = command(
        commands,
        "predict",
        "use a released model on your own records",
        about=(
            "Prints label and probability of each record. MODEL is an ONNX file or a device's\n"
            "state folder, whose release in use is then taken."
        ),
        examples=(
            "edgeveil predict out/quickstart/model.onnx records.npz\n"
            "edgeveil predict site/state/edge-1 records.csv --json\n"
            "edgeveil predict site/state/edge-1 --rollback"
        ),
    )
    predict.add_argument("model", type=Path, metavar="MODEL")
    predict.add_argument("input", type=Path, nargs="?", metavar="FILE", help=".npz, .npy or .csv")
    predict.add_argument("--json", action="store_true", help="print JSON")
    predict.add_argument("--rollback", action="store_true", help="put the release before in use")
    predict.set_defaults(handler=_predict, extra="infer")


def _add_run(commands: Subparsers) -> None:
    run = command(
        commands,
        "run",
        "run a whole job on this machine",
        about=(
            "Starts two brokers, a cloud, a proxy and devices on this machine, runs the job over\n"
            "MQTT and writes result, events, model and report to DIR. With --simulate all parties\n"
            "are played in this process: no broker, no encryption, and a run repeats exactly."
        ),
        examples=(
            "edgeveil run configs/jobs/quickstart.yaml\n"
            "edgeveil run configs/jobs/quickstart.yaml --out out/small --devices 8 --broker amqtt\n"
            "edgeveil run configs/jobs/quickstart.yaml --out out/fast --simulate --seed 3"
        ),
    )
    run.add_argument("job", type=Path, metavar="JOB", help="job file")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder for results; default out/JOB")
    run.add_argument("--broker", choices=("auto", "amqtt", "mosquitto"), help="broker to start")
    run.add_argument("--protocol", type=int, choices=(5, 4), help="MQTT 5, or 4 for 3.1.1")
    run.add_argument("--devices", type=int, metavar="N", help="devices to play")
    run.add_argument("--workers", type=int, metavar="N", help="processes that host them")
    run.add_argument(
        "--seed", type=int, metavar="N", help="of the dealing of records; simulated: of the noise"
    )
    run.add_argument(
        "--simulate",
        action=argparse.BooleanOptionalAction,
        help="play all parties in this process, without encryption; default: as the job says",
    )
    run.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="the records: a data file, a folder of pictures, or that of a published set's files",
    )
    run.add_argument(
        "--reference",
        action=argparse.BooleanOptionalAction,
        help="train the noise-free reference beside it, and draw who holds what; default: for a"
        " published set, of own records these are figures without any protection",
    )
    run.add_argument(
        "--record", action="store_true", help="keep what the cloud sees, for edgeveil attack"
    )
    run.add_argument("--keep", action="store_true", help="keep keys, ledgers and stores too")
    run.add_argument("--json", action="store_true", help="print result.json, progress to stderr")
    run.set_defaults(handler=_run)


def _add_job(commands: Subparsers) -> None:
    job = command(
        commands,
        "job",
        "submit, list, watch, resume and cancel jobs, fetch their models",
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
    listed = command(parts, "list", "list all jobs")
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
    for one in (watch, resume, cancel, fetch):
        one.add_argument("id", metavar="ID", help="a job's id, see `job list`")
    for one in (listed, watch):
        one.add_argument("--json", action="store_true", help="one JSON object a line")
    for one in (submit, listed, watch, resume, cancel, fetch):
        _add_cloud(one)
    submit.set_defaults(handler=_submit, extra="client")
    listed.set_defaults(handler=_list, extra="client")
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


def _add_cloud(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--config",
        type=Path,
        default=None,
        metavar="FILE",
        help=f"the cloud's site file, for address and token (default {DEFAULT_CLOUD_CONFIG})",
    )
    one.add_argument("--cloud", metavar="URL", help="address instead, http://127.0.0.1:8701")
    one.add_argument("--token-file", type=Path, metavar="FILE", help="the cloud's http.token")


def _run(args: argparse.Namespace) -> int:
    from edgeveil_tools.backbone.command import ensure_for_jobs
    from edgeveil_tools.local.command import run_local
    from edgeveil_tools.local.job import Overrides

    ensure_for_jobs([args.job])
    overrides = Overrides(
        broker=args.broker,
        protocol=args.protocol,
        devices=args.devices,
        workers=args.workers,
        seed=args.seed,
        simulate=args.simulate,
        data=args.data,
    )
    return run_local(
        args.job,
        args.out or Path("out") / args.job.stem,
        overrides,
        as_json=args.json,
        keep=args.keep,
        reference=args.reference,
        record=args.record,
    )


def _cloud(args: argparse.Namespace) -> tuple[str, Path]:
    """Address and token file: as given, else from the cloud's site file."""
    if args.cloud and args.token_file:
        return args.cloud, args.token_file
    from edgeveil.sites.cloud import CloudSite

    site = load_as(CloudSite, args.config or DEFAULT_CLOUD_CONFIG)
    host = f"[{site.http.host}]" if ":" in site.http.host else site.http.host
    url = args.cloud or f"http://{host}:{site.http.port}"
    return url, args.token_file or site.state_dir / "http.token"


def _submit(args: argparse.Namespace) -> int:
    from edgeveil_tools import jobs
    from edgeveil_tools.backbone.command import ensure_for_jobs

    ensure_for_jobs([args.file])
    return jobs.submit(args.file, *_cloud(args), wait_s=args.wait_s, follow=args.watch)


def _list(args: argparse.Namespace) -> int:
    from edgeveil_tools import jobs

    return jobs.list_jobs(*_cloud(args), as_json=args.json)


def _watch(args: argparse.Namespace) -> int:
    from edgeveil_tools import jobs

    return jobs.watch(args.id, *_cloud(args), as_json=args.json)


def _resume(args: argparse.Namespace) -> int:
    from edgeveil_tools import jobs

    return jobs.resume(args.id, *_cloud(args))


def _cancel(args: argparse.Namespace) -> int:
    from edgeveil_tools import jobs

    return jobs.cancel(args.id, *_cloud(args))


def _fetch(args: argparse.Namespace) -> int:
    from edgeveil_tools import jobs

    return jobs.fetch(args.id, *_cloud(args), args.out)


def _predict(args: argparse.Namespace) -> int:
    from edgeveil.errors import UsageError
    from edgeveil_edge.predict import predict, rollback

    if args.rollback:
        return rollback(args.model)
    if args.input is None:
        raise UsageError("no records given", where="edgeveil predict", fix="name a file of records")
    return predict(args.model, args.input, out="json" if args.json else "text")
