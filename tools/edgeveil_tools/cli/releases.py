"""`edgeveil releases …`: final models on their way to the devices, by a cloud's HTTP control."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from edgeveil_tools.cli.common import Subparsers, command
from edgeveil_tools.cli.jobs import add_cloud, cloud_of
from edgeveil_tools.release_text import counted, release_lines


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    releases = command(
        commands,
        "releases",
        "list, show, promote and withdraw final models under way",
        examples=(
            "edgeveil releases list --config site/cloud.yaml\n"
            "edgeveil releases withdraw quickstart-1a2b3c4d --config site/cloud.yaml"
        ),
    )
    parts = releases.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    listed = command(parts, "list", "list all releases, oldest first")
    show = command(
        parts,
        "show",
        "show how far a release is, and what became of it on the devices",
        about=(
            "Counts alone: which device said what is not known. A device reports once for each\n"
            "time that the release was sealed: to the canary, then to all."
        ),
    )
    withdraw = command(parts, "withdraw", "have all devices go back to the release before this one")
    promote = command(
        parts, "promote", "bring a release to all devices now, whatever its canary says"
    )
    for one in (show, withdraw, promote):
        one.add_argument("id", metavar="ID", help="the id of the job that made it")
    for one, handler in (
        (listed, _list),
        (show, _show),
        (withdraw, _withdraw),
        (promote, _promote),
    ):
        one.add_argument("--json", action="store_true", help="one JSON object a line")
        add_cloud(one)
        one.set_defaults(handler=handler, extra="client")


def _list(args: argparse.Namespace) -> int:
    found = cloud_of(args).releases()
    if args.json:
        for release in found:
            print(json.dumps(release))
        return 0
    for release in found:
        counts = counted(release["reports"].get(release["stage"], {}))
        print(f"{release['job']}  {release['stage']}  {release['data_set']}  {counts}".rstrip())
    if not found:
        print("no releases yet")
    return 0


def _show(args: argparse.Namespace) -> int:
    return _print(cloud_of(args).release(args.id), as_json=args.json)


def _withdraw(args: argparse.Namespace) -> int:
    return _print(cloud_of(args).withdraw(args.id), as_json=args.json)


def _promote(args: argparse.Namespace) -> int:
    return _print(cloud_of(args).promote(args.id), as_json=args.json)


def _print(release: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(release))
        return 0
    print(f"{'job':10}{release['job']}")
    for line in release_lines(release):
        print(line)
    return 0
