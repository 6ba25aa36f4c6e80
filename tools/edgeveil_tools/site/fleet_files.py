"""`record.json`, and each bundle's public files as a function of fleet file and record.

Equal inputs give equal bytes, so that an apply replaces only files that differ."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from pydantic import ValidationError

from edgeveil.config.proxy import ProxyKeys
from edgeveil.config.site_files import site_of
from edgeveil.enrolment import Enrolment
from edgeveil.errors import UsageError
from edgeveil.storage import write_durably
from edgeveil.trust.bundle import TrustBundle
from edgeveil.trust.metadata import TrustedMetadata
from edgeveil.trust.moves import Move, write_moves
from edgeveil_proxy.devices_file import DeviceEntry
from edgeveil_tools.site.broker_rules import of_cell, side_of
from edgeveil_tools.site.bundles import SITE_FILE, TRUST_FILE, digest, site_text
from edgeveil_tools.site.fleet_spec import (
    IMAGE,
    SIDES,
    DevicesEntry,
    FleetSpec,
    Hosted,
    ListedDevice,
    host_and_port,
)

Settings = dict[str, Any]
POLICY_FILE, DEVICES_FILE = "policy.yaml", "devices.jsonl"
CLAIMS_CA, CLAIM_FILE = "tls/claims-ca.crt", "state/claim"
MOVES_FILE = "moves.jsonl"
TO_BE_MADE = "to be made\n"
FORMAT = 1  # of record.json


@dataclass(frozen=True)
class Party:
    """One party in the record.

    By broker domain: `certificates` (PEM), `issues` (certificates so far), `words` (password
    hashes). `files` (digests), `text` (site file) and `believes` (digest of the root's metadata)
    are of its last bundle. A device is in `cell` and was in those of `left`; `move` is its signed
    note."""

    name: str = ""
    kind: str = ""  # cloud, proxy, broker, edge
    device_id: str | None = None
    enrolment: str | None = None
    certificates: Mapping[str, str] = field(default_factory=dict)
    issues: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    revoked: str | None = None
    sequence: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    believes: str = ""
    cell: str = ""
    left: tuple[str, ...] = ()
    move: Mapping[str, Any] | None = None

    @property
    def active(self) -> bool:
        return self.revoked is None

    def ends(self) -> datetime.datetime | None:
        pems = self.certificates.values()
        found = [x509.load_pem_x509_certificate(pem.encode()) for pem in pems]
        return min((one.not_valid_after_utc for one in found), default=None)


@dataclass(frozen=True)
class PartyChange:
    """A party's change: `new`, `moved`, `changed`, `renewed`, `revoked` or `unplanned`."""

    name: str
    what: str
    difference: str = ""


@dataclass
class FleetRecord:
    fleet: str = ""
    sequence: int = 0
    parties: dict[str, Party] = field(default_factory=dict)
    revocations: dict[str, str] = field(default_factory=dict)
    authorities: dict[str, list[str]] = field(default_factory=dict)  # PEM, the newest first
    format: int = FORMAT

    @classmethod
    def load(cls, path: Path) -> FleetRecord:
        if not path.exists():
            return cls()
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError:
            fix = "restore it from a backup"
            raise UsageError("is damaged", where=str(path), fix=fix) from None
        if found.format != FORMAT:
            fix = "use the edgeveil that wrote it, or a newer one"
            raise UsageError("is of another version", where=str(path), fix=fix)
        return replace(found, parties={n: replace(one, name=n) for n, one in found.parties.items()})

    def save(self, path: Path) -> None:
        plain = msgspec.to_builtins(self)
        for party in plain["parties"].values():
            del party["name"]
        raw = msgspec.json.format(msgspec.json.encode(plain), indent=1)
        write_durably(path, raw + b"\n", mode=0o600)


@dataclass(frozen=True)
class Facts:
    record: FleetRecord
    trust: bytes

    @cached_property
    def trusted(self) -> TrustedMetadata | None:
        return TrustBundle.parse(self.trust).verified() if self.trust else None

    @cached_property
    def moves(self) -> list[Move]:
        return [Move.from_plain(one.move) for one in self.record.parties.values() if one.move]

    def authorities(self, domain: str) -> bytes:
        """Return the authorities of a domain (PEM), newest first."""
        return "".join(self.record.authorities[domain]).encode()

    def claims_key(self, cell: str) -> str:
        pem = self.record.authorities[of_cell("claims", cell)][0]
        number = "new" if pem == TO_BE_MADE else digest(pem.encode())[:8]
        return f"tls/claims-ca-{number}.key"


def domains_of(spec: FleetSpec, party: Party) -> dict[str, str]:
    """Return a party's broker domains by the names in its files."""
    if party.kind == "broker":
        domain = party.name.removeprefix("broker-")
        return {side_of(domain): domain}
    if party.kind == "cloud":
        cells = {cell: spec.domain("cloud", cell) for cell in spec.cell_names}
        own = {f"cloud-{cell}": domain for cell, domain in cells.items() if domain != "cloud"}
        return {**({"cloud": "cloud"} if "cloud" in cells.values() else {}), **own}
    sides = SIDES if party.kind == "proxy" else ("edge",)
    return {side: spec.domain(side, party.cell) for side in sides}


def tls_keys(spec: FleetSpec, party: Party) -> dict[str, str]:
    """Return paths of a party's private TLS keys in its bundle, by domain."""
    domains = domains_of(spec, party)
    if party.kind == "broker":
        return dict.fromkeys(domains.values(), "tls/broker.key")
    if spec.authentication == "passwords":
        return {}
    if is_image(party):
        return {of_cell("claims", party.cell): "tls/claim.key"}
    return {domain: f"tls/{side_of(name)}.key" for name, domain in domains.items()}


def password_domains(spec: FleetSpec, party: Party) -> dict[str, str]:
    """Return paths of a party's passwords in its bundle, by domain."""
    if spec.authentication == "certificates" or party.kind == "broker":
        return {}
    domains = domains_of(spec, party).items()
    return {domain: f"passwords/{side_of(name)}" for name, domain in domains}


def is_image(party: Party) -> bool:
    return party.kind == "edge" and party.name == of_cell(IMAGE, party.cell)


def believes(spec: FleetSpec, party: Party, facts: Facts) -> str:
    """Return the digest of the root's metadata for a party, without its expiry.

    While it is unchanged the bundle stays as it is, and newer metadata arrive by wire."""
    trusted = facts.trusted
    if trusted is None or party.kind == "broker":
        return ""
    delegated = trusted.delegated
    if delegated is None:
        return digest(facts.trust)
    cells = spec.cell_names if party.kind == "cloud" else (party.cell,)
    proxies = [delegated.proxy_of(cell) for cell in cells if not cell or cell in delegated.cells]
    of_cells = [delegated.roles["cloud-jobs"], delegated.roles["cloud-releases"], *proxies]
    known = [delegated.authorities.get(domain, "") for domain in domains_of(spec, party).values()]
    trusted_facts = (
        trusted.roots,
        of_cells,
        known,
        None if party.kind == "edge" else delegated.site,
    )
    return digest(repr(trusted_facts).encode())


def given_policy(spec: FleetSpec) -> bytes:
    policy, nominal = spec.devices.policy, spec.devices.nominal_records
    policy = policy if nominal is None else policy.with_room(nominal)
    return site_text({"policy": policy.model_dump(mode="json", exclude_none=True)}).encode()


def files_of(
    spec: FleetSpec, party: Party, device: ListedDevice | None, facts: Facts
) -> dict[str, bytes]:
    """Return all public files of a party's bundle; raises UsageError for an unusable file."""
    settings: Settings
    if party.kind == "broker":
        settings = _broker(spec, party)
    elif party.kind == "cloud":
        settings = _cloud(spec, party, facts)
    elif party.kind == "proxy":
        settings = _proxy(spec, party, facts)
    else:
        settings = _image(spec, party) if device is None else _edge(spec, party, device)
    _check(party.kind, settings, party.name)
    text = site_text({party.kind: settings})
    files = {SITE_FILE: text.encode(), "COMMANDS.md": commands(spec, party).encode()}
    if party.kind == "broker":
        return files | _broker_files(spec, party, facts)
    files[TRUST_FILE] = facts.trust
    for name, domain in domains_of(spec, party).items():
        broker = spec.broker(domain)
        if broker.own:
            files[f"tls/{name}-ca.crt"] = facts.authorities(domain)
        elif broker.ca_file is not None:
            files[f"tls/{name}-ca.crt"] = _read(broker.ca_file)
        if domain in party.certificates:
            files[f"tls/{name}.crt"] = party.certificates[domain].encode()
    if is_image(party):
        files["tls/claim.crt"] = party.certificates[of_cell("claims", party.cell)].encode()
    if party.kind == "proxy":
        lines = []
        for one in facts.record.parties.values():
            if one.enrolment is not None and party.cell in (one.cell, *one.left):
                enrolled = Enrolment.from_json(one.enrolment.encode())
                move = Move.from_plain(one.move) if one.move else None
                lines.append(DeviceEntry(enrolled, one.name, not one.active, move).to_line())
        files[DEVICES_FILE] = "".join(lines).encode()
        if spec.devices.claims is not None:
            newest = facts.record.authorities[of_cell("claims", party.cell)][0]
            files[CLAIMS_CA] = newest.encode()
    if party.kind == "cloud" and facts.moves:
        files[MOVES_FILE] = write_moves(facts.moves)
    return files


def _broker_files(spec: FleetSpec, party: Party, facts: Facts) -> dict[str, bytes]:
    ((side, domain),) = domains_of(spec, party).items()
    files = {"tls/broker.crt": party.certificates[domain].encode()}
    if spec.authentication == "certificates":
        claims = spec.cells_at(domain) if side == "edge" and spec.devices.claims else ()
        who = [domain, *(of_cell("claims", cell) for cell in claims)]
        files["tls/clients-ca.crt"] = b"".join(map(facts.authorities, who))
        revoked = facts.record.revocations
        files["tls/revoked.pem"] = "".join(revoked[one] for one in who).encode()
        return files
    users = [
        f"{one.device_id or one.name}:{one.words[domain]}\n"
        for one in facts.record.parties.values()
        if one.active and domain in one.words
    ]
    return {**files, "passwords/users": "".join(users).encode()}


def _broker(spec: FleetSpec, party: Party) -> Settings:
    ((side, domain),) = domains_of(spec, party).items()
    broker = spec.broker(domain)
    host, port = host_and_port(broker.listen or "")
    tls = {"cert_file": "tls/broker.crt", "key_file": "tls/broker.key"}
    certificates = spec.authentication == "certificates"
    if certificates:
        tls |= {"ca_file": "tls/clients-ca.crt", "crl_file": "tls/revoked.pem"}
    return {
        "engine": broker.engine,
        "host": host,
        "port": port,
        "acl": side,
        **({"cells": list(spec.cells_at(domain))} if spec.cells else {}),
        "tls": tls,
        "limits": broker.limits.model_dump(mode="json"),
        **({} if certificates else {"users_file": "passwords/users"}),
    }


def _cloud(spec: FleetSpec, party: Party, facts: Facts) -> Settings:
    keys = spec.cloud.model_dump(mode="json", include={"http", "limits", "log"})
    data = spec.cloud.model_dump(mode="json", exclude_none=True, include={"test_data"})
    names = domains_of(spec, party)
    links = {domain: _link(spec, party, name, domain) for name, domain in names.items()}
    cells: list[Settings] = [{"name": cell} for cell in spec.cells]
    for cell in cells:
        if (domain := spec.domain("cloud", cell["name"])) != "cloud":
            cell["broker"] = links[domain]
    return {
        "broker": next(iter(links.values())),
        **({"cells": cells} if cells else {}),
        **({"moves_file": MOVES_FILE} if facts.moves else {}),
        "state_dir": "state",
        "trust_file": TRUST_FILE,
        "test_data": data.get("test_data"),
        **keys,
    }


def _proxy(spec: FleetSpec, party: Party, facts: Facts) -> Settings:
    proxy, domains = spec.proxy_of(party.cell), domains_of(spec, party)
    claims, desk = spec.devices.claims, None
    if claims is not None:
        desk = {
            "authority_cert_file": CLAIMS_CA,
            "authority_key_file": facts.claims_key(party.cell),
            "certificate_days": spec.certificate_days,
            **claims.model_dump(mode="json"),
        }
    return {
        "edge_broker": _link(spec, party, "edge", domains["edge"]),
        "cloud_broker": _link(spec, party, "cloud", domains["cloud"]),
        **({"cell": party.cell} if party.cell else {}),
        "state_dir": "state",
        "trust_file": TRUST_FILE,
        "devices_file": DEVICES_FILE,
        "claims": desk,
        **proxy.model_dump(mode="json", include=set(ProxyKeys.model_fields)),
    }


def _image(spec: FleetSpec, party: Party) -> Settings:
    """Return a device's settings, with a certificate issued for its claim."""
    device = ListedDevice(name=IMAGE, role=spec.devices.role, data=spec.devices.data)
    settings = _edge(spec, party, device)
    settings["broker"] |= {"cert_file": "state/edge.crt", "key_file": "state/edge.key"}
    files = {"cert_file": "tls/claim.crt", "key_file": "tls/claim.key"}
    return {**settings, "claim": {**files, "claim_file": CLAIM_FILE}}


def _edge(spec: FleetSpec, party: Party, device: ListedDevice) -> Settings:
    return {
        "name": party.name,
        "role": device.role,
        "broker": _link(spec, party, "edge", spec.domain("edge", party.cell)),
        **({"cell": party.cell} if party.cell else {}),
        "state_dir": "state",
        "trust_file": TRUST_FILE,
        "data": device.data,
        "policy_file": POLICY_FILE,
        "conditions": spec.devices.conditions.model_dump(mode="json"),
        "limits": spec.devices.limits.model_dump(mode="json"),
        "log": spec.devices.log.model_dump(mode="json"),
    }


def _link(spec: FleetSpec, party: Party, name: str, domain: str) -> Settings:
    broker = spec.broker(domain)
    link: Settings = {"url": broker.address, "profile": broker.profile}
    if broker.own or broker.ca_file is not None:
        link["ca_file"] = f"tls/{name}-ca.crt"
    if spec.authentication == "certificates":
        return {**link, "cert_file": f"tls/{name}.crt", "key_file": f"tls/{side_of(name)}.key"}
    user = party.device_id or party.name
    return {**link, "username": user, "password_file": f"passwords/{side_of(name)}"}


def commands(spec: FleetSpec, party: Party) -> str:
    kind, place = hosted(spec, party).host_kind, f"/var/lib/edgeveil/{party.name}"
    lines = [
        f"# {party.name}, of fleet {spec.name}",
        "",
        "In this folder; what already exists (keys, ledger, the owner's policy) stays as it is:",
        "",
        f"    edgeveil site install . {place}",
    ]
    if is_image(party):
        lines += [f"    cp CLAIM {place}/{CLAIM_FILE}   # of edgeveil proxy admit --claim NAME"]
    if kind == "plain":
        lines += [f"    edgeveil {party.kind} --config {place}/{SITE_FILE}"]
    elif kind == "systemd":
        lines += ["    edgeveil deploy systemd --out units"]
        lines += [f"    (cd units && sh install.sh {party.name})   # as root"]
    else:
        lines += [f"    edgeveil deploy {kind} {place} --out {kind}   # then follow its output"]
    lines += ["", "Then remove this folder: a new party's keys are in it."]
    return "\n".join(lines) + "\n"


def hosted(spec: FleetSpec, party: Party) -> Hosted | DevicesEntry:
    if party.kind == "broker":
        return spec.broker(party.name.removeprefix("broker-"))
    if party.kind == "proxy":
        return spec.proxy_of(party.cell)
    return spec.cloud if party.kind == "cloud" else spec.devices


def _check(kind: str, settings: Settings, name: str) -> None:
    try:
        site_of(kind).model_validate_json(json.dumps(settings), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(step) for step in first["loc"])
        where = f"{name}: {kind}.{path}" if path else name
        raise UsageError(first["msg"], where=where, fix="correct the fleet file") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fix = "correct ca_file in the fleet file"
        raise UsageError(f"cannot be read ({error.strerror})", where=str(path), fix=fix) from error
