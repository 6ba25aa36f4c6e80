"""`edgeveil provision | data | version`: a site's files and records, before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from edgeveil.sites.broker_profiles import ProfileName
from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    _add_provision(commands)
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


def _add_provision(commands: Subparsers) -> None:
    made = command(
        commands,
        "provision",
        "write a small site: keys, passwords, brokers and site files",
        about="Writes a whole site to DIR and prints the commands that start each process.",
        examples=(
            "edgeveil provision my-site --devices 3\n"
            "edgeveil provision my-site --devices 20 --infer-only 2 --tls"
        ),
    )
    made.add_argument("dir", type=Path, metavar="DIR")
    made.add_argument("--devices", type=int, default=3, metavar="N", help="default 3")
    made.add_argument(
        "--infer-only",
        type=int,
        default=0,
        metavar="K",
        help="so many of them only evaluate; with --force boxes that are there stay as they are",
    )
    for name, port in (("edge", 21883), ("cloud", 21884)):
        made.add_argument(
            f"--{name}-port",
            type=_port,
            default=port,
            metavar="PORT",
            help=f"of the broker of the {name} side, default {port}",
        )
    for name, port in (("edge", 21885), ("cloud", 21886)):
        made.add_argument(
            f"--{name}-websockets-port",
            type=_port,
            default=port,
            metavar="PORT",
            help=f"of the broker of the {name} side with --websockets, default {port}",
        )
    for name, port in (("cloud", 8701), ("proxy", 8702)):
        made.add_argument(
            f"--{name}-http-port",
            type=_port,
            default=port,
            metavar="PORT",
            help=f"of the status page of the {name}, default {port}",
        )
    made.add_argument("--host", default="127.0.0.1", help="address the brokers listen on")
    made.add_argument("--broker", choices=("auto", "amqtt", "mosquitto"), default="auto")
    made.add_argument("--protocol", type=int, choices=(5, 4), default=5)
    made.add_argument("--tls", action="store_true", help="with an authority of the site's own")
    made.add_argument(
        "--websockets", action="store_true", help="brokers listen for them, every link uses them"
    )
    made.add_argument(
        "--profile",
        choices=get_args(ProfileName),
        default="default",
        help="links keep to that managed service's limits, and the brokers enforce them",
    )
    made.add_argument(
        "--force",
        action="store_true",
        help="write over the site files of DIR; keys, ledgers, passwords and owners' blocks stay",
    )
    made.add_argument("--json", action="store_true", help="print paths and commands as JSON")
    made.set_defaults(handler=_provision)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be in 1..65535, got '{text[:20]}'")
    return int(text)


def _provision(args: argparse.Namespace) -> int:
    from edgeveil.errors import UsageError
    from edgeveil.sites.policy import Policy
    from edgeveil_tools.site.provision import Ports, SitePlan, as_json, guide, provision

    if args.devices < 1 or not 0 <= args.infer_only < args.devices:
        fix = "use --devices 1 or more, and fewer --infer-only"
        raise UsageError("no device would train", where="edgeveil provision", fix=fix)
    ports = Ports(
        args.edge_port,
        args.cloud_port,
        args.cloud_http_port,
        args.proxy_http_port,
        args.edge_websockets_port,
        args.cloud_websockets_port,
    )
    if len(set(vars(ports).values())) < len(vars(ports)):
        fix = "give each of them a port of its own"
        raise UsageError("two ports are the same", where="edgeveil provision", fix=fix)
    plan = SitePlan(
        folder=args.dir,
        devices=args.devices,
        infer_only=args.infer_only,
        host=args.host,
        ports=ports,
        tls=args.tls,
        websockets=args.websockets,
        profile=args.profile,
        engine=args.broker,
        protocol=args.protocol,
        policy=Policy(min_devices=min(5, args.devices)),
        min_batch_floor=min(3, args.devices - args.infer_only),
    )
    site = provision(plan, force=args.force)
    print(as_json(site) if args.json else guide(site))
    return 0


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
