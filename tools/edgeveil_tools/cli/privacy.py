"""`edgeveil audit | attack`: what mechanisms and jobs are worth under attack."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command


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
    audit.add_argument("--quick", action="store_true", help="fewer runs, some minutes")
    audit.add_argument(
        "--runs", type=_runs, metavar="N", help="runs a side; of the slowest attacks a part"
    )
    audit.add_argument("--mechanism", default="", metavar="NAME", help="attack this one alone")
    audit.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    audit.set_defaults(handler=_audit, extra="lab")
    attack = command(
        commands,
        "attack",
        "attack a recorded job",
        about=(
            "Reads what the cloud saw of a job (edgeveil run --record), rebuilds records from\n"
            "uploads (DLG, iDLG, cosine similarity) and infers who was a member, with the noise\n"
            "as it was and without. Writes pictures, attack.json and attack.html to DIR."
        ),
        examples=(
            "edgeveil run configs/jobs/attack_demo.yaml --record --out out/attack\n"
            "edgeveil attack out/attack/recording"
        ),
    )
    attack.add_argument("recording", type=Path, metavar="RECORDING", help="folder of a recording")
    attack.add_argument("--out", type=Path, metavar="DIR", help="default: RECORDING/attack")
    attack.add_argument("--data", type=Path, metavar="DIR", help="folder of MNIST's files")
    attack.add_argument("--json", action="store_true", help="print attack.json, progress to stderr")
    attack.set_defaults(handler=_attack, extra="lab")


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def _attack(args: argparse.Namespace) -> int:
    from edgeveil_lab.attack.command import attack

    return attack(args.recording, args.out, args.data, as_json=args.json)


def _audit(args: argparse.Namespace) -> int:
    from edgeveil_lab.audit.command import audit

    return audit(quick=args.quick, as_json=args.json, runs=args.runs, mechanism=args.mechanism)
