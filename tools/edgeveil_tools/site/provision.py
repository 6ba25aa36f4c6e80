"""`edgeveil provision DIR`: everything that a small site needs to start, each process by hand.

    DIR/broker-edge.yaml broker-cloud.yaml cloud.yaml proxy.yaml edge-1.yaml …   site files
    DIR/job.yaml                a job that this site can run
    DIR/keys/                   public keys that the parties pin of each other
    DIR/passwords/              broker passwords (0600); *.users hold them hashed
    DIR/mosquitto/              the same two brokers as plain mosquitto configurations
    DIR/tls/                    with `tls`: an authority of the site's own, and certificates
    DIR/state/                  keys, ledger and store of each process

Secret keys are made where they stay: in the state folder of their owner.
"""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import UsageError
from edgeveil.sites.files import load_site
from edgeveil.transport.process import own_signing_key
from edgeveil_edge.identity import Identity
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.site.broker_plan import BrokerPlan, ListenerTls, mosquitto_lines, write_private
from edgeveil_tools.site.broker_rules import acl_text, rules_for, users_text
from edgeveil_tools.site.certificates import make_certificates
from edgeveil_tools.site.site_plan import SitePlan

SIDES = ("edge", "cloud")
JOB_TEMPLATE = Path(__file__).parents[1] / "templates" / "job.yaml"
_DIGITS_FOR_TRAINING = 1437


@dataclass(frozen=True)
class Site:
    """The files of a provisioned site. `device_ids` in the order of `edges`."""

    plan: SitePlan
    brokers: dict[str, Path]
    cloud: Path
    proxy: Path
    edges: tuple[Path, ...]
    device_ids: tuple[str, ...]
    passwords: dict[str, dict[str, str]]  # side -> user -> password

    @property
    def token_file(self) -> Path:
        """The bearer token of the cloud's HTTP control, once the cloud has started."""
        return self.plan.folder / "state" / "cloud" / "http.token"


def provision(plan: SitePlan, *, force: bool = False) -> Site:
    """Write the site. With `force` a folder in use is written over; keys and ledgers stay.

    Raises UsageError when the folder is not empty or cannot be written.
    """
    folder = plan.folder
    try:
        if folder.exists() and any(folder.iterdir()) and not force:
            raise UsageError(
                "is not empty",
                where=str(folder),
                fix="name a new folder, or pass --force to write over its site files",
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("keys", "passwords", "state", "mosquitto"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        return _write(plan)
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=error.filename or str(folder),
            fix="name a folder that you may write to",
        ) from error


def _write(plan: SitePlan) -> Site:
    folder = plan.folder
    for role in ("cloud", "proxy"):
        key = own_signing_key(folder / "state" / role, role)
        key.public().save(folder / "keys" / f"{role}.pub", overwrite=True)
    device_ids = _devices(plan)
    passwords = _passwords(plan, device_ids)
    if plan.tls:
        hosts = list(dict.fromkeys(["localhost", "127.0.0.1", plan.host]))
        make_certificates(folder / "tls", hosts, [f"broker-{side}" for side in SIDES])
    brokers = {}
    for side in SIDES:
        brokers[side] = _site_file(folder / f"broker-{side}.yaml", plan.broker(side))
        _mosquitto(plan, side)
    edges = [
        _site_file(plan.edge_file(number), plan.edge(number, device_id))
        for number, device_id in enumerate(device_ids, start=1)
    ]
    _job(plan)
    return Site(
        plan=plan,
        brokers=brokers,
        cloud=_site_file(folder / "cloud.yaml", plan.cloud()),
        proxy=_site_file(folder / "proxy.yaml", plan.proxy()),
        edges=tuple(edges),
        device_ids=tuple(device_ids),
        passwords=passwords,
    )


def _site_file(path: Path, settings: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), "utf-8")
    load_site(path)  # a plan that cannot work is refused here and not when its process starts
    return path


def _devices(plan: SitePlan) -> list[str]:
    """Each device makes its keys in its own state folder; the proxy admits them."""
    registry = Registry(plan.folder / "state" / "proxy" / REGISTRY_FILE)
    try:
        found = []
        for number in range(1, plan.devices + 1):
            identity = Identity.load_or_create(plan.edge_state(number))
            registry.admit(identity.enrolment(), note=f"provisioned, number {number}")
            found.append(identity.device_id)
        return found
    finally:
        registry.close()


def _passwords(plan: SitePlan, device_ids: list[str]) -> dict[str, dict[str, str]]:
    folder = plan.folder / "passwords"
    files = {
        "edge": {"proxy-edge": "proxy"}
        | {f"edge-{number}": device for number, device in enumerate(device_ids, start=1)},
        "cloud": {"proxy-cloud": "proxy", "cloud": "cloud"},
    }
    found: dict[str, dict[str, str]] = {}
    for side, users in files.items():
        found[side] = {user: secrets.token_urlsafe(24) for user in users.values()}
        for name, user in users.items():
            write_private(folder / name, found[side][user] + "\n")
        write_private(folder / f"{side}-broker.users", users_text(found[side]))
    return found


def _mosquitto(plan: SitePlan, side: str) -> None:
    folder = plan.folder.absolute()
    tls = None
    if plan.tls:
        certificate = folder / "tls" / f"broker-{side}.crt"
        tls = ListenerTls(certificate, certificate.with_suffix(".key"))
    broker = BrokerPlan(host=plan.host, tls=tls)
    acl = folder / "mosquitto" / f"{side}.acl"
    write_private(acl, acl_text(rules_for(side) or ()))
    lines = [
        f"acl_file {acl}",
        f"password_file {folder / 'passwords' / f'{side}-broker.users'}",
        *mosquitto_lines(broker, getattr(plan.ports, side), open_to_all=False),
    ]
    write_private(folder / "mosquitto" / f"{side}.conf", "\n".join(lines) + "\n")


def _job(plan: SitePlan) -> None:
    if plan.source.source != "digits":
        return
    trainers = plan.devices - plan.infer_only
    text = JOB_TEMPLATE.read_text("utf-8").format(
        devices=plan.devices,
        min_batch=max(1, min(5, trainers)),
        nominal_records=max(1, round(0.9 * _DIGITS_FOR_TRAINING / plan.devices)),
    )
    (plan.folder / "job.yaml").write_text(text, "utf-8")


def commands(site: Site, *, mosquitto: bool = False) -> list[tuple[str, str]]:
    """What to start, in this order, each in a terminal of its own: (what, command line)."""
    folder = site.plan.folder
    found = []
    for side in SIDES:
        plain = ["mosquitto", "-c", str(folder / "mosquitto" / f"{side}.conf")]
        own = ["edgeveil", "broker", "--config", str(site.brokers[side])]
        found.append((f"the broker of the {side} side", shlex.join(plain if mosquitto else own)))
    found += [
        ("the cloud", shlex.join(["edgeveil", "cloud", "--config", str(site.cloud)])),
        ("the proxy", shlex.join(["edgeveil", "proxy", "--config", str(site.proxy)])),
    ]
    for number, edge in enumerate(site.edges, start=1):
        line = shlex.join(["edgeveil", "edge", "--config", str(edge)])
        found.append((f"device {number} ({site.device_ids[number - 1]})", line))
    return found


def guide(site: Site) -> str:
    """The site in words, with the commands that start it and submit its job."""
    plan = site.plan
    lines = [f"A site of {plan.devices} devices is in {plan.folder}", ""]
    lines.append("Start each in a terminal of its own:")
    for what, line in commands(site):
        lines += [f"  # {what}", f"  {line}"]
    lines += ["", "Plain mosquitto serves as well:"]
    lines += [f"  {line}" for _, line in commands(site, mosquitto=True)[:2]]
    job = plan.folder / "job.yaml"
    if job.exists():
        cloud = shlex.quote(str(site.cloud))
        lines += ["", "Then, once all run:"]
        lines += [f"  edgeveil job submit {shlex.quote(str(job))} --config {cloud}"]
        lines += [f"  edgeveil job list --config {cloud}"]
        lines += [f"  edgeveil job watch ID --config {cloud}"]
    return "\n".join(lines)


def as_json(site: Site) -> str:
    """The same for scripts; without passwords."""
    return json.dumps(
        {
            "folder": str(site.plan.folder),
            "brokers": {side: str(path) for side, path in site.brokers.items()},
            "cloud": str(site.cloud),
            "proxy": str(site.proxy),
            "edges": [str(path) for path in site.edges],
            "device_ids": list(site.device_ids),
            "cloud_url": site.plan.url,
            "token_file": str(site.token_file),
            "commands": [line for _, line in commands(site)],
        },
        indent=2,
    )
