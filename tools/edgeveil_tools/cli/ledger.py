"""`edgeveil ledger`: what a device has released, and whether its record is whole."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil_tools.cli.common import Subparsers, command, load_as

if TYPE_CHECKING:
    from edgeveil.sites.policy import Policy


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    ledger = command(
        commands,
        "ledger",
        "look at what a device has spent, and check its record",
        examples=(
            "edgeveil ledger show --config edge.yaml\n"
            "edgeveil ledger verify --state-dir site/state/edge-1 --json"
        ),
    )
    parts = ledger.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    show = command(
        parts,
        "show",
        "list the releases, their prices, and what the policy leaves",
        about="Reads the ledger as it stands; the device may be running.",
        examples="edgeveil ledger show --config edge.yaml --json",
    )
    show.set_defaults(handler=_show, extra="client")
    verify = command(
        parts,
        "verify",
        "check every link of the ledger's chain",
        about=(
            "Prints how many links are intact, or the first one that is not, and then exits with\n"
            "code 5. Changes nothing; the device may be running."
        ),
        examples="edgeveil ledger verify --config edge.yaml",
    )
    verify.set_defaults(handler=_verify)
    for part in (show, verify):
        where = part.add_mutually_exclusive_group(required=True)
        where.add_argument("--config", type=Path, metavar="FILE", help="edge site file")
        where.add_argument("--state-dir", type=Path, metavar="DIR", help="a device's state folder")
        part.add_argument("--json", action="store_true", help="print JSON")


def _ledger(args: argparse.Namespace) -> tuple[Path, dict[str, Policy]]:
    """The ledger's path, and the policy of each data set that the site file names."""
    from edgeveil.privacy.ledger import LEDGER_FILE
    from edgeveil.sites.edge import EdgeSite

    if args.state_dir is not None:
        return args.state_dir / LEDGER_FILE, {}
    site = load_as(EdgeSite, args.config)
    return site.state_dir / LEDGER_FILE, {site.data.name: site.policy}


def _show(args: argparse.Namespace) -> int:
    import json

    from edgeveil.privacy.ledger import read_ledger
    from edgeveil_tools.ledger_view import as_plain, show

    path, policies = _ledger(args)
    book = read_ledger(path)
    if args.json:
        print(json.dumps(as_plain(path, book, policies)))
    else:
        show(path, book, policies)
    return 0


def _verify(args: argparse.Namespace) -> int:
    import json

    from edgeveil.errors import PrivacyError
    from edgeveil.privacy.ledger import read_ledger

    path, _ = _ledger(args)
    try:
        links = read_ledger(path).links
    except PrivacyError as error:
        if not args.json:
            raise
        found = {"what": error.what, "where": error.where, "fix": error.fix}
        print(json.dumps({"ledger": str(path), "intact": False, **found}))
        return error.exit_code
    if args.json:
        print(json.dumps({"ledger": str(path), "intact": True, "links": links}))
    else:
        print(f"{path}: intact, {links} links")
    return 0
