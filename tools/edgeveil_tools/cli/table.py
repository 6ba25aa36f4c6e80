"""Commands that simulate a job several times: `edgeveil table | compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, add_engine, add_track, command


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    _add_table(commands)
    _add_compare(commands)


def _add_table(commands: Subparsers) -> None:
    table = command(
        commands,
        "table",
        "simulate jobs with several seeds, accuracies in a table",
        about=(
            "Runs each job file as `edgeveil run --simulate` does, once for each seed, and writes\n"
            "table.md, table.json, table.png and table.svg to DIR. Runs that have completed are\n"
            "kept: after an interruption the same command goes on."
        ),
        examples=(
            "edgeveil table configs/jobs/quickstart.yaml --out out/table\n"
            "edgeveil table configs/jobs/mnist_*.yaml --seeds 3 --data DIR --out out/mnist"
        ),
    )
    table.add_argument("jobs", nargs="+", type=Path, metavar="JOB", help="job file")
    table.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of each job, default 3"
    )
    table.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of a published set's files, or those that jobs with data.schema name",
    )
    table.add_argument(
        "--out", type=Path, default=Path("out/table"), metavar="DIR", help="default out/table"
    )
    table.add_argument(
        "--reference",
        action=argparse.BooleanOptionalAction,
        help="train each job's noise-free reference once; default: of published sets, of own"
        " records it is a figure without any protection",
    )
    add_engine(table)
    add_track(table)
    table.add_argument("--force", action="store_true", help="run completed seeds again")
    table.add_argument("--json", action="store_true", help="print table.json, progress to stderr")
    table.set_defaults(handler=_table)


def _table(args: argparse.Namespace) -> int:
    from edgeveil_tools.report.table import TableOptions, table

    asked = TableOptions(
        seeds=args.seeds,
        out=args.out,
        data=args.data,
        force=args.force,
        as_json=args.json,
        reference=args.reference,
        engine=args.engine,
        ray_address=args.address,
        track=tuple(args.track),
        command=args.command_line,
    )
    return table(args.jobs, asked)


def _add_compare(commands: Subparsers) -> None:
    made = command(
        commands,
        "compare",
        "simulate a job with local, shared and no noise, side by side",
        about=(
            "Runs the job file as `edgeveil run --simulate` does, once with each noise, and\n"
            "writes compare.html and compare.json to DIR, the runs in folders beside them:\n"
            "accuracy by round, ε, and ε if all others collude. `shared` turns secure sums on.\n"
            "\n"
            "`none` is for comparison alone and protects nobody: the reference without noise\n"
            "learns from all records together in this process, and leaves no model."
        ),
        examples=(
            "edgeveil compare configs/jobs/digits_shared.yaml\n"
            "edgeveil compare configs/jobs/digits_shared.yaml --noise local,shared --seed 2 --json"
        ),
    )
    made.add_argument("job", type=Path, metavar="JOB", help="job file")
    made.add_argument(
        "--noise",
        type=_noises,
        default=(),
        metavar="KINDS",
        help="of local,shared,none; default: all three, of own records not `none`, a figure"
        " without any protection",
    )
    made.add_argument("--seed", type=int, metavar="N", help="of the dealing of records and noise")
    made.add_argument("--devices", type=int, metavar="N", help="devices to play")
    made.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="the records: a data file, a folder of pictures, or that of a published set's files",
    )
    made.add_argument("--out", type=Path, metavar="DIR", help="default out/compare/JOB")
    made.add_argument("--force", action="store_true", help="write over what DIR holds")
    made.add_argument("--json", action="store_true", help="print compare.json, progress to stderr")
    made.set_defaults(handler=_compare)


def _noises(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    for one in found:
        if one not in ("local", "shared", "none"):
            raise argparse.ArgumentTypeError(f"takes local, shared and none, got '{one}'")
    return found


def _compare(args: argparse.Namespace) -> int:
    from edgeveil_tools.report.noise_comparison import ComparisonOptions, compare

    asked = ComparisonOptions(
        out=args.out or Path("out/compare") / args.job.stem,
        noises=args.noise,
        seed=args.seed,
        devices=args.devices,
        data=args.data,
        as_json=args.json,
        force=args.force,
        command=args.command_line,
    )
    return compare(args.job, asked)
