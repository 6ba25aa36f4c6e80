"""The proxy's site file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from edgeveil.config.base import Block, Mix, SitePath
from edgeveil.config.blobs import BlobAccess, BlobStore, blob_mixes
from edgeveil.config.links import (
    BrokerLink,
    ByteLimit,
    Cell,
    Http,
    Log,
    PacketBytes,
    ProxyHttp,
    broker_mixes,
    http_mixes,
    trust_mixes,
)


class ProxyLimits(Block):
    """Limits of the proxy's input."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not above the brokers' own limits."""
    blob_bytes: ByteLimit = 1 << 28
    """Largest model package or batch in all its chunks together."""
    spool_bytes: ByteLimit = 1 << 30
    """Disk for waiting uploads and batches; a closing round needs twice its size."""
    cache_bytes: ByteLimit = 1 << 30
    """Disk for broadcasts that devices may still fetch; more are refused."""
    hellos_per_s: float = Field(default=500, gt=0, le=1e6)
    """Greetings answered per second; further devices get a time to retry."""
    device_messages_per_s: float = Field(default=200, gt=0, le=1e6)
    """Messages accepted per device and second, in bursts of two seconds; upload parts are extra."""
    upload_bytes: ByteLimit = 1 << 26
    """Largest upload of one device in one round."""
    lot_bytes: int = Field(default=1 << 20, ge=1, le=1 << 50)
    """Size of a chunk of masked uploads, forwarded early if it has min_batch_floor or more."""
    devices: int = Field(default=100_000, ge=1, le=10**7)
    """Devices that may be enrolled."""


class ClaimDeskSettings(Block):
    """Admission of unprepared boxes by claims (`edgeveil proxy admit --claim`)."""

    authority_cert_file: SitePath = Field(examples=["tls/claims-ca.crt"])
    """PEM file of the authority for their certificates, trusted by the edge broker."""
    authority_key_file: SitePath = Field(examples=["tls/claims-ca.key"])
    """PEM file of its private key."""
    certificate_days: int = Field(default=397, ge=1, le=825)
    """Validity of such a certificate in days."""
    admit: Literal["at_once", "operator"] = "at_once"
    """`at_once`: a claim suffices; `operator`: after `edgeveil proxy admit NAME`."""


class ProxyKeys(Block):
    """Keys of a proxy that a fleet file has too."""

    http: ProxyHttp = Http()
    """Status."""
    min_batch_floor: int = Field(default=3, ge=1, le=10**6)
    """Fewest uploads in one batch, for every job."""
    cover_traffic: bool = False
    """Every device answers every round, unselected ones with dummies: one upload each."""
    limits: ProxyLimits = ProxyLimits()
    """Limits."""
    log: Log = Log()
    """Console."""


class ProxySite(ProxyKeys):
    """The proxy process: knows the devices, never sees a model, an update or an inference."""

    edge_broker: BrokerLink
    """The devices' broker."""
    cloud_broker: BrokerLink
    """The cloud's broker."""
    cell: Cell = ""
    """Its cell of the fleet; empty: the fleet has no named cells."""
    state_dir: SitePath = Path("state/proxy")
    """Folder for keys, enrolled devices, cache and spool; created at the first start."""
    cloud_key_file: SitePath | None = Field(default=None, examples=["../site/keys/cloud.pub"])
    """The cloud's public Ed25519 key, where it is pinned; else `trust_file`."""
    trust_file: SitePath | None = Field(default=None, examples=["../site/trust.json"])
    """Delegations of the fleet's offline root, from `edgeveil trust`; updated over the broker."""
    devices_file: SitePath | None = Field(default=None, examples=["../site/devices.jsonl"])
    """Devices admitted and revoked by the fleet file, from `edgeveil site apply`."""
    claims: ClaimDeskSettings | None = None
    """Admission by one-time claims; null: disabled."""
    cover_window_s: float = Field(default=10, gt=0, le=86400)
    """Seconds over which devices spread their answers under cover traffic."""
    blobs: BlobStore | None = None
    """A store for devices' large packages and uploads; null: all go over the broker."""
    cloud_blobs: BlobAccess | None = None
    """The cloud's store; null: all messages go over the cloud's broker."""

    def _mixes(self) -> Iterator[Mix]:
        yield from http_mixes(self.http)
        yield from trust_mixes(self.trust_file, cloud_key_file=self.cloud_key_file)
        for at, link in (("edge_broker", self.edge_broker), ("cloud_broker", self.cloud_broker)):
            yield from broker_mixes(link, at, self.limits.packet_bytes, of_proxy=True)
        yield from blob_mixes(self.blobs, "blobs")
        if self.cloud_broker.links > 2:
            yield Mix(("cloud_broker.links",), "one topic leads to the cloud; set at most 2")
        limits = self.limits
        rooms = (
            ("upload", limits.upload_bytes, "spool", limits.spool_bytes),
            ("blob", limits.blob_bytes, "cache", limits.cache_bytes),
        )
        for key, size, room, most in rooms:
            if size > most:
                text = f"{size} bytes do not fit into a {room} of {most}; raise that or lower it"
                yield Mix((f"limits.{key}_bytes", f"limits.{room}_bytes"), text)
