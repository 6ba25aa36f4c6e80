"""`edgeveil reproduce`: a text's experiment, its figures beside ours."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the command of this file."""
    made = command(
        commands,
        "reproduce",
        "run a text's experiment, its figures beside ours",
        about=(
            "Simulates the rows of a text's table or figure and writes reproduction.md, .json,\n"
            ".png and .svg to DIR: the text's figure, ours, privacy as claimed and as proven,\n"
            "seconds. Runs that have completed are kept: the same command goes on. Without NAME:\n"
            "lists the experiments. Rows without files of their data set are left out."
        ),
        examples=(
            "edgeveil reproduce\n"
            "edgeveil reproduce laplace-inference --out out/laplace\n"
            "edgeveil reproduce delm-table3 --quick\n"
            "edgeveil reproduce delm-table3 --data DIR --seeds 1 --only fm_1_class fm_2_class\n"
            "edgeveil reproduce delm-fig2 --data DIR --seeds 1 --rounds 50\n"
            "edgeveil reproduce delm-fig2 --write docs/reproduction.md"
        ),
    )
    made.add_argument("name", nargs="?", metavar="NAME", help="an experiment; none: list them")
    made.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of the data set's files, or of such folders",
    )
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each row; 3, or 1 if quick")
    made.add_argument("--rounds", type=int, metavar="N", help="play at most N rounds of each row")
    made.add_argument("--quick", action="store_true", help="few rounds on digits, in minutes")
    made.add_argument("--only", nargs="+", default=(), metavar="ROW", help="these rows alone")
    made.add_argument("--out", type=Path, metavar="DIR", help="default out/reproduce/NAME")
    made.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    made.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=Path("docs/reproduction.md"),
        metavar="PAGE",
        help="run nothing; put the kept table into PAGE, default docs/reproduction.md",
    )
    made.set_defaults(handler=_reproduce, extra="lab")


def _reproduce(args: argparse.Namespace) -> int:
    from edgeveil_lab.reproduce import EXPERIMENTS

    if args.name is None:
        listed = {
            name: {"title": EXPERIMENTS[name].title, "source": EXPERIMENTS[name].source}
            for name in EXPERIMENTS
        }
        lines = [f"{name:<18} {f['source']}: {f['title']}" for name, f in listed.items()]
        print(json.dumps(listed, ensure_ascii=False) if args.json else "\n".join(lines))
        return 0
    quick: bool = args.quick
    out = args.out or Path("out/reproduce") / (f"{args.name}-quick" if quick else args.name)
    if args.write is not None:
        from edgeveil_lab.reproduce.page import write_section

        print(f"Files: {args.write}, {write_section(args.name, out, args.write)}")
        return 0
    from edgeveil_lab.reproduce.run import Wanted, reproduce

    wanted = Wanted(
        out=out,
        seeds=args.seeds if args.seeds is not None else (1 if quick else 3),
        data=args.data,
        quick=quick,
        only=args.only,
        rounds=args.rounds,
        as_json=args.json,
    )
    return reproduce(args.name, wanted)
