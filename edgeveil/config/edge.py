"""A device's site file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from edgeveil.config.base import Block, Mix, SitePath
from edgeveil.config.blobs import BlobAccess, is_near
from edgeveil.config.data import DataSource, data_mixes
from edgeveil.config.links import (
    BrokerLink,
    ByteLimit,
    Cell,
    Log,
    PacketBytes,
    TcpListener,
    at_usual_port,
    broker_mixes,
    trust_mixes,
)
from edgeveil.config.policy import Policy
from edgeveil.plugins import installed

_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")


def minutes_of(window: str) -> tuple[int, int]:
    """Return begin and end of `HH:MM-HH:MM` in minutes since midnight. Raises ValueError."""
    found = _WINDOW.fullmatch(window)
    if found is None:
        raise ValueError(f"must be HH:MM-HH:MM, got '{window[:40]}'; write 22:00-06:00")
    hour, minute, end_hour, end_minute = map(int, found.groups())
    return hour * 60 + minute, end_hour * 60 + end_minute


def _window(text: str) -> str:
    begin, end = minutes_of(text)
    if begin == end:
        raise ValueError(f"'{text}' is empty; for the whole day leave the key out")
    return text


class Conditions(Block):
    """When the box may learn, in WorkManager's terms; otherwise the device stays silent."""

    charging: bool = False
    """Only on external power, which a box without a battery always has."""
    battery_not_low: bool = False
    """Not on a battery charged to 15 % or less."""
    idle: bool = False
    """Only without user activity: systemd-logind's idle hint, otherwise unused terminals."""
    unmetered: bool = False
    """Only on an unmetered network; see `metered_interfaces`."""
    metered_interfaces: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        default=("wwan*", "ppp*", "usb*", "rmnet*"), max_length=32
    )
    """Metered interfaces, if NetworkManager reports none; `*` matches any text."""
    storage_not_low: bool = False
    """Only with at least 5 % of the state folder's disk free, or 500 MiB if that is less."""
    max_temperature_celsius: float | None = Field(default=None, ge=-50, le=150)
    """Most at the hottest sensor; null: any. Without a sensor the condition is not met."""
    max_load: float | None = Field(default=None, gt=0)
    """Largest load average per core over one minute, this device's own work included; null: any."""
    between: tuple[Annotated[str, AfterValidator(_window)], ...] = Field(default=(), max_length=32)
    """Windows of local time, `["22:00-06:00"]`; empty: always."""
    command: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = Field(
        default=(), max_length=64
    )
    """A program and its arguments, run without a shell; exit code 0: yes. Empty: none."""


class EdgeLimits(Block):
    """Limits of a device's input and storage."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not above the broker's own limit."""
    blob_bytes: ByteLimit = 1 << 28
    """Largest model package in all its chunks together."""
    outbox_bytes: ByteLimit = 1 << 28
    """Disk for a job's encrypted upload that waits for the proxy."""
    memory_bytes: ByteLimit = 1 << 26
    """Largest state of a job on the device between rounds."""
    jobs: int = Field(default=32, ge=1, le=10**4)
    """Jobs kept at once, each of at most blob_bytes; the oldest one is evicted."""


def _loopback(host: str) -> str:
    if not is_near(host):
        what = f"must be an address of this machine only, got '{host[:64]}'; write 127.0.0.1"
        raise ValueError(what)
    return host


class LoopbackHttp(TcpListener):
    """Loopback listener of predictions or of the owner's page."""

    host: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_loopback)] = (
        "127.0.0.1"
    )
    """A loopback address."""


class Inference(Block):
    """Predictions of the released model, for programs on this box; off without an address."""

    socket: SitePath | None = None
    """Unix socket of mode 0600."""
    http: Annotated[LoopbackHttp, AfterValidator(at_usual_port(8710))] | None = None
    """Loopback address, open to any user of the box."""


class ClaimUse(Block):
    """How an unprepared box becomes a device at its first start."""

    cert_file: SitePath = Field(examples=["tls/claim.crt"])
    """PEM file of the certificate shared by all such boxes, valid only for claiming."""
    key_file: SitePath = Field(examples=["tls/claim.key"])
    """PEM file of its private key."""
    claim_file: SitePath = Field(examples=["claim"])
    """File with the box's claim, from `edgeveil proxy admit --claim`; removed after use."""


class EdgeSite(Block):
    """A device: learns from records that stay on the box, within its owner's policy."""

    name: str = Field(min_length=1, max_length=64, examples=["kitchen-box"])
    """The owner's name for the box; it never leaves the box."""
    role: Literal["train", "infer"] = "train"
    """`train`: trains and evaluates. `infer`: only evaluates, and needs no torch."""
    broker: BrokerLink
    """The edge-side broker."""
    cell: Cell = ""
    """Its cell of the fleet; empty: the fleet has no named cells."""
    state_dir: SitePath = Path("state/edge")
    """Folder for keys, ledger, outbox and models; created at the first start, one per device."""
    cloud_key_file: SitePath | None = Field(default=None, examples=["../site/keys/cloud.pub"])
    """The cloud's public Ed25519 key, where it is pinned; else `trust_file`."""
    proxy_key_file: SitePath | None = Field(default=None, examples=["../site/keys/proxy.pub"])
    """The proxy's public Ed25519 key, where it is pinned; else `trust_file`."""
    trust_file: SitePath | None = Field(default=None, examples=["../site/trust.json"])
    """Delegations of the fleet's offline root, from `edgeveil trust`; updated over the broker."""
    data: DataSource
    """The device's records."""
    policy: Policy = Policy()
    """The owner's limits."""
    policy_file: SitePath | None = Field(default=None, examples=["policy.yaml"])
    """Separate file of the owner with the one key `policy`, in place of the block above."""
    claim: ClaimUse | None = None
    """Claim a certificate at the first start, kept as broker.cert_file; null: it exists."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Processor for training; `auto`: cuda, else mps, else cpu."""
    conditions: Conditions = Conditions()
    """When the box may learn."""
    inference: Inference = Inference()
    """Predictions for programs on this box."""
    page: Annotated[LoopbackHttp, AfterValidator(at_usual_port(8711))] | None = None
    """The owner's page: ledger, jobs, pause, release; `edge status --page` prints its address."""
    blobs: BlobAccess | None = None
    """Stores for large messages; null: all go over the broker."""
    limits: EdgeLimits = EdgeLimits()
    """Limits."""
    log: Log = Log()
    """Console."""

    def _mixes(self) -> Iterator[Mix]:
        yield from trust_mixes(
            self.trust_file, cloud_key_file=self.cloud_key_file, proxy_key_file=self.proxy_key_file
        )
        yield from broker_mixes(self.broker, "broker", self.limits.packet_bytes)
        yield from data_mixes(self.data, "data")
        if self.claim is not None and self.broker.cert_file is None:
            text = "is where the claimed certificate will be kept; add it, and broker.key_file"
            yield Mix(("broker.cert_file", "claim"), text)
        allowed = {one.distribution for one in self.policy.allowed_plugins}
        for plugin in installed():
            named = (plugin.family, plugin.name) == ("sources", self.data.source)
            if named and plugin.distribution not in allowed:
                text = f"'{plugin.name}' is of plug-in {plugin.distribution}, which the owner does"
                text += f" not allow; add the output of `edgeveil methods digest {plugin.name}`"
                yield Mix(("data.source", "policy.allowed_plugins"), text)
        http, page = self.inference.http, self.page
        if http is not None and page is not None and http.port == page.port:
            yield Mix(("page.port", "inference.http"), f"both listen on {page.port}; set another")
