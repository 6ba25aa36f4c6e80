"""`edgeveil loadtest`: how much a site carries."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.errors import UsageError
from edgeveil_tools.cli.common import Subparsers, command

if TYPE_CHECKING:
    from edgeveil_lab.load.command import Sharing

_ABOUT = """\
Plays thousands of devices, with the real protocol and real encryption, and measures connections,
uploads, latency, loss, and what each process spends. Without --broker or --site it starts two
brokers, a cloud and a proxy of its own on this machine. The job uploads noise: no record is read.
"""
_EXAMPLES = """\
edgeveil loadtest --devices 500 --rounds 5
edgeveil loadtest --scenario configs/load/storm.yaml --out out/storm
edgeveil loadtest --devices 100,500,2000 --out out/sweep
edgeveil loadtest --devices 10000 --rounds 0 --hold 60 --json
edgeveil loadtest --site my-site --devices 200
edgeveil loadtest --broker mqtt://edge:1883 --user load --password-file load.password
several hosts, against a site that runs elsewhere:
edgeveil loadtest --make-fleet load.fleet --devices 5000
edgeveil proxy admit --config configs/proxy.yaml load.fleet.enrolments
edgeveil loadtest --devices 5000 --broker mqtt://edge:1883 --cloud http://cloud:8701 \\
    --proxy-http http://proxy:8702 --token-file http.token --fleet load.fleet --keys keys \\
    --listen 10.0.0.5:9000 --remote 2 --join-token join.token
edgeveil loadtest --join http://10.0.0.5:9000 --join-token join.token
"""


def add(commands: Subparsers) -> None:
    """Add the command."""
    load = command(
        commands, "loadtest", "measure how much a site carries", about=_ABOUT, examples=_EXAMPLES
    )
    load.add_argument("--scenario", type=Path, metavar="FILE", help="YAML file of these options")
    load.later = _add_options
    load.add_argument("--json", action="store_true", help="print the result as JSON")
    load.add_argument(
        "--make-fleet", type=Path, metavar="FILE", help="only write keys for so many devices"
    )
    load.add_argument(
        "--listen", metavar="HOST:PORT", help="take generators of other hosts, over plain HTTP"
    )
    load.add_argument(
        "--remote", type=int, default=0, metavar="N", help="generators that come from other hosts"
    )
    load.add_argument("--join", metavar="URL", help="be a generator of the test at this address")
    load.add_argument(
        "--join-token", type=Path, metavar="FILE", help="word that leader and generators share"
    )
    load.add_argument("--local", action="store_true", help=argparse.SUPPRESS)
    load.set_defaults(handler=_loadtest, extra="lab")


def _add_options(parser: argparse.ArgumentParser) -> None:
    from edgeveil_lab.load.options import add_arguments

    add_arguments(parser)


def _loadtest(args: argparse.Namespace) -> int:
    if args.join:
        from edgeveil_lab.load.joining import run_generator
        from edgeveil_lab.load.leader import join_token

        if args.join_token is None or not args.join_token.is_file():
            raise UsageError(
                "a generator needs the leader's token",
                where="--join-token",
                fix="copy the file that the leader made, and name it",
            )
        return run_generator(args.join, join_token(args.join_token), local=args.local)
    from edgeveil_lab.load.options import chosen, resolve

    options = resolve(args.scenario, chosen(args))
    if args.make_fleet is not None:
        from edgeveil_lab.load.running_site import write_fleet

        write_fleet(args.make_fleet, max(options.counts))
        print(f"wrote {args.make_fleet}, {args.make_fleet}.enrolments, {args.make_fleet}.users")
        return 0
    from edgeveil_lab.load.command import run

    return run(options, _sharing(args), as_json=args.json)


def _sharing(args: argparse.Namespace) -> Sharing:
    from edgeveil_lab.load.command import Sharing

    if args.listen is None:
        if args.remote:
            raise UsageError(
                "other hosts need an address to come to",
                where="--remote",
                fix="add --listen HOST:PORT",
            )
        return Sharing(token_file=args.join_token)
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError("is no HOST:PORT", where=f"--listen {args.listen}", fix="10.0.0.5:9000")
    if args.join_token is None:
        raise UsageError(
            "generators of other hosts need a shared word",
            where="--listen",
            fix="add --join-token FILE and copy that file to them",
        )
    return Sharing((host.strip("[]"), int(port)), args.remote, args.join_token)
