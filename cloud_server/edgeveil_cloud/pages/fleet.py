"""The fleet page: device counts by cell, links, disk and expiries; proxies' pages name devices."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from edgeveil.config.cloud import CloudSite
from edgeveil.pages.parts import Json, paragraph, section, table
from edgeveil.transport.mqtt_link import RuntimeLink
from edgeveil.trust.bundle import StoredTrust
from edgeveil.units import byte_text
from edgeveil_cloud.store import Store

SHORT = 0.1  # free share of a disk that is too low
SOON_S = 30 * 86400.0
_CERTIFICATE_BYTES = 1 << 20


class CloudFacts:
    def __init__(
        self, site: CloudSite, sessions: Mapping[str, RuntimeLink], trust: StoredTrust | None
    ) -> None:
        self._site, self._sessions, self._trust = site, sessions, trust

    @property
    def cells(self) -> int:
        return len(self._sessions)

    def links(self, refused: Mapping[str, int]) -> Json:
        rows = [
            [
                _name(cell),
                "connected" if one.connected else "not connected",
                *map(str, (one.connections, one.unacknowledged)),
                *map(byte_text, (one.bytes["in"], one.bytes["out"])),
            ]
            for cell, one in self._sessions.items()
        ]
        away = [_name(cell) for cell, one in self._sessions.items() if not one.connected]
        notes = [
            paragraph(
                f"No connection to the broker of {one}: check broker.url and the broker.", "bad"
            )
            for one in away
        ]
        counts = [f"{count} {why.replace('_', ' ')}" for why, count in refused.items() if count]
        head = ["cell", "state", "connections", "unacknowledged", "in", "out"]
        after = paragraph(f"Refused messages since the start: {', '.join(counts) or 'none'}.")
        parts = [table("Links", head, rows, text=[1])]
        return section("links", "Links to brokers", parts, before=notes, after=[after])

    def disk(self) -> Json:
        folder = self._site.state_dir
        whole = shutil.disk_usage(folder)
        own = byte_text(sum(one.stat().st_size for one in folder.glob("**/*") if one.is_file()))
        free, total = byte_text(whole.free), byte_text(whole.total)
        text = f"{free} free of {total}; the cloud uses {own}."
        short = whole.free / whole.total < SHORT
        text += " Free some space: if the disk is full, rounds are refused and jobs pause." * short
        before = [paragraph(text, "bad" if short else "")]
        return section("disk", "Disk of the state folder", [], before=before)

    def endings(self) -> Json:
        """Return expiries of certificates and trust metadata; reads files, so use a thread."""
        found = [(name, _ends_at(path)) for name, path in self._certificates()]
        trust = self._trust.expires if self._trust else {}
        found += [(f"trust: {one}", at.timestamp()) for one, at in trust.items()]
        found.sort(key=lambda one: one[1] or 0.0)
        notes, now_s = [], time.time()
        for name, at in found:
            if at is None:
                notes.append(paragraph(f"{name}: the file cannot be read as PEM.", "bad"))
            elif at <= now_s:
                notes.append(paragraph(f"{name} has expired: renew it now.", "bad"))
            elif at < now_s + SOON_S:
                notes.append(paragraph(f"{name} expires soon: renew it.", "warn"))
        if not found:
            notes.append(paragraph("None: the cloud's site file sets neither TLS nor a root."))
        rows = [[name, "unknown" if at is None else _when(at)] for name, at in found]
        parts = [table("Expiry", ["certificate or key", "expires"], rows, text=[1])] if rows else []
        return section("endings", "Certificates and trust", parts, before=notes)

    def _certificates(self) -> list[tuple[str, Path]]:
        site, tls, found = self._site, self._site.http.tls, list[tuple[str, Path | None]]()
        if tls is not None:
            found += [("http.tls.cert_file", tls.cert_file)]
            found += [("http.tls.client_ca_file", tls.client_ca_file)]
        brokers = [("broker", site.broker)]
        brokers += [(f"cells.{one.name}.broker", one.broker) for one in site.cells if one.broker]
        for key, broker in brokers:
            found += [(f"{key}.cert_file", broker.cert_file), (f"{key}.ca_file", broker.ca_file)]
        return [(name, path) for name, path in found if path is not None]


def _ends_at(path: Path) -> float | None:
    """Return the earliest expiry in a PEM file, or None if unreadable."""
    try:
        with path.open("rb") as file:
            listed = x509.load_pem_x509_certificates(file.read(_CERTIFICATE_BYTES))
    except (OSError, ValueError):
        return None
    return min(one.not_valid_after_utc for one in listed).timestamp()


def devices(store: Store) -> Json:
    found = store.devices()
    problems = {one.cell: store.roster_problem(one.cell) for one in found}
    before = [paragraph(f"{_name(cell)}: {why}.", "bad") for cell, why in problems.items() if why]
    after = [
        "The cloud has only the devices' public keys; the proxies' pages list devices that are"
        " offline."
    ]
    if not any(one.enrolled for one in found):
        admit = "at the proxy: edgeveil proxy admit --config proxy.yaml"
        after.insert(0, f"No device is enrolled yet; admit devices {admit}")
    rows = [
        [_name(one.cell), str(one.enrolled), _when(one.expires_s) if one.expires_s else "never"]
        for one in found
    ]
    head = ["cell", "enrolled", "roster valid until"]
    parts = [table("Devices by cell", head, rows)] if rows else []
    return section("devices", "Devices", parts, before=before, after=list(map(paragraph, after)))


def _name(cell: str) -> str:
    return cell or "(unnamed)"


def _when(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%F %R} UTC"
