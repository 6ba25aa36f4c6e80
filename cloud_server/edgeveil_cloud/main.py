"""The cloud process: a link per cell, one role, one HTTP control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from edgeveil import logs
from edgeveil.config.cloud import CloudCell, CloudSite
from edgeveil.errors import BrokerError
from edgeveil.protocol import effects as fx
from edgeveil.transport.blob_store import sweep_forever
from edgeveil.transport.health import (
    LINK_DOWN,
    OTHER_KEY,
    STUCK,
    Health,
    HealthSocket,
    Holds,
    Probe,
    warn_of_plain_http,
    warnings_of,
    writable,
)
from edgeveil.transport.link import SERVER_BACKOFF_CAP_S, LinkDown, Topics
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.metrics import Linked, MeteredHost, Metrics, StateDisk
from edgeveil.transport.mqtt_link import RuntimeLink, link_settings
from edgeveil.transport.process import (
    OwnFolder,
    first_of,
    notify_systemd,
    own_audit_log,
    run_until_stopped,
)
from edgeveil.transport.runtime import Runtime
from edgeveil.trust.watch import TrustWatch
from edgeveil_cloud.host import LOG
from edgeveil_cloud.http import ControlDesk, HttpThread, make_app
from edgeveil_cloud.http_guard import Scope, TokenFolder
from edgeveil_cloud.metrics import CloudMetrics
from edgeveil_cloud.pages.fleet import CloudFacts
from edgeveil_cloud.role import CloudRole, build
from edgeveil_cloud.store_tables import StoreError


def run(site: CloudSite) -> int:
    """Run until SIGINT or SIGTERM; return 0 after a clean stop. Raises EdgeVeilError at start."""
    logs.setup(site.log.level, site.log.format)
    return run_until_stopped(lambda stop: _run(site, stop))


async def _run(site: CloudSite, stop: asyncio.Event) -> int:
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeveil-work")
    with OwnFolder(site.state_dir) as folder, executor:
        at = ListenAt.of(site.http)
        process = _CloudProcess(site, executor)
        store, control, links = process.cloud.store, process.cloud.control, process.links
        process.runtime.follow_logs()
        await links.attach(process.runtime, _log_link)
        tokens = TokenFolder(site.state_dir)
        audit = own_audit_log(site.state_dir, "cloud").append
        health = process.health(at)
        checked = HealthSocket(site.state_dir, health)
        await checked.start()
        clients = {one.name: Scope[one.scope.upper()] for one in site.http.clients}
        desk = ControlDesk(asyncio.get_running_loop(), lambda: store.away)
        facts = CloudFacts(site, links.sessions, process.cloud.trust)
        app = make_app(
            store, control, tokens, health, process.metrics, desk, clients, audit, at, facts
        )
        http = HttpThread()
        await http.start(app, at)
        warn_of_plain_http(at, LOG)
        blobs = process.cloud.blobs
        try:
            if blobs is not None:
                await blobs.start()
            for cell, why in (await links.connect_or_raise()).items():
                LOG.warning("cell_unreachable", extra={"cell": cell, "reason": why})
            notify_systemd("READY=1")
            LOG.info("running", extra={"http": http.url, "enrolled": store.counts().enrolled})
            watch = [folder.gone(), *([process.trust.run()] if process.trust else [])]
            if blobs is not None:
                watch.append(sweep_forever(blobs))
            await first_of(stop, links.run_forever(), process.runtime.run(), control.run(), *watch)
        finally:
            await http.stop()
            await checked.stop()
            if blobs is not None:
                await blobs.stop()
            await links.close()
            process.cloud.close()
    LOG.info("stopped")
    return 0


class _CloudProcess:
    def __init__(self, site: CloudSite, executor: ThreadPoolExecutor) -> None:
        self._site, self._executor = site, executor
        self.metrics = Metrics()
        self.runtime: Runtime
        self.links = _CellLinks(site)
        self.cloud = build(site, link=self._join)
        hops = {
            f"cloud/{name}" if name else "cloud": one for name, one in self.links.sessions.items()
        }
        self.metrics.registry.register(Linked(self.runtime, hops))
        self.metrics.registry.register(StateDisk(site.state_dir))
        self.trust = TrustWatch(self.cloud, self.cloud.trust, LOG) if self.cloud.trust else None
        if self.trust is not None:
            self.metrics.registry.register(self.trust)

    def _join(self, cloud: CloudRole) -> Runtime:
        packet_bytes = self._site.limits.packet_bytes
        cloud.host.spare = self._executor.submit
        counts = CloudMetrics(self.metrics, cloud.store, cloud.host, cloud.machine)
        self.runtime = Runtime(
            cloud.machine,
            MeteredHost(cloud.host, self.metrics, counts.watch),
            self.links.publish,
            self._executor,
            LOG,
            packet_bytes,
            name_job=cloud.host.jobs.name,
        )
        return self.runtime

    def health(self, at: ListenAt) -> Health:
        store = self.cloud.store

        def stores() -> Holds:
            try:
                store.counts()
            except StoreError:
                return "database_fails"
            return writable(self._site.state_dir)

        probe = Probe(stores)
        return Health(
            {
                **({"trust": self.trust.healthy} if self.trust else {}),
                **{
                    f"broker/{name}" if name else "broker": partial(_connected, one)
                    for name, one in self.links.sessions.items()
                },
                "keys": lambda: self.runtime.knows_keys or OTHER_KEY,
                "machine": lambda: self.runtime.turns or STUCK,
                "store": lambda: "database_away" if store.away else probe(),
            },
            [lambda: warnings_of(at), *([self.trust.warnings] if self.trust else [])],
        )


def _connected(session: RuntimeLink) -> Holds:
    return session.connected or LINK_DOWN


def _log_link(cell: str, connected: bool, reason: str) -> None:
    event = "broker_connected" if connected else "broker_lost"
    of_it = {"cell": cell} if cell else {}
    LOG.log(20 if connected else 30, event, extra={**of_it, "reason": reason})


# Links: one per cell, so that a slow broker delays only its own cell.
QUEUE_BYTES = 64 << 20  # beyond, messages are dropped; the machine repeats unconfirmed ones


class _CellLinks:
    def __init__(self, site: CloudSite) -> None:
        self.sessions = {cell.name: _session(site, cell) for cell in site.all_cells}
        self._queues = {name: _Queue(one) for name, one in self.sessions.items()}

    async def attach(self, runtime: Runtime, on_state: Callable[[str, bool, str], None]) -> None:
        for cell, session in self.sessions.items():
            await session.attach(runtime, partial(on_state, cell))

    async def connect_or_raise(self) -> dict[str, str]:
        """Connect to all brokers; return failures by cell. Raises BrokerError if all failed."""
        tries = [one.connect_or_raise() for one in self.sessions.values()]
        found = await asyncio.gather(*tries, return_exceptions=True)
        failed = [one for one in found if isinstance(one, BaseException)]
        other = [one for one in failed if not isinstance(one, BrokerError)]
        if other or len(failed) == len(found):
            raise (other or failed)[0]
        by_cell = zip(self.sessions, found, strict=True)
        return {cell: str(error) for cell, error in by_cell if isinstance(error, BrokerError)}

    async def publish(self, to: fx.Address, frame: bytes) -> None:
        """Send a frame to a cell's proxy; raises LinkDown."""
        if not isinstance(to, fx.ProxyAddress):
            raise LinkDown("the cloud sends to proxies only", where=str(to))
        if len(self.sessions) == 1:
            await self.sessions[to.cell].publish(to, frame)
        else:
            self._queues[to.cell].put(to, frame)

    async def run_forever(self) -> None:
        links = [one.run() for one in self.sessions.values()]
        await asyncio.gather(*links, *(one.run() for one in self._queues.values()))

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.sessions.values()))


class _Queue:
    def __init__(self, session: RuntimeLink) -> None:
        self._session = session
        self._waiting: asyncio.Queue[tuple[fx.Address, bytes]] = asyncio.Queue()
        self._bytes = 0

    def put(self, to: fx.Address, frame: bytes) -> None:
        """Queue a frame; raises LinkDown while the broker is away or far behind."""
        if not self._session.connected or self._bytes > QUEUE_BYTES:
            raise LinkDown("the cell's broker is away, or far behind", where=str(to))
        self._bytes += len(frame)
        self._waiting.put_nowait((to, frame))

    async def run(self) -> None:
        while True:
            to, frame = await self._waiting.get()
            self._bytes -= len(frame)
            with suppress(BrokerError):  # the machine repeats the frame
                await self._session.publish(to, frame)


def _session(site: CloudSite, cell: CloudCell) -> RuntimeLink:
    topics = Topics(cell.name)
    named = f"cloud-{cell.name}" if cell.name else "cloud"
    return RuntimeLink(
        link_settings(
            cell.broker or site.broker,
            named,
            site.limits.packet_bytes,
            backoff_cap_s=SERVER_BACKOFF_CAP_S,
        ),
        [topics.cloud_in],
        fx.ProxyAddress(cell.name),
        lambda _to: topics.cloud_out,
        topics.sender_of,
    )
