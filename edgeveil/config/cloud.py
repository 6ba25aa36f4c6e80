"""The cloud's site file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgeveil.config.base import Block, Mix, SitePath
from edgeveil.config.blobs import BlobStore, blob_mixes
from edgeveil.config.data import DataSource, data_mixes
from edgeveil.config.links import (
    BrokerLink,
    ByteLimit,
    Cell,
    CloudHttp,
    Http,
    Log,
    PacketBytes,
    broker_mixes,
    http_mixes,
    trust_mixes,
)


class CloudLimits(Block):
    """Limits of the cloud's input."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; not above the broker's own limit."""
    blob_bytes: ByteLimit = 1 << 28
    """Largest model package in all its chunks together."""
    spool_bytes: ByteLimit = 1 << 30
    """Disk for incoming batches; a batch without room waits at the proxy."""
    jobs_running: int = Field(default=4, ge=1, le=64)
    """Jobs that run at once; the others wait in the queue."""


class ComputeAt(Block):
    """Where segments of a batch are decrypted, checked and summed; results are bit-identical."""

    engine: Literal["local", "ray"] = "local"
    """`local`: processes here. `ray`: the operator's own Ray cluster, which sees a round's key."""
    workers: int = Field(default=0, ge=0, le=256)
    """Worker processes for a batch's segments, one processor each; 0: only the cloud's process."""
    address: str | None = Field(default=None, pattern=r"^\S{1,300}$", examples=["10.0.0.1:6379"])
    """HOST:PORT of the head of `engine: ray`; null: a Ray of the cloud's own on this machine."""
    least_bytes: int = Field(default=32 << 20, ge=0, le=1 << 50)
    """The cloud's own process opens batches below this size."""

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if self.address is not None and self.engine != "ray":
            raise ValueError("address names a Ray cluster; set engine: ray")
        if self.engine == "ray" and self.workers == 0:
            raise ValueError("engine: ray needs workers; set how many processors it may use")
        return self


class ReleaseValidity(Block):
    """How long a release counts as current on devices."""

    valid_s: float = Field(default=7 * 86400.0, ge=60, le=366 * 86400)
    """Seconds after a renewal until a release is stale; it is renewed seven times as often."""


class CloudCell(Block):
    """A cell that the cloud serves."""

    name: Cell
    """As in the cell's topics; empty: the cell without a name."""
    broker: BrokerLink | None = None
    """Its cloud-side broker; null: the shared one."""
    proxy_key_file: SitePath | None = Field(default=None, examples=["../site/keys/north.pub"])
    """Its proxy's public Ed25519 key, where it is pinned; else `trust_file`."""


TestSources = Annotated[tuple[DataSource, ...], Field(min_length=1, max_length=64)]


class CloudKeys(Block):
    """Keys of a cloud that a fleet file has too."""

    http: CloudHttp = Http()
    """Status and control."""
    test_data: DataSource | TestSources | None = None
    """Labelled test records, for jobs with their `name` as `data.source`; or a list."""
    limits: CloudLimits = CloudLimits()
    """Limits."""
    log: Log = Log()
    """Console."""


class CloudSite(CloudKeys):
    """The cloud process: runs jobs, never sees which device sent an upload."""

    broker: BrokerLink
    """The cloud-side broker."""
    state_dir: SitePath = Path("state/cloud")
    """Folder for the store, keys and models; created at the first start."""
    store_url: str | None = Field(default=None, pattern=r"^postgresql(\+[a-z0-9]+)?://\S+$")
    """`postgresql://…` for a store of its own; null: SQLite in state_dir."""
    proxy_key_file: SitePath | None = Field(default=None, examples=["../site/keys/proxy.pub"])
    """The proxy's public Ed25519 key, where it is pinned; else `trust_file`."""
    trust_file: SitePath | None = Field(default=None, examples=["../site/trust.json"])
    """Delegations of the fleet's offline root, from `edgeveil trust`; updated over the broker."""
    cells: tuple[CloudCell, ...] = Field(default=(), max_length=64)
    """The cells of the fleet; empty: it has one, without a name."""
    moves_file: SitePath | None = Field(default=None, examples=["../site/moves.jsonl"])
    """Cells of moved devices, from `edgeveil site apply`; null: no device was moved."""
    record_dir: SitePath | None = None
    """Folder for a record of everything the cloud sees of a job, for demonstrations; null: none."""
    allow_python_models: bool = False
    """Run installed Python code that a submitted job names as model, training or `test_metric`."""
    compute: ComputeAt = ComputeAt()
    """Workers that open batches."""
    releases: ReleaseValidity = ReleaseValidity()
    """Renewal of released models in use."""
    blobs: BlobStore | None = None
    """A store for large packages and batches; null: all go over the broker."""

    @property
    def test_sets(self) -> tuple[DataSource, ...]:
        found = self.test_data or ()
        return (found,) if isinstance(found, DataSource) else found

    @property
    def all_cells(self) -> tuple[CloudCell, ...]:
        return self.cells or (CloudCell(name="", proxy_key_file=self.proxy_key_file),)

    def _mixes(self) -> Iterator[Mix]:
        yield from http_mixes(self.http)
        if not self.cells:
            yield from trust_mixes(self.trust_file, proxy_key_file=self.proxy_key_file)
        for number, cell in enumerate(self.cells):
            at = f"cells.{number}"
            yield from trust_mixes(self.trust_file, **{f"{at}.proxy_key_file": cell.proxy_key_file})
            if cell.broker is not None:
                yield from broker_mixes(cell.broker, f"{at}.broker", self.limits.packet_bytes)
        if len({cell.name for cell in self.cells}) < len(self.cells):
            yield Mix(("cells",), "names a cell twice; name each once")
        yield from broker_mixes(self.broker, "broker", self.limits.packet_bytes)
        yield from blob_mixes(self.blobs, "blobs")
        for number, data in enumerate(self.test_sets):
            alone = isinstance(self.test_data, DataSource)
            at = "test_data" if alone else f"test_data.{number}"
            yield from data_mixes(data, at)
            if data.shard is not None:
                what = "only devices take a share of their data; remove it here"
                yield Mix((f"{at}.shard",), what)
