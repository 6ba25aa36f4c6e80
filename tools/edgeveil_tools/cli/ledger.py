"""`edgeveil ledger`: what a device has released, and whether its record is whole."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil_tools.cli.common import Subparsers, command, load_edge

if TYPE_CHECKING:
    from edgeveil.privacy.ledger_chain import JobAccount, LedgerChain
    from edgeveil.sites.policy import Policy

_COLUMNS = ("exchange", "released", "mechanism", "times", "for", "unit", "status")


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

    if args.state_dir is not None:
        return args.state_dir / LEDGER_FILE, {}
    site = load_edge(args.config)
    return site.state_dir / LEDGER_FILE, {site.data.name: site.policy}


def _show(args: argparse.Namespace) -> int:
    import json

    from edgeveil.privacy.ledger import read_ledger
    from edgeveil_edge.spending import as_plain

    path, policies = _ledger(args)
    book = read_ledger(path)
    if args.json:
        print(json.dumps(as_plain(path, book, policies)))
    else:
        _print(path, book, policies)
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


def _print(path: Path, book: LedgerChain, policies: dict[str, Policy]) -> None:
    """Print the book: per data set what was spent and is left, per job each kind of release."""
    from rich.console import Console

    from edgeveil.privacy.guarantee import down
    from edgeveil.privacy.ledger_chain import spent
    from edgeveil.privacy.policy import INFER
    from edgeveil_edge.spending import guarantees, left

    console = Console(highlight=False, markup=False)
    console.print(f"{path}: {book.links} links, intact", soft_wrap=True)
    for name, account in book.accounts.items():
        console.print(f"\n{name}", style="bold")
        console.print(f"  spent on training:  {spent(account)}")
        console.print(f"  spent on inference: {spent(account, purpose=INFER)}")
        if name in policies:
            rest = ", ".join(f"{k} {down(v)}" for k, v in left(account, policies[name]).items())
            console.print(f"  left by the policy: {rest}", soft_wrap=True)
        for job, entry in account.items():
            state = "open" if entry.is_open else "closed"
            if entry.elsewhere:
                state = "answered by a copy of this device: all that it reserved counts"
            prices = ", ".join(f"{k} {v}" for k, v in guarantees(entry.spent))
            console.print(f"\n  job {job or 'unknown'} ({state}): {prices}", soft_wrap=True)
            console.print(_table(entry))


def _table(entry: JobAccount) -> Any:
    from rich.padding import Padding
    from rich.table import Table

    from edgeveil_edge.spending import kinds

    table = Table(*_COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in kinds(entry):
        table.add_row(
            row["exchanges"],
            row["what"],
            row["mechanism"],
            str(row["count"]),
            row["purpose"],
            row["unit"],
            row["status"],
        )
    return Padding(table, (0, 0, 0, 4))
