"""`edgeveil methods`: what a job file may name."""

from __future__ import annotations

import argparse

from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the command of this file."""
    methods = command(
        commands,
        "methods",
        "list the names that a job file may use, with sources and privacy status",
        about=(
            "Lists training methods, update stages, aggregation rules, models, features, data\n"
            "sources, partitions, evaluations, mechanisms, shuffles and presets: source, needs,\n"
            "what each reveals, and whether its guarantee is proven, claimed or none."
        ),
        examples=(
            "edgeveil methods\n"
            "edgeveil methods fm min_divergence\n"
            "edgeveil methods aggregation --json"
        ),
    )
    methods.add_argument("names", nargs="*", metavar="NAME", help="a name, or a family of names")
    methods.add_argument("--json", action="store_true", help="print JSON")
    methods.set_defaults(handler=_methods)


def _methods(args: argparse.Namespace) -> int:
    from edgeveil_tools.methods import methods

    return methods(args.names, as_json=args.json)
