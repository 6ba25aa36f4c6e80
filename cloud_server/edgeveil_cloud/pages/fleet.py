"""What the cloud knows of the fleet, of its own links, disk and certificates. Counts; no device.

A cloud knows public keys that a proxy vouches for, how many answered a round, and nothing of who is
there: that is the proxies' knowledge, and their pages show it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from edgeveil.parts.exchange import exchange_label
from edgeveil.sites.cloud import CloudSite
from edgeveil.sites.links import BrokerLink
from edgeveil.transport.mqtt_link import RuntimeLink
from edgeveil.trust.bundle import HeldTrust
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import StoredEvent

ROUNDS = 12
_ROUND_EVENTS = ("broadcast", "exchange_committed", "round_repeated", "all_declined", "job_paused")
_EVENTS = 400
_AMONG = 20_000
_CERTIFICATE_BYTES = 1 << 20


class CloudFacts:
    """What the process knows beside its store. `sessions` are its links by cell."""

    def __init__(
        self, site: CloudSite, sessions: Mapping[str, RuntimeLink], trust: HeldTrust | None
    ) -> None:
        self._site, self._sessions, self._trust = site, sessions, trust

    @property
    def cells(self) -> int:
        """How many cells the fleet has."""
        return len(self._sessions)

    def links(self) -> list[dict[str, Any]]:
        """Each link to a broker. On the loop that runs them."""
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
        """Of the state folder. It may take long: in a thread."""
        folder = self._site.state_dir
        whole = shutil.disk_usage(folder)
        own = sum(one.stat().st_size for one in folder.glob("**/*") if one.is_file())
        return {"free": whole.free, "total": whole.total, "own": own}

    def endings(self) -> list[dict[str, Any]]:
        """What ends: certificates of this process, and the root's word. It reads files: in a
        thread."""
        found = [_certificate(what, path) for what, path in self._certificates()]
        trust = self._trust.expires if self._trust else {}
        found += [{"what": f"trust: {one}", "ends_at": at.timestamp()} for one, at in trust.items()]
        return sorted(found, key=lambda one: one.get("ends_at") or 0.0)

    def _certificates(self) -> Iterator[tuple[str, Path]]:
        http = self._site.http.tls
        if http is not None:
            yield "http.tls.cert_file", http.cert_file
            if http.client_ca_file is not None:
                yield "http.tls.client_ca_file", http.client_ca_file
        yield from _of_broker("broker", self._site.broker)
        for cell in self._site.cells:
            if cell.broker is not None:
                yield from _of_broker(f"cells.{cell.name}.broker", cell.broker)


def _of_broker(key: str, broker: BrokerLink) -> Iterator[tuple[str, Path]]:
    if broker.cert_file is not None:
        yield f"{key}.cert_file", broker.cert_file
    if broker.ca_file is not None:
        yield f"{key}.ca_file", broker.ca_file


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
    """Enrolled devices of each cell, until when its roster counts, and what is wrong with it."""
    return [
        {
            "cell": one.cell,
            "enrolled": one.enrolled,
            "roster_ends_at": one.expires_s or None,
            "problem": store.roster_problem(one.cell),
        }
        for one in store.devices()
    ]


def newest_rounds(store: Store) -> list[dict[str, Any]]:
    """What came of the newest rounds of all jobs, the newest first."""
    return rounds_of(store.newest_events(_ROUND_EVENTS, _EVENTS, _AMONG))


def rounds_of(events: Iterable[StoredEvent]) -> list[dict[str, Any]]:
    """Selected, answered, declined and refused of each attempt that these events tell of."""
    asked: dict[str, dict[str, Any]] = {}  # the attempt under way, by job
    found: list[dict[str, Any]] = []
    for event in events:
        job, data = event.job or "", event.data
        match event.type:
            case "broadcast" if data.get("kind") == "round":
                row = asked.setdefault(job, _begun(job, str(data.get("round", "")), event.time))
                row["selected"] += data.get("selected", 0)
            case "exchange_committed":
                row = asked.pop(job) if job in asked else _begun(job, "", event.time)
                label = exchange_label(data.get("phase", ""), data.get("number", 0))
                row |= {"round": label, "answered": data.get("uploads", 0), "outcome": "counted"}
                row |= {"declined": data.get("declined", 0), "refused": data.get("refused", {})}
                row["causes"] = data.get("causes", {})
                found.append({**row, "at": event.time})
            case "round_repeated" | "all_declined" | "job_paused" if job in asked:
                row = asked.pop(job)
                answers = data.get("answers") or {}
                row |= {"answered": answers.get("uploaded", 0), "refused": answers.get("void", {})}
                row["declined"] = answers.get("declined", data.get("declined", 0))
                row["causes"] = answers.get("causes", data.get("causes", {}))
                row["outcome"] = event.type.removeprefix("round_").removeprefix("job_")
                found.append({**row, "at": event.time})
    found += [{**row, "outcome": "under way"} for row in asked.values()]
    return found[-ROUNDS:][::-1]


def _begun(job: str, label: str, at: float) -> dict[str, Any]:
    counts = {"selected": 0, "answered": 0, "declined": 0, "causes": {}, "refused": {}}
    return {"job": job, "round": label, "at": at, **counts}
