"""`edgeveil deploy | health`: installed bundles as services of each kind of host."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command

_TARGETS = ("systemd", "compose", "kubernetes", "containers", "deb", "balena", "greengrass")


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    deploy = command(
        commands,
        "deploy",
        "write what runs installed bundles as services",
        about=(
            "systemd: hardened units that say when they are ready and are watched, and a daily\n"
            "check. compose: services with health checks, read-only but for their state.\n"
            "kubernetes: a kustomization under the restricted profile. containers: the files\n"
            "that the images of both are built from. deb: a Debian package of one role. These two\n"
            "take no bundles. balena, greengrass: recipes for these fleet managers."
        ),
        examples=(
            "edgeveil deploy systemd /var/lib/edgeveil/box-0001 --out units\n"
            "edgeveil deploy compose clinics/bundles/* --out clinics/bundles\n"
            "edgeveil deploy deb --role edge-infer --wheel edgeveil-0.1.0-py3-none-any.whl --out ."
        ),
    )
    deploy.add_argument("target", choices=_TARGETS, metavar="TARGET", help=", ".join(_TARGETS))
    deploy.add_argument("bundles", nargs="*", type=Path, metavar="BUNDLE")
    deploy.add_argument("--out", type=Path, required=True, metavar="DIR")
    deploy.add_argument("--gpu", action="store_true", help="devices may open graphics devices")
    text = "of the images, default the version of edgeveil"
    deploy.add_argument("--tag", default="", metavar="TAG", help=text)
    deploy.add_argument("--role", default="", metavar="ROLE", help="of a Debian package")
    deploy.add_argument("--wheel", type=Path, metavar="FILE", help="of EdgeVeil, for a package")
    text = "exact versions for a package, as .ci/constraints.txt"
    deploy.add_argument("--constraints", type=Path, metavar="FILE", help=text)
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


def _deploy(args: argparse.Namespace) -> int:
    from importlib import metadata

    from edgeveil.errors import UsageError
    from edgeveil_tools.deploy import compose, containers, kubernetes, recipes, systemd
    from edgeveil_tools.deploy.parties import parties_of
    from edgeveil_tools.result import writing
    from edgeveil_tools.site.bundles import inventory_of

    if args.target == "deb":
        return _deb(args)
    parties = parties_of(args.bundles)
    tag = args.tag or metadata.version("edgeveil")
    if not parties and args.target != "containers":
        fix = "name bundles: edgeveil site apply makes them"
        raise UsageError("no bundle is named", where=f"edgeveil deploy {args.target}", fix=fix)
    if args.target == "containers":
        files = containers.files()
        then = "with the wheel beside them: docker build -f proxy.Containerfile ."
    elif args.target == "systemd":
        files = systemd.files(parties, gpu=args.gpu)
        then = f"in {args.out}, as root: sh install.sh"
    elif args.target in ("balena", "greengrass"):
        files = getattr(recipes, args.target)(parties, tag=tag)
        then = f"as {args.out / 'README.md'} says"
    elif args.target == "compose":
        files = compose.files(parties, tag=tag)
        then = f"with the bundles beside it: docker compose -f {args.out / 'compose.yaml'} up -d"
    else:
        listed = {}
        for folder in args.bundles:
            said = inventory_of(folder)
            listed[said.name] = [*said.files, *said.given, "inventory.json", "inventory.sig"]
        files = kubernetes.files(parties, listed, tag=tag)
        then = f"with the bundles beside it: kubectl apply -k {args.out}"
    with writing(args.out, "name a folder that you may write to"):
        args.out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (args.out / name).write_text(text, "utf-8")
    print(f"wrote {len(files)} files to {args.out}; then, {then}")
    return 0


def _deb(args: argparse.Namespace) -> int:
    from edgeveil.errors import UsageError
    from edgeveil_tools.deploy.deb import build

    if not args.role or args.wheel is None:
        fix = "add --role edge-infer --wheel FILE"
        raise UsageError("names no role or no wheel", where="edgeveil deploy deb", fix=fix)
    made = build(args.role, args.wheel, args.out, args.constraints)
    print(f"wrote {made}; on the host: apt install ./{made.name}")
    return 0


def _health(args: argparse.Namespace) -> int:
    from edgeveil.sites.files import load_site
    from edgeveil_tools.probe import problem_of_site, tell

    return tell(problem_of_site(load_site(args.config), live=args.live))
