"""`edgeveil audit`: what the mechanisms are worth under attack."""

from __future__ import annotations

import argparse

from tools.cli_common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    audit = command(
        commands,
        "audit",
        "attack every privacy mechanism",
        about=(
            "Draws each mechanism's output under two neighbouring inputs, counts events that were\n"
            "fixed beforehand, and prints the claimed ε beside the ε that the counts prove. Exit\n"
            "code 1 if a proven claim fails; a sound one does with probability 1e-6 in all.\n"
            "`finds ε ≥` is the true ε that a test would have found with probability 0.99."
        ),
        examples="edgeveil audit --quick\nedgeveil audit --mechanism fm --runs 200000 --json",
    )
    audit.add_argument("--quick", action="store_true", help="fewer runs, about a minute")
    audit.add_argument("--runs", type=_runs, metavar="N", help="runs a side, for all attacks")
    audit.add_argument("--mechanism", default="", metavar="NAME", help="attack this one alone")
    audit.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    audit.set_defaults(handler=_audit)


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def _audit(args: argparse.Namespace) -> int:
    from tools.audit import audit

    return audit(quick=args.quick, as_json=args.json, runs=args.runs, mechanism=args.mechanism)
