"""The cloud process: a link for each cell, one role, one HTTP control."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from edgeveil import logs
from edgeveil.sites.cloud import CloudSite
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
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.metrics import Linked, MeteredHost, Metrics, StateDisk
from edgeveil.transport.mqtt_link import RuntimeLink
from edgeveil.transport.process import OwnFolder, first_of, own_audit_log, run_until_stopped, tell
from edgeveil.transport.runtime import Runtime
from edgeveil.trust.watch import TrustWatch
from edgeveil_cloud.cell_links import CellLinks
from edgeveil_cloud.host import LOG
from edgeveil_cloud.http import ControlDesk, HttpThread, make_app
from edgeveil_cloud.http_guard import Scope, TokenFolder
from edgeveil_cloud.job_turns import JobTurns
from edgeveil_cloud.metrics import CloudMetrics
from edgeveil_cloud.pages.fleet import CloudFacts
from edgeveil_cloud.role import CloudRole, build
from edgeveil_cloud.store_tables import StoreError


def run(site: CloudSite) -> int:
    """Run until SIGINT or SIGTERM; 0 after a clean stop. Raises EdgeVeilError at start."""
    logs.setup(site.log.level, site.log.format)
    return run_until_stopped(lambda stop: _run_alone(site, stop))


async def _run_alone(site: CloudSite, stop: asyncio.Event) -> int:
    with OwnFolder(site.state_dir) as folder:
        return await _run(site, folder, stop)


async def _run(site: CloudSite, folder: OwnFolder, stop: asyncio.Event) -> int:
    at = ListenAt.of(site.http)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeveil-work") as executor:
        process = _CloudProcess(site, executor)
        store, control, links = process.cloud.store, process.cloud.control, process.links
        process.runtime.follow_logs()
        await links.attach(process.runtime, _said)
        tokens = TokenFolder(site.state_dir)
        audit = own_audit_log(site.state_dir, "cloud").append
        health = process.health(at)
        checked = HealthSocket(site.state_dir, health)
        await checked.start()
        clients = {one.name: Scope[one.scope.upper()] for one in site.http.clients}
        desk = ControlDesk(asyncio.get_running_loop(), lambda: store.away)
        facts = CloudFacts(site, links.sessions, process.cloud.trust)
        app = make_app(
            store,
            control,
            tokens,
            health,
            process.metrics,
            desk,
            clients,
            audit,
            at,
            facts,
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
            tell("READY=1")
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
        self.links = CellLinks(site)
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
            JobTurns(self._executor, cloud.host.jobs.weight).of,
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


def _said(cell: str, connected: bool, reason: str) -> None:
    event = "broker_connected" if connected else "broker_lost"
    of_it = {"cell": cell} if cell else {}
    LOG.log(20 if connected else 30, event, extra={**of_it, "reason": reason})
