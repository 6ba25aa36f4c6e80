"""`edgeveil reproduce`: a text's experiment, its figures beside ours."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.cli_common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the command of this file."""
    made = command(
        commands,
        "reproduce",
        "run a text's experiment, its figures beside ours",
        about=(
            "Simulates the rows of a text's table and writes reproduction.md, .json, .png and\n"
            ".svg to DIR: the text's figure, ours, privacy as claimed and as proven, seconds.\n"
            "Runs that have completed are kept: the same command goes on. Names: delm-table3,\n"
            "laplace-inference. delm-table3 reads MNIST's four IDX files."
        ),
        examples=(
            "edgeveil reproduce laplace-inference --out out/laplace\n"
            "edgeveil reproduce delm-table3 --quick --out out/quick\n"
            "edgeveil reproduce delm-table3 --data DIR --seeds 1 --only fm_1_class fm_2_class"
        ),
    )
    made.add_argument("name", metavar="NAME")
    made.add_argument("--data", type=Path, metavar="DIR", help="folder of the data set's files")
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each row; 3, or 1 if quick")
    made.add_argument("--quick", action="store_true", help="few rounds on digits, in minutes")
    made.add_argument("--only", nargs="+", default=(), metavar="ROW", help="these rows alone")
    made.add_argument("--out", type=Path, metavar="DIR", help="default out/reproduce/NAME")
    made.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    made.set_defaults(handler=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    from tools.reproduce.run import Wanted, reproduce

    quick: bool = args.quick
    name = f"{args.name}-quick" if quick else args.name
    wanted = Wanted(
        out=args.out or Path("out/reproduce") / name,
        seeds=args.seeds if args.seeds is not None else (1 if quick else 3),
        data=None if args.data is None else str(args.data),
        quick=quick,
        only=args.only,
        as_json=args.json,
    )
    return reproduce(args.name, wanted)
