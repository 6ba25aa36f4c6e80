"""`edgeveil broker | cloud | proxy | edge`: the processes, and what their operators do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.errors import UsageError
from edgeveil_tools.cli.common import Subparsers, command, load_as, load_edge

if TYPE_CHECKING:
    from edgeveil_proxy.registry import Registry


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    broker = command(
        commands,
        "broker",
        "run an MQTT broker",
        about="Runs mosquitto where it is installed, else the embedded amqtt, until Ctrl-C.",
        examples="edgeveil broker --config configs/broker-edge.yaml",
    )
    _config(broker)
    broker.set_defaults(handler=_broker)
    _add_cloud(commands)
    _add_proxy(commands)
    _add_edge(commands)


def _config(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    # SUPPRESS: a sub-command's default must not replace what stands before its name.
    parser.add_argument(
        "--config",
        type=Path,
        required=required,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="site file",
    )


def _add_cloud(commands: Subparsers) -> None:
    cloud = command(
        commands,
        "cloud",
        "run the cloud, or manage its tokens",
        about=(
            "Without a sub-command: runs jobs until Ctrl-C. Submit them with `edgeveil job submit`."
        ),
        examples=(
            "edgeveil cloud --config configs/cloud.yaml\n"
            "edgeveil cloud token --config configs/cloud.yaml --scope read --rotate"
        ),
    )
    _config(cloud, required=False)
    cloud.set_defaults(handler=_cloud, extra="cloud")
    parts = cloud.add_subparsers(title="sub-commands", metavar="SUB-COMMAND")
    token = command(
        parts,
        "token",
        "name or replace the token of a scope",
        about=(
            "Prints the name of the file with a scope's token; makes it where it is missing.\n"
            "read: jobs, status, metrics; submit: also submit, cancel, resume, fetch;\n"
            "admin: everything. A running cloud takes a new token at once and refuses the old one."
        ),
        examples="edgeveil cloud token --config configs/cloud.yaml --scope read --rotate",
    )
    _config(token)
    token.add_argument("--scope", choices=("read", "submit", "admin"), default="admin")
    token.add_argument("--rotate", action="store_true", help="put a new token in its place")
    token.set_defaults(handler=_token, extra="client")


def _add_proxy(commands: Subparsers) -> None:
    proxy = command(
        commands,
        "proxy",
        "run the proxy, or manage its devices",
        about="Without a sub-command: runs the proxy until Ctrl-C.",
        examples=(
            "edgeveil proxy --config configs/proxy.yaml\n"
            "edgeveil proxy admit --config configs/proxy.yaml enrolment.json\n"
            "edgeveil proxy devices --config configs/proxy.yaml"
        ),
    )
    _config(proxy, required=False)
    proxy.set_defaults(handler=_proxy, extra="proxy")
    parts = proxy.add_subparsers(title="sub-commands", metavar="SUB-COMMAND")
    admit = command(
        parts,
        "admit",
        "admit devices by their enrolment files",
        about="Admits devices; a running proxy sees them within a second or two.",
        examples="edgeveil proxy admit --config configs/proxy.yaml --note 'ward 3' box.json",
    )
    _config(admit)
    admit.add_argument("files", nargs="+", type=Path, metavar="FILE", help="enrolment file")
    admit.add_argument("--note", default="", help="your own words on these devices")
    admit.set_defaults(handler=_admit)
    devices = command(parts, "devices", "list admitted devices")
    _config(devices)
    devices.add_argument("--json", action="store_true", help="one JSON object a line")
    devices.add_argument("--all", action="store_true", help="revoked ones too")
    devices.set_defaults(handler=_devices)
    revoke = command(
        parts,
        "revoke",
        "take devices out",
        examples="edgeveil proxy revoke --config configs/proxy.yaml 4d30778cf66a3ebb",
    )
    _config(revoke)
    revoke.add_argument("ids", nargs="+", metavar="ID", help="device id, see `proxy devices`")
    revoke.set_defaults(handler=_revoke)


def _add_edge(commands: Subparsers) -> None:
    edge = command(
        commands,
        "edge",
        "run a device, or make its enrolment",
        about=(
            "Without a sub-command: runs a device until Ctrl-C. Several site files make several\n"
            "devices in one process, for demonstrations."
        ),
        examples=(
            "edgeveil edge --config configs/edge.yaml\n"
            "edgeveil edge enrol --config configs/edge.yaml --out enrolment.json"
        ),
    )
    edge.add_argument(
        "--config",
        type=Path,
        nargs="+",
        action="extend",
        metavar="FILE",
        default=None,
        help="site file; may stand several times",
    )
    edge.set_defaults(handler=_edge, extra="train")
    parts = edge.add_subparsers(title="sub-commands", metavar="SUB-COMMAND")
    enrol = command(
        parts,
        "enrol",
        "write what the proxy's operator needs to admit this device",
        about=(
            "Makes the device's keys at first use and writes their public halves, signed.\n"
            "Hand the file to the operator of the proxy over a way that cannot be forged."
        ),
        examples="edgeveil edge enrol --config configs/edge.yaml --out enrolment.json",
    )
    _config(enrol)
    enrol.add_argument("--out", type=Path, metavar="FILE", help="instead of standard output")
    enrol.set_defaults(handler=_enrol)


def _broker(args: argparse.Namespace) -> int:
    from edgeveil.sites.broker import BrokerSite
    from edgeveil_tools.site.brokers import run_broker

    return run_broker(load_as(BrokerSite, args.config))


def _cloud(args: argparse.Namespace) -> int:
    if not hasattr(args, "config"):
        raise UsageError("no site file given", where="edgeveil cloud", fix="add --config FILE")
    from edgeveil.sites.cloud import CloudSite

    site = load_as(CloudSite, args.config)
    from edgeveil_cloud.main import run

    return run(site)


def _token(args: argparse.Namespace) -> int:
    from edgeveil.sites.cloud import CloudSite
    from edgeveil_cloud.http_token import TOKEN_FILES, Scope, load_or_make_token, rotate_token

    state_dir, scope = load_as(CloudSite, args.config).state_dir, Scope[args.scope.upper()]
    if args.rotate:
        rotate_token(state_dir, scope)
    else:
        load_or_make_token(state_dir, scope)
    print(state_dir / TOKEN_FILES[scope])
    return 0


def _proxy(args: argparse.Namespace) -> int:
    if not hasattr(args, "config"):
        raise UsageError("no site file given", where="edgeveil proxy", fix="add --config FILE")
    from edgeveil.sites.proxy import ProxySite

    site = load_as(ProxySite, args.config)
    from edgeveil_proxy.main import run

    return run(site)


def _edge(args: argparse.Namespace) -> int:
    if not args.config:
        raise UsageError("no site file given", where="edgeveil edge", fix="add --config FILE")

    sites = [load_edge(path) for path in args.config]
    folders = [site.state_dir for site in sites]
    twice = next((str(f) for f in folders if folders.count(f) > 1), None)
    if twice:
        fix = "give each device a state_dir of its own"
        raise UsageError("two devices share this state folder", where=twice, fix=fix)
    from edgeveil_edge.main import run

    return run(sites)


def _admit(args: argparse.Namespace) -> int:
    from edgeveil.enrolment import Enrolment

    enrolments = [one for path in args.files for one in Enrolment.load_all(path)]
    for enrolment in enrolments:  # all or none: a bad file is found before anything changes
        enrolment.verify()
    registry = _registry(args.config)
    try:
        for enrolment in enrolments:
            new = registry.admit(enrolment, note=args.note)
            print(f"{enrolment.device_id}: {'admitted' if new else 'was admitted already'}")
    finally:
        registry.close()
    return 0


def _devices(args: argparse.Namespace) -> int:
    import json
    from datetime import UTC, datetime

    registry = _registry(args.config)
    entries = registry.devices(revoked=args.all)
    registry.close()
    for entry in entries:
        when = datetime.fromtimestamp(entry.admitted_s, UTC).isoformat(timespec="seconds")
        state = "active" if entry.active else "revoked"
        if args.json:
            shown = {"device": entry.device_id, "state": state, "admitted": when}
            print(json.dumps({**shown, "note": entry.note}))
        else:
            print(f"{entry.device_id}  {state:8} {when}  {entry.note}".rstrip())
    if not entries and not args.json:
        print("no devices; admit some with `edgeveil proxy admit`")
    return 0


def _revoke(args: argparse.Namespace) -> int:
    registry = _registry(args.config)
    try:
        for device in args.ids:
            done = registry.revoke(device)
            print(f"{device}: {'revoked' if done else 'was revoked already'}")
    finally:
        registry.close()
    return 0


def _registry(config: Path) -> Registry:
    from edgeveil.sites.proxy import ProxySite
    from edgeveil_proxy.registry import REGISTRY_FILE, Registry

    site = load_as(ProxySite, config)
    return Registry(site.state_dir / REGISTRY_FILE, limit=site.limits.devices)


def _enrol(args: argparse.Namespace) -> int:
    from edgeveil_edge.identity import DeviceIdentity

    identity = DeviceIdentity.load_or_create(load_edge(args.config).state_dir)
    text = identity.enrolment().to_json() + "\n"
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="ascii")
    wrote = f"wrote {args.out}; " if args.out else ""
    hint = f"broker.username must be {identity.device_id}"
    print(f"device {identity.device_id}: {wrote}{hint}", file=sys.stderr)
    return 0
