"""`edgeveil broker | cloud | proxy | edge`: the processes, and what their operators do."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.audit_log import AUDIT_FILE
from edgeveil.errors import UsageError
from edgeveil.logs import printable
from edgeveil_tools.cli.common import (
    Subparsers,
    command,
    load_as,
    load_edge,
    print_audit,
)

if TYPE_CHECKING:
    from edgeveil.audit_log import OwnAuditLog
    from edgeveil_proxy.claims import ClaimBook
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


def _next(made: argparse.ArgumentParser) -> None:
    made.add_argument("--next", action="store_true", help="those that follow the ones in use")


def _add_log(parts: Subparsers, role: str, what: str) -> argparse.ArgumentParser:
    log = command(
        parts,
        "log",
        "print what administrators did, and check that it is whole",
        about=(
            f"{what}, a line before each\n"
            f"is done. Lines are chained and signed with the {role}'s key; one that was changed,\n"
            "removed or put elsewhere is told. `what` holds no secret and no name of a device."
        ),
        examples=f"edgeveil {role} log --config configs/{role}.yaml --json",
    )
    _config(log)
    log.add_argument("--json", action="store_true", help="one JSON object a line")
    return log


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
        "run the cloud, or manage its keys and tokens",
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
    keys = command(
        parts,
        "keys",
        "make the keys that the root is to vouch for",
        about=(
            "Makes the cloud's keys at first use and prints their public files. With --next: the\n"
            "keys that take their place once the root names them (`edgeveil trust rotate`)."
        ),
        examples=(
            "edgeveil cloud keys --config configs/cloud.yaml\n"
            "edgeveil cloud keys --config configs/cloud.yaml --next"
        ),
    )
    _config(keys)
    _next(keys)
    keys.set_defaults(handler=_cloud_keys)
    accept = command(
        parts,
        "accept-registry",
        "believe the next roster, of whatever registry it is",
        about=(
            "For a site without a root, whose proxy has rebuilt its registry: see first that no\n"
            "revoked device is in it. Then resume the paused jobs."
        ),
        examples="edgeveil cloud accept-registry --config configs/cloud.yaml",
    )
    _config(accept)
    accept.set_defaults(handler=_accept_registry, extra="cloud")
    what = "Jobs submitted, cancelled and resumed, tokens and keys replaced, registries accepted"
    _add_log(parts, "cloud", what).set_defaults(handler=_cloud_log)


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
    text = "also devices that were revoked before"
    admit.add_argument("--again", action="store_true", help=text)
    admit.set_defaults(handler=_admit)
    devices = command(
        parts,
        "devices",
        "list admitted devices",
        about=(
            "Lists the devices that were admitted. Where the proxy runs, and serves its pages to\n"
            "this machine alone (http.host), also whose messages it refused, and whose it drops."
        ),
    )
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
    keys = command(
        parts,
        "keys",
        "make the key that the root is to vouch for",
        about="With --next: the key that takes its place once the root names it.",
        examples="edgeveil proxy keys --config configs/proxy.yaml --next",
    )
    _config(keys)
    _next(keys)
    keys.set_defaults(handler=_proxy_keys)
    lineage = command(
        parts,
        "lineage",
        "print what tells this registry from one that was rebuilt",
        examples="edgeveil proxy lineage --config configs/proxy.yaml",
    )
    _config(lineage)
    lineage.set_defaults(handler=_lineage)
    _add_claims(parts)
    revoke.add_argument("ids", nargs="+", metavar="ID", help="device id, see `proxy devices`")
    revoke.set_defaults(handler=_revoke)
    what = "Devices admitted and revoked, keys made"
    _add_log(parts, "proxy", what).set_defaults(handler=_proxy_log)


def _add_claims(parts: Subparsers) -> None:
    claims = command(
        parts,
        "claims",
        "one-time claims, with which boxes that nobody has prepared enrol over the wire",
        about=(
            "A claim is handed to one box, in the file that claim.claim_file of its site file\n"
            "names. At its first start the box makes its keys and is admitted under the claim's\n"
            "name; then the claim works no more."
        ),
        examples=(
            "edgeveil proxy claims add --config proxy.yaml ward-7 ward-8 --out claims.csv\n"
            "edgeveil proxy claims list --config proxy.yaml"
        ),
    )
    subs = claims.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    add = command(subs, "add", "make claims; an unused one of the same name ends")
    _config(add)
    add.add_argument("names", nargs="+", metavar="NAME", help="of the box, unique in the fleet")
    text = "hours after which an unused claim ends, default 72"
    add.add_argument("--valid-h", type=float, default=72.0, metavar="HOURS", help=text)
    text = "`name,claim` lines, mode 0600, instead of standard output"
    add.add_argument("--out", type=Path, metavar="FILE", help=text)
    add.set_defaults(handler=_claims_add)
    listed = command(subs, "list", "list claims, and what became of them")
    _config(listed)
    listed.add_argument("--json", action="store_true", help="one JSON object a line")
    listed.set_defaults(handler=_claims_list)
    for name, text in (
        ("admit", "admit the box that used a claim, where the operator decides"),
        ("withdraw", "end an unused claim"),
    ):
        made = command(subs, name, text)
        _config(made)
        made.add_argument("name", metavar="NAME")
        made.set_defaults(handler=_claims_change, change=name)


_PAUSE = (
    "Rounds are declined at once, and the device goes at its next change of presence; an answer\n"
    "that is under way still leaves. Holds over restarts, until `edgeveil edge resume`."
)
_RESUME = "The device comes back at its next change of presence."
_STATUS = (
    "Running, paused, or waiting for which conditions; whether it is connected, the last round\n"
    "that counted it, the release in use, and what the ledger says is spent."
)


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
    rekey = command(
        parts,
        "rekey",
        "make a new sealing key; identity and ledger stay",
        about=(
            "With the device stopped: when the key's time has come, when it leaked or was lost.\n"
            "The device tells the proxy at its next start; nobody admits it anew."
        ),
        examples="edgeveil edge rekey --config configs/edge.yaml",
    )
    _config(rekey)
    rekey.set_defaults(handler=_rekey)
    check = command(
        parts,
        "check",
        "find out whether this box can do a device's work",
        about=(
            "Libraries for the role and the methods of the policy, clock, disk, memory, and that\n"
            "the records can be read: as plain numbers, or with --job as that job's data.schema\n"
            "says. Exit code 0: all well; 1: what is printed stands against it."
        ),
        examples=(
            "edgeveil edge check --config configs/edge.yaml\n"
            "edgeveil edge check --config configs/edge.yaml --job configs/jobs/quickstart.yaml"
        ),
    )
    _config(check)
    check.add_argument("--job", type=Path, metavar="FILE", help="read the records as this job does")
    check.set_defaults(handler=_check)
    personal = command(
        parts,
        "personalise",
        "learn this box's own model from the release in use",
        about=(
            "Learns the release's last layer further on this box's training records, without\n"
            "noise, and compares both on its evaluation records, which it does not learn from.\n"
            "For the owner alone: model and figures stay in the state folder, nothing is sent."
        ),
        examples=(
            "edgeveil edge personalise --config configs/edge.yaml\n"
            "edgeveil predict --personal site/state/edge-1 records.npz"
        ),
    )
    _config(personal)
    personal.add_argument("--json", action="store_true", help="one JSON object")
    personal.set_defaults(handler=_personalise, extra="infer")
    for word, help_text, about in (
        ("pause", "have the running device decline rounds", _PAUSE),
        ("resume", "have the running device take part again", _RESUME),
        ("status", "tell how the running device stands", _STATUS),
    ):
        made = command(
            parts,
            word,
            help_text,
            about=about,
            examples=f"edgeveil edge {word} --config configs/edge.yaml",
        )
        _config(made)
        made.add_argument("--json", action="store_true", help="one JSON object")
        made.set_defaults(handler=_control, word=word)
    page = command(
        parts,
        "page",
        "print an address that opens the running device's page",
        about=(
            "For a browser on this box. The address logs in once and within a minute; the page is\n"
            "there where the site file has `page`. From another machine: forward the port with\n"
            "ssh -L, and open the same address there."
        ),
        examples="edgeveil edge page --config configs/edge.yaml",
    )
    _config(page)
    page.set_defaults(handler=_page)


def _personalise(args: argparse.Namespace) -> int:
    from edgeveil_edge.personal import personalise, told
    from edgeveil_edge.predict import RELEASES

    site = load_edge(args.config)
    found = personalise(site, site.state_dir / RELEASES)
    if args.json:
        print(json.dumps(asdict(found)))
        return 0
    for line in told(found, site.state_dir):
        print(line)
    return 0


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


def _cloud_log(args: argparse.Namespace) -> int:
    from edgeveil.sites.cloud import CloudSite

    return _log(load_as(CloudSite, args.config).state_dir, "cloud", args)


def _proxy_log(args: argparse.Namespace) -> int:
    from edgeveil.sites.proxy import ProxySite

    return _log(load_as(ProxySite, args.config).state_dir, "proxy", args)


def _log(state_dir: Path, role: str, args: argparse.Namespace) -> int:
    if (state_dir / AUDIT_FILE).exists():
        print_audit(_own_log(state_dir, role).read(), as_json=args.json)
    elif not args.json:
        print("nothing was done yet")
    return 0


def _own_log(state_dir: Path, role: str) -> OwnAuditLog:
    from edgeveil.transport.process import own_audit_log

    return own_audit_log(state_dir, role)


def _token(args: argparse.Namespace) -> int:
    from edgeveil.sites.cloud import CloudSite
    from edgeveil_cloud.http_guard import TOKEN_FILES, Scope, load_or_make_token, rotate_token

    state_dir, scope = load_as(CloudSite, args.config).state_dir, Scope[args.scope.upper()]
    if args.rotate:
        _own_log(state_dir, "cloud").append("rotate_token", {"scope": scope.label})
        rotate_token(state_dir, scope)
    else:
        load_or_make_token(state_dir, scope)
    print(state_dir / TOKEN_FILES[scope])
    return 0


def _cloud_keys(args: argparse.Namespace) -> int:
    from edgeveil.sites.cloud import CloudSite

    return _keys(load_as(CloudSite, args.config).state_dir, ("cloud", "releases"), args.next)


def _proxy_keys(args: argparse.Namespace) -> int:
    from edgeveil.sites.proxy import ProxySite

    return _keys(load_as(ProxySite, args.config).state_dir, ("proxy",), args.next)


def _keys(state_dir: Path, names: tuple[str, ...], following: bool) -> int:
    from edgeveil.transport.process import make_signing_key
    from edgeveil.trust.believed import next_key

    for name in names:
        if following:
            _own_log(state_dir, names[0]).append("next_key", {"key": name})
            print(next_key(state_dir, name))
        else:
            make_signing_key(state_dir, name)
            print(state_dir / f"{name}.pub")
    return 0


def _accept_registry(args: argparse.Namespace) -> int:
    from edgeveil.sites.cloud import CloudSite

    site = load_as(CloudSite, args.config)
    from edgeveil.transport.process import OwnFolder
    from edgeveil_cloud.role import store_of

    with OwnFolder(site.state_dir):  # a running cloud remembers the registry before
        _own_log(site.state_dir, "cloud").append("accept_registry", {})
        store = store_of(site)
        store.accept_registry()
        store.close()
    print("the next roster is taken, of whatever registry it is; start the cloud")
    return 0


def _lineage(args: argparse.Namespace) -> int:
    registry = _registry(args.config)
    print(registry.lineage)
    registry.close()
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
    registry, log = _registry(args.config), _registry_log(args.config)
    try:
        for enrolment in enrolments:
            log.append("admit", {"device": enrolment.device_id})
            new = registry.admit(enrolment, note=args.note, again=args.again)
            print(f"{enrolment.device_id}: {'admitted' if new else 'was admitted already'}")
    finally:
        registry.close()
    return 0


def _devices(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    registry = _registry(args.config)
    entries = registry.devices(revoked=args.all)
    registry.close()
    refused = _refused_by_device(args.config)
    for entry in entries:
        when = datetime.fromtimestamp(entry.admitted_s, UTC).isoformat(timespec="seconds")
        state = "active" if entry.active else "revoked"
        if args.json:
            shown = {"device": entry.device_id, "state": state, "admitted": when}
            print(json.dumps({**shown, "note": entry.note, **refused.get(entry.device_id, {})}))
        else:
            told = _conduct(refused.get(entry.device_id))
            print(f"{entry.device_id}  {state:8} {when}  {entry.note}{told}".rstrip())
    if not entries and not args.json:
        print("no devices; admit some with `edgeveil proxy admit`")
    return 0


def _refused_by_device(config: Path) -> dict[str, dict[str, Any]]:
    """What the running proxy refused, by device; nothing where it does not run or does not say."""
    from edgeveil.sites.proxy import ProxySite
    from edgeveil_tools.cloud_client import get_json, own_address

    try:
        status = get_json(own_address(load_as(ProxySite, config).http), "/status")
    except OSError:
        return {}
    told = ("refused", "cooling_down_s", "cool_downs")
    try:
        return {
            one["device"]: {key: one[key] for key in told}
            for one in status.get("refused_by_device", [])
        }
    except (KeyError, TypeError):  # whatever answers at that port, it is not this proxy
        return {}


def _conduct(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return ""
    text, cooling_s = f"  {sum(told['refused'].values())} refused", told["cooling_down_s"]
    return f"{text}, cooling down for {cooling_s:g} s" if cooling_s > 0 else text


def _claim_book(config: Path) -> ClaimBook:
    from edgeveil.sites.proxy import ProxySite
    from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook

    site = load_as(ProxySite, config)
    if site.claims is None:
        fix = "add claims to it, or devices.claims to the fleet's plan"
        raise UsageError("admits nobody by claims", where=str(config), fix=fix)
    return ClaimBook(site.state_dir / CLAIMS_FILE)


def _claims_add(args: argparse.Namespace) -> int:
    from edgeveil.claim import claim_text
    from edgeveil.storage import write_durably

    if not 0 < args.valid_h <= 24 * 366:
        raise UsageError("is no number of hours", where="--valid-h", fix="use 1 up to a year")
    if args.out is not None and args.out.exists():
        text = "is there, and may hold claims that nobody has yet"
        raise UsageError(text, where=str(args.out), fix="name another file")
    book, registry = _claim_book(args.config), _registry(args.config)
    devices = {one.note: one.device_id for one in registry.devices(revoked=True)}
    registry.close()
    for name in args.names:
        if name in devices:
            what = f"{name} is device {devices[name]} already"
            raise UsageError(what, fix="give a new box a new name")
    _registry_log(args.config).append("claims", {"names": args.names, "valid_h": args.valid_h})
    made = book.add(args.names, 3600 * args.valid_h)
    book.close()
    text = "".join(f"{name},{claim_text(key)}\n" for name, key in made)
    if args.out is None:
        print(text, end="")
    else:
        write_durably(args.out, text.encode(), mode=0o600)
        print(f"{len(made)} claims in {args.out}, for {args.valid_h:g} hours", file=sys.stderr)
    return 0


def _claims_list(args: argparse.Namespace) -> int:
    import time
    from datetime import UTC, datetime

    book = _claim_book(args.config)
    for claim in book.all():
        state = "used" if claim.device else "open" if claim.expires_s > time.time() else "expired"
        if args.json:
            said = {"name": claim.name, "state": state, "device": claim.device}
            print(json.dumps({**said, "expires_s": claim.expires_s, "issued": claim.issued}))
        else:
            until = datetime.fromtimestamp(claim.expires_s, UTC).isoformat(timespec="seconds")
            shown = claim.device or (f"until {until}" if state == "open" else "")
            print(f"{claim.name:<24} {state:<8} {shown}".rstrip())
    book.close()
    return 0


def _claims_change(args: argparse.Namespace) -> int:
    book = _claim_book(args.config)
    _registry_log(args.config).append(f"claim-{args.change}", {"name": args.name})
    if args.change == "admit":
        book.approve(args.name)
    else:
        book.withdraw(args.name)
    book.close()
    print(f"{args.name}: {'admitted' if args.change == 'admit' else 'withdrawn'}")
    return 0


def _revoke(args: argparse.Namespace) -> int:
    from edgeveil.sites.proxy import ProxySite

    registry, log = _registry(args.config), _registry_log(args.config)
    claims = load_as(ProxySite, args.config).claims is not None
    book = _claim_book(args.config) if claims else None
    try:
        for device in args.ids:
            log.append("revoke", {"device": device})
            done = registry.revoke(device)
            if book is not None:
                book.disapprove(device)
            print(f"{device}: {'revoked' if done else 'was revoked already'}")
    finally:
        registry.close()
        if book is not None:
            book.close()
    return 0


def _registry_log(config: Path) -> OwnAuditLog:
    from edgeveil.sites.proxy import ProxySite

    return _own_log(load_as(ProxySite, config).state_dir, "proxy")


def _registry(config: Path) -> Registry:
    from edgeveil.sites.proxy import ProxySite
    from edgeveil_proxy.registry import REGISTRY_FILE, Registry

    site = load_as(ProxySite, config)
    return Registry(site.state_dir / REGISTRY_FILE, limit=site.limits.devices)


def _rekey(args: argparse.Namespace) -> int:
    import time

    from edgeveil.crypto.keys import SigningKey
    from edgeveil.transport.process import OwnFolder
    from edgeveil_edge.identity import IDENTITY_FILE, renew_opening
    from edgeveil_edge.store import STORE_FILE, DeviceStore

    folder = load_edge(args.config).state_dir
    with OwnFolder(folder):
        sealing = renew_opening(folder).public()
        device = SigningKey.load(folder / IDENTITY_FILE).public().fingerprint()
        store = DeviceStore(folder / STORE_FILE)
        store.tell_sealing(device, sealing.to_bytes(), time.time())
        store.close()
    print(f"device {device}: a new sealing key, which the proxy hears of at the next start")
    return 0


def _check(args: argparse.Namespace) -> int:
    from edgeveil.jobs import load_plan
    from edgeveil_edge.self_check import self_check

    asked = None if args.job is None else load_plan(args.job).job.data
    problems = self_check(load_edge(args.config), read_records=True, asked=asked)
    print("\n".join(problems) or "this box can do the device's work")
    return 1 if problems else 0


def _page(args: argparse.Namespace) -> int:
    from edgeveil_edge.control import ask

    print(ask(load_edge(args.config).state_dir, "page")["url"])
    return 0


def _control(args: argparse.Namespace) -> int:

    from edgeveil_edge.control import ask

    told = ask(load_edge(args.config).state_dir, args.word)
    if args.json:
        print(json.dumps(told))
        return 0
    waiting = f" for {'; '.join(told['waiting_for'])}" if told["state"] == "waiting" else ""
    for problem in told["problems"]:
        print(f"problem: {problem}")
    counted, budget = told["last_counted_round"], told["budget"]
    print(f"{told['name']}: {told['state']}{waiting}")
    print(f"connected: {'yes' if told['connected'] else 'no'}")
    print(f"last counted round: {'none yet' if counted is None else counted}")
    print(f"takes part in: {len(told['jobs'])} of at most {told['max_jobs']} jobs")
    for job in told["jobs"]:
        last = job["last_counted_round"]
        print(
            f"  job {job['job'][:12]}: {job['state']}, round {job['round'] or '-'};"
            f" last counted: {'none yet' if last is None else last}"
        )
    print(f"release in use: {told['release'] or 'none yet'}")
    for purpose in ("training", "inference"):
        if budget[purpose] is None:
            print(f"{purpose}: nothing spent")
        else:
            epsilon = budget[purpose]["epsilon"]
            shown = "no proven guarantee" if epsilon is None else f"ε = {epsilon:.4g}"
            print(f"{purpose}: {shown} spent")
    if budget["next_refusal"]:
        print(f"one more job like the newest would be declined: {budget['next_refusal']['why']}")
    for one in told["refused_lately"]:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["time_s"]))
        job = printable(one["job"] or one["job_id"][:12])
        print(f"declined for {one['cause']}, {at}: job {job}, round {one['round']}: {one['why']}")
    return 0


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
