"""Compose: a service for each party, read-only but for its state, with a health check."""

from __future__ import annotations

from typing import Any

import yaml

from edgeveil_tools.deploy.parties import DeployedParty

PLACE = "/etc/edgeveil"
_USER = "10001:10001"


def files(parties: list[DeployedParty], *, tag: str) -> dict[str, str]:
    """`compose.yaml`; bundles are looked for beside it."""
    services = {party.name: _service(party, tag) for party in parties}
    brokers = [party.name for party in parties if party.kind == "broker"]
    for party in parties:
        if party.kind != "broker" and brokers:
            healthy = {"condition": "service_healthy"}
            services[party.name]["depends_on"] = dict.fromkeys(brokers, healthy)
    plan = {"name": "edgeveil", "services": services}
    text = yaml.dump(plan, Dumper=_Plain, sort_keys=False, allow_unicode=True)
    return {"compose.yaml": f"{_ABOUT}{text}"}


class _Plain(yaml.SafeDumper):
    """Without anchors: every service is read by itself."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_ABOUT = """# docker compose up -d. Each party's bundle lies beside this file, in a folder of its
# name that belongs to user 10001; of it only state/ is written to.
"""


def _service(party: DeployedParty, tag: str) -> dict[str, Any]:
    config = f"{PLACE}/{party.config}"
    service: dict[str, Any] = {
        "image": f"edgeveil/{party.image}:{tag}",
        "command": [party.kind, "--config", config],
        "user": _USER,
        "restart": "unless-stopped",
        "init": True,
        "read_only": True,
        "tmpfs": ["/tmp:mode=1777,size=256m"],  # noqa: S108 - the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": 512,
        "stop_grace_period": "15s",
        "volumes": [f"./{party.name}:{PLACE}:ro", f"./{party.name}/state:{PLACE}/state"],
        "healthcheck": {
            "test": ["CMD", "edgeveil", "health", "--config", config],
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            "start_period": "30s",
        },
    }
    if party.ports:
        service["ports"] = [f"{port}:{port}" for port in party.ports]
    return service
