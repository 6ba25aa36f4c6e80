"""The cloud's knowledge of the fleet, its links, disk and certificates: counts, and no device.
Who is there is the proxies' knowledge, and their pages show it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from edgeveil.config.cloud import CloudSite
from edgeveil.transport.mqtt_link import RuntimeLink
from edgeveil.trust.bundle import HeldTrust
from edgeveil_cloud.store import Store

_CERTIFICATE_BYTES = 1 << 20


class CloudFacts:
    def __init__(
        self, site: CloudSite, sessions: Mapping[str, RuntimeLink], trust: HeldTrust | None
    ) -> None:
        self._site, self._sessions, self._trust = site, sessions, trust

    @property
    def cells(self) -> int:
        return len(self._sessions)

    def links(self) -> list[dict[str, Any]]:
        return [
            {
                "cell": cell,
                "up": one.connected,
                "connections": one.connections,
                "waiting": one.unacknowledged,
                "bytes_in": one.bytes["in"],
                "bytes_out": one.bytes["out"],
            }
            for cell, one in self._sessions.items()
        ]

    def disk(self) -> dict[str, Any]:
        folder = self._site.state_dir
        whole = shutil.disk_usage(folder)
        own = sum(one.stat().st_size for one in folder.glob("**/*") if one.is_file())
        return {"free": whole.free, "total": whole.total, "own": own}

    def endings(self) -> list[dict[str, Any]]:
        """When certificates and trust metadata end. It reads files: in a thread."""
        found = [_certificate(what, path) for what, path in self._certificates()]
        trust = self._trust.expires if self._trust else {}
        found += [{"what": f"trust: {one}", "ends_at": at.timestamp()} for one, at in trust.items()]
        return sorted(found, key=lambda one: one.get("ends_at") or 0.0)

    def _certificates(self) -> list[tuple[str, Path]]:
        site, tls, found = self._site, self._site.http.tls, list[tuple[str, Path | None]]()
        if tls is not None:
            found += [("http.tls.cert_file", tls.cert_file)]
            found += [("http.tls.client_ca_file", tls.client_ca_file)]
        brokers = [("broker", site.broker)]
        brokers += [(f"cells.{one.name}.broker", one.broker) for one in site.cells if one.broker]
        for key, broker in brokers:
            found += [(f"{key}.cert_file", broker.cert_file), (f"{key}.ca_file", broker.ca_file)]
        return [(what, path) for what, path in found if path is not None]


def _certificate(what: str, path: Path) -> dict[str, Any]:
    """When the first certificate of a file that ends does so."""
    try:
        with path.open("rb") as file:
            listed = x509.load_pem_x509_certificates(file.read(_CERTIFICATE_BYTES))
    except (OSError, ValueError):
        return {"what": what, "ends_at": None, "problem": "the file cannot be read as PEM"}
    ends_at = min(one.not_valid_after_utc for one in listed)
    return {"what": what, "ends_at": ends_at.timestamp()}


def devices_by_cell(store: Store) -> list[dict[str, Any]]:
    return [
        {
            "cell": one.cell,
            "enrolled": one.enrolled,
            "roster_ends_at": one.expires_s or None,
            "problem": store.roster_problem(one.cell),
        }
        for one in store.devices()
    ]
