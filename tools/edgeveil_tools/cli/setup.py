"""`edgeveil doctor | init | completion`: before the first run."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil_tools.cli.common import Subparsers, command

_KINDS = ("classification", "images", "sensors", "anomaly", "loadtest")
_SHELLS = ("bash", "zsh", "tcsh")


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    _add_init(commands)
    _add_doctor(commands)
    _add_completion(commands)


def _add_init(commands: Subparsers) -> None:
    made = command(
        commands,
        "init",
        "write a job to begin with, and records to play it on",
        about=(
            "Writes a commented job, records for it and a README to DIR. Nothing is written over.\n"
            "  classification   a table of numbers, CSV\n"
            "  images           small grey pictures, PNG, a folder for each class\n"
            "  sensors          windows of a sensor's readings, CSV\n"
            "  anomaly          windows of which most are normal, and few have a label, CSV\n"
            "  loadtest         a load scenario; it needs no records\n"
            "The records are made up by a rule. --from drafts a job from records of your own, for\n"
            "you to judge before anybody else sees it: a list or a range can tell of a record."
        ),
        examples=(
            "edgeveil init\nedgeveil init images --out my-pictures\n"
            "edgeveil init --from people.csv --label income --out people"
        ),
    )
    made.add_argument("kind", choices=_KINDS, nargs="?", default="classification", metavar="KIND")
    made.add_argument("--out", type=Path, metavar="DIR", help="default my-KIND, or my-FILE")
    made.add_argument(
        "--from",
        type=Path,
        metavar="FILE",
        dest="records",
        help="CSV or Parquet file, or a folder of pictures, to draft the job from",
    )
    made.add_argument("--label", metavar="COLUMN", help="its label's column; default: a guess")
    made.set_defaults(handler=_init)


def _init(args: argparse.Namespace) -> int:
    from edgeveil_tools.setup.init_job import write, write_from

    if args.records is not None:
        folder = args.out or Path(f"my-{args.records.stem}")
        then = write_from(args.records, folder, args.label)
        print(
            f"wrote {folder / 'job.yaml'}: judge each list and range of its schema, then write"
            f" origin: public. Next:\n\n  {then}"
        )
        return 0
    if args.label is not None:
        raise UsageError("names a column of no file", where="--label", fix="add --from FILE")
    folder = args.out or Path(f"my-{args.kind}")
    then = write(args.kind, folder)
    print(f"wrote {folder}; {folder / 'README.md'} says what lies there. Next:\n\n  {then}")
    return 0


def _add_doctor(commands: Subparsers) -> None:
    made = command(
        commands,
        "doctor",
        "say what this machine has and lacks for each use",
        about=(
            "Looks at what is installed, the broker, memory, disk, clock, ports and files, and\n"
            "starts nothing. With --config also at one process's site file and what it names.\n"
            "Exit code 1 where there is a problem; a note is what only some uses need."
        ),
        examples="edgeveil doctor\nedgeveil doctor --config site/edge-1.yaml --json",
    )
    made.add_argument("--config", type=Path, metavar="FILE", help="site file, job or fleet plan")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.set_defaults(handler=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    import json

    from edgeveil_tools.setup.doctor import examine, examine_file, lines

    found = examine()
    if args.config is not None:
        found += examine_file(args.config)
    sound = not any(one.level == "problem" for one in found)
    if args.json:
        print(json.dumps({"ok": sound, "findings": [one._asdict() for one in found]}, indent=2))
    else:
        print("\n".join(lines(found)))
    return 0 if sound else 1


def _add_completion(commands: Subparsers) -> None:
    made = command(
        commands,
        "completion",
        "print the script that lets your shell complete commands",
        about=(
            "Commands, options, their choices, and paths: job files where a job is asked for.\n"
            "bash: eval it in ~/.bashrc. zsh: write it to a folder of $fpath. tcsh: source it."
        ),
        examples=(
            'eval "$(edgeveil completion bash)"            # in ~/.bashrc\n'
            "edgeveil completion zsh > ~/.zfunc/_edgeveil   # fpath+=~/.zfunc before compinit\n"
            "edgeveil completion tcsh > ~/.edgeveil.tcsh    # source ~/.edgeveil.tcsh in ~/.tcshrc"
        ),
    )
    made.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))
    made.set_defaults(handler=_completion, extra="client")


def _completion(args: argparse.Namespace) -> int:
    from edgeveil_tools import cli
    from edgeveil_tools.setup.completion import script

    print(script(cli.parser(), args.shell))
    return 0
