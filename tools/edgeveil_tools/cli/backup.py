"""`edgeveil backup | restore`: what a process must not lose, and the way back."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    backup = command(
        commands,
        "backup",
        "put a cloud's, proxy's or device's state into one archive",
        about=(
            "The process may run meanwhile. The archive holds its secret keys: keep it where they\n"
            "may be kept. A store on PostgreSQL is not in it: use pg_dump."
        ),
        examples="edgeveil backup --config edge.yaml --out box-0001.backup",
    )
    _config(backup)
    backup.add_argument("--out", type=Path, required=True, metavar="ARCHIVE")
    backup.set_defaults(handler=_backup)
    restore = command(
        commands,
        "restore",
        "put an archive in place of a state folder",
        about=(
            "With the process stopped. A device never gets an older ledger than the one in place.\n"
            "On an empty disk its proxy tells it what it has answered since the backup, and that\n"
            "counts as spent before it answers anything; where the proxy is another one by now,\n"
            "its owner vouches that there was nothing. A proxy's registry comes back as one that\n"
            "was rebuilt (edgeveil trust recover)."
        ),
        examples=(
            "edgeveil restore --config proxy.yaml --from proxy.backup --replace\n"
            "edgeveil restore --config edge.yaml --from box-0001.backup --ask-proxy"
        ),
    )
    _config(restore)
    text = "made by edgeveil backup"
    restore.add_argument("--from", dest="archive", type=Path, required=True, help=text)
    text = "what is in place is kept beside it, as …-before-restore-N"
    restore.add_argument("--replace", action="store_true", help=text)
    text = "of a device without a ledger: it has surely answered nothing since the backup"
    vouch = restore.add_mutually_exclusive_group()
    vouch.add_argument("--nothing-since", action="store_true", help=text)
    text = "of a device without a ledger: its proxy still knows what it answered since"
    vouch.add_argument("--ask-proxy", action="store_true", help=text)
    restore.set_defaults(handler=_restore)


def _config(made: argparse.ArgumentParser) -> None:
    made.add_argument("--config", type=Path, required=True, metavar="FILE", help="site file")


def _backup(args: argparse.Namespace) -> int:
    from edgeveil.sites.files import load_site
    from edgeveil_tools.site.state_backup import back_up, backed_up

    made = back_up(backed_up(load_site(args.config)), args.out)
    print(f"{len(made.files)} files of {made.role} {made.owner} are in {args.out}")
    return 0


def _restore(args: argparse.Namespace) -> int:
    from edgeveil.sites.files import load_site
    from edgeveil_tools.site.state_backup import backed_up, restore

    done = restore(
        backed_up(load_site(args.config)),
        args.archive,
        replace=args.replace,
        nothing_since=args.nothing_since,
        ask_proxy=args.ask_proxy,
    )
    print(f"{done.role} {done.owner} is as it was at {done.made}")
    if done.role == "proxy":
        print("Its registry may have forgotten who was revoked: revoke them again, then let the")
        print("root vouch for it: edgeveil proxy lineage, edgeveil trust recover. Jobs under masks")
        print("that were under way pause or fail: submit them anew.")
    return 0
