"""The site under load: one started for the test, or a running one."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from edgeveil.config.addresses import place
from edgeveil.config.cloud import CloudSite
from edgeveil.config.data import DataSource
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.errors import BrokerError, JobFailed, UsageError
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, padded
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink, read_password
from edgeveil.transport.process import peer_key
from edgeveil_lab.load.scenario import MIN_BATCH, LoadOptions
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.cli.common import load_as
from edgeveil_tools.cloud_client import get_json, own_address
from edgeveil_tools.local.children import Children
from edgeveil_tools.result import writing
from edgeveil_tools.site.broker_rules import of_cell, side_of, users_text
from edgeveil_tools.site.brokers import BrokerProcess, choose_engine, free_ports, write_private
from edgeveil_tools.site.provision import (
    CellPorts,
    Ports,
    Site,
    SiteSpec,
    broker_processes,
    provision,
    write_file,
)

# --- a fleet of simulated devices: keys and broker passwords in one file ---

FORMAT = "edgeveil-fleet-1"
_FILE_BYTES = 1 << 30
_MAKE = "create it with edgeveil loadtest --make-fleet"


class FleetMember(msgspec.Struct, frozen=True, array_like=True):
    signing: bytes
    opening: bytes
    password: str

    def __repr__(self) -> str:
        return "Member(hidden)"

    def enrolment(self) -> Enrolment:
        return Enrolment.make(SigningKey(self.signing), OpeningKey(self.opening))


class _File(msgspec.Struct, frozen=True):
    format: str
    members: list[FleetMember]


@dataclass(frozen=True)
class LoadFleet:
    members: Sequence[FleetMember] = field(repr=False)

    @classmethod
    def make(cls, count: int) -> LoadFleet:
        random, password = os.urandom, secrets.token_urlsafe
        return cls([FleetMember(random(32), random(32), password(24)) for _ in range(count)])

    def dealt(self, number: int, of: int) -> LoadFleet:
        """Return every `of`-th member, starting with `number`."""
        return LoadFleet(self.members[number::of])

    def enrolments(self) -> list[Enrolment]:
        return [member.enrolment() for member in self.members]

    def users(self, enrolments: Sequence[Enrolment]) -> dict[str, str]:
        """Return password by broker user (the device's id); `enrolments` are in member order."""
        pairs = zip(enrolments, self.members, strict=True)
        return {enrolment.device_id: member.password for enrolment, member in pairs}

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> LoadFleet:
        """Decode a fleet; raises UsageError for anything else."""
        try:
            found = msgspec.msgpack.decode(raw, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
            found = _File("", [])
        sound = all(len(m.signing) == len(m.opening) == 32 for m in found.members)
        if found.format != FORMAT or not sound:
            raise UsageError("is not a fleet file", where=where, fix=_MAKE)
        return cls(found.members)

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(_File(FORMAT, list(self.members)))

    def save(self, path: Path) -> None:
        """Write the file, mode 0600; raises UsageError if it exists or cannot be written."""
        with writing(path):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> LoadFleet:
        try:
            with path.open("rb") as file:
                raw = file.read(_FILE_BYTES)
        except OSError as error:
            text = f"the fleet cannot be read ({error.strerror})"
            raise UsageError(text, where=str(path), fix=_MAKE) from None
        return cls.from_bytes(raw, str(path))


def write_fleet(path: Path, devices: int) -> None:
    """Write a new fleet, its `.enrolments` for `edgeveil proxy admit` and the broker's `.users`."""
    fleet = LoadFleet.make(devices)
    fleet.save(path)
    enrolments = fleet.enrolments()
    lines = "".join(enrolment.to_line() for enrolment in enrolments)
    write_private(path.with_name(f"{path.name}.enrolments"), lines)
    write_private(path.with_name(f"{path.name}.users"), users_text(fleet.users(enrolments)))


def admit(registry_file: Path, enrolments: list[Enrolment], limit: int) -> None:
    with closing(Registry(registry_file, limit=limit)) as registry:
        registry.admit_many(enrolments, note="load test", again=True)


def revoke(registry_file: Path, enrolments: list[Enrolment], limit: int) -> None:
    with closing(Registry(registry_file, limit=limit)) as registry:
        registry.revoke_many(enrolment.device_id for enrolment in enrolments)


# --- the site under load ---


@dataclass(frozen=True)
class TargetCell:
    """Addresses and public keys of a cell; `password` is that of `--user`."""

    broker: str
    cloud_key: bytes
    proxy_key: bytes
    proxy_http: str | None = None
    ca: Path | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TargetSite:
    """The cloud's control page, and the cells by name ("" for a single one)."""

    cloud: str
    token_file: Path
    cells: Mapping[str, TargetCell]

    @property
    def first(self) -> TargetCell:
        return next(iter(self.cells.values()))


# --- a site started for the test, with the fleet admitted ---

_DEVICES = 100_000
_NO_RECORDS = DataSource(name="load", source="npz", path=Path("none.npz"))
_CONNECTIONS = 20_000
_SPARE_CONNECTIONS = 100


class LocalSite:
    """A site that `start` writes and starts; devices are dealt to its cells in turn."""

    def __init__(self, options: LoadOptions, fleet: LoadFleet, folder: Path, logs: Path) -> None:
        self._options, self._fleet, self.folder, self._logs = options, fleet, folder, logs
        self.children = Children(logs)
        self.brokers: dict[str, BrokerProcess] = {}
        self.accounts: dict[str, str] = {}
        engine = choose_engine()
        named = [cell for cell in options.cell_names if cell]
        ports = iter(free_ports(4 + 3 * len(named)))
        self._spec = SiteSpec(
            folder=folder,
            devices=len(fleet.members),
            ports=Ports(*(next(ports) for _ in range(4))),
            cells={cell: CellPorts(next(ports), next(ports), next(ports)) for cell in named},
            tls=options.tls,
            engine=engine,
            protocol=options.protocol if engine == "mosquitto" else 4,
            upload_bytes=padded(options.payload_bytes) + SEAL_OVERHEAD_BYTES,
            min_batch_floor=min(MIN_BATCH, len(fleet.members)),
        )

    def start(self) -> TargetSite:
        """Write all files, start all processes; raises BrokerError, UsageError, OSError."""
        spec, folder = self._spec, self.folder
        # No device files are written: the fleet is admitted below, all at once.
        site = provision(replace(spec, devices=0, source=_NO_RECORDS), force=True)
        self._admit(site)
        connections = max(_CONNECTIONS, spec.devices + _SPARE_CONNECTIONS)
        for domain in spec.domains:
            self._write(f"broker-{domain}", spec.broker(domain), max_connections=connections)
        self.brokers = broker_processes(spec)
        for broker in self.brokers.values():
            broker.start()
        proxies = {cell: of_cell("proxy", cell) for cell in spec.cell_names}
        for cell, name in proxies.items():
            self._write(name, spec.proxy(cell), devices=max(_DEVICES, spec.devices))
        self._write("cloud", {**spec.cloud(), "test_data": None})
        for name in (*proxies.values(), "cloud"):
            self.children.start(name, [side_of(name), "--config", str(spec.file(name))])
        cells = {}
        for cell in spec.cell_names:
            domain, page = of_cell("edge", cell), spec.ports_of(cell).proxy_http
            cells[cell] = TargetCell(
                self.brokers[domain].url,
                *_keys(folder / "keys", of_cell("proxy", cell)),
                f"http://{place(spec.host, page)}",
                folder / "tls" / f"{domain}-ca.crt" if spec.tls else None,
            )
        return TargetSite(spec.url, site.token_file, cells)

    def _write(self, name: str, settings: dict[str, Any], **limits: int) -> None:
        settings["limits"] |= {"packet_bytes": self._options.packet_bytes, **limits}
        write_file(self._spec.file(name), {side_of(name): settings})

    def pids(self) -> dict[str, int]:
        return self.children.pids() | self.broker_pids()

    def broker_pids(self) -> dict[str, int]:
        return {f"broker-{domain}": b.pid for domain, b in self.brokers.items() if b.pid}

    def check(self) -> None:
        """Raise JobFailed if a process ended by itself."""
        self.children.check()
        for domain, broker in self.brokers.items():
            if not broker.running():
                raise JobFailed(f"the broker of the {domain} side ended by itself")

    def stop(self) -> None:
        self.children.stop()
        for domain, broker in self.brokers.items():
            broker.stop()
            with suppress(OSError):
                raw = (self.folder / f"broker-{domain}" / "broker.log").read_bytes()
                (self._logs / f"broker-{domain}.log").write_bytes(raw)

    def _admit(self, site: Site) -> None:
        cells = self._spec.cell_names
        for number, cell in enumerate(cells):
            fleet, domain = self._fleet.dealt(number, len(cells)), of_cell("edge", cell)
            enrolments = fleet.enrolments()
            registry = self.folder / "state" / of_cell("proxy", cell) / REGISTRY_FILE
            admit(registry, enrolments, max(_DEVICES, len(enrolments)))
            accounts = fleet.users(enrolments)
            self.accounts |= accounts
            users = users_text(site.passwords[domain] | accounts)
            write_private(self.folder / "passwords" / f"{domain}-broker.users", users)


# --- a running site: its addresses and keys, and the fleet admitted by its proxy ---

FLEET_FILE = "load.fleet"
_USERS = Path("passwords") / "edge-broker.users"


def running_target(options: LoadOptions) -> tuple[TargetSite, LoadFleet]:
    """Return a running site and its fleet; raises UsageError, ConfigError."""
    password, folder = read_password(options.password_file), options.site
    if folder is not None:
        cloud = load_as(CloudSite, folder / "cloud.yaml")
        proxy = load_as(ProxySite, folder / "proxy.yaml")
        edge, keys = proxy.edge_broker, _keys(folder / "keys")
        page, ca = own_address(proxy.http), options.ca or edge.ca_file
        cell = TargetCell(edge.urls[0], *keys, page, ca, password)
        token = cloud.state_dir / "http.token"
        target = TargetSite(own_address(cloud.http), token, {"": cell})
        fleet = _admitted(folder, proxy, options.devices)
    else:
        folder, token, file = (Path(getattr(options, k)) for k in ("keys", "token_file", "fleet"))
        http = _proxy_page(options.proxy_http)
        cell = TargetCell(str(options.broker), *_keys(folder), http, options.ca, password)
        target = TargetSite(str(options.cloud), token, {"": cell})
        fleet = LoadFleet.load(file)
    if len(fleet.members) < options.devices:
        what = f"holds {len(fleet.members)} devices, {options.devices} are required"
        fix = "create a larger one with edgeveil loadtest --make-fleet"
        raise UsageError(what, where=str(options.fleet or options.site), fix=fix)
    return target, LoadFleet(fleet.members[: options.devices])


def _keys(folder: Path, proxy: str = "proxy") -> tuple[bytes, bytes]:
    cloud = peer_key(folder / "cloud.pub", "the cloud")
    return cloud.to_bytes(), peer_key(folder / f"{proxy}.pub", "the proxy").to_bytes()


def _proxy_page(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        get_json(url.rstrip("/"), "/status")
    except OSError as error:
        what = f"no proxy answers at {url} ({error})"
        fix = "name http.host and http.port of its site file, or leave the option out"
        raise UsageError(what, where="--proxy-http", fix=fix) from None
    return url.rstrip("/")


_DIAL_S = 3.0
_AGAIN_S = 0.3


def dial_site(options: LoadOptions, cell: TargetCell, fleet: LoadFleet) -> None:
    """Connect once to a running site's edge broker as its first device; raises BrokerError.

    On this machine refusals are retried, since the broker may not have read the accounts yet."""
    own = fleet.members[0]
    settings = LinkSettings(
        cell.broker,
        f"load-{secrets.token_hex(4)}",
        username=options.user or own.enrolment().device_id,
        password=cell.password if options.user else own.password,
        ca_file=cell.ca,
        cert_file=options.cert,
        key_file=options.key,
        protocol=options.protocol,
        packet_bytes=options.packet_bytes,
    )
    end_s = time.monotonic() + _DIAL_S

    async def dial() -> None:
        link = MqttLink(settings)
        try:
            await link.connect_or_raise(_DIAL_S)
            spoken = link.protocol
        finally:
            await link.close()
        if spoken != options.protocol:
            text, where = "the broker supports only MQTT 3.1.1", str(settings.addresses[0])
            raise BrokerError(text, where=where, fix="add --protocol 4")

    while True:
        try:
            return asyncio.run(dial())
        except BrokerError:
            if options.site is None or time.monotonic() + _AGAIN_S >= end_s:
                raise
        time.sleep(_AGAIN_S)


def _admitted(folder: Path, proxy: ProxySite, devices: int) -> LoadFleet:
    """Return the site's load-test fleet, admitted until `dismiss`; created at first use."""
    path = folder / FLEET_FILE
    known_fleet = path.exists()
    fleet = LoadFleet.load(path) if known_fleet else LoadFleet.make(devices)
    if len(fleet.members) < devices:
        return fleet
    enrolments = LoadFleet(fleet.members[:devices]).enrolments()
    admit(proxy.state_dir / REGISTRY_FILE, enrolments, proxy.limits.devices)
    if not known_fleet:
        users = folder / _USERS
        known = users.read_text("utf-8") if users.exists() else ""
        write_private(users, known + users_text(fleet.users(enrolments)))
        fleet.save(path)
    return fleet


def dismiss(options: LoadOptions, fleet: LoadFleet) -> None:
    """Revoke the devices that `running_target` admitted to a site of this machine."""
    if options.site is not None:
        proxy = load_as(ProxySite, options.site / "proxy.yaml")
        revoke(proxy.state_dir / REGISTRY_FILE, fleet.enrolments(), proxy.limits.devices)
