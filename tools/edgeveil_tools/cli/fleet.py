"""`edgeveil site`: a fleet from its plan to bundles, and a bundle to its place."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil_tools.cli.common import Subparsers, command
from edgeveil_tools.cli.trust import asks, passphrase_options

if TYPE_CHECKING:
    from edgeveil_tools.site.fleet_record import Party, PartyChange
    from edgeveil_tools.site.fleet_site import FleetSite

_AUTHORITIES = ("edge-authority", "cloud-authority", "claims-authority")
_SHOWN = 5  # names of parties that change in the same way


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    site = command(
        commands,
        "site",
        "plan a fleet, and make a bundle for each party",
        about=(
            "One folder plans a fleet: fleet.yaml says what there is, and each party gets a\n"
            "bundle with its own files and nobody else's. Apply again after every change of the\n"
            "plan: owners' policies, ledgers and keys stay as they are."
        ),
        examples=(
            "edgeveil site init clinics --host broker.example.org --devices 20\n"
            "edgeveil site plan clinics\n"
            "edgeveil site apply clinics\n"
            "edgeveil site install clinics/bundles/box-0001 /var/lib/edgeveil/box-0001"
        ),
    )
    parts = site.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    _add_init(parts)
    plan = _part(parts, "plan", "say what an apply would change", _plan)
    plan.add_argument("--json", action="store_true", help="print JSON")
    about = "The difference, as `site plan` shows it, is printed before anything is written."
    text = "make the bundles that the plan asks for"
    _part(parts, "apply", text, _apply, keys=True, about=about)
    _add_devices(parts)
    _add_certificates(parts)
    status = _part(parts, "status", "list all parties, and what needs doing", _status)
    status.add_argument("--json", action="store_true", help="print JSON")
    log = _part(parts, "log", "list what was done with the site, each line checked", _log)
    log.add_argument("--key", metavar="FINGERPRINT", help="of the site's key, as apply prints it")
    log.add_argument("--json", action="store_true", help="print JSON")
    _add_install(parts)


def _part(
    parts: Subparsers, name: str, text: str, handler: Any, *, keys: bool = False, **more: str
) -> argparse.ArgumentParser:
    made = command(parts, name, text, **more)
    made.add_argument("dir", type=Path, metavar="DIR", help="the site's folder")
    made.set_defaults(handler=handler)
    if keys:
        passphrase_options(made)
    return made


def _add_init(parts: Subparsers) -> None:
    init = _part(
        parts,
        "init",
        "write a plan to begin with",
        _init,
        examples=(
            "edgeveil site init clinics --host broker.example.org --devices 20\n"
            "edgeveil site init my-site --local --devices 3"
        ),
    )
    text = "public name of the brokers, default 127.0.0.1"
    init.add_argument("--host", default="127.0.0.1", metavar="NAME", help=text)
    init.add_argument("--devices", type=int, default=3, metavar="N", help="default 3")
    text = "a site on this machine for trials: site files in DIR, to be started by hand"
    init.add_argument("--local", action="store_true", help=text)
    init.add_argument("--tls", action="store_true", help="with --local: its links are encrypted")
    text = "cells, each with a proxy of its own: north,south; none: one without a name"
    init.add_argument("--cells", default="", metavar="NAME,NAME", help=text)


def _add_devices(parts: Subparsers) -> None:
    move = _part(
        parts,
        "move",
        "move a device to another cell, and apply",
        _move,
        keys=True,
        about=(
            "Its keys, ledger and budgets stay on the box: its next bundle names the new cell and\n"
            "its broker. The old cell's proxy drops it, the new one's admits it, by a signed note\n"
            "whose number grows. Hand over the bundles that changed, the new proxy's first."
        ),
        examples="edgeveil site move clinics box-0007 --to south",
    )
    move.add_argument("name", metavar="NAME", help="its name, or its id")
    move.add_argument("--to", required=True, metavar="CELL", help="one of the plan's cells")
    revoke = _part(
        parts,
        "revoke",
        "take a device out for good, and apply",
        _revoke,
        keys=True,
        about=(
            "Its certificate or account counts no more, and the proxy drops it: hand the bundles\n"
            "of the edge broker and the proxy over. What the record knows of it stays."
        ),
        examples="edgeveil site revoke clinics box-0007",
    )
    revoke.add_argument("name", metavar="NAME", help="its name, or its id")


def _add_certificates(parts: Subparsers) -> None:
    rotate = _part(
        parts,
        "rotate",
        "replace a domain's certificate authority, and apply",
        _rotate,
        keys=True,
        about=(
            "In two steps: from the first on both authorities count, and every client's next\n"
            "bundle has a certificate of the new one. Once all are installed, the brokers' first,\n"
            "--finish drops the one before. Boxes that came with a claim take up a certificate of\n"
            "the new claims-authority within a week. The root's keys, and those that it names,\n"
            "are replaced with `edgeveil trust rotate DIR/trust`."
        ),
        examples=(
            "edgeveil site rotate clinics edge-authority\n"
            "edgeveil site rotate clinics edge-authority --finish"
        ),
    )
    rotate.add_argument("what", choices=_AUTHORITIES, metavar="WHAT", help=", ".join(_AUTHORITIES))
    rotate.add_argument("--finish", action="store_true", help="the second step")
    text = "of this cell's own broker or claims; else of those that cells share"
    rotate.add_argument("--cell", default="", metavar="CELL", help=text)


def _add_install(parts: Subparsers) -> None:
    check = command(
        parts,
        "check",
        "say what of an installed bundle ends soon, or was changed",
        about="Exit code 1 where something needs doing: for a daily timer.",
        examples="edgeveil site check /var/lib/edgeveil/box-0001",
    )
    check.add_argument("place", type=Path, metavar="FOLDER")
    check.add_argument(
        "--days", type=int, default=30, metavar="N", help="warn so early, default 30"
    )
    check.set_defaults(handler=_check)
    made = command(
        parts,
        "install",
        "put a bundle in its place on this machine",
        about=(
            "All of the bundle is checked before the first file is written. What the party has\n"
            "made or changed since (keys, ledger, the owner's policy) is never written over. A\n"
            "running broker or proxy takes up certificates and devices by itself."
        ),
        examples=(
            "edgeveil site install bundles/box-0001 /var/lib/edgeveil/box-0001\n"
            "edgeveil site install box-0001 /var/lib/edgeveil/box-0001 --site 1a2b3c4d5e6f7081"
        ),
    )
    made.add_argument("bundle", type=Path, metavar="BUNDLE")
    made.add_argument("to", type=Path, metavar="FOLDER")
    text = "fingerprint of the site's key, for a first installation"
    made.add_argument("--site", metavar="FINGERPRINT", help=text)
    made.add_argument("--json", action="store_true", help="print JSON")
    made.set_defaults(handler=_install)


def _init(args: argparse.Namespace) -> int:
    from edgeveil.errors import UsageError
    from edgeveil.sites.addresses import place
    from edgeveil_tools.result import writing
    from edgeveil_tools.site.fleet_plan import PLAN_FILE, devices_of, load_plan
    from edgeveil_tools.site.provision import local_plan

    if args.devices < 1:
        raise UsageError("no device", where="--devices", fix="use 1 or more")
    folder, host = args.dir, args.host.strip("[]")
    name = re.sub(r"[^A-Za-z0-9]+", "-", folder.absolute().name).strip("-")[:64] or "fleet"
    template = Path(__file__).parents[1] / "templates" / ("local.yaml" if args.local else PLAN_FILE)
    text = template.read_text("utf-8").format(
        name=name,
        host=host,
        edge=place(host, 8883),
        cloud=place(host, 8884),
        devices=args.devices,
        min_devices=min(5, args.devices),
        cells=_cells_text(args.cells),
        tls=str(args.tls).lower(),
    )
    with writing(folder, "name a folder that you may write to"):
        if folder.exists() and any(folder.iterdir()):
            fix = f"name a new folder; a site that is there: edgeveil site apply {folder}"
            raise UsageError("is not empty", where=str(folder), fix=fix)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / PLAN_FILE).write_text(text, "utf-8")
    try:
        if not local_plan(folder):
            devices_of(load_plan(folder), str(folder / PLAN_FILE))
    except Exception:
        (folder / PLAN_FILE).unlink()
        raise
    if args.local:
        return _apply_local(folder)
    print(f"wrote {folder / PLAN_FILE}; edit it, then:")
    print(f"  edgeveil site plan {folder}")
    print(f"  edgeveil site apply {folder}")
    return 0


def _apply_local(folder: Path) -> int:
    """Write the files of a site on this machine; -1 where the folder plans a fleet."""
    from edgeveil_tools.site.provision import guide, local_plan, provision

    plan = local_plan(folder)
    if plan is None:
        return -1
    print(guide(provision(plan.site(folder), force=True)))
    return 0


def _cells_text(names: str) -> str:
    """The plan's line of cells; where there are none, how to write one."""
    if not names:
        return "# cells: {north: {}, south: {}}     # each with a proxy of its own"
    return f"cells: {{{', '.join(f'{name.strip()}: {{}}' for name in names.split(','))}}}"


def _open(args: argparse.Namespace, *, new: bool = False) -> FleetSite:
    from edgeveil_tools.site.fleet_site import FleetSite

    return FleetSite(args.dir, asks(args, new=new))


def _plan(args: argparse.Namespace) -> int:
    import json

    from edgeveil_tools.site.fleet_site import FleetSite

    site = FleetSite(args.dir, lambda _path: None)
    changes = site.changes()
    if args.json:
        print(json.dumps([vars(one) for one in changes], indent=2))
        return 0
    _show(changes)
    return 0


def _apply(args: argparse.Namespace) -> int:
    from edgeveil_tools.site.fleet_site import SITE_KEY

    if (code := _apply_local(args.dir)) >= 0:
        return code
    site = _open(args, new=not (args.dir / SITE_KEY).exists())
    changes = site.apply(_show)
    _hand_over(site, changes)
    return 0


def _show(changes: list[PartyChange]) -> None:
    """Alike changes together, names shortened; seen at once, since an apply acts after it."""
    if not changes:
        print("Nothing to change.", flush=True)
        return
    alike: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        alike.setdefault((change.what, change.difference), []).append(change.name)
    for (what, difference), names in alike.items():
        shown = ", ".join(names[:_SHOWN]) + (f" … {names[-1]}" if len(names) > _SHOWN else "")
        count = f" ({len(names)})" if len(names) > 1 else ""
        print(f"{what}{count}: {shown}")
        for line in difference.splitlines():
            print(f"    {line}")
    if any(change.what == "unplanned" for change in changes):
        print(
            "What is no longer in the plan stays as it is: take it out with edgeveil site revoke."
        )
    sys.stdout.flush()


def _hand_over(site: FleetSite, changes: list[PartyChange]) -> None:
    if site.awaits_root:
        root = site.folder / "trust"
        print(f"\nThe root has to sign what the plan adds: edgeveil trust sign {root}, with the")
        print("missing keys; then apply again. Until then parties of a further cell do not start.")
    if not any(change.what in ("new", "changed", "renewed") for change in changes):
        return
    print(f"\nHand each party its folder of {site.bundles}; its COMMANDS.md says what to do there.")
    print(f"They are signed by {site.fingerprint} (--site at a first installation).")
    print("Then take the bundles away: new parties' keys are in them, and nowhere else.")


def _move(args: argparse.Namespace) -> int:
    site = _open(args)
    changes = site.move(args.name, args.to, _show)
    _hand_over(site, changes)
    return 0


def _revoke(args: argparse.Namespace) -> int:
    site = _open(args)
    changes = site.revoke(args.name)
    _show(changes)
    _hand_over(site, changes)
    return 0


def _rotate(args: argparse.Namespace) -> int:
    site = _open(args)
    domain = args.what.removesuffix("-authority") + (f"-{args.cell}" if args.cell else "")
    changes = site.rotate_authority(domain, finish=args.finish)
    _show(changes)
    _hand_over(site, changes)
    return 0


def _status(args: argparse.Namespace) -> int:
    import json

    from edgeveil_tools.site.fleet_site import FleetSite

    parties = FleetSite(args.dir, lambda _path: None).parties
    rows = [_row(party) for party in parties]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        state = f"revoked {row['revoked'][:10]}" if row["revoked"] else "active"
        ends = (
            f"certificate until {row['certificate_ends'][:10]}" if row["certificate_ends"] else ""
        )
        device = row["device"] or ""
        cell = f"{row['cell']:<12} " if any(one["cell"] for one in rows) else ""
        print(f"{row['name']:<20} {row['kind']:<7} {cell}{device:<16} {state:<18} {ends}".rstrip())
    if not rows:
        print("nothing was applied yet: edgeveil site apply DIR")
    return 0


def _row(party: Party) -> dict[str, Any]:
    ends = party.ends()
    return {
        "name": party.name,
        "kind": party.kind,
        "cell": party.cell,
        "device": party.device_id,
        "revoked": party.revoked,
        "certificate_ends": ends.isoformat() if ends else None,
        "bundle": party.sequence,
    }


def _log(args: argparse.Namespace) -> int:
    import json

    from edgeveil.audit_log import AUDIT_FILE, read_audit
    from edgeveil_tools.site.fleet_site import signers

    for entry in read_audit(args.dir / AUDIT_FILE, signers(args.dir, args.key)):
        if args.json:
            print(json.dumps(entry))
        else:
            what = ", ".join(f"{key} {value}" for key, value in entry["what"].items())
            print(f"{entry['number']:>4}  {entry['time']}  {entry['action']:<8} {what}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from edgeveil_tools.site.place_check import problems_of

    found = problems_of(args.place, args.days)
    for problem in found:
        print(problem)
    if not found:
        print("nothing to do")
    return 1 if found else 0


def _install(args: argparse.Namespace) -> int:
    import json

    from edgeveil_tools.site.bundles import install

    done = install(args.bundle, args.to, site=args.site)
    said = done.inventory
    if args.json:
        facts = {"party": said.party, "name": said.name, "sequence": said.sequence}
        lists = {"changed": list(done.changed), "kept": list(done.kept)}
        print(json.dumps({**facts, "folder": str(args.to), **lists}, indent=2))
        return 0
    wrote = f"{len(done.changed)} file{'s' * (len(done.changed) != 1)} written"
    kept = f", {len(done.kept)} of its own kept" if done.kept else ""
    print(f"{said.name} of fleet {said.fleet} is in {args.to}: {wrote}{kept}. Start it:")
    print(f"  edgeveil {said.party} --config {args.to / 'edgeveil.yaml'}")
    return 0
