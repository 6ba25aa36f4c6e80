"""The site files: how one process connects, where it stores, what bounds it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from edgeveil.jobs.base import Block, Mix, PortNumber, SitePath, refuse
from edgeveil.jobs.policy import Policy
from edgeveil.jobs.site_blocks import (
    BrokerLink,
    ByteLimit,
    DataSource,
    DeviceData,
    Http,
    Log,
    PacketBytes,
    ProxyHttp,
    broker_mixes,
    data_mixes,
)

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class CloudLimits(Block):
    """Sizes that bound what the cloud takes in."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not above the broker's own limit."""
    blob_bytes: ByteLimit = 1 << 28
    """Largest model package in all its chunks together."""
    spool_bytes: ByteLimit = 1 << 30
    """Disk for the batch under way: all uploads of one round together."""
    jobs_queued: int = Field(default=100, ge=1, le=10**6)
    """Jobs that may wait."""


class ProxyLimits(Block):
    """Sizes that bound what the proxy takes in."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not above the brokers' own limits."""
    blob_bytes: ByteLimit = 1 << 28
    """Largest model package or batch in all its chunks together."""
    spool_bytes: ByteLimit = 1 << 30
    """Disk for uploads and batches that wait to be handed over; while a round closes, its batch
    stands beside its uploads."""
    cache_bytes: ByteLimit = 1 << 30
    """Disk for broadcasts that devices may still ask for; more are refused."""
    credit_bytes: ByteLimit = 16 << 20
    """Bytes that all devices together may have on their way: each waits until it is asked."""
    hellos_per_s: float = Field(default=500, gt=0, le=1e6)
    """Devices heard in a second; those beyond are told when to come again."""
    device_messages_per_s: float = Field(default=200, gt=0, le=1e6)
    """Offers, requests and notes taken from one device in a second, bursts of two seconds."""
    upload_bytes: ByteLimit = 1 << 26
    """Largest upload of one device in one round."""
    devices: int = Field(default=100_000, ge=1, le=10**7)
    """Devices that may be enrolled."""


class EdgeLimits(Block):
    """Sizes that bound what a device takes in and keeps."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not above the broker's own limit."""
    blob_bytes: ByteLimit = 1 << 28
    """Largest model package in all its chunks together."""
    fetch_bytes: ByteLimit = 1 << 29
    """Packages on their way at once, all together."""
    outbox_bytes: ByteLimit = 1 << 28
    """Disk for a sealed upload that waits for the proxy."""
    memory_bytes: ByteLimit = 1 << 26
    """What a job may keep here from round to round, for itself alone."""
    jobs: int = Field(default=32, ge=1, le=10**4)
    """Jobs kept at once, each of at most blob_bytes; the oldest makes room."""
    receipts: int = Field(default=1000, ge=1, le=10**6)
    """Uploads whose fate is remembered, the newest."""
    releases: int = Field(default=5, ge=2, le=1000)
    """Final models kept for roll-back, each of at most blob_bytes."""


class Conditions(Block):
    """When the box has time for learning; else it sits the round out."""

    max_load: float | None = Field(default=None, gt=0)
    """Largest load average per core over one minute; null: any."""
    require_power: bool = False
    """Learn only while mains power is connected."""


class CloudSite(Block):
    """The cloud process: runs jobs, never sees who sent what."""

    broker: BrokerLink
    """The cloud-side broker."""
    state_dir: SitePath = Path("state/cloud")
    """Folder for the store, keys and models; made at first start."""
    store_url: str | None = Field(default=None, pattern=r"^postgresql(\+[a-z0-9]+)?://\S+$")
    """`postgresql://…` for a store of its own; null: SQLite in state_dir."""
    proxy_key_file: SitePath = Field(examples=["../site/keys/proxy.pub"])
    """The proxy's public Ed25519 key; read when the process starts."""
    http: Http = Http()
    """Status and control."""
    test_data: DataSource | None = None
    """Labelled records to test each round's model on; null: none."""
    record_dir: SitePath | None = None
    """Keeps what the cloud sees of a job here, for a demonstration of one's own; null: none."""
    allow_python_models: bool = False
    """Run the installed Python code that a submitted job's `model: {name: python}` names."""
    limits: CloudLimits = CloudLimits()
    """Bounds."""
    log: Log = Log()
    """Console."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(self._mixes())
        return self

    def _mixes(self) -> Iterator[Mix]:
        yield from broker_mixes(self.broker, "broker")
        if self.test_data is not None:
            yield from data_mixes(self.test_data, "test_data")


class ProxySite(Block):
    """The proxy process: knows the devices, never sees a model, an update or an inference."""

    edge_broker: BrokerLink
    """The broker that the devices use."""
    cloud_broker: BrokerLink
    """The broker that the cloud uses."""
    state_dir: SitePath = Path("state/proxy")
    """Folder for keys, enrolled devices, cache and spool; made at first start."""
    cloud_key_file: SitePath = Field(examples=["../site/keys/cloud.pub"])
    """The cloud's public Ed25519 key; read when the process starts."""
    http: ProxyHttp = ProxyHttp()
    """Status."""
    min_batch_floor: int = Field(default=3, ge=1, le=10**6)
    """Fewest uploads ever handed over in one batch, whatever a job says."""
    cover_traffic: bool = False
    """Every device answers every round, the unselected with dummies, so that not even the proxy can
    tell who was selected. Costs an upload per device and round."""
    cover_window_s: float = Field(default=10, gt=0, le=86400)
    """Seconds over which devices spread their answers under cover traffic."""
    limits: ProxyLimits = ProxyLimits()
    """Bounds."""
    log: Log = Log()
    """Console."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(self._mixes())
        return self

    def _mixes(self) -> Iterator[Mix]:
        yield from broker_mixes(self.edge_broker, "edge_broker")
        yield from broker_mixes(self.cloud_broker, "cloud_broker")
        limits = self.limits
        rooms = (
            ("upload", limits.upload_bytes, "spool", limits.spool_bytes),
            ("blob", limits.blob_bytes, "cache", limits.cache_bytes),
        )
        for key, size, room, most in rooms:
            if size > most:
                yield Mix(
                    (f"limits.{key}_bytes", f"limits.{room}_bytes"),
                    f"{size} bytes do not fit into a {room} of {most}; "
                    f"raise limits.{room}_bytes or lower it",
                )


class EdgeSite(Block):
    """A device: learns from records that stay on the box, as far as its owner's policy allows."""

    name: str = Field(min_length=1, max_length=64, examples=["kitchen-box"])
    """What the owner calls the box; it stays on the box."""
    role: Literal["train", "infer"] = "train"
    """`train`: trains and evaluates. `infer`: evaluates alone, and needs no torch."""
    broker: BrokerLink
    """The edge-side broker."""
    state_dir: SitePath = Path("state/edge")
    """Folder for keys, ledger, outbox and models; made at first start, one per device."""
    cloud_key_file: SitePath = Field(examples=["../site/keys/cloud.pub"])
    """The cloud's public Ed25519 key; read when the process starts."""
    proxy_key_file: SitePath = Field(examples=["../site/keys/proxy.pub"])
    """The proxy's public Ed25519 key; read when the process starts."""
    data: DeviceData
    """The device's records."""
    policy: Policy = Policy()
    """What the owner allows."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """What torch computes on; `auto`: cuda, else mps, else cpu."""
    conditions: Conditions = Conditions()
    """When the box has time."""
    limits: EdgeLimits = EdgeLimits()
    """Bounds."""
    log: Log = Log()
    """Console."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(self._mixes())
        return self

    def _mixes(self) -> Iterator[Mix]:
        yield from broker_mixes(self.broker, "broker")
        yield from data_mixes(self.data, "data")
        limits = self.limits
        if limits.blob_bytes > limits.fetch_bytes:
            yield Mix(
                ("limits.blob_bytes", "limits.fetch_bytes"),
                f"{limits.blob_bytes} bytes are more than may be on their way,"
                f" {limits.fetch_bytes}; raise fetch_bytes or lower blob_bytes",
            )


class BrokerTls(Block):
    """TLS of the broker's listener."""

    ca_file: SitePath | None = None
    """PEM file of the authorities that vouch for clients; set: clients need a certificate."""
    cert_file: SitePath = Field(examples=["../site/tls/broker.crt"])
    """PEM file of the broker's certificate."""
    key_file: SitePath = Field(examples=["../site/tls/broker.key"])
    """PEM file of its private key."""


class BrokerLimits(Block):
    """Sizes that bound the broker's memory."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not below what the processes are set to."""
    max_queued_bytes: ByteLimit = 1 << 26
    """Bytes that may wait for one slow client; what exceeds them is dropped."""
    max_connections: int = Field(default=20_000, ge=1, le=10**7)
    """Clients at one time."""


class BrokerSite(Block):
    """A broker that `edgeveil broker` starts; any other MQTT broker serves as well."""

    engine: Literal["auto", "amqtt", "mosquitto"] = "auto"
    """`auto`: mosquitto where it is installed, else amqtt."""
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address to listen on; the default is reachable from this machine alone."""
    port: PortNumber = 1883
    """TCP port."""
    users_file: SitePath | None = None
    """File of `name:password` lines; null: everybody may connect, from this machine alone."""
    acl: Literal["edge", "cloud"] | None = None
    """Deny-by-default access list of that side; null: everybody may read and write everything."""
    tls: BrokerTls | None = None
    """TLS of the listener; null: plain TCP."""
    limits: BrokerLimits = BrokerLimits()
    """Bounds."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(self._mixes())
        return self

    def _mixes(self) -> Iterator[Mix]:
        if self.users_file is not None or (self.tls is not None and self.tls.ca_file is not None):
            return
        if self.acl is not None:
            text = "an access list tells users apart, but nobody has to log in; add users_file"
            yield Mix(("acl", "users_file", "tls"), text)
        if self.host not in LOOPBACK:
            yield Mix(
                ("host", "users_file", "tls"),
                f"{self.host} is open to the network and nobody has to log in; "
                "add users_file, or listen on 127.0.0.1",
            )
