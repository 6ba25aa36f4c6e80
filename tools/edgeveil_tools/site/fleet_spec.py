"""The fleet file, `fleet.yaml`, from which every party's bundle is made.

Devices are listed, in a table (CSV) or counted; their shared data block is a template with
`{name}`, `{number}` and further columns of the table.

A *domain* is one broker with its clients: `edge` and `cloud`, shared by cells without a broker of
their own, or `edge-north`."""

from __future__ import annotations

import csv
import io
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from edgeveil.config.addresses import BrokerAddress, split_place
from edgeveil.config.base import Block, Mix, SitePath
from edgeveil.config.broker import BrokerLimits
from edgeveil.config.broker_profiles import ProfileName
from edgeveil.config.cloud import CloudKeys
from edgeveil.config.data import DataSource, unstated_header
from edgeveil.config.edge import Conditions, EdgeLimits
from edgeveil.config.file import only_block, parsed, problems_error, read
from edgeveil.config.links import BrokerUrl, Cell, Log
from edgeveil.config.policy import Policy
from edgeveil.config.proxy import ProxyKeys
from edgeveil.config.yaml_tree import Problem
from edgeveil.errors import UsageError
from edgeveil_tools.site.broker_rules import of_cell, side_of

FLEET_FILE = "fleet.yaml"
MOST_DEVICES = 100_000
TABLE_BYTES = 64 << 20
IMAGE = "image"
SIDES = ("edge", "cloud")
MOST_CELLS = 64

_HOST_NAME = re.compile(r"([A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]*[A-Za-z_-][A-Za-z0-9_-]*\.?")
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)(?::(0?\d{1,2}))?\}")


def host_and_port(text: str) -> tuple[str, int]:
    """Split `host:port`, with an IPv6 address in brackets; raises ValueError."""
    found = split_place(text)
    if found is None:
        fix = "write broker.example.org:8883, or [2001:db8::1]:8883"
        raise ValueError(f"must be host:port, got '{text[:100]}'; {fix}")
    return found


def _certified(name: str) -> str:
    """Raise ValueError for a name by which no client can reach a server."""
    address = _host(name.removeprefix("*."))
    mapped = getattr(address, "ipv4_mapped", None)
    if address is not None and (mapped or address).is_unspecified:
        what = "is a listening address, not a public one; write its public name"
        raise ValueError(f"{name} {what}")
    return name


def _host(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a parsed address, None for a name; raises ValueError for neither."""
    with suppress(ValueError):
        return ipaddress.ip_address(text)
    if not _HOST_NAME.fullmatch(text):  # a name that ends with a number reads as an address
        what = f"'{text[:100]}' is no host name or address; write broker.example.org"
        raise ValueError(what) from None
    return None


def _place(check: Callable[[str], object]) -> AfterValidator:
    def checked(text: str) -> str:
        check(host_and_port(text)[0])
        return text

    return AfterValidator(checked)


CertifiedName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_certified)]
ListenPlace = Annotated[str, Field(max_length=300), _place(_host)]
PublicPlace = Annotated[str, Field(max_length=300), _place(_certified)]
HostKind = Literal["plain", "systemd", "compose", "kubernetes"]
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"
PartyName = Annotated[str, Field(pattern=f"^{_NAME}$")]


def _encrypted(url: str) -> str:
    if not BrokerAddress.parse(url).tls:
        raise ValueError("is not encrypted; write mqtts:// or wss://")
    return url


class Hosted(Block):
    """The machine of a party."""

    host_kind: HostKind = "plain"
    """How the party is installed; selects the commands of its bundle."""
    host: str | None = Field(default=None, min_length=1, max_length=255, examples=["ward-3-pc"])
    """The machine's host name; a bundle is refused on any other. null: any machine."""


class BrokerEntry(Hosted):
    """One domain's broker: an own one (`listen` and `public`), or an external one (`url`)."""

    listen: ListenPlace | None = Field(default=None, examples=["0.0.0.0:8883"])
    """Address that the broker listens on."""
    public: PublicPlace | None = Field(default=None, examples=["broker.example.org:8883"])
    """Address for its clients, in its certificate and their files."""
    also: tuple[CertifiedName, ...] = ()
    """Further names and addresses for its certificate."""
    engine: Literal["auto", "amqtt", "mosquitto"] = "auto"
    """`auto`: mosquitto where it is installed."""
    limits: BrokerLimits = BrokerLimits()
    """Limits of an own broker."""
    url: Annotated[BrokerUrl, AfterValidator(_encrypted)] | None = Field(
        default=None, examples=["mqtts://fleet.example.net:8883"]
    )
    """Address of an external broker; `mqtts://` or `wss://`."""
    ca_file: SitePath | None = None
    """PEM file of the authority of an external broker; null: the system's authorities."""
    profile: ProfileName = "default"
    """Managed service of an external broker; links respect its limits (docs/brokers.md)."""

    @property
    def own(self) -> bool:
        return self.url is None

    @property
    def address(self) -> str:
        if self.url is not None:
            return self.url
        return BrokerAddress(*host_and_port(self.public or ""), tls=True).url

    @property
    def names(self) -> tuple[str, ...]:
        return (host_and_port(self.public or "")[0], *self.also)


class CloudEntry(Hosted, CloudKeys):
    """The cloud."""


class ProxyEntry(Hosted, ProxyKeys):
    """The proxy."""


class CellEntry(Block):
    """One cell; unset keys of its blocks default to the fleet's shared blocks."""

    edge_broker: BrokerEntry | None = None
    """The broker that its devices and its proxy use; null: the one that cells share."""
    cloud_broker: BrokerEntry | None = None
    """The broker that its proxy and the cloud use; null: the one that cells share."""
    proxy: ProxyEntry | None = None
    """Its proxy."""


class ListedDevice(Block):
    """One device of `list`; unset keys default to the shared ones."""

    name: PartyName
    """Unique name in the fleet."""
    cell: Cell | None = None
    """Its cell; null: `devices.cell`."""
    role: Literal["train", "infer"] | None = None
    """`train` or `infer`."""
    host: str | None = Field(default=None, min_length=1, max_length=255)
    """Its machine's host name."""
    data: dict[str, Any] | None = None
    """Its own data block."""


class ClaimsEntry(Block):
    """Boxes that enrol by claims: one bundle, `image`, serves all of them."""

    admit: Literal["at_once", "operator"] = "at_once"
    """`at_once`: every holder of a claim; `operator`: after `edgeveil proxy admit NAME`."""


class DevicesEntry(Block):
    """All devices."""

    count: int = Field(default=0, ge=0, le=MOST_DEVICES)
    """Number of devices named by `name`."""
    name: str = Field(default="box-{number:04}", min_length=1, max_length=64)
    """Template of the names of counted devices."""
    list: tuple[ListedDevice, ...] = Field(default=(), max_length=MOST_DEVICES)
    """Single devices; the name of a counted device overrides its settings."""
    csv: SitePath | None = Field(default=None, examples=["devices.csv"])
    """A table whose first line has the column names: `name`, optionally `role`, `host`, `cell`, and
    further ones for the template."""
    cell: Cell | None = None
    """Cell of devices that name none; null: existing devices stay, new ones join the smallest
    cell."""
    claims: ClaimsEntry | None = None
    """Further devices may enrol over the broker, each with a one-time claim; null: no claims."""
    host_kind: HostKind = "plain"
    """How they are installed."""
    role: Literal["train", "infer"] = "train"
    """What they do."""
    data: dict[str, Any] = Field(examples=[{"name": "scans", "source": "npz", "path": "data.npz"}])
    """Their data block as in a device's site file, `{name}`, `{number}` and columns filled in."""
    nominal_records: int | None = Field(default=None, ge=1, le=10**9, examples=[180])
    """Public estimate of the records of a box, never a count. The proposed `policy.max_records` is
    four times as many, which bounds the trial of jobs; null: the policy's own value."""
    policy: Policy = Policy()
    """Policy proposed to each owner: written once, never replaced by the fleet file."""
    conditions: Conditions = Conditions()
    """Conditions under which a box takes part."""
    limits: EdgeLimits = EdgeLimits()
    """Limits of a device."""
    log: Log = Log()
    """Console log."""


class RootEntry(Block):
    """The offline root."""

    keys: int = Field(default=1, ge=1, le=16)
    """Number of keys; give each to another holder once the root is made."""
    threshold: int = Field(default=1, ge=1, le=16)
    """Number of keys that must sign."""


class FleetSpec(Block):
    """A whole fleet."""

    name: PartyName = Field(examples=["clinics"])
    """The fleet's name, part of every bundle."""
    authentication: Literal["certificates", "passwords"] = "certificates"
    """How devices, proxy and cloud authenticate at the brokers."""
    certificate_days: int = Field(default=397, ge=1, le=825)
    """Validity of a party's certificate in days."""
    renew_days: int = Field(default=60, ge=1, le=800)
    """A certificate that ends within so many days is renewed by the next `edgeveil site apply`."""
    root: RootEntry = RootEntry()
    """The offline root, created once."""
    edge_broker: BrokerEntry
    """The broker that devices and proxy use."""
    cloud_broker: BrokerEntry
    """The broker that proxy and cloud use."""
    cloud: CloudEntry = CloudEntry()
    """The cloud."""
    proxy: ProxyEntry = ProxyEntry()
    """The proxy."""
    cells: dict[Cell, CellEntry] = Field(
        default={}, max_length=MOST_CELLS, examples=[{"north": {}, "south": {}}]
    )
    """Cells by name, each with a proxy of its own; empty: one unnamed cell, which may be listed
    among others as `""`."""
    devices: DevicesEntry
    """The devices."""

    @property
    def cell_names(self) -> tuple[str, ...]:
        """All cells in their order; the unnamed one is empty."""
        return tuple(self.cells) or ("",)

    def domain(self, side: str, cell: str) -> str:
        own = self.cells.get(cell)
        return f"{side}-{cell}" if own and getattr(own, f"{side}_broker") else side

    @property
    def domains(self) -> tuple[str, ...]:
        found = [self.domain(side, cell) for side in SIDES for cell in self.cell_names]
        return tuple(dict.fromkeys(sorted(found, key=lambda domain: domain not in SIDES)))

    def cells_at(self, domain: str) -> tuple[str, ...]:
        side = side_of(domain)
        return tuple(cell for cell in self.cell_names if self.domain(side, cell) == domain)

    def broker(self, domain: str) -> BrokerEntry:
        side, _, cell = domain.partition("-")
        shared: BrokerEntry = getattr(self, f"{side}_broker")
        own: BrokerEntry | None = getattr(self.cells[cell], f"{side}_broker") if cell else None
        if own is None:
            return shared
        # Unset keys are those of the shared broker, except its owner and addresses.
        apart = ("listen", "public", "also", "url", "ca_file", "profile", "host")
        kept = {key: getattr(shared, key) for key in BrokerEntry.model_fields if key not in apart}
        return own.model_copy(update={**kept, **_set_keys(own)})

    def proxy_of(self, cell: str) -> ProxyEntry:
        own = self.cells[cell].proxy if cell in self.cells else None
        return self.proxy if own is None else self.proxy.model_copy(update=_set_keys(own))

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of all parties except devices, in the order of their creation."""
        brokers = [f"broker-{domain}" for domain in self.domains if self.broker(domain).own]
        proxies = [of_cell("proxy", cell) for cell in self.cell_names]
        claims = self.devices.claims is not None
        images = [of_cell(IMAGE, cell) for cell in self.cell_names if claims]
        return (*brokers, "cloud", *proxies, *images)

    def _mixes(self) -> Iterator[Mix]:
        for side in SIDES:
            yield from self._broker_mixes(f"{side}_broker", self.broker(side))
        for cell, planned in self.cells.items():
            if not cell and (moved := planned.model_fields_set):
                text = "is for the unnamed cell, outside cells; move it"
                yield Mix((f"cells..{min(moved)}",), f"{text} there")
                continue
            for side in SIDES:
                if (domain := self.domain(side, cell)) != side:
                    at = f"cells.{cell}.{side}_broker"
                    yield from self._broker_mixes(at, self.broker(domain))
        known = self.devices.cell
        if known is not None and known not in self.cell_names:
            text = f"no cell '{known}'; add it to cells, or use an existing one"
            yield Mix(("devices.cell", "cells"), text)
        yield from self._claim_mixes()
        listed = [(f"devices.list.{n}.data", d.data) for n, d in enumerate(self.devices.list)]
        for at, data in (("devices.data", self.devices.data), *listed):
            if problem := unstated_header(data or {}):
                yield Mix((f"{at}.header", f"{at}.source"), problem)
        if self.renew_days >= self.certificate_days:
            text = f"would renew each time, as they last {self.certificate_days} days; lower it"
            yield Mix(("renew_days", "certificate_days"), text)
        if self.root.threshold > self.root.keys:
            text = f"{self.root.keys} keys cannot sign so often; lower it, or raise root.keys"
            yield Mix(("root.threshold", "root.keys"), text)

    def _claim_mixes(self) -> Iterator[Mix]:
        if self.devices.claims is None:
            return
        if len(self.cells_at("edge")) > 1:
            text = "could sign certificates for another cell's proxy at a broker that cells share;"
            yield Mix(("devices.claims", "cells"), f"{text} give each an edge_broker, or drop it")
        if self.authentication == "passwords":
            text = "a claim is answered with a certificate; drop it, or set certificates"
            yield Mix(("devices.claims", "authentication"), text)
        if _PLACEHOLDER.search(json.dumps(self.devices.data)):
            text = "has placeholders, and one image serves all boxes with claims; write it without"
            yield Mix(("devices.data", "devices.claims"), text)

    def _broker_mixes(self, at: str, broker: BrokerEntry) -> Iterator[Mix]:
        if broker.own:
            for key in ("listen", "public"):
                if getattr(broker, key) is None:
                    text = "one's own broker needs listen and public, another's needs url; add them"
                    yield Mix((f"{at}.{key}", at), text)
            if broker.profile != "default" or broker.ca_file is not None:
                yield Mix((f"{at}.profile", f"{at}.ca_file"), "belong to a broker with url; drop")
            if self.authentication == "certificates" and broker.engine == "amqtt":
                text = "amqtt cannot demand certificates; set mosquitto, or passwords"
                yield Mix((f"{at}.engine", "authentication"), text)
        elif broker.listen is not None or broker.public is not None:
            yield Mix((f"{at}.url", f"{at}.listen"), "is another's broker; drop listen and public")


def _set_keys(block: Block) -> dict[str, Any]:
    return {key: getattr(block, key) for key in block.model_fields_set}


def load_spec(folder: Path) -> FleetSpec:
    """Load a site folder's fleet file; raises UsageError without one, else as `read_spec`."""
    path = folder / FLEET_FILE
    if not path.exists():
        fix = "create it: edgeveil site init DIR"
        raise UsageError(f"holds no {FLEET_FILE}", where=str(folder), fix=fix)
    return read_spec(path)


def read_spec(path: Path) -> FleetSpec:
    """Load a fleet file; raises ConfigError with all problems."""
    tree = parsed(read(path), str(path))
    kinds = tree.value if isinstance(tree.value, dict) else {}
    if "local" in kinds:
        fix = "change fleet.yaml, and run edgeveil site apply"
        raise UsageError("is a site on this machine, without bundles", where=str(path), fix=fix)
    if "fleet" not in kinds:
        text = "not a fleet file, its one top-level key must be fleet"
        raise problems_error(str(path), [Problem((), tree.line(()), text)])
    return only_block(FleetSpec, "fleet", tree, path)


def devices_of(spec: FleetSpec, where: str) -> list[ListedDevice]:
    """Return all devices with role and data block, `cell` None if unnamed; raises UsageError."""
    found: dict[str, ListedDevice] = {}
    rows = list(_rows(spec.devices, where))
    reserved = {"cloud", "proxy", *(f"broker-{side}" for side in SIDES), IMAGE, *spec.servers}
    for number, (place, values, own_data) in enumerate(rows, 1):
        name, cell = values["name"], values.get("cell") or spec.devices.cell
        if name in found or name in reserved:
            what, fix = f"two parties have this name: {name}", "name one of them otherwise"
            raise UsageError(what, where=place, fix=fix)
        counts = {"number": number, "devices": len(rows), "index": number - 1}
        facts = {**values, **{key: str(count) for key, count in counts.items()}}
        data = _filled(spec.devices.data if own_data is None else own_data, facts, place)
        if cell is not None and cell not in spec.cell_names:
            known = ", ".join(one for one in spec.cell_names if one) or "none"
            fix = f"add it to cells, or use one of them: {known}"
            raise UsageError(f"no cell '{cell[:64]}'", where=f"{place} ({name})", fix=fix)
        role = values.get("role") or spec.devices.role
        given = {"role": role, "host": values.get("host") or None}
        try:
            DataSource.model_validate_json(json.dumps(data), strict=True)
            found[name] = ListedDevice.model_validate(
                {"name": name, "cell": cell, "data": data, **given}
            )
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(str(step) for step in first["loc"])
            what = f"device {name[:64]}: {path}: {first['msg']}"
            raise UsageError(what, where=place, fix="correct the fleet file") from None
        if problem := unstated_header(data):  # a source named by a table
            raise UsageError(f"its data block has no header: {problem}", where=f"{place}, {name}")
    if not found and spec.devices.claims is None:
        fix = "set devices.count, devices.list, devices.csv or devices.claims"
        raise UsageError("has no devices", where=where, fix=fix)
    return list(found.values())


_Row = tuple[str, dict[str, str], dict[str, Any] | None]  # place, columns, own data block


def _rows(devices: DevicesEntry, where: str) -> Iterator[_Row]:
    """Yield all devices; a listed device replaces a counted one of the same name."""
    counted: dict[str, _Row] = {}
    for number in range(1, devices.count + 1):
        place = f"{where} devices.name"
        name = str(_filled(devices.name, {"number": str(number)}, place))
        if name in counted:
            what = f"two parties have this name: {name}"
            raise UsageError(what, where=place, fix="write {number} in it")
        counted[name] = (place, {"name": name}, None)
    for one in devices.list:
        values = one.model_dump(include={"name", "role", "host", "cell"}, exclude_none=True)
        row = (f"{where} devices.list", values, one.data)
        if one.name in counted:
            counted[one.name] = row
        else:
            yield row
    if devices.csv is not None:
        yield from _table(devices.csv)
    yield from counted.values()


def _table(path: Path) -> Iterator[_Row]:
    try:
        with path.open("rb") as file:
            raw = file.read(TABLE_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        fix = "correct devices.csv"
        raise UsageError("the table cannot be read", where=str(path), fix=fix) from error
    if len(raw) > TABLE_BYTES:
        raise UsageError(f"is over {TABLE_BYTES} bytes", where=str(path), fix="split the fleet")
    table = csv.DictReader(io.StringIO(text), strict=True)
    columns = table.fieldnames or ()
    if "name" not in columns or len(set(columns)) < len(columns):
        fix = "begin it with the line `name,role,host`"
        raise UsageError("has no column name, or one twice", where=f"{path}:1", fix=fix)
    for row in table:
        place = f"{path}:{table.line_num}"
        if None in row or None in row.values():
            fix = f"give it {len(columns)} values, as the first line has"
            raise UsageError("has another number of values", where=place, fix=fix)
        yield place, {key: value.strip() for key, value in row.items()}, None


def _filled(template: Any, facts: Mapping[str, str], where: str) -> Any:
    """Fill in every `{column}`; text that is only a placeholder may become a number."""
    if isinstance(template, dict):
        return {key: _filled(value, facts, where) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, facts, where) for value in template]
    if not isinstance(template, str):
        return template

    def fact(match: re.Match[str]) -> str:
        name, form = match[1], match[2]
        if name not in facts:
            known = ", ".join(sorted(facts))
            raise UsageError(f"no column '{name}'", where=where, fix=f"use one of {known}")
        value = facts[name]
        return f"{int(value):{form}}" if form and value.isdecimal() else value

    text = _PLACEHOLDER.sub(fact, template)
    alone = _PLACEHOLDER.fullmatch(template)
    return int(text) if alone and alone[2] is None and text.isdecimal() else text
