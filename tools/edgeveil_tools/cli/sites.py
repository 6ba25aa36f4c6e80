"""`edgeveil data | version`: records, before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    data = command(commands, "data", "look at a device's own records")
    parts = data.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    check = command(
        parts,
        "check",
        "say what learning would drop, before enrolment",
        about="Counts records on the owner's own console; nothing is stored or sent.",
        examples="edgeveil data check --config edge.yaml --job configs/jobs/quickstart.yaml",
    )
    check.add_argument("--config", type=Path, required=True, metavar="FILE", help="edge site file")
    check.add_argument("--job", type=Path, metavar="FILE", help="check against this job")
    check.set_defaults(handler=_data_check, extra="train-fm")
    describe = command(
        parts,
        "describe",
        "draft data.schema from a file of records",
        about=(
            "Prints a `data` block: columns with ranges and categories, the label's names, or the\n"
            "form of pictures. It is your own look at your own records, marked as such: no job\n"
            "runs with it before a person has judged each list and range and written\n"
            "origin: public."
        ),
        examples=(
            "edgeveil data describe people.csv > draft.yaml\n"
            "edgeveil data describe people.parquet --label income\n"
            "edgeveil data describe pictures/"
        ),
    )
    describe.add_argument(
        "file", type=Path, metavar="FILE", help=".csv or .parquet, or a folder of class folders"
    )
    describe.add_argument("--label", metavar="COLUMN", help="the label's column; default: a guess")
    describe.set_defaults(handler=_data_describe)
    version = command(commands, "version", "print the version")
    version.set_defaults(handler=_version)


def _data_describe(args: argparse.Namespace) -> int:
    from edgeveil_tools.describe import describe

    print(describe(args.file, args.label), end="")
    return 0


def _data_check(args: argparse.Namespace) -> int:
    from edgeveil_tools.checks import data_check

    return data_check(args.config, args.job)


def _version(_args: argparse.Namespace) -> int:
    from importlib import metadata

    print(f"edgeveil {metadata.version('edgeveil')}")
    return 0
