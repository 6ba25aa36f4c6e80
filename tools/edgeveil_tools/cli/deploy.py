"""`edgeveil deploy | health`: installed bundles as services of each kind of host."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    deploy = command(
        commands,
        "deploy",
        "write what runs installed bundles as services",
        about=(
            "systemd: hardened units that say when they are ready and are watched, and a daily\n"
            "check. compose: services with health checks, read-only but for their state.\n"
            "kubernetes: a kustomization under the restricted profile. containers: the file that\n"
            "the images of both are built from. The units and this file take no bundles."
        ),
        examples=(
            "edgeveil deploy systemd --out units\n"
            "edgeveil deploy compose clinics/bundles/* --out clinics/bundles"
        ),
    )
    deploy.add_argument("target", choices=tuple(_THEN), metavar="TARGET", help=", ".join(_THEN))
    deploy.add_argument("bundles", nargs="*", type=Path, metavar="BUNDLE")
    deploy.add_argument("--out", type=Path, required=True, metavar="DIR")
    text = "of the images, default the version of edgeveil"
    deploy.add_argument("--tag", default="", metavar="TAG", help=text)
    deploy.set_defaults(handler=_deploy)
    health = command(
        commands,
        "health",
        "say whether a process does its work, for health checks",
        about=(
            "Asks the process beside it, with 80 ms of a processor at most: whether it turns, its\n"
            "links are up and its state folder takes what it writes. For a liveness probe --live."
        ),
        examples=(
            "edgeveil health --config /etc/edgeveil/edgeveil.yaml\n"
            "edgeveil health --config /etc/edgeveil/edgeveil.yaml --live"
        ),
    )
    health.add_argument("--config", type=Path, required=True, metavar="FILE", help="site file")
    health.add_argument(
        "--live",
        action="store_true",
        help="whether its loop and its machine turn, so that a new start would mend nothing",
    )
    health.set_defaults(handler=_health)


_THEN = {
    "containers": "with a wheel and constraints.txt beside it, as its first lines say",
    "systemd": "in {out}, as root: sh install.sh NAME...",
    "compose": "with the bundles beside it: docker compose -f {out}/compose.yaml up -d",
    "kubernetes": "with the bundles beside it: kubectl apply -k {out}",
}


def _deploy(args: argparse.Namespace) -> int:
    from importlib import metadata

    from edgeveil_tools.deploy import files_for
    from edgeveil_tools.result import writing

    tag = args.tag or metadata.version("edgeveil")
    files = files_for(args.target, args.bundles, tag=tag)
    with writing(args.out, "name a folder that you may write to"):
        for name, text in files.items():
            (args.out / name).parent.mkdir(parents=True, exist_ok=True)
            (args.out / name).write_text(text, "utf-8")
    then = _THEN[args.target].format(out=args.out)
    print(f"wrote {len(files)} files to {args.out}; then, {then}")
    return 0


def _health(args: argparse.Namespace) -> int:
    from edgeveil.sites.files import load_site
    from edgeveil_tools.probe import problem_of_site, tell

    return tell(problem_of_site(load_site(args.config), live=args.live))
