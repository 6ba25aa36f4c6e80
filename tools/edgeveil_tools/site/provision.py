"""A whole site on one machine, of `site init --local`, of runs and of load tests.

DIR/fleet.yaml              the plan, `local: …`; `site apply` writes all below from it
DIR/broker-edge.yaml broker-cloud.yaml cloud.yaml proxy.yaml edge-1.yaml …   site files
DIR/job.yaml                a job that this site can run
DIR/keys/                   public keys that the parties pin of each other
DIR/passwords/              broker passwords (0600); *.users hold them hashed
DIR/tls/                    with `tls`: each broker's certificate, and the authority behind it
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
from edgeveil.config.broker import BrokerLimits
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
from edgeveil_tools.result import writing
from edgeveil_tools.site.broker_rules import proxy_user, users_text
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess, write_private
from edgeveil_tools.site.bundles import site_text, with_owners_word
from edgeveil_tools.site.fleet_plan import PLAN_FILE, of_cell

Settings = dict[str, Any]
SPOOLED_BATCHES = 3  # uploads, their batch, and what is kept of the round before
_RECORD_S = 0.016  # of a round's budget for each nominal record: a box tries four times as many
_FEWEST_SHARING = 3  # devices for which a job shares its noise
_TEMPLATES = Path(__file__).parents[1] / "templates"
_DIGITS_FOR_TRAINING = 1437


@dataclass(frozen=True)
class Ports:
    """TCP ports on `host`, away from 1883 where a system's own broker listens."""

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
class SitePlan:
    """A site of two brokers, a cloud, a proxy and `devices` devices, numbered from 1, in `folder`.

    Each of `cells` has an edge broker and a proxy on ports of its own, and shares the cloud's
    broker; devices are dealt to cells by turns, and each takes its share of `source`. The last
    `infer_only` devices only evaluate. Limits are raised so that all devices may upload
    `upload_bytes` in one round. With `blobs` what is large goes beside the brokers, over HTTP.
    """

    folder: Path
    devices: int = 3
    infer_only: int = 0
    host: str = "127.0.0.1"
    ports: Ports = field(default_factory=Ports)
    tls: bool = False
    websockets: bool = False
    profile: ProfileName = "default"
    engine: str = "auto"
    protocol: int = 5
    source: DataSource = field(default=DataSource(name="digits", source="digits"))
    partition: Partition = field(default_factory=Partition)
    classes: int | None = None  # of a source of one's own, where records are dealt by class
    seed: int = 7
    cells: Mapping[str, CellPorts] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    min_batch_floor: int = 3
    upload_bytes: int = 0
    record_dir: Path | None = None  # absolute; where the cloud keeps what it sees
    blobs: bool = False

    @property
    def url(self) -> str:
        return f"http://{place(self.host, self.ports.cloud_http)}"

    def edge_file(self, number: int) -> Path:
        return self.folder / f"edge-{number}.yaml"

    def edge_state(self, number: int) -> Path:
        return self.folder / "state" / f"edge-{number}"

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(self.cells) or ("",)

    def cell_of(self, number: int) -> str:
        return self.cell_names[(number - 1) % len(self.cell_names)]

    def ports_of(self, cell: str) -> CellPorts:
        ports = self.ports
        own = CellPorts(ports.edge, ports.proxy_http, ports.edge_websockets)
        return self.cells.get(cell, own)

    @property
    def domains(self) -> tuple[str, ...]:
        """The brokers: `edge`, of a named cell `edge-north`, and `cloud`."""
        return (*(of_cell("edge", cell) for cell in self.cell_names), "cloud")

    def port(self, domain: str, *, websockets: bool = False) -> int:
        if domain == "cloud":
            return self.ports.cloud_websockets if websockets else self.ports.cloud
        ports = self.ports_of(domain.partition("-")[2])
        return ports.edge_websockets if websockets else ports.edge

    def cells_at(self, domain: str) -> tuple[str, ...]:
        return self.cell_names if domain == "cloud" else (domain.partition("-")[2],)

    @property
    def queued_bytes(self) -> int:
        """Bound of what waits at a broker for the proxy: each device's credit in parts."""
        credit = self.devices * min(self.upload_bytes, NEED_LIMIT * CloudLimits().packet_bytes)
        return max(BrokerLimits().max_queued_bytes, credit)

    # --- site files ---

    def broker(self, domain: str) -> Settings:
        files = {"cert_file": f"tls/broker-{domain}.crt", "key_file": f"tls/broker-{domain}.key"}
        websockets = {"websockets_port": self.port(domain, websockets=True)}
        return {
            "engine": self.engine,
            "host": self.host,
            "port": self.port(domain),
            "users_file": f"passwords/{domain}-broker.users",
            "acl": domain.partition("-")[0],
            **({"cells": list(self.cells_at(domain))} if self.cells else {}),
            **(websockets if self.websockets else {}),
            **({"tls": files} if self.tls else {}),
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
            "allow_python_models": bool(self.policy.allowed_python_models),
            **self._store(self.ports.cloud_blobs),
            "limits": self._limits(CloudLimits(), spool_bytes=self._batch_bytes),
            "record_dir": None if self.record_dir is None else str(self.record_dir),
        }

    def proxy(self, cell: str = "") -> Settings:
        user, name = proxy_user(cell), of_cell("proxy", cell)
        return {
            "edge_broker": self._link(of_cell("edge", cell), user, f"{name}-edge"),
            "cloud_broker": self._link("cloud", user, f"{name}-cloud"),
            **({"cell": cell} if cell else {}),
            "state_dir": f"state/{name}",
            "cloud_key_file": "keys/cloud.pub",
            "http": {"host": self.host, "port": self.ports_of(cell).proxy_http},
            "min_batch_floor": self.min_batch_floor,
            **self._store(self.ports.proxy_blobs),
            **self._access("cloud_blobs", self.ports.cloud_blobs),
            "limits": self._limits(
                ProxyLimits(),
                blob_bytes=self._batch_bytes,
                upload_bytes=self.upload_bytes,
                spool_bytes=SPOOLED_BATCHES * self._batch_bytes,
                cache_bytes=SPOOLED_BATCHES * self._batch_bytes,
            ),
        }

    def edge(self, number: int, device_id: str) -> Settings:
        """A device's settings; its user name at the broker is its id."""
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
            **self._access("blobs", self.ports.proxy_blobs),
            "limits": self._limits(EdgeLimits(), outbox_bytes=self.upload_bytes),
        }

    @property
    def nominal_digits(self) -> int:
        """About how many records of the digits a device learns from."""
        return max(1, round(0.9 * _DIGITS_FOR_TRAINING / self.devices))

    @property
    def _batch_bytes(self) -> int:
        return self.devices * self.upload_bytes

    def _data(self) -> Settings:
        return self.source.model_dump(mode="json", exclude_none=True)

    def _store(self, port: int) -> Settings:
        """The block of a party that serves large blobs."""
        served = {"host": self.host, "port": port}
        url = f"http://{place(self.host, port)}/"
        return {"blobs": {"url": url, "serve": served}} if self.blobs else {}

    def _access(self, key: str, port: int) -> Settings:
        """The block of a party that goes to such a store."""
        return {key: {"urls": [f"http://{place(self.host, port)}/"]}} if self.blobs else {}

    def _limits(self, usual: Block, **wanted: int) -> Settings:
        """The usual limits of a role, or what is wanted where that is more; packets that fit."""
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
    """The files of a provisioned site. `device_ids` in the order of `edges`; `brokers` and
    `passwords` by domain, `proxies` by cell."""

    plan: SitePlan
    brokers: dict[str, Path]
    cloud: Path
    proxies: dict[str, Path]
    edges: tuple[Path, ...]
    device_ids: tuple[str, ...]
    passwords: dict[str, dict[str, str]]  # domain -> user -> password

    @property
    def proxy(self) -> Path:
        return next(iter(self.proxies.values()))

    @property
    def token_file(self) -> Path:
        """The bearer token of the cloud's HTTP control, once the cloud has started."""
        return self.plan.folder / "state" / "cloud" / "http.token"


def broker_processes(plan: SitePlan) -> dict[str, BrokerProcess]:
    """A provisioned site's brokers by domain, to be started without TLS from here."""
    return {
        domain: BrokerProcess(
            BrokerPlan(
                engine=plan.engine,  # type: ignore[arg-type]
                port=plan.port(domain),
                acl=domain.partition("-")[0],  # type: ignore[arg-type]
                cells=plan.cells_at(domain),
                max_queued_bytes=plan.queued_bytes,
            ),
            plan.folder / f"broker-{domain}",
            users_file=plan.folder / "passwords" / f"{domain}-broker.users",
        )
        for domain in plan.domains
    }


# --- the plan as a file ---


class LocalPlan(Block):
    """A site on this machine."""

    devices: int = Field(default=3, ge=1, le=1000)
    """So many boxes."""
    infer_only: int = Field(default=0, ge=0)
    """So many of them only evaluate; boxes that are there stay as they are."""
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address that all listen on, and are called by."""
    ports: Ports = Ports()
    """Their TCP ports."""
    tls: bool = False
    """Links are encrypted, with an authority of the site's own."""
    websockets: bool = False
    """Brokers listen for them too, and every link uses them."""
    profile: ProfileName = "default"
    """Links keep to that managed service's limits."""
    engine: Literal["auto", "amqtt", "mosquitto"] = "auto"
    """Of the brokers; `auto`: mosquitto where it is installed."""
    protocol: Literal[4, 5] = 5
    """5, or 4 for MQTT 3.1.1."""

    def _mixes(self) -> Iterator[Mix]:
        if self.infer_only >= self.devices:
            yield Mix(("infer_only", "devices"), "no device would train; lower it")
        if len(set(vars(self.ports).values())) < len(vars(self.ports)):
            yield Mix(("ports",), "two are the same; give each a port of its own")
        if self.host in ("0.0.0.0", "::"):  # noqa: S104 - what is refused
            text = "is where a server listens, not what clients call it; write this machine's"
            yield Mix(("host",), f"{text} address, or plan a fleet, which tells the two apart")

    def site(self, folder: Path) -> SitePlan:
        return SitePlan(
            folder,
            policy=Policy(min_devices=min(5, self.devices)),
            min_batch_floor=min(3, self.devices - self.infer_only),
            **vars(self),
        )


def local_plan(folder: Path) -> LocalPlan | None:
    """Load the plan of a local site; None where the folder plans a fleet. Raises UsageError for a
    folder of `edgeveil provision`, which has no plan."""
    path = folder / PLAN_FILE
    if path.exists():
        tree = parsed(read(path), str(path))
        local = isinstance(tree.value, dict) and "local" in tree.value
        return only_block(LocalPlan, "local", tree, path) if local else None
    boxes = list(folder.glob("edge-*.yaml"))
    if boxes and (folder / "broker-edge.yaml").exists():
        fix = f"write in it: local: {{devices: {len(boxes)}}}, with ports, tls and infer_only where"
        fix += " they are not the usual ones; keys, ledgers and owners' blocks stay"
        raise UsageError("is missing: edgeveil provision wrote none", where=str(path), fix=fix)
    return None


# --- every file ---


def provision(plan: SitePlan, *, force: bool = False) -> Site:
    """Write the site; with `force` over a folder in use, whose keys, ledgers, passwords, authority,
    owners' blocks of devices' files and larger `min_batch_floor` stay. Raises UsageError,
    ConfigError."""
    folder = plan.folder
    with writing(folder, "name a folder that you may write to"):
        if folder.exists() and any(folder.iterdir()) and not force:
            raise UsageError("is not empty", where=str(folder), fix="name a new folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("keys", "passwords", "state"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        return _write(plan)


def _write(plan: SitePlan) -> Site:
    folder = plan.folder
    for number in range(1, plan.devices + 1):
        if plan.edge_file(number).exists():
            load_site(plan.edge_file(number))  # one that is damaged is told before anything else
    files = {cell: folder / f"{of_cell('proxy', cell)}.yaml" for cell in plan.cell_names}
    proxies = {c: with_owners_word({"proxy": plan.proxy(c)}, at) for c, at in files.items()}
    cloud = _cloud(plan)
    for name in ("cloud", *(of_cell("proxy", cell) for cell in plan.cell_names)):
        state, role = folder / "state" / name, name.partition("-")[0]
        public = folder / "keys" / f"{name}.pub"
        refuse_lost_state(state / f"{role}.key", public)
        make_signing_key(state, role).public().save(public, overwrite=True)
    device_ids = _devices(plan)
    passwords = _passwords(plan, device_ids)
    if plan.tls:
        hosts = list(dict.fromkeys(["localhost", "127.0.0.1", plan.host]))
        make_certificates(folder / "tls", hosts, plan.domains)
    if plan.source.source == "digits":
        (folder / "job.yaml").write_text(_job(plan), "utf-8")
    return Site(
        plan=plan,
        brokers={
            domain: _site_file(folder / f"broker-{domain}.yaml", {"broker": plan.broker(domain)})
            for domain in plan.domains
        },
        cloud=_site_file(folder / "cloud.yaml", cloud),
        proxies={cell: _site_file(files[cell], found) for cell, found in proxies.items()},
        edges=tuple(
            _site_file(plan.edge_file(number), _edge(plan, number, device_id))
            for number, device_id in enumerate(device_ids, start=1)
        ),
        device_ids=tuple(device_ids),
        passwords=passwords,
    )


def _cloud(plan: SitePlan) -> Settings:
    """The cloud's settings, with the operator's own test records."""
    new, file = plan.cloud(), plan.folder / "cloud.yaml"
    found = parsed(read(file), str(file)).value.get("cloud") if file.exists() else None
    kept = {"test_data": found["test_data"]} if found and found.get("test_data") else {}
    return {"cloud": {**new, **kept}}


def _edge(plan: SitePlan, number: int, device_id: str) -> Settings:
    """A device's settings, with its owner's blocks."""
    new = {"edge": plan.edge(number, device_id)}
    found = with_owners_word(new, plan.edge_file(number))
    shard = found["edge"]["data"].get("shard")
    if isinstance(shard, dict) and shard.get("index") == number - 1:
        # Of how many devices its share is one is the plan's to say, while it is a share of this.
        planned = {**found["edge"]["data"], "shard": {**shard, "devices": plan.devices}}
        if planned == new["edge"]["data"]:
            found["edge"]["data"] = planned
    return found


def _site_file(path: Path, settings: Settings) -> Path:
    path.write_text(site_text(settings), "utf-8")
    load_site(path)  # a plan that cannot work is refused here and not when its process starts
    return path


def _devices(plan: SitePlan) -> list[str]:
    """Make each device's keys in its state folder, and admit them at their cells' proxies."""
    numbers = range(1, plan.devices + 1)
    for number in numbers:
        refuse_lost_state(plan.edge_state(number) / IDENTITY_FILE, plan.edge_file(number))
    found = {n: DeviceIdentity.load_or_create(plan.edge_state(n)) for n in numbers}
    for cell in plan.cell_names:
        state = plan.folder / "state" / of_cell("proxy", cell)
        with closing(Registry(state / REGISTRY_FILE)) as registry:
            known = {device.device_id for device in registry.devices(revoked=True)}
            for number, identity in found.items():
                # Who was revoked stays out.
                if plan.cell_of(number) == cell and identity.device_id not in known:
                    registry.admit(identity.enrolment(), note=f"provisioned, number {number}")
    return [identity.device_id for identity in found.values()]


def _passwords(plan: SitePlan, device_ids: list[str]) -> dict[str, dict[str, str]]:
    """Passwords by domain and user; those that exist are kept."""
    folder, found = plan.folder / "passwords", dict[str, dict[str, str]]()
    for domain in plan.domains:
        side, cells = domain.partition("-")[0], plan.cells_at(domain)
        users = {f"{of_cell('proxy', cell)}-{side}": proxy_user(cell) for cell in cells}
        if side == "cloud":
            users["cloud"] = "cloud"
        else:
            of_cells = enumerate(device_ids, start=1)
            users |= {f"edge-{n}": one for n, one in of_cells if plan.cell_of(n) in cells}
        words = found[domain] = {}
        for name, user in users.items():
            kept = read_password(folder / name) if (folder / name).exists() else None
            words[user] = kept or secrets.token_urlsafe(24)
            write_private(folder / name, words[user] + "\n")
        write_private(folder / f"{domain}-broker.users", users_text(words))
    return found


def _job(plan: SitePlan) -> str:
    """A job that learns the digits, with inference at less than ε = 2 a record."""
    nominal, trainers = plan.nominal_digits, plan.devices - plan.infer_only
    shared = trainers == plan.devices >= _FEWEST_SHARING
    evaluated = math.ceil(0.1 * nominal)
    return (
        (_TEMPLATES / "job.yaml")
        .read_text("utf-8")
        .format(
            devices=plan.devices,
            noise="shared" if shared else "local",
            secure=str(shared).lower(),
            min_batch=math.ceil(0.9 * trainers) if shared else max(1, min(5, trainers)),
            nominal_records=nominal,
            inference_epsilon=min(20.0, math.floor(19.5 * (evaluated + 1)) / 10),
            budget_s=max(2, math.ceil(_RECORD_S * nominal)),
        )
    )


def commands(site: Site) -> list[tuple[str, str]]:
    """What to start, in this order, each in a terminal of its own: (what, command line)."""
    found = []
    for domain, config in site.brokers.items():
        side, _, cell = domain.partition("-")
        what = f"the broker of the {side} side" + (f" of {cell}" if cell else "")
        found.append((what, "broker", config))
    found.append(("the cloud", "cloud", site.cloud))
    for cell, config in site.proxies.items():
        found.append(("the proxy" + (f" of {cell}" if cell else ""), "proxy", config))
    for number, (edge, device) in enumerate(zip(site.edges, site.device_ids, strict=True), start=1):
        found.append((f"device {number} ({device})", "edge", edge))
    return [(what, shlex.join(["edgeveil", role, "--config", str(at)])) for what, role, at in found]


def guide(site: Site) -> str:
    """The site in words, with the commands that start it and submit its job."""
    lines = [f"A site of {site.plan.devices} devices is in {site.plan.folder}", ""]
    lines.append("Start each in a terminal of its own:")
    for what, line in commands(site):
        lines += [f"  # {what}", f"  {line}"]
    job, cloud = site.plan.folder / "job.yaml", shlex.quote(str(site.cloud))
    if job.exists():
        lines += ["", "Then, once all run:"]
        lines += [f"  edgeveil job submit {shlex.quote(str(job))} --watch --config {cloud}"]
    return "\n".join(lines)
