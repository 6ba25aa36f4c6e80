"""Run installed bundles as services: this folder's static files, names, images and ports filled in.

The templates are `string.Template`s; a list is filled in as JSON, which is YAML too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

from edgeveil.config.edge import EdgeSite
from edgeveil.config.site_files import load_site
from edgeveil.errors import UsageError
from edgeveil.parts.methods import trains_model
from edgeveil_tools.site.bundles import INVENTORY, SIGNATURE, SITE_FILE, inventory_of
from edgeveil_tools.site.fleet_files import POLICY_FILE

_FILES = Path(__file__).parent
_STORAGE = {"cloud": "20Gi", "proxy": "20Gi", "broker": "1Gi", "edge": "5Gi"}
_MEMORY = {"cloud": "1Gi", "proxy": "512Mi", "broker": "1Gi", "edge": "2Gi"}


@dataclass(frozen=True)
class Deployed:
    """A party's image, bundle files, ports that others connect to, and status page port."""

    name: str
    kind: str  # cloud, proxy, broker, edge
    image: str
    ports: tuple[int, ...]
    page: tuple[int, ...]
    files: tuple[str, ...]


def files_for(target: str, folders: Iterable[Path], *, tag: str) -> dict[str, str]:
    """Return texts by file name; raises UsageError for no bundle, BundleError for a damaged one."""
    if target == "containers":
        return {"Containerfile": _text("Containerfile")}
    if target == "systemd":
        top = _FILES / "systemd"
        found = (path for path in sorted(top.rglob("*")) if path.is_file())
        return {path.relative_to(top).as_posix(): path.read_text("utf-8") for path in found}
    parties = [_party(folder, tag) for folder in folders]
    names = sorted(party.name for party in parties)
    for name, following in pairwise(names):
        if name == following:
            raise UsageError(f"two bundles are {name}'s", fix="name each party once")
    if not parties:
        fix = "name bundles of edgeveil site apply"
        raise UsageError("no bundle is named", where=f"edgeveil deploy {target}", fix=fix)
    return _compose(parties) if target == "compose" else _kubernetes(parties)


def _party(folder: Path, tag: str) -> Deployed:
    if not (folder / INVENTORY).exists():
        fix = "name bundles of edgeveil site apply, edgeveil site install puts them"
        raise UsageError("is no bundle", where=str(folder), fix=fix)
    inventory, path = inventory_of(folder), folder / SITE_FILE
    if inventory.party == "edge" and not (folder / POLICY_FILE).exists():
        fix = "name the folder where the device is installed"
        raise UsageError("is an update, which holds no keys", where=str(folder), fix=fix)
    site, kind = load_site(path), inventory.party
    image = _device_image(site) if isinstance(site, EdgeSite) else kind
    ports = tuple(p for key in ("port", "websockets_port") if (p := getattr(site, key, None)))
    http = getattr(site, "http", None)
    files = (*inventory.files, *inventory.given, INVENTORY, SIGNATURE)
    page = (http.port,) if http else ()
    return Deployed(inventory.name, kind, f"edgeveil/{image}:{tag}", ports, page, files)


def _device_image(site: EdgeSite) -> str:
    """Return the smallest image for the role and the methods that the owner allows."""
    if site.role == "infer":
        return "edge-infer"
    needs_torch = any(map(trains_model, site.policy.allowed_methods))
    return "edge-train" if needs_torch else "edge-train-fm"


def _compose(parties: list[Deployed]) -> dict[str, str]:
    ready = {"condition": "service_healthy"}
    healthy = {party.name: ready for party in parties if party.kind == "broker"}
    text = _text("compose/compose.yaml")
    for one in parties:
        published = [f"{port}:{port}" for port in one.ports]
        after = {} if one.kind == "broker" else healthy
        text += _filled("compose/service.yaml", one, published=published, after=after)
    return {"compose.yaml": text}


def _kubernetes(parties: list[Deployed]) -> dict[str, str]:
    found, secrets = {"namespace.yaml": _text("kubernetes/namespace.yaml")}, []
    for one in parties:
        # A valid name of every Kubernetes object (RFC 1123); a Secret's key holds no slash.
        plain = "".join(sign if sign.isalnum() else "-" for sign in one.name.lower())
        name = f"edgeveil-{plain.strip('-')}"
        keys = {path: path.replace("/", "__") for path in sorted(one.files)}
        ports = [{"protocol": "TCP", "port": port} for port in one.ports]
        found[f"{name}.yaml"] = _filled(
            "kubernetes/party.yaml",
            one,
            name=name,
            memory=_MEMORY[one.kind],
            storage=_STORAGE[one.kind],
            container_ports=[{"containerPort": port} for port in (*one.ports, *one.page)],
            service_ports=[{"name": f"mqtt-{port}", "port": port} for port in one.ports],
            ingress=[{"ports": ports}] if ports else [],
            items=[{"key": key, "path": path} for path, key in keys.items()],
        )
        pairs = [f"{key}={one.name}/{path}" for path, key in keys.items()]
        secrets.append({"name": f"{name}-bundle", "files": pairs})
    around = Template(_text("kubernetes/kustomization.yaml"))
    listed = around.substitute(resources=json.dumps(list(found)), secrets=json.dumps(secrets))
    return {"kustomization.yaml": listed, **found}


def _text(name: str) -> str:
    return (_FILES / name).read_text("utf-8")


def _filled(file: str, one: Deployed, **more: Any) -> str:
    known = {"party": one.name, "kind": one.kind, "image": one.image}
    texts = {k: found if isinstance(found, str) else json.dumps(found) for k, found in more.items()}
    return Template(_text(file)).substitute(known, **texts)
