"""The proxy process: two links, one role, and its status pages (`page.py`)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter as Count
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from edgeveil import logs
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import SIGNATURE_BYTES, SigningKey, sign, verify
from edgeveil.crypto.labels import PROXY_RUNS
from edgeveil.errors import BrokerError, UsageError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.proxy_rounds import (
    ANSWER_OUTCOMES,
    BatchDelivered,
    BatchKept,
    KeptBroadcast,
    UploadKept,
)
from edgeveil.transport.health import (
    LINK_DOWN,
    OTHER_KEY,
    STUCK,
    Health,
    HealthSocket,
    Probe,
    warn_of_plain_http,
    warnings_of,
    writable,
)
from edgeveil.transport.http import Route
from edgeveil.transport.http_server import HttpServer
from edgeveil.transport.link import SERVER_BACKOFF_CAP_S, Topics
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.metrics import Linked, MeteredHost, Metrics, StateDisk, gauge
from edgeveil.transport.mqtt_link import MqttLink, RuntimeLink, link_settings
from edgeveil.transport.process import OwnFolder, first_of, notify_systemd, run_until_stopped
from edgeveil.transport.runtime import Runtime
from edgeveil_proxy.page import ProxyPage
from edgeveil_proxy.role import LOG, ProxyRole, build

if TYPE_CHECKING:
    from edgeveil.config.links import BrokerLink
    from edgeveil.transport.blob_client import BlobClient
    from edgeveil.trust.watch import TrustWatch
    from edgeveil_proxy.claims import ClaimLink

ROSTER_CHECK_S = 1.0
_NONCE_BYTES = 16


def run(site: ProxySite) -> int:
    """Run until SIGINT or SIGTERM; return 0 after a clean stop. Raises EdgeVeilError at start."""
    logs.setup(site.log.level, site.log.format)
    return run_until_stopped(lambda stop: ProxyProcess(site).run(stop))


class ProxyProcess:
    def __init__(self, site: ProxySite) -> None:
        self.site, self.at = site, ListenAt.of(site.http)
        self._folder = OwnFolder(site.state_dir)
        topics = Topics(site.cell)
        self.edge = self._link(site.edge_broker, topics.devices_up, fx.AllDevices())
        self.cloud = self._link(site.cloud_broker, topics.cloud_out, fx.CloudAddress())
        self.alone = AloneInCell(site, lambda: self.proxy.machine.signer.key)
        self.metrics = Metrics()
        self.runtime: Runtime
        self.proxy = build(site, link=self._join)
        self.links = {"edge": self.edge, "cloud": self.cloud}
        self.metrics.registry.register(Linked(self.runtime, self.links))
        self.metrics.registry.register(StateDisk(site.state_dir))
        self.claims: ClaimLink | None = None
        if site.claims is not None:
            from edgeveil_proxy.claims import ClaimLink  # loaded only if configured

            conduct, signer = self.proxy.conduct, lambda: self.proxy.machine.signer.key
            self.claims = ClaimLink(site, site.claims, signer, conduct.refused)
        self.trust: TrustWatch | None = None
        if self.proxy.trust is not None:
            from edgeveil.trust.watch import TrustWatch

            self.trust = TrustWatch(self.proxy, self.proxy.trust, LOG)
            self.metrics.registry.register(self.trust)
        parts: dict[str, Callable[[], Any]] = {}
        warnings = [lambda: warnings_of(self.at), self.proxy.warnings]
        if self.trust:
            parts["trust"] = self.trust.healthy
            warnings.append(self.trust.warnings)
        if site.devices_file:
            parts["devices_file"] = lambda: not self.proxy.plan_problem
        parts |= {
            "edge_broker": lambda: self.edge.connected or LINK_DOWN,
            "cloud_broker": lambda: self.cloud.connected or LINK_DOWN,
            "keys": lambda: self.runtime.knows_keys or OTHER_KEY,
            "machine": lambda: self.runtime.turns or STUCK,
            "store": Probe(lambda: writable(site.state_dir)),
        }
        self.health = Health(parts, warnings)
        self.page = ProxyPage(self)

    def _link(self, broker: BrokerLink, topic: str, peer: fx.Address) -> RuntimeLink:
        packet_bytes, topics = self.site.limits.packet_bytes, Topics(self.site.cell)
        settings = link_settings(
            broker, topics.proxy_id, packet_bytes, backoff_cap_s=SERVER_BACKOFF_CAP_S
        )
        return RuntimeLink(settings, [topic], peer, topics.of_proxy, topics.sender_of, broker.links)

    def _join(self, proxy: ProxyRole) -> Runtime:
        self._blobs: BlobClient | None = None
        if (blobs := self.site.cloud_blobs) is not None:
            from edgeveil.transport.blob_client import BlobClient

            self._blobs = BlobClient(blobs.ca_file, proxy.spool.sink)
        host = MeteredHost(proxy.host, self.metrics, ProxyMetrics(self.metrics, proxy).watch)
        self.runtime = Runtime(
            proxy.machine,
            host,
            self._publish,
            None,
            LOG,
            self.site.limits.packet_bytes,
            gate=proxy.conduct,
            blobs=self._blobs,
        )
        return self.runtime

    async def _publish(self, to: fx.Address, frame: bytes) -> None:
        session = self.cloud if isinstance(to, fx.CloudAddress) else self.edge
        await session.publish(to, frame)

    async def run(self, stop: asyncio.Event) -> int:
        self.runtime.follow_logs()
        for hop, session in self.links.items():
            await session.attach(self.runtime, self.page.state_handler(hop, _log_link(hop)))
        routes = [
            *self.page.routes(),
            Route("GET", "/healthz", self.health.page),
            Route("GET", "/metrics", self.metrics.page),
        ]
        checked = HealthSocket(self.site.state_dir, self.health)
        await checked.start()
        http = await HttpServer(routes).start(self.at)
        warn_of_plain_http(self.at, LOG)
        store = self.proxy.blobs
        try:
            sweeping = []
            if store is not None:
                from edgeveil.transport.blob_store import sweep_forever

                await store.start()
                sweeping.append(sweep_forever(store))
            await self.edge.connect_or_raise()
            await self.cloud.connect_or_raise()
            self.runtime.post(fx.Command("started"))
            enrolled = len(self.proxy.registry.devices())
            notify_systemd("READY=1")
            LOG.info("running", extra={"http": http.url, "enrolled": enrolled})
            await first_of(
                stop,
                self.edge.run(),
                self.cloud.run(),
                self.runtime.run(),
                self._watch_registry(),
                self._folder.gone(),
                self.alone.run(),
                *sweeping,
                *([self.trust.run()] if self.trust else []),
                *([self.claims.run()] if self.claims else []),
            )
        finally:
            await http.stop()
            await checked.stop()
            if store is not None:
                await store.stop()
            await self.edge.close()
            await self.cloud.close()
            await self.alone.close()
            if self._blobs is not None:
                self._blobs.close()
            if self.claims is not None:
                await self.claims.close()
            self.proxy.close()
            self._folder.release()
        LOG.info("stopped")
        return 0

    async def _watch_registry(self) -> None:
        while True:
            await asyncio.sleep(ROSTER_CHECK_S)
            self.proxy.look_at_registry()


def _log_link(hop: str) -> Callable[[bool, str], None]:
    def on_state(connected: bool, reason: str) -> None:
        event = "broker_connected" if connected else "broker_lost"
        LOG.log(20 if connected else 30, event, extra={"hop": hop, "reason": reason})

    return on_state


class ProxyMetrics(Collector):
    """Counts durable items; reads other values at each scrape."""

    def __init__(self, metrics: Metrics, proxy: ProxyRole) -> None:
        self._proxy = proxy
        self._rounds = Count(
            "edgeveil_rounds",
            "Rounds by progress: opened, closed with a batch, delivered to the cloud.",
            ["result"],
            registry=metrics.registry,
        )
        for result in ("opened", "closed", "delivered"):
            self._rounds.labels(result)
        text = "Answers of devices to rounds, by their outcome."
        self._answers = Count("edgeveil_answers", text, ["outcome"], registry=metrics.registry)
        for outcome in ANSWER_OUTCOMES:
            self._answers.labels(outcome)
        metrics.registry.register(self)

    def watch(self, thing: object) -> None:
        match thing:
            case UploadKept():
                self._answers.labels("uploaded").inc()
            case fx.Report(kind="answer", data=data):
                self._answers.labels(data["outcome"]).inc(data["count"])  # type: ignore[arg-type]
            case KeptBroadcast(header=header) if getattr(header, "kind", "") == "round":
                self._rounds.labels("opened").inc()
            case BatchKept():
                self._rounds.labels("closed").inc()
            case BatchDelivered():
                self._rounds.labels("delivered").inc()

    def collect(self) -> Iterator[Metric]:
        enrolled = len(self._proxy.registry.devices())
        states = {
            "enrolled": float(enrolled),
            "online": float(self._proxy.host.online),
            "cooling_down": float(self._proxy.conduct.cooling_down),
        }
        yield gauge("devices", "Devices by state.", states, "state")
        machine = self._proxy.machine
        yield gauge(
            "spool_bytes", "Disk held by uploads and batches.", machine.rounds.spooled_bytes
        )
        yield gauge("cache_bytes", "Disk held by broadcasts.", machine.broadcasts.cached_bytes)
        text = "Requested bytes of uploads that have not arrived yet."
        yield gauge("credit_bytes", text, machine.uploads.credit.granted_bytes)
        yield gauge("open_rounds", "Rounds open for uploads.", len(machine.rounds.open))
        at = machine.at
        yield gauge("current_round", "Newest round; 0: no round yet.", at.round if at else 0)


class AloneInCell:
    """Ends the process if another one is this cell's proxy too.

    Two would split a round's uploads, and after a restored backup could unmask one round for two
    sets. So each announces itself, signed, on a topic of the cell's proxy only; a broker that
    refuses the topic is logged."""

    def __init__(self, site: ProxySite, signer: Callable[[], SigningKey]) -> None:
        topics = Topics(site.cell)
        self._topic, self._cell, self._signer = topics.proxies, site.cell, signer
        self._own, self._other = secrets.token_bytes(_NONCE_BYTES), asyncio.Event()
        self._up, self._refused = asyncio.Event(), ""
        settings = link_settings(
            site.edge_broker, f"{topics.proxy_id}-alone", site.limits.packet_bytes
        )
        self._link = MqttLink(settings, on_message=self._on_message, on_state=self._on_state)

    async def run(self) -> None:
        self._link.subscribe([self._topic])
        await asyncio.gather(self._link.run_forever(), self._announce(), self._end_with_another())

    async def _end_with_another(self) -> None:
        await self._other.wait()
        named = f"cell '{self._cell}'" if self._cell else "this fleet"
        raise UsageError(
            f"another process runs as the proxy of {named}, at the same broker",
            where=self._topic,
            fix="stop one of the two: a cell has one proxy and no standby"
            " (docs/operations.md, When a proxy is lost)",
        )

    async def close(self) -> None:
        await self._link.close()

    async def _announce(self) -> None:
        while True:
            await self._up.wait()
            self._up.clear()
            signature = sign(self._signer(), PROXY_RUNS, self._own)
            with suppress(BrokerError):  # repeated by the next connection
                await self._link.publish(self._topic, self._own + signature)

    def _on_message(self, _topic: str, payload: bytes) -> None:
        nonce, signature = payload[:_NONCE_BYTES], payload[_NONCE_BYTES:]
        if nonce == self._own or len(payload) != _NONCE_BYTES + SIGNATURE_BYTES:
            return
        if verify(self._signer().public(), PROXY_RUNS, nonce, signature):
            self._other.set()

    def _on_state(self, connected: bool, reason: str) -> None:
        if connected:
            self._up.set()
        elif "refuses the subscription" in reason and reason != self._refused:
            self._refused = reason
            LOG.warning("another_proxy_would_not_be_heard", extra={"reason": reason})
