"""`edgeveil chaos`: faults from a seed against a site of its own; did it keep its word?"""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the command of this file."""
    chaos = command(
        commands,
        "chaos",
        "kill, cut, spoil and fill while jobs run, then check that nothing was lost",
        about=(
            "Starts two brokers, a cloud, a proxy and devices on this machine and runs a job over\n"
            "and over while, by a schedule drawn from the seed, processes are killed (kill -9),\n"
            "brokers restarted, links cut and slowed, messages corrupted and repeated, and disks\n"
            "filled. Then everything may come back, and what the parties hold on their disks is\n"
            "compared: jobs, rounds, acknowledgements, sums, ledgers, models, logs.\n"
            "\n"
            "Ends with 0 when every check holds, 1 on any violation, 130 after Ctrl-C."
        ),
        examples=(
            "edgeveil chaos --kills 20 --out out/chaos\n"
            "edgeveil chaos --kills 200 --seed 7 --broker amqtt --json\n"
            "edgeveil chaos configs/jobs/quickstart.yaml --kills 50 --devices 20"
        ),
    )
    chaos.add_argument(
        "job", nargs="?", type=Path, metavar="JOB", help="job file; default: a small one on digits"
    )
    chaos.add_argument("--kills", type=int, default=20, metavar="N", help="default 20")
    chaos.add_argument(
        "--seed", type=int, default=1, metavar="S", help="of the schedule; default 1"
    )
    chaos.add_argument(
        "--every",
        type=float,
        default=1.5,
        metavar="SECONDS",
        help="about so long between two kills, default 1.5",
    )
    chaos.add_argument(
        "--out", type=Path, default=Path("out/chaos"), metavar="DIR", help="default out/chaos"
    )
    chaos.add_argument("--devices", type=int, metavar="N", help="instead of the job's")
    chaos.add_argument("--workers", type=int, metavar="N", help="processes that host the devices")
    chaos.add_argument("--broker", choices=("auto", "amqtt", "mosquitto"))
    chaos.add_argument("--protocol", type=int, choices=(5, 4))
    chaos.add_argument(
        "--stall",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="after the faults: no progress for so long counts as hung, default 120",
    )
    chaos.add_argument("--keep", action="store_true", help="keep the site's folder")
    chaos.add_argument("--json", action="store_true", help="print chaos.json, progress to stderr")
    chaos.set_defaults(handler=_chaos, extra="lab")


def _chaos(args: argparse.Namespace) -> int:
    if args.kills < 0 or args.every <= 0 or args.stall <= 0:
        raise UsageError(
            "a number is too small",
            where="edgeveil chaos",
            fix="use --kills 0 or more, --every and --stall above 0",
        )
    from edgeveil_lab.chaos.course import Asked
    from edgeveil_lab.chaos.run import JOB, run_chaos
    from edgeveil_tools.local.job import Overrides

    overrides = Overrides(
        broker=args.broker, protocol=args.protocol, devices=args.devices, workers=args.workers
    )
    return run_chaos(
        args.job or JOB,
        args.out,
        overrides,
        Asked(args.kills, args.seed, args.every, args.stall),
        as_json=args.json,
        keep=args.keep,
    )
