"""A site that runs already: its addresses and keys, and the fleet that its proxy admitted."""

from __future__ import annotations

from pathlib import Path

from edgeveil.crypto.keys import VerifyKey
from edgeveil.errors import UsageError
from edgeveil.sites.cloud import CloudSite
from edgeveil.sites.proxy import ProxySite
from edgeveil.transport.mqtt_link import read_password
from edgeveil.transport.process import peer_key
from edgeveil_lab.load.fleet import Fleet, admit, revoke
from edgeveil_lab.load.local_site import Target
from edgeveil_lab.load.options import LoadOptions
from edgeveil_proxy.registry import REGISTRY_FILE
from edgeveil_tools.cli.common import load_as
from edgeveil_tools.cloud_client import get_json
from edgeveil_tools.site.broker_plan import write_private
from edgeveil_tools.site.broker_rules import users_text

FLEET_FILE = "load.fleet"
_USERS = Path("passwords") / "edge-broker.users"


def running_target(options: LoadOptions) -> tuple[Target, Fleet, str | None]:
    """Where to find it, who plays, and the password of `user`. Raises UsageError, ConfigError."""
    password = read_password(options.password_file)
    if options.site is not None:
        target, fleet = _on_this_machine(options, options.site)
    else:
        target, fleet = _anywhere(options), Fleet.load(_given(options.fleet, "fleet"))
    if len(fleet.members) < options.devices:
        raise UsageError(
            f"holds {len(fleet.members)} devices, {options.devices} are asked for",
            where=str(options.fleet or options.site),
            fix="make a larger one with edgeveil loadtest --make-fleet",
        )
    return target, Fleet(fleet.members[: options.devices]), password


def write_fleet(path: Path, devices: int) -> None:
    """A new fleet, and beside it what the site's operators need to let it in.

    `<path>.enrolments` for `edgeveil proxy admit`, `<path>.users` to add to the edge broker's
    list of users. Raises UsageError.
    """
    fleet = Fleet.make(devices)
    fleet.save(path)
    enrolments = list(fleet.enrolments())
    lines = "".join(enrolment.to_line() for enrolment in enrolments)
    write_private(path.with_name(f"{path.name}.enrolments"), lines)
    write_private(path.with_name(f"{path.name}.users"), users_text(fleet.users(enrolments)))


def _anywhere(options: LoadOptions) -> Target:
    keys = _given(options.keys, "keys")
    cloud, proxy = _keys(keys)
    return Target(
        broker=str(options.broker),
        cloud=str(options.cloud),
        token_file=_given(options.token_file, "token_file"),
        cloud_key=cloud,
        proxy_key=proxy,
        proxy_http=_answering(options.proxy_http),
    )


def _answering(proxy_http: str | None) -> str | None:
    """The proxy's address without its last slash. Raises UsageError if nobody answers there."""
    if proxy_http is None:
        return None
    url = proxy_http.rstrip("/")
    try:
        get_json(f"{url}/status")
    except OSError as error:
        raise UsageError(
            f"no proxy answers at {url} ({error})",
            where="--proxy-http",
            fix="name http.host and http.port of its site file, or leave the option out",
        ) from None
    return url


def _on_this_machine(options: LoadOptions, folder: Path) -> tuple[Target, Fleet]:
    cloud = load_as(CloudSite, folder / "cloud.yaml")
    proxy = load_as(ProxySite, folder / "proxy.yaml")
    cloud_key, proxy_key = _keys(folder / "keys")
    target = Target(
        broker=proxy.edge_broker.url,
        cloud=f"http://{cloud.http.host}:{cloud.http.port}",
        token_file=cloud.state_dir / "http.token",
        cloud_key=cloud_key,
        proxy_key=proxy_key,
        proxy_http=f"http://{proxy.http.host}:{proxy.http.port}",
        ca=proxy.edge_broker.ca_file,
    )
    return target, _admitted(folder, proxy, options.devices)


def _admitted(folder: Path, proxy: ProxySite, devices: int) -> Fleet:
    """The site's own fleet for load tests, made and given accounts at first use.

    Admitted until `dismiss`.
    """
    path = folder / FLEET_FILE
    known_fleet = path.exists()
    fleet = Fleet.load(path) if known_fleet else Fleet.make(devices)
    if len(fleet.members) < devices:
        return fleet
    enrolments = list(Fleet(fleet.members[:devices]).enrolments())
    admit(proxy.state_dir / REGISTRY_FILE, enrolments, proxy.limits.devices)
    if known_fleet:
        return fleet
    users = folder / _USERS
    known = users.read_text("utf-8") if users.exists() else ""
    write_private(users, known + users_text(fleet.users(enrolments)))
    fleet.save(path)
    return fleet


def dismiss(options: LoadOptions, fleet: Fleet) -> None:
    """Revoke the devices that `running_target` admitted to a site of this machine."""
    if options.site is not None:
        proxy = load_as(ProxySite, options.site / "proxy.yaml")
        revoke(proxy.state_dir / REGISTRY_FILE, fleet.enrolments(), proxy.limits.devices)


def _keys(folder: Path) -> tuple[VerifyKey, VerifyKey]:
    return peer_key(folder / "cloud.pub", "the cloud"), peer_key(folder / "proxy.pub", "the proxy")


def _given(path: Path | None, key: str) -> Path:
    if path is None:
        raise UsageError("is needed for a running site", where=key, fix=f"name it with --{key}")
    return path
