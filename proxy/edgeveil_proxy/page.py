"""The proxy's status: `/status` for programs, and the page `/` for its operator.

Both show counts and bytes, no model, and of jobs only numbers and phases of rounds, so they need no
token. Ids of refused devices are shown only to this machine, under one of its own names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.protocol.messages import DECLINE_CAUSES
from edgeveil.transport.http import LiveUpdates, Request, Response, Route, changes, file_routes
from edgeveil.transport.link import StateHandler
from edgeveil.transport.metrics import bounded
from edgeveil_proxy.role import MAX_OFFLINE_SHARE

if TYPE_CHECKING:
    from edgeveil_proxy.main import ProxyProcess

LOOK_S = 2.0


class ProxyPage:
    def __init__(self, process: ProxyProcess) -> None:
        self._process = process
        self._since_s = dict.fromkeys(process.links, time.time())

    def routes(self) -> list[Route]:
        return [
            *file_routes("edgeveil_proxy", "proxy.html", "proxy.css", "proxy.js"),
            Route("GET", "/status", self.status),
            Route("GET", "/events", self.events),
        ]

    def state_handler(self, hop: str, then: StateHandler) -> StateHandler:
        """Return an `on_state` for a link that records when it last changed."""
        was = False

        def on_state(connected: bool, reason: str) -> None:
            nonlocal was
            if connected != was:
                was, self._since_s[hop] = connected, time.time()
            then(connected, reason)

        return on_state

    async def status(self, request: Request) -> Response:
        """Return counts, and for this machine ids of devices with refused messages."""
        return Response.of_json({**self._counts(), **self._of_devices(request)})

    async def events(self, request: Request) -> LiveUpdates:
        async def value() -> dict[str, Any]:
            return {**self._counts(), **await self._state(), **self._of_devices(request)}

        return LiveUpdates(changes(value, LOOK_S))

    def _counts(self) -> dict[str, Any]:
        proxy, runtime, moved = self._process.proxy, self._process.runtime, self._process.links
        return {
            "enrolled": len(proxy.registry.devices()),
            "max_offline_share": MAX_OFFLINE_SHARE,
            "online": proxy.host.online,
            "round": proxy.host.round,
            "bytes": {
                "devices_in": moved["edge"].bytes["in"],
                "devices_out": moved["edge"].bytes["out"],
                "cloud_in": moved["cloud"].bytes["in"],
                "cloud_out": moved["cloud"].bytes["out"],
            },
            "refused": dict(runtime.refusals.counts),
            "cooling_down": proxy.conduct.cooling_down,
            **({"claims": self._process.claims.counts()} if self._process.claims else {}),
        }

    def _of_devices(self, request: Request) -> dict[str, Any]:
        if not (self._process.at.is_local and request.is_for_this_machine):
            return {}
        conduct, offline = self._process.proxy.conduct, self._process.proxy.machine.offline
        return {
            "offline": None if offline is None else conduct.last_seen(offline),
            "refused_by_device": conduct.refused_by_device(),
            **({"claims_dropped": self._process.claims.dropped()} if self._process.claims else {}),
        }

    async def _state(self) -> dict[str, Any]:
        machine, limits = self._process.proxy.machine, self._process.site.limits
        return {
            "cell": self._process.site.cell,
            "failing": list(await self._process.health.failing()),
            "warnings": self._process.health.warnings(),
            "floor": self._process.site.min_batch_floor,
            "cover": self._process.site.cover_traffic,
            "rounds": list(self._rounds()),
            "refused": bounded(self._process.runtime.refusals.counts),
            "rooms": {
                "spool": [machine.rounds.spooled_bytes, limits.spool_bytes],
                "cache": [machine.broadcasts.cached_bytes, limits.cache_bytes],
                "credit": [machine.uploads.credit.granted_bytes, machine.settings.credit_bytes],
            },
            "links": {
                hop: {
                    "connected": session.connected,
                    "since_s": self._since_s[hop],
                    "connections": session.connections,
                    "unacknowledged": session.unacknowledged,
                }
                for hop, session in self._process.links.items()
            },
            "ends_s": dict(self._ends()),
        }

    def _rounds(self) -> Iterator[dict[str, Any]]:
        rounds, opened_s = self._process.proxy.machine.rounds, self._process.proxy.host.opened_s
        for at in rounds.open:
            held = rounds.collections[at]
            uploads, declined, causes = held.counts
            opened = opened_s.get(at)  # None if an earlier process opened it
            yield {
                "index": at.round,
                "attempt": at.attempt,
                "phase": held.manifest.phase,
                "uploads": uploads,
                "declined": declined,
                "causes": dict(zip(DECLINE_CAUSES, causes, strict=False)),
                "selected": held.manifest.selected,
                "opened_s": opened,
                "ends_s": opened + held.manifest.deadline_s if opened else None,
            }

    def _ends(self) -> Iterator[tuple[str, float]]:
        trust = self._process.proxy.trust
        for name, at in trust.expires.items() if trust else ():
            yield f"trust, {name}", at.timestamp()
        site = self._process.site
        known = {
            "certificate at the edge broker": site.edge_broker.cert_file,
            "certificate at the cloud broker": site.cloud_broker.cert_file,
            "certificate of this page": site.http.tls.cert_file if site.http.tls else None,
            "authority of claims": site.claims.authority_cert_file if site.claims else None,
        }
        for name, path in known.items():
            ends_s = None if path is None else _read_end_s(path)
            if ends_s is not None:
                yield name, ends_s


def _read_end_s(path: Path) -> float | None:
    from cryptography import x509  # loaded only if certificates are configured

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None  # the link reports it
    return found.not_valid_after_utc.timestamp()
