"""What stands in each party's bundle, secrets aside: a function of the plan and the record alone.

The same plan and record give the same bytes, so that a second apply changes what the plan changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edgeveil.enrolment import Enrolment
from edgeveil.errors import UsageError
from edgeveil.sites.files import site_of
from edgeveil_proxy.devices_file import PlannedDevice
from edgeveil_tools.site.bundles import digest
from edgeveil_tools.site.fleet_plan import IMAGE, DevicePlan, FleetPlan, HostAndPort, PlannedBroker
from edgeveil_tools.site.fleet_record import Party

Settings = dict[str, Any]
SITE_FILE, POLICY_FILE, DEVICES_FILE = "edgeveil.yaml", "policy.yaml", "devices.jsonl"
TRUST_FILE = "trust/trust.json"
CLAIMS_CA, CLAIM_FILE = "tls/claims-ca.crt", "state/claim"
DOMAINS = ("edge", "cloud")
TO_BE_MADE = "to be made\n"


@dataclass(frozen=True)
class Facts:
    """What all parties share: authorities and lists of revoked certificates (PEM) by domain."""

    authorities: Mapping[str, str]
    revocations: Mapping[str, str]
    trust: bytes
    parties: Mapping[str, Party]

    @property
    def claims_authority(self) -> str:
        """The newest authority of claims, PEM: the one that the proxy signs with. TO_BE_MADE where
        an apply has yet to make it."""
        newest, end, _ = self.authorities["claims"].partition("-----END CERTIFICATE-----\n")
        return newest + end

    @property
    def claims_key(self) -> str:
        """Where its key lies at the proxy: what is given once is never replaced."""
        pem = self.claims_authority
        number = "new" if pem == TO_BE_MADE else digest(pem.encode())[:8]
        return f"tls/claims-ca-{number}.key"


def domains_of(plan: FleetPlan, party: Party) -> tuple[str, ...]:
    """The broker domains that a party belongs to."""
    if party.kind == "broker":
        return (party.name.removeprefix("broker-"),)
    return {"cloud": ("cloud",), "proxy": DOMAINS, "edge": ("edge",)}[party.kind]


def tls_keys(plan: FleetPlan, party: Party) -> dict[str, str]:
    """Where the party's private TLS keys lie in its bundle, by domain."""
    if party.kind == "broker":
        return dict.fromkeys(domains_of(plan, party), "tls/broker.key")
    if plan.authentication == "passwords":
        return {}
    if party.name == IMAGE:
        return {"claims": "tls/claim.key"}
    return {domain: f"tls/{domain}.key" for domain in domains_of(plan, party)}


def password_domains(plan: FleetPlan, party: Party) -> tuple[str, ...]:
    """The domains at whose broker the party logs in with a password."""
    if plan.authentication == "certificates" or party.kind == "broker":
        return ()
    return domains_of(plan, party)


def broker_of(plan: FleetPlan, domain: str) -> PlannedBroker:
    """The broker of one domain."""
    return plan.edge_broker if domain == "edge" else plan.cloud_broker


def given_policy(plan: FleetPlan) -> bytes:
    """What is proposed to a device's owner."""
    return _yaml({"policy": plan.devices.policy.model_dump(mode="json", exclude_none=True)})


def files_of(
    plan: FleetPlan, party: Party, device: DevicePlan | None, facts: Facts
) -> dict[str, bytes]:
    """All public files of a party's bundle. Raises UsageError for what no process would take."""
    settings = _settings(plan, party, device, facts)
    kind = next(iter(settings))
    _check(kind, settings[kind], party.name)
    files = {SITE_FILE: _yaml(settings), "COMMANDS.md": commands(plan, party).encode()}
    if party.kind == "broker":
        files |= _broker_files(plan, party, facts)
        return files
    files[TRUST_FILE] = facts.trust
    for domain in domains_of(plan, party):
        broker = broker_of(plan, domain)
        if broker.own:
            files[f"tls/{domain}-ca.crt"] = facts.authorities[domain].encode()
        elif broker.ca_file is not None:
            files[f"tls/{domain}-ca.crt"] = _read(broker.ca_file)
        if domain in party.certificates:
            files[f"tls/{domain}.crt"] = party.certificates[domain].encode()
    if party.name == IMAGE:
        files["tls/claim.crt"] = party.certificates["claims"].encode()
    if party.kind == "proxy":
        files[DEVICES_FILE] = _devices(facts)
        if plan.devices.claims is not None:
            files[CLAIMS_CA] = facts.claims_authority.encode()
    return files


def _broker_files(plan: FleetPlan, party: Party, facts: Facts) -> dict[str, bytes]:
    (domain,) = domains_of(plan, party)
    files = {"tls/broker.crt": party.certificates[domain].encode()}
    if plan.authentication == "certificates":
        who = [domain, *(["claims"] if domain == "edge" and plan.devices.claims else [])]
        files["tls/clients-ca.crt"] = "".join(facts.authorities[one] for one in who).encode()
        files["tls/revoked.pem"] = "".join(facts.revocations[one] for one in who).encode()
        return files
    words = {
        one.device_id or one.name: one.words[domain]
        for one in facts.parties.values()
        if one.active and domain in one.words
    }
    files["passwords/users"] = "".join(f"{user}:{word}\n" for user, word in words.items()).encode()
    return files


def _devices(facts: Facts) -> bytes:
    lines = [
        PlannedDevice(
            Enrolment.from_json(one.enrolment.encode()), one.name, not one.active
        ).to_line()
        for one in facts.parties.values()
        if one.enrolment is not None
    ]
    return "".join(lines).encode()


def _settings(plan: FleetPlan, party: Party, device: DevicePlan | None, facts: Facts) -> Settings:
    if party.kind == "broker":
        return {"broker": _broker(plan, party)}
    if party.kind == "cloud":
        return {"cloud": _cloud(plan, party)}
    if party.kind == "proxy":
        return {"proxy": _proxy(plan, party, facts)}
    if device is None:
        return {"edge": _image(plan, party)}
    return {"edge": _edge(plan, party, device)}


def _broker(plan: FleetPlan, party: Party) -> Settings:
    (domain,) = domains_of(plan, party)
    broker = broker_of(plan, domain)
    place = HostAndPort.parse(broker.listen or "")
    tls: Settings = {"cert_file": "tls/broker.crt", "key_file": "tls/broker.key"}
    settings: Settings = {
        "engine": broker.engine,
        "host": place.host,
        "port": place.port,
        "acl": domain,
        "tls": tls,
        "limits": broker.limits.model_dump(mode="json"),
    }
    if plan.authentication == "certificates":
        tls |= {"ca_file": "tls/clients-ca.crt", "crl_file": "tls/revoked.pem"}
        return settings
    return {**settings, "users_file": "passwords/users"}


def _cloud(plan: FleetPlan, party: Party) -> Settings:
    cloud = plan.cloud
    data = cloud.test_data
    return {
        "broker": _link(plan, party, "cloud"),
        "state_dir": "state",
        "trust_file": TRUST_FILE,
        "http": cloud.http.model_dump(mode="json"),
        "test_data": data.model_dump(mode="json", exclude_none=True) if data else None,
        "limits": cloud.limits.model_dump(mode="json"),
        "log": cloud.log.model_dump(mode="json"),
    }


def _proxy(plan: FleetPlan, party: Party, facts: Facts) -> Settings:
    proxy = plan.proxy
    return {
        "edge_broker": _link(plan, party, "edge"),
        "cloud_broker": _link(plan, party, "cloud"),
        "state_dir": "state",
        "trust_file": TRUST_FILE,
        "devices_file": DEVICES_FILE,
        "claims": _claim_desk(plan, facts),
        "http": proxy.http.model_dump(mode="json"),
        "min_batch_floor": proxy.min_batch_floor,
        "cover_traffic": proxy.cover_traffic,
        "limits": proxy.limits.model_dump(mode="json"),
        "log": proxy.log.model_dump(mode="json"),
    }


def _claim_desk(plan: FleetPlan, facts: Facts) -> Settings | None:
    claims = plan.devices.claims
    if claims is None:
        return None
    return {
        "authority_cert_file": CLAIMS_CA,
        "authority_key_file": facts.claims_key,
        "certificate_days": plan.certificate_days,
        **claims.model_dump(mode="json"),
    }


def _image(plan: FleetPlan, party: Party) -> Settings:
    """A device's, which finds its certificate where its claim brings it."""
    device = DevicePlan(IMAGE, plan.devices.role, None, plan.devices.data)
    settings = _edge(plan, party, device)
    settings["broker"] |= {"cert_file": "state/edge.crt", "key_file": "state/edge.key"}
    files = {"cert_file": "tls/claim.crt", "key_file": "tls/claim.key"}
    return {**settings, "claim": {**files, "claim_file": CLAIM_FILE}}


def _edge(plan: FleetPlan, party: Party, device: DevicePlan) -> Settings:
    return {
        "name": party.name,
        "role": device.role,
        "broker": _link(plan, party, "edge"),
        "state_dir": "state",
        "trust_file": TRUST_FILE,
        "data": device.data,
        "policy_file": POLICY_FILE,
        "conditions": plan.devices.conditions.model_dump(mode="json"),
        "limits": plan.devices.limits.model_dump(mode="json"),
        "log": plan.devices.log.model_dump(mode="json"),
    }


def _link(plan: FleetPlan, party: Party, domain: str) -> Settings:
    broker = broker_of(plan, domain)
    link: Settings = {"url": broker.address, "profile": broker.profile}
    if broker.own or broker.ca_file is not None:
        link["ca_file"] = f"tls/{domain}-ca.crt"
    if plan.authentication == "certificates":
        return {**link, "cert_file": f"tls/{domain}.crt", "key_file": f"tls/{domain}.key"}
    user = party.device_id or party.name
    return {**link, "username": user, "password_file": f"passwords/{domain}"}


def commands(plan: FleetPlan, party: Party) -> str:
    """How the party is put in place and started, for its kind of host."""
    role = party.kind
    kind = host_kind(plan, party)
    place = f"/var/lib/edgeveil/{party.name}"
    lines = [
        f"# {party.name}, of fleet {plan.name}",
        "",
        "In this folder; what is there already (keys, ledger, the owner's policy) stays as it is:",
        "",
        f"    edgeveil site install . {place}",
    ]
    if party.name == IMAGE:
        lines += [f"    cp CLAIM {place}/{CLAIM_FILE}   # of edgeveil proxy claims add NAME"]
    if kind == "plain":
        lines += [f"    edgeveil {role} --config {place}/{SITE_FILE}"]
    else:
        lines += [f"    edgeveil deploy {kind} {place} --out {kind}   # then as it says"]
    lines += ["", "Then remove this folder: a new party's keys are in it."]
    return "\n".join(lines) + "\n"


def host_kind(plan: FleetPlan, party: Party) -> str:
    """How a party is installed."""
    hosted = {
        "broker-edge": plan.edge_broker.host_kind,
        "broker-cloud": plan.cloud_broker.host_kind,
        "cloud": plan.cloud.host_kind,
        "proxy": plan.proxy.host_kind,
    }
    return hosted.get(party.name, plan.devices.host_kind)


def host(plan: FleetPlan, party: Party, device: DevicePlan | None) -> str | None:
    """The machine that a party's bundle is for, where the plan says."""
    hosts = {
        "broker-edge": plan.edge_broker.host,
        "broker-cloud": plan.cloud_broker.host,
        "cloud": plan.cloud.host,
        "proxy": plan.proxy.host,
    }
    return device.host if device is not None else hosts.get(party.name)


def _check(kind: str, settings: Settings, name: str) -> None:
    """A plan that cannot work is refused here, and not when its process starts."""
    from pydantic import ValidationError

    try:
        site_of(kind).model_validate_json(json.dumps(settings), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(step) for step in first["loc"])
        where = f"{name}: {kind}.{path}" if path else name
        fix = "correct the plan"
        raise UsageError(first["msg"], where=where, fix=fix) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fix = "correct ca_file in the plan"
        raise UsageError(f"cannot be read ({error.strerror})", where=str(path), fix=fix) from error


def _yaml(settings: Settings) -> bytes:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(settings, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text.encode()
