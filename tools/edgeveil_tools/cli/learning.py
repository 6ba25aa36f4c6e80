"""`edgeveil run | report | validate | schema | predict`: learning, and using what was learned."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.errors import UsageError
from edgeveil.logs import printable
from edgeveil_tools.cli.common import Subparsers, add_ray, add_track, command, say_next

if TYPE_CHECKING:
    from edgeveil.jobs import Job, Plan

KINDS = ("job", "cloud", "proxy", "edge", "broker")


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    _add_run(commands)
    _add_report(commands)
    validate = command(
        commands,
        "validate",
        "check configuration files, start nothing",
        about=(
            "Prints every problem of every file as `file:line key: what, why, fix`. A job is also\n"
            "played on made-up records, so that what would fail late fails here. With the site\n"
            "files of cloud or proxy beside it, also whether its rounds fit the brokers' quotas.\n"
            "Records that its local_run names, where they are there, or those of --data are read:\n"
            "columns, labels and ranges that are not as the job says are told, here alone.\n"
            "Python that a job names is run here, with your rights: the module of a model\n"
            "(model: {name: python}), of a `python:` source. Read it before."
        ),
        examples=(
            "edgeveil validate configs/*.yaml configs/jobs/*.yaml\n"
            "edgeveil validate configs/jobs/digits_preset.yaml --show\n"
            "edgeveil validate job.yaml --data people.csv\n"
            "edgeveil validate job.yaml site/cloud.yaml site/proxy.yaml --devices 200"
        ),
    )
    validate.add_argument("files", nargs="+", type=Path, metavar="FILE")
    validate.add_argument(
        "--show", action="store_true", help="print jobs whole, with what presets and defaults give"
    )
    validate.add_argument(
        "--devices",
        type=int,
        default=0,
        metavar="N",
        help="devices of the fleet, where cloud.yaml and proxy.yaml stand beside jobs",
    )
    validate.add_argument(
        "--data", type=Path, metavar="PATH", help="file or folder to hold against the job"
    )
    validate.add_argument("--json", action="store_true", help="one JSON object a file and line")
    validate.set_defaults(handler=_validate)
    _add_plan(commands)
    schema = command(
        commands,
        "schema",
        "print the JSON Schema of a kind of file, for editors",
        examples="edgeveil schema job > job.schema.json",
    )
    schema.add_argument("kind", choices=KINDS, nargs="?", default="job")
    schema.set_defaults(handler=_schema)
    predict = command(
        commands,
        "predict",
        "use a released model on your own records",
        about=(
            "Prints label and probability of each record. MODEL is an ONNX file or a device's\n"
            "state folder, whose release in use is then taken; either is held to the rules by\n"
            "which devices run a released graph (docs/models.md). A model of a job with\n"
            "data.schema reads records as its devices do and prints names: .csv and .parquet with\n"
            "the label's column or without it, .png, .jpg, a folder of pictures. Others take\n"
            "numbers alone."
        ),
        examples=(
            "edgeveil predict out/quickstart/model.onnx records.npz\n"
            "edgeveil predict site/state/edge-1 records.csv --json\n"
            "edgeveil predict out/adult/model.onnx people.csv\n"
            "edgeveil predict site/state/edge-1 --rollback"
        ),
    )
    predict.add_argument("model", type=Path, metavar="MODEL")
    predict.add_argument("input", type=Path, nargs="?", metavar="FILE", help="of records")
    predict.add_argument("--json", action="store_true", help="print JSON")
    predict.add_argument("--rollback", action="store_true", help="put the release before in use")
    predict.add_argument(
        "--personal",
        action="store_true",
        help="use what `edgeveil edge personalise` made of the release on this box",
    )
    predict.set_defaults(handler=_predict, extra="infer")
    _add_serve(commands)


def _add_serve(commands: Subparsers) -> None:
    serve = command(
        commands,
        "serve",
        "answer programs of this machine with a released model",
        about=(
            'POST /v1/predict takes {"record": […]}, or {"record": {"age": 39, …}} where the job\n'
            "had a schema; GET /v1/model says what it takes. On a loopback address alone.\n"
            "A device serves its release itself, with `inference:` in its site file."
        ),
        examples=(
            "edgeveil serve out/quickstart/model.onnx\nedgeveil serve site/state/edge-1 --port 8720"
        ),
    )
    serve.add_argument("model", type=Path, metavar="MODEL", help="ONNX file, or state folder")
    serve.add_argument("--port", type=int, default=8710, metavar="N", help="TCP port; default 8710")
    serve.set_defaults(handler=_serve, extra="infer")


def _serve(args: argparse.Namespace) -> int:
    from edgeveil_edge.serve import serve

    if not 1 <= args.port < 1 << 16:
        raise UsageError(
            f"must be in 1..65535, got {args.port}", where="--port", fix="leave it out"
        )
    return serve(args.model, args.port)


def _add_plan(commands: Subparsers) -> None:
    plan = command(
        commands,
        "plan",
        "say what a job can come to, before it costs anybody anything",
        about=(
            "Price, noise against signal, the accuracy that simulations reach, from which fleet\n"
            "on the job is of use, bytes and time of a round. On public records, or made-up ones\n"
            "where the job's own are not public: nothing is spent, and no device is asked."
        ),
        examples=(
            "edgeveil plan configs/jobs/quickstart.yaml\n"
            "edgeveil plan job.yaml --devices 200 --seeds 5 --json"
        ),
    )
    plan.add_argument("job", type=Path, metavar="JOB", help="job file")
    plan.add_argument("--devices", type=int, metavar="N", help="of the fleet; default: local_run's")
    plan.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="simulations of that fleet; default 3"
    )
    plan.add_argument(
        "--no-larger", action="store_true", help="do not look from which fleet on it is of use"
    )
    plan.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    plan.set_defaults(handler=_plan)


def _plan(args: argparse.Namespace) -> int:
    from edgeveil_tools.prospect import PlanOptions, plan_command

    asked = PlanOptions(
        devices=args.devices, seeds=args.seeds, larger=not args.no_larger, as_json=args.json
    )
    code = plan_command(args.job, asked)
    if not code and not args.json:
        say_next(f"edgeveil run {args.job}")
    return code


def _add_run(commands: Subparsers) -> None:
    run = command(
        commands,
        "run",
        "run a whole job on this machine",
        about=(
            "Starts two brokers, a cloud, a proxy and devices on this machine, runs the job over\n"
            "MQTT and writes result, events, model and report to DIR. With --simulate its rounds\n"
            "are played in memory: no broker, no encryption, and a run repeats exactly. With\n"
            "--seeds or --sweep it runs once for each seed and value, and writes table.md,\n"
            "table.csv, table.json and comparison.html; runs that have completed are kept."
        ),
        examples=(
            "edgeveil run configs/jobs/quickstart.yaml\n"
            "edgeveil run configs/jobs/quickstart.yaml --out out/more --devices 40 --broker amqtt\n"
            "edgeveil run configs/jobs/quickstart.yaml --out out/fast --simulate --seed 3\n"
            "edgeveil run job.yaml --simulate --seeds 3 --sweep privacy.epsilon=0.5,1,2"
        ),
    )
    run.add_argument("job", type=Path, metavar="JOB", help="job file")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder for results; default out/JOB")
    run.add_argument("--broker", choices=("auto", "amqtt", "mosquitto"), help="broker to start")
    run.add_argument("--protocol", type=int, choices=(5, 4), help="MQTT 5, or 4 for 3.1.1")
    run.add_argument("--devices", type=int, metavar="N", help="devices to play")
    run.add_argument("--workers", type=int, metavar="N", help="processes that host them")
    run.add_argument(
        "--cells", type=int, metavar="N", help="each with an edge broker and a proxy of its own"
    )
    run.add_argument(
        "--seed", type=int, metavar="N", help="of the dealing of records; simulated: of the noise"
    )
    run.add_argument("--seeds", type=int, metavar="N", help="run with N seeds from that one on")
    run.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="run with each of these values of a job's key; may be given again",
    )
    run.add_argument(
        "--simulate",
        action=argparse.BooleanOptionalAction,
        help="play in memory, without brokers and encryption; default: as the job says",
    )
    add_ray(run)
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
    add_track(run)
    run.add_argument(
        "--record", action="store_true", help="keep what the cloud sees, for edgeveil attack"
    )
    run.add_argument(
        "--accept-unprotected",
        action="store_true",
        default=None,
        help="run a job whose privacy is not proven: its devices here accept that",
    )
    run.add_argument("--keep", action="store_true", help="keep keys, ledgers and stores too")
    run.add_argument("--force", action="store_true", help="write over a result that DIR holds")
    run.add_argument(
        "--resume", action="store_true", help="go on with the simulation interrupted in --out"
    )
    run.add_argument(
        "--page",
        action=argparse.BooleanOptionalAction,
        help="show the run to a browser on this machine meanwhile; default: unless --json",
    )
    run.add_argument("--open", action="store_true", help="open that page in a browser")
    run.add_argument("--json", action="store_true", help="print result.json, progress to stderr")
    run.set_defaults(handler=_run)


def _add_report(commands: Subparsers) -> None:
    report = command(
        commands,
        "report",
        "draw a run's page again, or compare runs",
        about=(
            "Writes report.html of one run again from the files in its DIR. Of several it writes\n"
            "one page that compares them: accuracy by round, accuracy beside both guarantees, and\n"
            "the settings that differ. Runs that differ in their seed alone are one row."
        ),
        examples=(
            "edgeveil report out/quickstart\n"
            "edgeveil report out/fm out/dp_sgd --out comparison.html\n"
            "edgeveil report out/* --json"
        ),
    )
    report.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="folder of a run, or of such folders"
    )
    report.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page; default DIR/report.html, of several comparison.html",
    )
    report.add_argument("--json", action="store_true", help="print each run's figures as JSON too")
    report.set_defaults(handler=_report)


def _report(args: argparse.Namespace) -> int:
    from edgeveil_tools.report.compare import report

    return report(args.folders, args.out, as_json=args.json)


def _run(args: argparse.Namespace) -> int:
    from edgeveil_tools.local.job import Overrides
    from edgeveil_tools.local.run import run_local

    overrides = Overrides(
        broker=args.broker,
        protocol=args.protocol,
        devices=args.devices,
        workers=args.workers,
        cells=args.cells,
        seed=args.seed,
        simulate=args.simulate,
        ray_address=args.ray,
        data=args.data,
        accept_unprotected=args.accept_unprotected,
    )
    out = args.out or Path("out") / args.job.stem
    how = {
        "as_json": args.json,
        "keep": args.keep,
        "reference": args.reference,
        "record": args.record,
        "force": args.force,
        "track": args.track,
        "command": args.command_line,
    }
    if args.seeds is not None or args.sweep:
        from edgeveil_tools.local.grid import run_grid

        if args.resume or args.page or args.open:
            raise UsageError(
                "is for a single run; a grid goes on by itself",
                where="--resume" if args.resume else "--open" if args.open else "--page",
                fix="leave it out",
            )
        seeds = 1 if args.seeds is None else args.seeds
        return run_grid(args.job, out, overrides, seeds, args.sweep, **how)
    page = args.open or (not args.json if args.page is None else args.page)
    return run_local(
        args.job, out, overrides, resume=args.resume, page=page, browse=args.open, **how
    )


def _validate(args: argparse.Namespace) -> int:
    from edgeveil.errors import ConfigError
    from edgeveil.evaluation.figures import AUC
    from edgeveil_tools.checks import load, record_notes, site_limits, validate

    code, limits, jobs = 0, site_limits(args.files, args.devices), 0
    for path in args.files:
        problems = [str(problem) for problem in validate(path, limits, args.data)]
        kind, found = ("", None) if problems else load(path)
        job, plan = found if isinstance(found, tuple) else (None, None)
        jobs += bool(problems) or job is not None
        if problems:
            code = ConfigError.exit_code
        notes = [] if job is None else record_notes(job, path, args.data)
        if args.json:
            told = {"file": str(path), "kind": kind or None, "problems": problems}
            told |= {"records": notes} if notes else {}
            shown = {"job": job.model_dump(mode="json")} if job and args.show else {}
            print(json.dumps({**told, **shown, "ok": not problems}))
        elif problems:
            print("\n".join(problems))
        else:
            _print_sound(path, kind, plan, job if args.show else None)
            print("".join(f"  records: {note}\n" for note in notes), end="")
            if job is not None and job.local_run is not None and len(args.files) == 1:
                unplanned = job.measure == AUC  # which `plan` refuses
                say_next(
                    f"edgeveil run {path} --simulate" if unplanned else f"edgeveil plan {path}"
                )
    if args.data is not None and not jobs:
        raise UsageError(
            "no job is named to hold it against", where="--data", fix="name the job's file too"
        )
    return code


def _print_sound(path: Path, kind: str, plan: Plan | None, shown: Job | None) -> None:
    """`FILE: ok (kind)`; of a job also where it would stop early, what its shuffle earns it and
    what its aggregation claims; and the job `shown` whole, as preset and defaults fill it in."""
    note = plan.stop_note if plan else ""
    print(f"{path}: ok ({kind}{'; will be ' + note if note else ''})")
    if plan is not None:
        from edgeveil_tools.checks import job_notes

        for line in job_notes(plan):
            print(f"  {line}")
    if shown is not None:
        import yaml

        plain = shown.model_dump(mode="json")
        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), end="")


def _schema(args: argparse.Namespace) -> int:
    from edgeveil_tools.checks import schema

    print(json.dumps(schema(args.kind), indent=2))
    return 0


def _predict(args: argparse.Namespace) -> int:
    from edgeveil.evaluation.figures import RMSE, leading_text
    from edgeveil_edge.predict import predict, rollback
    from edgeveil_tools.result import figures_text, share_text

    if args.rollback:
        print(f"now in use: {rollback(args.model)}")
        return 0
    if args.input is None:
        raise UsageError("no records given", where="edgeveil predict", fix="name a file of records")
    found = predict(args.model, args.input, personal=args.personal)
    if found.stale:
        print(f"edgeveil: {found.stale}", file=sys.stderr)
    if args.json:
        right = dict(found.errors or {})
        if found.accuracy is not None:
            right |= {"accuracy": found.accuracy, **found.guessing}
        print(f'{{"model": {json.dumps(found.model)}, "predictions": [', end="")
        for at, plain in enumerate(found.plain_rows()):  # one at a time: there may be millions
            print(", " * (at > 0) + json.dumps(plain), end="")
        print(
            "]" + "".join(f", {json.dumps(key)}: {json.dumps(right[key])}" for key in right) + "}"
        )
        return 0
    print(f"model {found.model}")
    for row in found.table_rows():
        at = row.get("file", f"{row['record']:>6}")
        if row.get("score", row.get("label", row.get("value"))) is None:
            print(f"{at}  not a usable record")
            continue
        if "score" in row:
            print(f"{at}  {row.get('name', 'score'):9}  {row['score']:.4g}")
            continue
        if "value" in row:
            print(f"{at}  {row['value']:.6g}")
            continue
        name = row.get("name", f"class {row['label']}")
        print(printable(f"{at}  {name}  probability {row['probability']:.3f}"))
    if found.accuracy is not None:
        print(f"right: {found.accuracy:.4f} of the records that have a label; {found.beside}")
    if found.scores is not None:
        if found.errors is not None:
            area = share_text(found.errors["auc"])
            print(f"AUC {area}, {figures_text(found.errors)} on the records that have a label")
        if not found.alarms:
            print("no threshold is known: the scores tell an order, the most unusual has the most")
    elif found.errors is not None:
        rmse = leading_text(RMSE, found.errors["rmse"], found.errors)
        errors = f"MAE {found.errors['mae']:.4g}, RMSE {rmse}"
        print(f"{errors} on the records that have a label, clipped to the range")
    if args.model.is_file():
        say_next(f"edgeveil serve {args.model}")
    return 0
