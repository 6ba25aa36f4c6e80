"""Handlers of `broker | cloud | proxy | edge | keys | log | backup | restore`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.config.site_files import load_site
from edgeveil.errors import UsageError
from edgeveil.logs import printable
from edgeveil.transport.process import OwnFolder, make_signing_key, own_audit_log
from edgeveil_tools.cli.common import answer, load_as, load_edge, role_of

if TYPE_CHECKING:
    from edgeveil.config.proxy import ProxySite
    from edgeveil_proxy.claims import ClaimBook
    from edgeveil_proxy.registry import Registry

# --- processes ---


def broker(args: argparse.Namespace) -> int:
    from edgeveil.config.broker import BrokerSite
    from edgeveil_tools.site.brokers import run_broker

    return run_broker(load_as(BrokerSite, args.config))


def cloud(args: argparse.Namespace) -> int:
    from edgeveil.config.cloud import CloudSite

    site = load_as(CloudSite, args.config)
    from edgeveil_cloud.main import run

    if args.accept_registry:
        from edgeveil_cloud.role import store_of

        with OwnFolder(site.state_dir):  # a running cloud caches the registry
            own_audit_log(site.state_dir, "cloud").append("accept_registry", {})
            store = store_of(site)
            store.accept_registry()
            store.close()
        print("the next roster is accepted, of any registry", file=sys.stderr)
    return run(site)


def proxy(args: argparse.Namespace) -> int:
    if not hasattr(args, "config"):
        raise UsageError("no site file given", where="edgeveil proxy", fix="add --config FILE")
    site = _proxy_site(args.config)
    from edgeveil_proxy.main import run

    return run(site)


def edge(args: argparse.Namespace) -> int:
    if not args.config:
        raise UsageError("no site file given", where="edgeveil edge", fix="add --config FILE")
    sites = [load_edge(path) for path in args.config]
    folders = [site.state_dir for site in sites]
    for folder in folders:
        if folders.count(folder) > 1:
            fix = "give each device a state_dir of its own"
            raise UsageError("two devices share this state folder", where=str(folder), fix=fix)
    from edgeveil_edge.main import run

    return run(sites)


def control(args: argparse.Namespace) -> int:
    from edgeveil_edge.control import ask

    state_dir = load_edge(args.config).state_dir
    if getattr(args, "page", False):
        url = ask(state_dir, "page")["url"]
        return answer(args, [url], {"url": url})
    found = ask(state_dir, "resume" if getattr(args, "end", False) else args.command.split()[1])
    return answer(args, _standing(found), found)


def _standing(found: Mapping[str, Any]) -> Iterator[str]:
    waiting = f" for {'; '.join(found['waiting_for'])}" if found["state"] == "waiting" else ""
    for problem in found["problems"]:
        yield f"problem: {problem}"
    counted, budget = found["last_counted_round"], found["budget"]
    yield f"{found['name']}: {found['state']}{waiting}"
    yield f"connected: {'yes' if found['connected'] else 'no'}"
    yield f"last accepted round: {'none yet' if counted is None else counted}"
    yield f"open jobs: {len(found['jobs'])} of at most {found['max_jobs']}"
    for job in found["jobs"]:
        last = job["last_counted_round"]
        yield (
            f"  job {job['job'][:12]}: {job['state']}, round {job['round'] or '-'};"
            f" last accepted: {'none yet' if last is None else last}"
        )
    yield f"release in use: {found['release'] or 'none yet'}"
    for purpose in ("training", "inference"):
        if budget[purpose] is None:
            yield f"{purpose}: nothing spent"
        else:
            epsilon = budget[purpose]["epsilon"]
            shown = "no proven guarantee" if epsilon is None else f"ε = {epsilon:.4g}"
            yield f"{purpose}: {shown} spent"
    if budget["next_refusal"]:
        yield f"another job like the newest one would be declined: {budget['next_refusal']['why']}"
    for one in found["refused_lately"]:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["time_s"]))
        job = printable(one["job"] or one["job_id"][:12])
        yield f"declined ({one['cause']}) {at}: job {job}, round {one['round']}: {one['why']}"


# --- keys, logs, backups ---


def keys(args: argparse.Namespace) -> int:
    site = load_site(args.config)
    role, state_dir = role_of(site), getattr(site, "state_dir", None)
    if args.token and role != "cloud":
        raise UsageError("is only for a cloud", where="--token", fix="name the cloud's site file")
    if args.out and role != "edge":
        raise UsageError("is only for a device", where="--out", fix="leave it out")
    if role == "edge":
        return _device_keys(args)
    if state_dir is None:
        raise UsageError("a broker has no keys of its own", where=str(args.config))
    names = ("cloud", "releases") if role == "cloud" else ("proxy",)
    made = _token(args, state_dir) if args.token else _signing_keys(args, state_dir, names)
    files = [str(path) for path in made]
    return answer(args, files, {"files": files})


def _signing_keys(
    args: argparse.Namespace, state_dir: Path, names: Sequence[str]
) -> Iterator[Path]:
    from edgeveil.trust.trusted_keys import next_key

    for name in names:
        if args.next:
            own_audit_log(state_dir, names[0]).append("next_key", {"key": name})
            yield next_key(state_dir, name)
        else:
            make_signing_key(state_dir, name)
            yield state_dir / f"{name}.pub"


def _token(args: argparse.Namespace, state_dir: Path) -> Iterator[Path]:
    from edgeveil_cloud.http_guard import TOKEN_FILES, Scope, load_or_make_token, rotate_token

    scope = Scope[args.token.upper()]
    if args.next:
        own_audit_log(state_dir, "cloud").append("rotate_token", {"scope": scope.label})
        rotate_token(state_dir, scope)
    else:
        load_or_make_token(state_dir, scope)
    yield state_dir / TOKEN_FILES[scope]


def _device_keys(args: argparse.Namespace) -> int:
    from edgeveil.crypto.keys import SigningKey
    from edgeveil_edge.identity import IDENTITY_FILE, DeviceIdentity, renew_opening
    from edgeveil_edge.store import STORE_FILE, DeviceStore

    folder = load_edge(args.config).state_dir
    if args.next:
        with OwnFolder(folder):
            sealing = renew_opening(folder).public()
            device = SigningKey.load(folder / IDENTITY_FILE).public().fingerprint()
            with closing(DeviceStore(folder / STORE_FILE)) as store:
                store.queue_sealing_key(device, sealing.to_bytes(), time.time())
        line = f"device {device}: a new sealing key; the proxy gets it at the next start"
        return answer(args, [line], {"device": device})
    identity = DeviceIdentity.load_or_create(folder)
    text = identity.enrolment().to_json()
    if args.out is not None:
        args.out.write_text(f"{text}\n", encoding="ascii")
    wrote = f"wrote {args.out}; " if args.out else ""
    hint = f"broker.username must be {identity.device_id}"
    print(f"device {identity.device_id}: {wrote}{hint}", file=sys.stderr)
    lines = [] if args.out else [text]
    return answer(args, lines, {"device": identity.device_id, "enrolment": text})


def personalise(args: argparse.Namespace) -> int:
    from edgeveil_edge.personal import personalise as learn
    from edgeveil_edge.personal import summary
    from edgeveil_edge.predict import RELEASES

    site = load_edge(args.config)
    found = learn(site, site.state_dir / RELEASES)
    return answer(args, summary(found, site.state_dir), asdict(found))


def log(args: argparse.Namespace) -> int:
    entries = list(_audit_entries(args.place, args.key))
    lines = []
    for one in entries:
        what = ", ".join(f"{key} {value}" for key, value in one["what"].items())
        lines.append(f"{one['number']:>4}  {one['time']}  {one['action']:<8} {what}".rstrip())
    return answer(args, lines or ["no actions yet"], {"entries": entries})


def _audit_entries(place: Path, key: str | None) -> Iterable[Mapping[str, Any]]:
    from edgeveil.audit_log import AUDIT_FILE, read_audit

    if place.is_dir():
        from edgeveil.trust.metadata import root_keys
        from edgeveil_tools.site.fleet_site import signers
        from edgeveil_tools.site.trust_folder import BUNDLE_FILE, TrustFolder

        if (place / BUNDLE_FILE).exists():
            roots = TrustFolder(place, lambda _path: None).trusted().roots
            known = frozenset(one for raw in roots for one in root_keys(raw)[0])
            return read_audit(place / AUDIT_FILE, known)
        return read_audit(place / AUDIT_FILE, signers(place, key))
    site = load_site(place)
    role, state_dir = role_of(site), getattr(site, "state_dir", None)
    if state_dir is None or role == "edge":
        fix = "name a cloud's or proxy's site file, a site's folder or the root's"
        raise UsageError("has no log of administrators", where=str(place), fix=fix)
    return own_audit_log(state_dir, role).read() if (state_dir / AUDIT_FILE).exists() else ()


def backup(args: argparse.Namespace) -> int:
    from edgeveil_tools.site.state_backup import back_up

    made = back_up(load_site(args.config), args.out)
    line = f"{len(made.files)} files of {made.role} {made.owner} are in {args.out}"
    return answer(args, [line], {"role": made.role, "owner": made.owner, "files": len(made.files)})


def restore(args: argparse.Namespace) -> int:
    from edgeveil_tools.site.state_backup import restore as put_back

    vouched, site = args.nothing_since or args.ask_proxy, load_site(args.config)
    done = put_back(site, args.archive, replace=args.replace, vouched=vouched)
    lines = [f"restored {done.role} {done.owner} to its state of {done.made}"]
    if done.role == "proxy":
        lines += [
            "Revoke again all devices revoked since, then certify the registry at the root:",
            "edgeveil trust rotate DIR registry LINEAGE, the lineage of `edgeveil proxy devices`.",
            "Running jobs with secure sums pause or fail: submit them again.",
        ]
    return answer(args, lines, {"role": done.role, "owner": done.owner, "made": str(done.made)})


# --- the proxy's devices ---


def admit(args: argparse.Namespace) -> int:
    if args.claim:
        return _make_claims(args)
    from edgeveil.enrolment import Enrolment

    site = _proxy_site(args.config)
    waiting = [name for name in args.names if _is_claim(site, name)]
    files = [Path(name) for name in args.names if name not in waiting]
    enrolments = [one for path in files for one in Enrolment.load_all(path)]
    for enrolment in enrolments:  # all or none: a bad file is found before anything changes
        enrolment.verify()
    log, lines = own_audit_log(site.state_dir, "proxy"), []
    with _registry(site) as registry:
        for enrolment in enrolments:
            log.append("admit", {"device": enrolment.device_id})
            new = registry.admit(enrolment, note=args.note, again=args.again)
            lines.append(f"{enrolment.device_id}: {'admitted' if new else 'already admitted'}")
    for name in waiting:
        log.append("claim-admit", {"name": name})
        with _claim_book(site) as book:
            book.approve(name)
        lines.append(f"{name}: admitted")
    return answer(args, lines, {"admitted": [one.device_id for one in enrolments] + waiting})


def _make_claims(args: argparse.Namespace) -> int:
    from edgeveil.claim import claim_text
    from edgeveil.storage import write_durably

    if not 0 < args.valid_h <= 24 * 366:
        raise UsageError("is not a number of hours", where="--valid-h", fix="use 1 up to a year")
    if args.out is not None and args.out.exists():
        text = "exists and may contain unused claims"
        raise UsageError(text, where=str(args.out), fix="name another file")
    site = _proxy_site(args.config)
    if site.claims is None:
        fix = "add claims to it, or devices.claims to the fleet file"
        raise UsageError("does not accept claims", where=str(args.config), fix=fix)
    with _registry(site) as registry:
        devices = {one.note: one.device_id for one in registry.devices(revoked=True)}
    for name in args.names:
        if name in devices:
            what = f"{name} is already device {devices[name]}"
            raise UsageError(what, fix="give a new box a new name")
    facts = {"names": args.names, "valid_h": args.valid_h}
    own_audit_log(site.state_dir, "proxy").append("claims", facts)
    with _claim_book(site) as book:
        made = [(name, claim_text(key)) for name, key in book.add(args.names, 3600 * args.valid_h)]
    lines = [f"{name},{text}" for name, text in made]
    if args.out is not None:
        write_durably(args.out, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
        print(f"{len(made)} claims in {args.out}, for {args.valid_h:g} hours", file=sys.stderr)
        return answer(args, [], {"claims": [name for name, _ in made]})
    return answer(args, lines, {"claims": dict(made)})


def devices(args: argparse.Namespace) -> int:
    site = _proxy_site(args.config)
    with _registry(site) as registry:
        lineage, entries = registry.lineage, registry.devices(revoked=args.all)
    refused = _refused_by_device(site)
    rows, lines = [], [f"registry {lineage}"]
    for entry in entries:
        when = datetime.fromtimestamp(entry.admitted_s, UTC).isoformat(timespec="seconds")
        state, conduct = "active" if entry.active else "revoked", refused.get(entry.device_id, {})
        row = {"device": entry.device_id, "state": state, "admitted": when, "note": entry.note}
        rows.append({**row, **conduct})
        text = f"{entry.device_id}  {state:8} {when}  {entry.note}"
        if conduct:
            text += f"  {sum(conduct['refused'].values())} refused"
            if conduct["cooling_down_s"] > 0:
                text += f", cooling down for {conduct['cooling_down_s']:g} s"
        lines.append(text.rstrip())
    if not entries:
        lines.append("no devices; admit some with `edgeveil proxy admit`")
    claims = list(_claims(site))
    for one in claims:
        until = datetime.fromtimestamp(one["expires_s"], UTC).isoformat(timespec="seconds")
        shown = one["device"] or (f"until {until}" if one["state"] == "open" else "")
        lines.append(f"claim {one['name']:<24} {one['state']:<8} {shown}".rstrip())
    return answer(args, lines, {"lineage": lineage, "devices": rows, "claims": claims})


def _claims(site: ProxySite) -> Iterator[dict[str, Any]]:
    if site.claims is None:
        return
    with _claim_book(site) as book:
        for one in book.all():
            state = "used" if one.device else "open" if one.expires_s > time.time() else "expired"
            shown = {"name": one.name, "state": state, "device": one.device}
            yield {**shown, "expires_s": one.expires_s, "issued": one.issued}


def _refused_by_device(site: ProxySite) -> dict[str, dict[str, Any]]:
    from edgeveil_tools.cloud_client import get_json, own_address

    try:
        found = get_json(own_address(site.http), "/status").get("refused_by_device", [])
        shown = ("refused", "cooling_down_s", "cool_downs")
        return {one["device"]: {key: one[key] for key in shown} for one in found}
    except (OSError, AttributeError, KeyError, TypeError):  # another server at that port
        return {}


def revoke(args: argparse.Namespace) -> int:
    site = _proxy_site(args.config)
    log, lines = own_audit_log(site.state_dir, "proxy"), []
    with _registry(site) as registry:
        for one in args.ids:
            if _is_claim(site, one):
                log.append("claim-withdraw", {"name": one})
                with _claim_book(site) as book:
                    book.withdraw(one)
                lines.append(f"{one}: withdrawn")
                continue
            log.append("revoke", {"device": one})
            done = registry.revoke(one)
            if site.claims is not None:
                with _claim_book(site) as book:
                    book.disapprove(one)
            lines.append(f"{one}: {'revoked' if done else 'already revoked'}")
    return answer(args, lines, {"revoked": args.ids})


def _is_claim(site: ProxySite, name: str) -> bool:
    """Return whether a name is a claim's; a file of that name takes precedence."""
    return not Path(name).exists() and any(one["name"] == name for one in _claims(site))


def _proxy_site(path: Path) -> ProxySite:
    from edgeveil.config.proxy import ProxySite

    return load_as(ProxySite, path)


def _registry(site: ProxySite) -> closing[Registry]:
    from edgeveil_proxy.registry import REGISTRY_FILE, Registry

    return closing(Registry(site.state_dir / REGISTRY_FILE, limit=site.limits.devices))


def _claim_book(site: ProxySite) -> closing[ClaimBook]:
    from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook

    return closing(ClaimBook(site.state_dir / CLAIMS_FILE))
