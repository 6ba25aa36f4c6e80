"""Handlers of `edgeveil site` and `edgeveil deploy`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from edgeveil.config.addresses import place
from edgeveil.errors import UsageError
from edgeveil_tools.cli.common import answer, columns
from edgeveil_tools.cli.trust import passphrase_prompt
from edgeveil_tools.deploy import files_for
from edgeveil_tools.result import writing
from edgeveil_tools.site.bundles import install as put
from edgeveil_tools.site.fleet_files import PartyChange
from edgeveil_tools.site.fleet_site import SITE_KEY, FleetSite
from edgeveil_tools.site.fleet_spec import FLEET_FILE, devices_of, load_spec
from edgeveil_tools.site.provision import LocalSpec, guide, local_spec, provision

_SHOWN = 5  # names of parties that change in the same way


def init(args: argparse.Namespace) -> int:
    if args.devices < 1:
        raise UsageError("no device", where="--devices", fix="use 1 or more")
    folder, host = args.dir, args.host.strip("[]")
    cells = ", ".join(f"{one.strip()}: {{}}" for one in (args.cells or "north,south").split(","))
    name = re.sub(r"[^A-Za-z0-9]+", "-", folder.absolute().name).strip("-")[:64] or "fleet"
    templates = Path(__file__).parents[1] / "templates"
    template = templates / ("local.yaml" if args.local else FLEET_FILE)
    text = template.read_text("utf-8").format(
        name=name,
        host=host,
        edge=place(host, 8883),
        cloud=place(host, 8884),
        devices=args.devices,
        min_devices=min(5, args.devices),
        cells=f"cells: {{{cells}}}" if args.cells else f"# cells: {{{cells}}}   # if several",
        tls=str(args.tls).lower(),
    )
    with writing(folder, "name a folder that you may write to"):
        if folder.exists() and any(folder.iterdir()):
            fix = f"name a new folder; for an existing site: edgeveil site apply {folder}"
            raise UsageError("is not empty", where=str(folder), fix=fix)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / FLEET_FILE).write_text(text, "utf-8")
    try:
        spec = local_spec(folder)
        if spec is None:
            devices_of(load_spec(folder), str(folder / FLEET_FILE))
    except Exception:
        (folder / FLEET_FILE).unlink()
        raise
    if spec is not None:
        return _apply_local(args, spec)
    lines = [f"wrote {folder / FLEET_FILE}; edit it, then:"]
    lines += [f"  edgeveil site apply {folder}{option}" for option in (" --dry-run", "")]
    return answer(args, lines, {"file": str(folder / FLEET_FILE)})


def _apply_local(args: argparse.Namespace, spec: LocalSpec) -> int:
    site = provision(spec.site(args.dir), force=True)
    facts = {"folder": str(args.dir), "devices": list(site.device_ids), "cloud": str(site.cloud)}
    return answer(args, [guide(site)], {**facts, "edges": [str(path) for path in site.edges]})


def _open(args: argparse.Namespace) -> FleetSite:
    return FleetSite(args.dir, passphrase_prompt(args, new=not (args.dir / SITE_KEY).exists()))


def apply(args: argparse.Namespace) -> int:
    if args.dry_run:
        changes = FleetSite(args.dir, lambda _path: None).changes()
        return answer(args, _change_lines(changes), {"changes": [vars(one) for one in changes]})
    if spec := local_spec(args.dir):
        return _apply_local(args, spec)
    site = _open(args)
    return _applied(args, site, site.apply())


def _change_lines(changes: list[PartyChange]) -> Iterator[str]:
    if not changes:
        yield "Nothing to change."
    alike: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        alike.setdefault((change.what, change.difference), []).append(change.name)
    for (what, difference), names in alike.items():
        shown = ", ".join(names[:_SHOWN]) + (f" … {names[-1]}" if len(names) > _SHOWN else "")
        count = f" ({len(names)})" if len(names) > 1 else ""
        yield f"{what}{count}: {shown}"
        for line in difference.splitlines():
            yield f"    {line}"
    if any(change.what == "unplanned" for change in changes):
        yield "Parties no longer in the fleet file are kept: remove them with edgeveil site revoke."


def _applied(args: argparse.Namespace, site: FleetSite, changes: list[PartyChange]) -> int:
    lines = list(_change_lines(changes))
    if site.awaits_root:
        lines += [
            "\nThe root must sign the additions with its missing keys; then apply again:",
            f"edgeveil trust sign {site.folder / 'trust'}. Parties of a new cell need this.",
        ]
    if any(change.what in ("new", "changed", "renewed") for change in changes):
        lines += [
            f"\nGive each party its folder of {site.bundles}; its COMMANDS.md lists the steps.",
            f"The bundles' signing key is {site.fingerprint} (--site at a first installation).",
            "Then delete the bundles here: they contain the only copy of new parties' keys.",
        ]
    facts = {"bundles": str(site.bundles), "awaits_root": bool(site.awaits_root)}
    return answer(args, lines, {"changes": [vars(one) for one in changes], **facts})


def revoke(args: argparse.Namespace) -> int:
    site = _open(args)
    return _applied(args, site, site.revoke(args.name))


def rotate(args: argparse.Namespace) -> int:
    site = _open(args)
    domain = args.what.removesuffix("-authority") + (f"-{args.cell}" if args.cell else "")
    return _applied(args, site, site.rotate_authority(domain, finish=args.finish))


def status(args: argparse.Namespace) -> int:
    rows, table = [], []
    for one in FleetSite(args.dir, lambda _path: None).parties:
        ends = found.isoformat() if (found := one.ends()) else None
        row = {"name": one.name, "kind": one.kind, "cell": one.cell, "device": one.device_id}
        until = {"revoked": one.revoked, "certificate_ends": ends, "bundle": one.sequence}
        rows.append({**row, **until})
        state = f"revoked {one.revoked[:10]}" if one.revoked else "active"
        shown = f"certificate until {ends[:10]}" if ends else ""
        table.append((*(text or "" for text in row.values()), state, shown))
    lines = columns(table) if rows else ["no bundles yet: edgeveil site apply DIR"]
    return answer(args, lines, {"parties": rows})


def install(args: argparse.Namespace) -> int:
    done = put(args.bundle, args.to, site=args.site)
    bundle = done.inventory
    wrote = f"{len(done.changed)} file{'s' * (len(done.changed) != 1)} written"
    kept = f", {len(done.kept)} existing kept" if done.kept else ""
    lines = [
        f"{bundle.name} of fleet {bundle.fleet} is in {args.to}: {wrote}{kept}. Start it:",
        f"  edgeveil {bundle.party} --config {args.to / 'edgeveil.yaml'}",
    ]
    facts = {"party": bundle.party, "name": bundle.name, "sequence": bundle.sequence}
    lists = {"changed": done.changed, "kept": done.kept}
    return answer(args, lines, {**facts, "folder": str(args.to), **lists})


_THEN = {
    "containers": "with a wheel and constraints.txt in its folder, follow its first lines",
    "systemd": "in {out}, as root: sh install.sh NAME...",
    "compose": "with the bundles in its folder: docker compose -f {out}/compose.yaml up -d",
    "kubernetes": "with the bundles in its folder: kubectl apply -k {out}",
}


def deploy(args: argparse.Namespace) -> int:
    tag = args.tag or metadata.version("edgeveil")
    files = files_for(args.target, args.bundles, tag=tag)
    with writing(args.out, "name a folder that you may write to"):
        for name, text in files.items():
            (args.out / name).parent.mkdir(parents=True, exist_ok=True)
            (args.out / name).write_text(text, "utf-8")
    then = _THEN[args.target].format(out=args.out)
    line = f"wrote {len(files)} files to {args.out}; then, {then}"
    return answer(args, [line], {"files": sorted(files)})
