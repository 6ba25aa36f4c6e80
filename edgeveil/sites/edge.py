"""A device's site file."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from edgeveil.plugins import installed
from edgeveil.settings.base import Block, Mix, SitePath
from edgeveil.sites.blobs import BlobAccess
from edgeveil.sites.conditions import Conditions
from edgeveil.sites.data import DataSource, data_mixes
from edgeveil.sites.links import (
    BrokerLink,
    ByteLimit,
    Cell,
    Listens,
    Log,
    PacketBytes,
    at_usual_port,
    broker_mixes,
    single_link_mixes,
    trust_mixes,
)
from edgeveil.sites.policy import Policy


class EdgeLimits(Block):
    """Sizes that bound what a device takes in and keeps."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not above the broker's own limit."""
    blob_bytes: ByteLimit = 1 << 28
    """Largest model package in all its chunks together."""
    outbox_bytes: ByteLimit = 1 << 28
    """Disk for a job's sealed upload that waits for the proxy."""
    memory_bytes: ByteLimit = 1 << 26
    """What a job may keep here from round to round, for itself alone."""
    jobs: int = Field(default=32, ge=1, le=10**4)
    """Jobs kept at once, each of at most blob_bytes; the oldest makes room."""


def _loopback(host: str) -> str:
    try:
        fine = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        fine = False
    if not fine:
        raise ValueError(f"must be of this machine alone, got '{host[:64]}'; write 127.0.0.1")
    return host


class LoopbackHttp(Listens):
    """Where predictions, or the owner's page, listen for this machine alone."""

    host: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_loopback)] = (
        "127.0.0.1"
    )
    """A loopback address."""


class Inference(Block):
    """Predictions of the release in use for programs on this box; off without an address."""

    socket: SitePath | None = None
    """Unix socket, for this user alone (mode 0600)."""
    http: Annotated[LoopbackHttp, AfterValidator(at_usual_port(8710))] | None = None
    """Loopback address; any user of the box may ask there."""


class ClaimUse(Block):
    """How a box that nobody has prepared becomes a device, at its first start."""

    cert_file: SitePath = Field(examples=["tls/claim.crt"])
    """PEM file of the certificate that all such boxes show the broker, to claim and no more."""
    key_file: SitePath = Field(examples=["tls/claim.key"])
    """PEM file of its private key."""
    claim_file: SitePath = Field(examples=["claim"])
    """File with the box's claim, of `edgeveil proxy admit --claim`; removed when used."""


class EdgeSite(Block):
    """A device: learns from records that stay on the box, as far as its owner's policy allows."""

    name: str = Field(min_length=1, max_length=64, examples=["kitchen-box"])
    """What the owner calls the box; it stays on the box."""
    role: Literal["train", "infer"] = "train"
    """`train`: trains and evaluates. `infer`: evaluates alone, and needs no torch."""
    broker: BrokerLink
    """The edge-side broker."""
    cell: Cell = ""
    """The cell of the fleet that it belongs to; empty: the fleet has no named cells."""
    state_dir: SitePath = Path("state/edge")
    """Folder for keys, ledger, outbox and models; made at first start, one per device."""
    cloud_key_file: SitePath | None = Field(default=None, examples=["../site/keys/cloud.pub"])
    """The cloud's public Ed25519 key, where it is pinned; else `trust_file`."""
    proxy_key_file: SitePath | None = Field(default=None, examples=["../site/keys/proxy.pub"])
    """The proxy's public Ed25519 key, where it is pinned; else `trust_file`."""
    trust_file: SitePath | None = Field(default=None, examples=["../site/trust.json"])
    """What the fleet's offline root delegates, from `edgeveil trust`; newer ones come by wire."""
    data: DataSource
    """The device's records."""
    policy: Policy = Policy()
    """What the owner allows."""
    policy_file: SitePath | None = Field(default=None, examples=["policy.yaml"])
    """The same in a file of the owner's own, with the one key `policy`; in place of that above."""
    claim: ClaimUse | None = None
    """At the first start a certificate is claimed, and kept as broker.cert_file and key_file; null:
    they are there."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """What training computes on; `auto`: cuda, else mps, else cpu."""
    conditions: Conditions = Conditions()
    """When the box has time."""
    inference: Inference = Inference()
    """Predictions for programs on this box."""
    page: Annotated[LoopbackHttp, AfterValidator(at_usual_port(8711))] | None = None
    """The owner's page: ledger, jobs, pause, release; `edge status --page` prints the way in."""
    blobs: BlobAccess | None = None
    """Where large packages may come from and large uploads go beside the broker; null: all goes
    over the broker."""
    limits: EdgeLimits = EdgeLimits()
    """Bounds."""
    log: Log = Log()
    """Console."""

    def _mixes(self) -> Iterator[Mix]:
        yield from trust_mixes(
            self.trust_file, cloud_key_file=self.cloud_key_file, proxy_key_file=self.proxy_key_file
        )
        yield from single_link_mixes(self.broker, "broker")
        yield from broker_mixes(self.broker, "broker", self.limits.packet_bytes)
        yield from data_mixes(self.data, "data")
        if self.claim is not None and self.broker.cert_file is None:
            text = "is where the claimed certificate will be kept; add it, and broker.key_file"
            yield Mix(("broker.cert_file", "claim"), text)
        allowed = {one.distribution for one in self.policy.allowed_plugins}
        for plugin in installed():
            named = (plugin.family, plugin.name) == ("sources", self.data.source)
            if named and plugin.distribution not in allowed:
                yield Mix(
                    ("data.source", "policy.allowed_plugins"),
                    f"'{plugin.name}' is of plug-in {plugin.distribution}, which the owner does not"
                    f" allow; add what `edgeveil methods digest {plugin.name}` prints to"
                    " policy.allowed_plugins",
                )
        http, page = self.inference.http, self.page
        if http is not None and page is not None and http.port == page.port:
            text = f"both listen on port {page.port}; set another page.port"
            yield Mix(("page.port", "inference.http"), text)
