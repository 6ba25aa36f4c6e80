"""The proxy process: two links, one machine, one spool, one status page."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from edgeveil import logs
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Signer
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_tasks import ProxySettings
from edgeveil.sites.proxy import ProxySite
from edgeveil.transport.http import STUCK_S, Health, Probe, serve, writable
from edgeveil.transport.link import CLOUD_OUT, DEVICES_UP, proxy_topic
from edgeveil.transport.metrics import Linked, MeteredHost, Metrics
from edgeveil.transport.mqtt_link import RuntimeLink, link_settings
from edgeveil.transport.process import (
    OwnFolder,
    first_of,
    own_signing_key,
    peer_key,
    run_until_stopped,
)
from edgeveil.transport.runtime import Runtime
from edgeveil_proxy.host import LOG, ProxyHost
from edgeveil_proxy.http import make_app
from edgeveil_proxy.metrics import ProxyMetrics
from edgeveil_proxy.rate import DeviceRate
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_proxy.spool import Spool

ROSTER_CHECK_S = 1.0


def run(site: ProxySite) -> int:
    """Run until SIGINT or SIGTERM; 0 after a clean stop. Raises EdgeVeilError at start."""
    logs.setup(site.log.level, site.log.format)
    return run_until_stopped(lambda stop: _Proxy(site).run(stop))


class _Proxy:
    def __init__(self, site: ProxySite) -> None:
        self.site = site
        self._folder = OwnFolder(site.state_dir)
        key = own_signing_key(site.state_dir, "proxy")
        self.registry = Registry(site.state_dir / REGISTRY_FILE, limit=site.limits.devices)
        self.spool = Spool(site.state_dir / "spool.sqlite")
        self.host = ProxyHost(self.spool, secrets.SystemRandom().shuffle)
        self.machine = ProxyMachine(
            Signer("proxy", key),
            peer_key(site.cloud_key_file, "the cloud"),
            self.registry,
            self.spool.load(),
            _settings(site),
        )
        packet_bytes, limits = site.limits.packet_bytes, site.limits
        self.edge = RuntimeLink(
            link_settings(site.edge_broker, "proxy", packet_bytes),
            [DEVICES_UP],
            fx.AllDevices(),
            proxy_topic,
        )
        self.cloud = RuntimeLink(
            link_settings(site.cloud_broker, "proxy", packet_bytes),
            [CLOUD_OUT],
            fx.CloudAddress(),
            proxy_topic,
        )
        self.metrics = Metrics()
        seen = ProxyMetrics(
            self.metrics, self.host, self.machine, lambda: len(self.registry.devices())
        )
        host = MeteredHost(self.host, self.metrics, seen.watch)
        rate = DeviceRate(limits.device_messages_per_s, limits.devices, self.machine.asks)
        self.runtime = Runtime(
            self.machine, host, self._publish, None, LOG, packet_bytes, allows=rate.allows
        )
        self.metrics.registry.register(
            Linked(self.runtime, {"edge": self.edge, "cloud": self.cloud})
        )
        self.health = Health(
            {
                "edge_broker": lambda: self.edge.link.connected,
                "cloud_broker": lambda: self.cloud.link.connected,
                "machine": lambda: self.runtime.step_s < STUCK_S,
                "store": Probe(lambda: writable(site.state_dir)),
            }
        )

    async def _publish(self, to: fx.Address, frame: bytes) -> None:
        session = self.cloud if isinstance(to, fx.CloudAddress) else self.edge
        await session.publish(to, frame)

    async def run(self, stop: asyncio.Event) -> int:
        site = self.site
        self.runtime.follow_logs()
        await self.edge.attach(self.runtime, _said("edge"))
        await self.cloud.attach(self.runtime, _said("cloud"))
        app = make_app(self.health, self.metrics, self._status)
        http = await serve(app, site.http.host, site.http.port)
        try:
            await self.edge.link.connect_or_raise()
            await self.cloud.link.connect_or_raise()
            self.runtime.post(fx.Command("started"))
            LOG.info("running", extra={"http": http.url, "enrolled": len(self.registry.devices())})
            await first_of(
                stop,
                self.edge.link.run_forever(),
                self.cloud.link.run_forever(),
                self.runtime.run(),
                self._watch_registry(),
            )
        finally:
            await http.stop()
            await self.edge.link.close()
            await self.cloud.link.close()
            self.spool.close()
            self._folder.release()
        LOG.info("stopped")
        return 0

    async def _watch_registry(self) -> None:
        """Tell the cloud when the operator admitted or revoked a device."""
        while True:
            await asyncio.sleep(ROSTER_CHECK_S)
            if self.registry.changed():
                self.runtime.post(fx.Command("roster_changed"))

    def _status(self) -> Mapping[str, Any]:
        return {
            "enrolled": len(self.registry.devices()),
            "online": self.host.online,
            "round": self.host.round,
            "bytes": {
                "devices_in": self.edge.bytes["in"],
                "devices_out": self.edge.bytes["out"],
                "cloud_in": self.cloud.bytes["in"],
                "cloud_out": self.cloud.bytes["out"],
            },
            "refused": dict(self.runtime.refusals.counts),
        }


def _said(hop: str) -> Callable[[bool, str], None]:
    def on_state(connected: bool, reason: str) -> None:
        event = "broker_connected" if connected else "broker_lost"
        LOG.log(20 if connected else 30, event, extra={"hop": hop, "reason": reason})

    return on_state


def _settings(site: ProxySite) -> ProxySettings:
    limits = site.limits
    return ProxySettings(
        packet_bytes=limits.packet_bytes,
        blob_bytes=limits.blob_bytes,
        upload_bytes=limits.upload_bytes,
        spool_bytes=limits.spool_bytes,
        cache_bytes=limits.cache_bytes,
        credit_bytes=limits.credit_bytes,
        hellos_per_s=limits.hellos_per_s,
        cover_window_s=site.cover_window_s if site.cover_traffic else 0.0,
        min_batch_floor=site.min_batch_floor,
    )
