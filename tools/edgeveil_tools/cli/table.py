"""`edgeveil table`: several jobs, several seeds, one table."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the command of this file."""
    table = command(
        commands,
        "table",
        "simulate jobs with several seeds and put their accuracies in a table",
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
    table.add_argument("--data", type=Path, metavar="DIR", help="folder of a published set's files")
    table.add_argument(
        "--out", type=Path, default=Path("out/table"), metavar="DIR", help="default out/table"
    )
    table.add_argument(
        "--reference",
        action=argparse.BooleanOptionalAction,
        help="train each job's noise-free reference once; default: of published sets, of own"
        " records it is a figure without any protection",
    )
    table.add_argument("--force", action="store_true", help="run completed seeds again")
    table.add_argument("--json", action="store_true", help="print table.json, progress to stderr")
    table.set_defaults(handler=_table, extra="lab")


def _table(args: argparse.Namespace) -> int:
    from edgeveil_lab.table.command import Asked, table
    from edgeveil_tools.backbone.command import ensure_for_jobs

    ensure_for_jobs(args.jobs)
    asked = Asked(
        seeds=args.seeds,
        out=args.out,
        data=args.data,
        force=args.force,
        as_json=args.json,
        reference=args.reference,
    )
    return table(args.jobs, asked)
