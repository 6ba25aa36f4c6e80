"""A whole site on one machine, for `site init --local`, runs and load tests.

DIR/fleet.yaml              the fleet file, `local: …`; `site apply` writes all below from it
DIR/broker-edge.yaml broker-cloud.yaml cloud.yaml proxy.yaml edge-1.yaml …   site files
DIR/job.yaml                a job that this site can run
DIR/keys/                   public keys that the parties pin of each other
DIR/passwords/              broker passwords (0600); *.users hold them hashed
DIR/tls/                    with `tls`: each broker's certificate, and its authority
DIR/state/                  keys, ledger and store of each process
"""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from edgeveil.config.addresses import WEBSOCKET_PATH, BrokerAddress, place
from edgeveil.config.base import Block, Mix
from edgeveil.config.broker import BrokerLimits, BrokerSite
from edgeveil.config.broker_profiles import PROFILES, ProfileName
from edgeveil.config.cloud import CloudLimits
from edgeveil.config.data import DataSource, Partition
from edgeveil.config.edge import EdgeLimits
from edgeveil.config.file import only_block, parsed, read
from edgeveil.config.policy import Policy
from edgeveil.config.proxy import ProxyLimits
from edgeveil.config.site_files import load_site
from edgeveil.crypto.authorities import make_certificates
from edgeveil.errors import UsageError
from edgeveil.protocol.transfer import NEED_LIMIT
from edgeveil.transport.mqtt_link import read_password
from edgeveil.transport.process import make_signing_key, refuse_lost_state
from edgeveil_edge.identity import IDENTITY_FILE, DeviceIdentity
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.cli.common import load_as
from edgeveil_tools.result import writing
from edgeveil_tools.site.broker_rules import of_cell, side_of, users_text
from edgeveil_tools.site.brokers import BrokerProcess, Engine, give, spec_of, write_private
from edgeveil_tools.site.bundles import keep_owner_settings, site_text
from edgeveil_tools.site.fleet_spec import FLEET_FILE

Settings = dict[str, Any]
SPOOLED_BATCHES = 3  # uploads, their batch, and the round before
_FEWEST_SHARING = 3  # devices for which a job shares its noise
_TEMPLATES = Path(__file__).parents[1] / "templates"
_DIGITS_FOR_TRAINING = 1437


@dataclass(frozen=True)
class Ports:
    """TCP ports on `host`, away from 1883, the usual port of a system's broker."""

    edge: int = 21883
    cloud: int = 21884
    cloud_http: int = 8701
    proxy_http: int = 8702
    edge_websockets: int = 21885
    cloud_websockets: int = 21886
    proxy_blobs: int = 8703
    cloud_blobs: int = 8704


@dataclass(frozen=True)
class CellPorts:
    edge: int
    proxy_http: int
    edge_websockets: int


@dataclass(frozen=True)
class SiteSpec:
    """A site of two brokers, a cloud, a proxy and devices, numbered from 1, in `folder`.

    Each of `cells` has its own edge broker and proxy and shares the cloud's broker; devices are
    assigned to cells in turn and take their shares of `source`. The last `infer_only` devices only
    evaluate. Limits are raised so that all devices may upload `upload_bytes` in one round. With
    `blobs` large payloads bypass the brokers over HTTP."""

    folder: Path
    devices: int = 3
    infer_only: int = 0
    host: str = "127.0.0.1"
    ports: Ports = field(default_factory=Ports)
    tls: bool = False
    websockets: bool = False
    profile: ProfileName = "default"
    engine: Engine = "auto"
    protocol: int = 5
    source: DataSource = field(default=DataSource(name="digits", source="digits"))
    partition: Partition = field(default_factory=Partition)
    classes: int | None = None  # if own records are dealt by class
    seed: int = 7
    cells: Mapping[str, CellPorts] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    own_metric: bool = False  # which the cloud runs
    min_batch_floor: int = 3
    upload_bytes: int = 0
    record_dir: Path | None = None  # absolute; for the cloud's recording
    blobs: bool = False

    @property
    def url(self) -> str:
        return f"http://{place(self.host, self.ports.cloud_http)}"

    @property
    def numbers(self) -> range:
        return range(1, self.devices + 1)

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def edge_state(self, number: int) -> Path:
        return self.folder / "state" / f"edge-{number}"

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(self.cells) or ("",)

    def cell_of(self, number: int) -> str:
        return self.cell_names[(number - 1) % len(self.cell_names)]

    def ports_of(self, cell: str) -> Ports | CellPorts:
        return self.cells[cell] if self.cells else self.ports

    @property
    def domains(self) -> tuple[str, ...]:
        return (*(of_cell("edge", cell) for cell in self.cell_names), "cloud")

    def port(self, domain: str, *, websockets: bool = False) -> int:
        if domain == "cloud":
            return self.ports.cloud_websockets if websockets else self.ports.cloud
        ports = self.ports_of(domain.partition("-")[2])
        return ports.edge_websockets if websockets else ports.edge

    def cells_at(self, domain: str) -> tuple[str, ...]:
        return self.cell_names if domain == "cloud" else (domain.partition("-")[2],)

    # --- site files ---

    def broker(self, domain: str) -> Settings:
        files = {"cert_file": f"tls/broker-{domain}.crt", "key_file": f"tls/broker-{domain}.key"}
        websockets = {"websockets_port": self.port(domain, websockets=True)}
        # The proxy's queue at a broker holds the credit of all devices.
        credit = self.devices * min(self.upload_bytes, NEED_LIMIT * CloudLimits().packet_bytes)
        return {
            "engine": self.engine,
            "host": self.host,
            "port": self.port(domain),
            "users_file": f"passwords/{domain}-broker.users",
            "acl": side_of(domain),
            **({"cells": list(self.cells_at(domain))} if self.cells else {}),
            **(websockets if self.websockets else {}),
            **({"tls": files} if self.tls else {}),
            "limits": {"max_queued_bytes": max(BrokerLimits().max_queued_bytes, credit)},
        }

    def cloud(self) -> Settings:
        pinned: Settings = {"proxy_key_file": "keys/proxy.pub"}
        if self.cells:
            keys = {cell: f"keys/{of_cell('proxy', cell)}.pub" for cell in self.cells}
            pinned = {"cells": [{"name": one, "proxy_key_file": key} for one, key in keys.items()]}
        return {
            "broker": self._link("cloud", "cloud", "cloud"),
            "state_dir": "state/cloud",
            **pinned,
            "http": {"host": self.host, "port": self.ports.cloud_http},
            "test_data": self._data(),
            "allow_python_models": self.own_metric or bool(self.policy.allowed_python_models),
            **self._blobs("blobs", self.ports.cloud_blobs, serves=True),
            "limits": self._limits(CloudLimits(), spool_bytes=self._batch_bytes),
            "record_dir": None if self.record_dir is None else str(self.record_dir),
        }

    def proxy(self, cell: str = "") -> Settings:
        name = of_cell("proxy", cell)
        return {
            "edge_broker": self._link(of_cell("edge", cell), name, f"{name}-edge"),
            "cloud_broker": self._link("cloud", name, f"{name}-cloud"),
            **({"cell": cell} if cell else {}),
            "state_dir": f"state/{name}",
            "cloud_key_file": "keys/cloud.pub",
            "http": {"host": self.host, "port": self.ports_of(cell).proxy_http},
            "min_batch_floor": self.min_batch_floor,
            **self._blobs("blobs", self.ports.proxy_blobs, serves=True),
            **self._blobs("cloud_blobs", self.ports.cloud_blobs),
            "limits": self._limits(
                ProxyLimits(),
                blob_bytes=self._batch_bytes,
                upload_bytes=self.upload_bytes,
                spool_bytes=SPOOLED_BATCHES * self._batch_bytes,
                cache_bytes=SPOOLED_BATCHES * self._batch_bytes,
            ),
        }

    def edge(self, number: int, device_id: str) -> Settings:
        """Return a device's settings; its user name at the broker is its id."""
        cell, digits = self.cell_of(number), self.source.source == "digits"
        policy = self.policy.with_room(self.nominal_digits) if digits else self.policy
        shard = {
            "devices": self.devices,
            "index": number - 1,
            "partition": self.partition.model_dump(mode="json"),
            "seed": self.seed,
            "classes": self.classes,
        }
        return {
            "name": f"box-{number}",
            "role": "infer" if number > self.devices - self.infer_only else "train",
            "broker": self._link(of_cell("edge", cell), device_id, f"edge-{number}"),
            **({"cell": cell} if cell else {}),
            "state_dir": f"state/edge-{number}",
            "cloud_key_file": "keys/cloud.pub",
            "proxy_key_file": f"keys/{of_cell('proxy', cell)}.pub",
            "data": {**self._data(), "shard": shard},
            "policy": policy.model_dump(mode="json", exclude_none=True),
            **self._blobs("blobs", self.ports.proxy_blobs),
            "limits": self._limits(EdgeLimits(), outbox_bytes=self.upload_bytes),
        }

    @property
    def nominal_digits(self) -> int:
        return max(1, round(0.9 * _DIGITS_FOR_TRAINING / self.devices))

    @property
    def _batch_bytes(self) -> int:
        return self.devices * self.upload_bytes

    def _data(self) -> Settings:
        return self.source.model_dump(mode="json", exclude_none=True)

    def _blobs(self, key: str, port: int, *, serves: bool = False) -> Settings:
        url = f"http://{place(self.host, port)}/"
        served = {"url": url, "serve": {"host": self.host, "port": port}}
        return {key: served if serves else {"urls": [url]}} if self.blobs else {}

    def _limits(self, usual: Block, **wanted: int) -> Settings:
        """Return a role's default limits, raised to `wanted`, with packets that fit."""
        values, most = usual.model_dump(), PROFILES[self.profile].largest_packet_bytes
        found = {key: max(values[key], value) for key, value in wanted.items()}
        fits = most is None or values["packet_bytes"] <= most
        return found if fits else {**found, "packet_bytes": most}

    def _link(self, domain: str, username: str, password: str) -> Settings:
        port = self.port(domain, websockets=self.websockets)
        path = WEBSOCKET_PATH if self.websockets else None
        link: Settings = {
            "url": BrokerAddress(self.host, port, self.tls, path).url,
            "profile": self.profile,
            "protocol": self.protocol,
            "username": username,
            "password_file": f"passwords/{password}",
        }
        return {**link, "ca_file": f"tls/{domain}-ca.crt"} if self.tls else link


@dataclass(frozen=True)
class Site:
    """A provisioned site; `brokers` and `passwords` are by domain, `proxies` by cell."""

    spec: SiteSpec
    device_ids: tuple[str, ...]
    passwords: dict[str, dict[str, str]]  # domain -> user -> password

    @property
    def brokers(self) -> dict[str, Path]:
        return {domain: self.spec.file(f"broker-{domain}") for domain in self.spec.domains}

    @property
    def cloud(self) -> Path:
        return self.spec.file("cloud")

    @property
    def proxies(self) -> dict[str, Path]:
        return {cell: self.spec.file(of_cell("proxy", cell)) for cell in self.spec.cell_names}

    @property
    def proxy(self) -> Path:
        return next(iter(self.proxies.values()))

    @property
    def edges(self) -> tuple[Path, ...]:
        return tuple(self.spec.file(f"edge-{n}") for n in self.spec.numbers)

    @property
    def token_file(self) -> Path:
        """Token file of the cloud's HTTP control, written at the cloud's first start."""
        return self.spec.folder / "state" / "cloud" / "http.token"


def broker_processes(spec: SiteSpec) -> dict[str, BrokerProcess]:
    """Return a provisioned site's brokers by domain, not yet started."""
    found = {}
    for domain in spec.domains:
        folder = spec.folder / f"broker-{domain}"
        site = load_as(BrokerSite, spec.file(folder.name))
        found[domain] = BrokerProcess(spec_of(site), folder, users_file=site.users_file)
    return found


# --- the fleet file ---


class LocalSpec(Block):
    """A site on this machine."""

    devices: int = Field(default=3, ge=1, le=1000)
    """Number of devices."""
    infer_only: int = Field(default=0, ge=0)
    """Number of them that only evaluate; existing devices stay as they are."""
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address of all parties, to listen and to connect."""
    ports: Ports = Ports()
    """Their TCP ports."""
    tls: bool = False
    """Encrypt links, with an authority of the site's own."""
    websockets: bool = False
    """Use WebSockets for every link."""
    profile: ProfileName = "default"
    """Managed service; links respect its limits."""
    engine: Engine = "auto"
    """Engine of the brokers; `auto`: mosquitto where it is installed."""
    protocol: Literal[4, 5] = 5
    """MQTT version: 5, or 4 for 3.1.1."""

    def _mixes(self) -> Iterator[Mix]:
        if self.infer_only >= self.devices:
            yield Mix(("infer_only", "devices"), "no device would train; lower it")
        if len(set(vars(self.ports).values())) < len(vars(self.ports)):
            yield Mix(("ports",), "two are the same; give each a port of its own")
        if self.host in ("0.0.0.0", "::"):  # noqa: S104 - what is refused
            text = "is a listening address, not one for clients; write this machine's"
            yield Mix(("host",), f"{text} address, or make a fleet, which has both")

    def site(self, folder: Path) -> SiteSpec:
        return SiteSpec(
            folder,
            policy=Policy(min_devices=min(5, self.devices)),
            min_batch_floor=min(3, self.devices - self.infer_only),
            **vars(self),
        )


def local_spec(folder: Path) -> LocalSpec | None:
    """Load a local site's fleet file, None for a fleet's; raises UsageError if it is missing."""
    path = folder / FLEET_FILE
    if path.exists():
        tree = parsed(read(path), str(path))
        local = isinstance(tree.value, dict) and "local" in tree.value
        return only_block(LocalSpec, "local", tree, path) if local else None
    boxes = list(folder.glob("edge-*.yaml"))
    if boxes and (folder / "broker-edge.yaml").exists():
        fix = f"write in it: local: {{devices: {len(boxes)}}}, with ports, tls and infer_only where"
        fix += " they are not the usual ones; keys, ledgers and owners' blocks stay"
        raise UsageError("is missing", where=str(path), fix=fix)
    return None


# --- every file ---


def provision(spec: SiteSpec, *, force: bool = False) -> Site:
    """Write the site, with `force` over a folder in use; raises UsageError or ConfigError.

    Existing keys, ledgers, passwords, authority and owner's settings stay."""
    folder = spec.folder
    with writing(folder, "name a folder that you may write to"):
        if folder.exists() and any(folder.iterdir()) and not force:
            raise UsageError("is not empty", where=str(folder), fix="name a new folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("keys", "passwords", "state"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        return _write(spec)


def _write(spec: SiteSpec) -> Site:
    folder = spec.folder
    servers = {of_cell("proxy", cell): {"proxy": spec.proxy(cell)} for cell in spec.cell_names}
    servers["cloud"] = {"cloud": spec.cloud()}
    for number in spec.numbers:  # report a damaged file before any change
        if (file := spec.file(f"edge-{number}")).exists():
            load_site(file)
    servers = {name: _kept(spec.file(name), block) for name, block in servers.items()}
    for name in servers:
        state, role = folder / "state" / name, side_of(name)
        public = folder / "keys" / f"{name}.pub"
        refuse_lost_state(state / f"{role}.key", public)
        make_signing_key(state, role).public().save(public, overwrite=True)
    device_ids = _devices(spec)
    passwords = _passwords(spec, device_ids)
    if spec.tls:
        hosts = list(dict.fromkeys(["localhost", "127.0.0.1", spec.host]))
        make_certificates(folder / "tls", hosts, spec.domains)
    if spec.source.source == "digits":
        (folder / "job.yaml").write_text(_job(spec), "utf-8")
    brokers = {f"broker-{domain}": {"broker": spec.broker(domain)} for domain in spec.domains}
    for name, settings in (brokers | servers).items():
        write_file(spec.file(name), settings)
    for number, device_id in zip(spec.numbers, device_ids, strict=True):
        file = spec.file(f"edge-{number}")
        write_file(file, _kept(file, {"edge": spec.edge(number, device_id)}))
    return Site(spec, tuple(device_ids), passwords)


def _kept(file: Path, new: Settings) -> Settings:
    """Merge new settings with the owner's or operator's in the existing file."""
    found = keep_owner_settings(new, file)
    if "cloud" in new and file.exists():
        before = parsed(read(file), str(file)).value.get("cloud") or {}
        if before.get("test_data"):
            found["cloud"]["test_data"] = before["test_data"]
    if "edge" in new:
        data, planned = found["edge"]["data"], new["edge"]["data"]
        if isinstance(shard := data.get("shard"), dict):
            # The fleet file sets the number of shares while the rest is unchanged.
            devices = planned["shard"]["devices"]
            if {**data, "shard": {**shard, "devices": devices}} == planned:
                found["edge"]["data"] = planned
    return found


def write_file(path: Path, settings: Settings) -> None:
    path.write_text(site_text(settings), "utf-8")
    load_site(path)  # refuse settings that cannot work before a process starts


def _devices(spec: SiteSpec) -> list[str]:
    for number in spec.numbers:
        key = spec.edge_state(number) / IDENTITY_FILE
        refuse_lost_state(key, spec.file(f"edge-{number}"))
    found = {n: DeviceIdentity.load_or_create(spec.edge_state(n)) for n in spec.numbers}
    for cell in spec.cell_names:
        state = spec.folder / "state" / of_cell("proxy", cell)
        with closing(Registry(state / REGISTRY_FILE)) as registry:
            known = {device.device_id for device in registry.devices(revoked=True)}
            for number, identity in found.items():
                # Never admit a revoked device again.
                if spec.cell_of(number) == cell and identity.device_id not in known:
                    registry.admit(identity.enrolment(), note=f"provisioned, number {number}")
    return [identity.device_id for identity in found.values()]


def _passwords(spec: SiteSpec, device_ids: list[str]) -> dict[str, dict[str, str]]:
    folder, found = spec.folder / "passwords", dict[str, dict[str, str]]()
    for domain in spec.domains:
        side, cells = side_of(domain), spec.cells_at(domain)
        users = {f"{of_cell('proxy', cell)}-{side}": of_cell("proxy", cell) for cell in cells}
        if side == "cloud":
            users["cloud"] = "cloud"
        else:
            of_cells = zip(spec.numbers, device_ids, strict=True)
            users |= {f"edge-{n}": one for n, one in of_cells if spec.cell_of(n) in cells}
        passwords = found[domain] = {}
        for name, user in users.items():
            give(folder / name, secrets.token_urlsafe(24) + "\n")
            passwords[user] = read_password(folder / name) or ""
        write_private(folder / f"{domain}-broker.users", users_text(passwords))
    return found


def _job(spec: SiteSpec) -> str:
    """Return a job that learns the digits, with inference below ε = 2 per record."""
    nominal, trainers = spec.nominal_digits, spec.devices - spec.infer_only
    shared = trainers == spec.devices >= _FEWEST_SHARING
    evaluated = math.ceil(0.1 * nominal)
    return (
        (_TEMPLATES / "job.yaml")
        .read_text("utf-8")
        .format(
            devices=spec.devices,
            noise="shared" if shared else "local",
            secure=str(shared).lower(),
            min_batch=math.ceil(0.9 * trainers) if shared else max(1, min(5, trainers)),
            nominal_records=nominal,
            inference_epsilon=min(20.0, math.floor(19.5 * (evaluated + 1)) / 10),
        )
    )


def guide(site: Site) -> str:
    spec, cloud = site.spec, shlex.quote(str(site.cloud))
    files = (*site.brokers.values(), site.cloud, *site.proxies.values(), *site.edges)
    started = [f"edgeveil {side_of(one.stem)} --config {shlex.quote(str(one))}" for one in files]
    lines = [f"A site of {spec.devices} devices is in {spec.folder}. In a terminal each:", *started]
    if (job := spec.file("job")).exists():
        submit = f"edgeveil job submit {shlex.quote(str(job))} --watch --config {cloud}"
        lines += ["Then, once all run:", submit]
    return "\n".join(line if line.endswith(":") else f"  {line}" for line in lines)
