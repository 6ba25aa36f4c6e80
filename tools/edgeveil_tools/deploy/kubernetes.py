"""Kubernetes: a kustomization with a StatefulSet for each party, under the restricted profile.

The bundle is a Secret, made by the kustomization from the files beside it; state is a volume of
its own, filled with a new party's keys by an init container that leaves what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from edgeveil_tools.deploy.compose import PLACE
from edgeveil_tools.deploy.parties import DeployedParty
from edgeveil_tools.site.bundles import STATE

Manifest = dict[str, Any]
_USER = 10001
_STATE_SIZE = {"cloud": "20Gi", "proxy": "20Gi", "broker": "1Gi", "edge": "5Gi"}
_MEMORY = {"cloud": "1Gi", "proxy": "512Mi", "broker": "1Gi", "edge": "2Gi"}


def files(
    parties: list[DeployedParty], listed: Mapping[str, list[str]], *, tag: str
) -> dict[str, str]:
    """File names to texts; `listed` are each bundle's files. Bundles are looked for beside."""
    found: dict[str, str] = {}
    resources, secrets = ["namespace.yaml"], []
    found["namespace.yaml"] = _text(_namespace())
    for party in parties:
        name = _dns(party.name)
        keys = {path: _key(path) for path in listed[party.name]}
        manifests = [_stateful(party, name, keys, tag), _network(party, name)]
        manifests += [_service(party, name)]
        found[f"{name}.yaml"] = "---\n".join(_text(one) for one in manifests)
        resources.append(f"{name}.yaml")
        pairs = [f"{key}={party.name}/{path}" for path, key in sorted(keys.items())]
        secrets.append({"name": f"{name}-bundle", "files": pairs})
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "edgeveil",
        "resources": resources,
        "secretGenerator": secrets,
    }
    found["kustomization.yaml"] = _text(kustomization)
    return found


def _text(manifest: Manifest) -> str:
    return yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True)


def _dns(name: str) -> str:
    """A name that Kubernetes takes for everything (RFC 1123)."""
    return "edgeveil-" + "".join(s if s.isalnum() else "-" for s in name.lower()).strip("-")


def _key(path: str) -> str:
    """A Secret's key holds no slash."""
    return path.replace("/", "__")


def _namespace() -> Manifest:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "edgeveil", "labels": label},
    }


def _labels(party: DeployedParty, name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": party.kind,
        "app.kubernetes.io/part-of": "edgeveil",
    }


def _stateful(party: DeployedParty, name: str, keys: Mapping[str, str], tag: str) -> Manifest:
    labels, config = _labels(party, name), f"{PLACE}/{party.config}"
    image = f"edgeveil/{party.image}:{tag}"
    state = {"name": "state", "mountPath": f"{PLACE}/{STATE}"}
    bundle = {"name": "bundle", "mountPath": PLACE, "readOnly": True}
    health = {"exec": {"command": ["edgeveil", "health", "--config", config]}}
    alive = {"exec": {"command": [*health["exec"]["command"], "--live"]}}
    often = {"periodSeconds": 30, "timeoutSeconds": 10}  # on a machine without time too
    limits = {"memory": _MEMORY[party.kind]}
    container: Manifest = {
        "name": party.kind,
        "image": image,
        "args": [party.kind, "--config", config],
        "securityContext": _confined(),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": limits},
        "startupProbe": {**alive, "periodSeconds": 5, "timeoutSeconds": 10, "failureThreshold": 60},
        "readinessProbe": {**health, **often, "failureThreshold": 3},
        "livenessProbe": {**alive, **often, "failureThreshold": 10},
        "volumeMounts": [bundle, state, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }
    ports = [*party.ports, *([party.http_port] if party.http_port else [])]
    if ports:
        container["ports"] = [{"containerPort": port} for port in ports]
    items = [{"key": key, "path": path} for path, key in sorted(keys.items())]
    pod: Manifest = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 15,
        "initContainers": [_filling(image, bundle, state)],
        "containers": [container],
        "volumes": [
            {"name": "given", "secret": {"secretName": f"{name}-bundle", "items": items}},
            {"name": "bundle", "emptyDir": {"sizeLimit": "64Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
        ],
    }
    size = {"requests": {"storage": _STATE_SIZE[party.kind]}}
    claim = {
        "metadata": {"name": "state"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": size},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [claim],
        },
    }


def _confined() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


_INSTALL = (  # a Secret is shown as links, which no bundle may hold
    "cp -rL /given /tmp/bundle && rm -rf /tmp/bundle/..?* && "
    f"edgeveil site install /tmp/bundle {PLACE} && rm -r /tmp/bundle"
)


def _filling(image: str, bundle: Manifest, state: Manifest) -> Manifest:
    """A Secret's files are readable by a group, which keys must not be: they are installed."""
    return {
        "name": "install",
        "image": image,
        "command": ["sh", "-c", _INSTALL],
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": "given", "mountPath": "/given", "readOnly": True},
            {**bundle, "readOnly": False},
            state,
        ],
    }


def _service(party: DeployedParty, name: str) -> Manifest:
    ports = [{"name": f"mqtt-{port}", "port": port} for port in party.ports]
    spec: Manifest = {"clusterIP": "None", "selector": _labels(party, name)}
    if ports:
        spec["ports"] = ports
    metadata = {"name": name, "labels": _labels(party, name)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _network(party: DeployedParty, name: str) -> Manifest:
    """Nobody connects to it but to what it listens on; it may go out, to brokers and names."""
    ports = [{"protocol": "TCP", "port": port} for port in party.ports]
    ingress = [{"ports": ports}] if ports else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": _labels(party, name)},
        "spec": {
            "podSelector": {"matchLabels": _labels(party, name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }
