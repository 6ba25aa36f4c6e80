"""What a small site consists of: which ports, which devices, whose data, and its site files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeveil.protocol.transfer import NEED_LIMIT
from edgeveil.sites.broker import BrokerLimits
from edgeveil.sites.cloud import CloudLimits
from edgeveil.sites.data import DataSource, Partition
from edgeveil.sites.edge import EdgeLimits
from edgeveil.sites.policy import Policy
from edgeveil.sites.proxy import ProxyLimits

Settings = dict[str, Any]
SPOOLED_BATCHES = 3  # uploads, the batch made of them, and what is still kept of a round before


@dataclass(frozen=True)
class Ports:
    """TCP ports on `host`, away from 1883 where a system's own broker listens."""

    edge: int = 21883
    cloud: int = 21884
    cloud_http: int = 8701
    proxy_http: int = 8702


@dataclass(frozen=True)
class SitePlan:
    """A site of two brokers, a cloud, a proxy and `devices` devices below `folder`.

    The last `infer_only` devices only evaluate. Device k of n (from 1) takes share k − 1 of
    the data set `source`. Limits are raised, where the usual ones
    are too small, so that all devices may upload `upload_bytes` in one round.
    """

    folder: Path
    devices: int = 3
    infer_only: int = 0
    host: str = "127.0.0.1"
    ports: Ports = field(default_factory=Ports)
    tls: bool = False
    engine: str = "auto"
    protocol: int = 5
    source: DataSource = field(default=DataSource(name="digits", source="digits"))
    partition: Partition = field(default_factory=Partition)
    classes: int | None = None  # of a source of one's own, where records are dealt by class
    seed: int = 7
    policy: Policy = field(default_factory=Policy)
    min_batch_floor: int = 3
    upload_bytes: int = 0
    log_format: str = "text"
    record_dir: Path | None = None  # absolute; where the cloud keeps what it sees

    @property
    def url(self) -> str:
        """The cloud's HTTP control."""
        return f"http://{self.host}:{self.ports.cloud_http}"

    def edge_file(self, number: int) -> Path:
        """Site file of device `number`, from 1."""
        return self.folder / f"edge-{number}.yaml"

    def edge_state(self, number: int) -> Path:
        """State folder of device `number`, from 1."""
        return self.folder / "state" / f"edge-{number}"

    def broker(self, side: str) -> Settings:
        """The site file of the broker of one side, `edge` or `cloud`."""
        settings: Settings = {
            "engine": self.engine,
            "host": self.host,
            "port": getattr(self.ports, side),
            "users_file": f"passwords/{side}-broker.users",
            "acl": side,
        }
        if self.tls:
            settings["tls"] = {
                "cert_file": f"tls/broker-{side}.crt",
                "key_file": f"tls/broker-{side}.key",
            }
        return {"broker": settings}

    def cloud(self) -> Settings:
        """The cloud's site file."""
        return {
            "cloud": {
                "broker": self._link("cloud", "cloud", "cloud"),
                "state_dir": "state/cloud",
                "proxy_key_file": "keys/proxy.pub",
                "http": {"host": self.host, "port": self.ports.cloud_http},
                "test_data": self.data(),
                "allow_python_models": self.policy.allow_python_models,
                "limits": self._limits(spool_bytes=self._batch_bytes),
                "record_dir": None if self.record_dir is None else str(self.record_dir),
                "log": self._log(),
            }
        }

    def proxy(self) -> Settings:
        """The proxy's site file."""
        return {
            "proxy": {
                "edge_broker": self._link("edge", "proxy", "proxy-edge"),
                "cloud_broker": self._link("cloud", "proxy", "proxy-cloud"),
                "state_dir": "state/proxy",
                "cloud_key_file": "keys/cloud.pub",
                "http": {"host": self.host, "port": self.ports.proxy_http},
                "min_batch_floor": self.min_batch_floor,
                "limits": self._limits(
                    blob_bytes=self._batch_bytes,
                    upload_bytes=self.upload_bytes,
                    spool_bytes=SPOOLED_BATCHES * self._batch_bytes,
                    cache_bytes=SPOOLED_BATCHES * self._batch_bytes,
                ),
                "log": self._log(),
            }
        }

    def edge(self, number: int, device_id: str) -> Settings:
        """The site file of device `number`, from 1, whose user name at the broker is its id."""
        return {
            "edge": {
                "name": f"box-{number}",
                "role": "infer" if number > self.devices - self.infer_only else "train",
                "broker": self._link("edge", device_id, f"edge-{number}"),
                "state_dir": f"state/edge-{number}",
                "cloud_key_file": "keys/cloud.pub",
                "proxy_key_file": "keys/proxy.pub",
                "data": {
                    **self.data(),
                    "shard": {
                        "devices": self.devices,
                        "index": number - 1,
                        "partition": self.partition.model_dump(mode="json"),
                        "seed": self.seed,
                        "classes": self.classes,
                    },
                },
                "policy": self.policy.model_dump(mode="json"),
                "limits": {"outbox_bytes": max(EdgeLimits().outbox_bytes, self.upload_bytes)},
                "log": self._log(),
            }
        }

    @property
    def queued_bytes(self) -> int:
        """What may wait at a broker for the proxy: each device's credit in parts, at most."""
        credit = self.devices * min(self.upload_bytes, NEED_LIMIT * CloudLimits().packet_bytes)
        return max(BrokerLimits().max_queued_bytes, credit)

    def _limits(self, **wanted: int) -> Settings:
        """The usual limits of a site, or what is wanted where that is more."""
        usual = ProxyLimits()
        return {key: max(getattr(usual, key), value) for key, value in wanted.items()}

    @property
    def _batch_bytes(self) -> int:
        return self.devices * self.upload_bytes

    def data(self) -> Settings:
        """The data set, as the cloud tests on it and a device takes its share of it."""
        return self.source.model_dump(mode="json", exclude_none=True)

    def _link(self, side: str, username: str, password: str) -> Settings:
        scheme = "mqtts" if self.tls else "mqtt"
        link: Settings = {
            "url": f"{scheme}://{self.host}:{getattr(self.ports, side)}",
            "protocol": self.protocol,
            "username": username,
            "password_file": f"passwords/{password}",
        }
        return {**link, "ca_file": "tls/ca.crt"} if self.tls else link

    def _log(self) -> Settings:
        return {"level": "info", "format": self.log_format}
