"""The cloud process: one link, one role, one HTTP control."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from edgeveil import logs
from edgeveil.errors import UsageError
from edgeveil.protocol import effects as fx
from edgeveil.sites.cloud import CloudSite
from edgeveil.transport.http import (
    STUCK_S,
    Health,
    Probe,
    warn_of_plain_http,
    warnings_of,
    writable,
)
from edgeveil.transport.link import Topics
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.metrics import Linked, MeteredHost, Metrics
from edgeveil.transport.mqtt_link import RuntimeLink, link_settings
from edgeveil.transport.process import OwnFolder, first_of, own_audit_log, run_until_stopped
from edgeveil.transport.runtime import Runtime
from edgeveil.transport.service_manager import tell_ready
from edgeveil.trust.watch import TrustWatch
from edgeveil_cloud.host import LOG
from edgeveil_cloud.http import ControlDesk, HttpThread, make_app
from edgeveil_cloud.http_token import Scope, TokenFolder
from edgeveil_cloud.job_turns import JobTurns
from edgeveil_cloud.metrics import CloudMetrics
from edgeveil_cloud.role import CloudRole, build
from edgeveil_cloud.store_tables import StoreError


def run(site: CloudSite) -> int:
    """Run until SIGINT or SIGTERM; 0 after a clean stop. Raises EdgeVeilError at start."""
    logs.setup(site.log.level, site.log.format)
    return run_until_stopped(lambda stop: _run_alone(site, stop))


async def _run_alone(site: CloudSite, stop: asyncio.Event) -> int:
    with OwnFolder(site.state_dir):
        return await _run(site, stop)


async def _run(site: CloudSite, stop: asyncio.Event) -> int:
    at = ListenAt.of(site.http)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeveil-work") as executor:
        process = _CloudProcess(site, executor)
        store, control, link = process.cloud.store, process.cloud.control, process.session.link
        process.runtime.follow_logs()
        await process.session.attach(process.runtime, _said)
        tokens = TokenFolder(site.state_dir)
        audit = own_audit_log(site.state_dir, "cloud").append
        clients = {one.name: Scope[one.scope.upper()] for one in site.http.clients}
        desk = ControlDesk(asyncio.get_running_loop(), lambda: store.away)
        app = make_app(
            store, control, tokens, process.health(at), process.metrics, desk, clients, audit
        )
        http = HttpThread()
        await http.start(app, at)
        warn_of_plain_http(at, LOG)
        try:
            await link.connect_or_raise()
            tell_ready()
            LOG.info("running", extra={"http": http.url, "enrolled": store.counts().enrolled})
            watch = [process.trust.run()] if process.trust else []
            await first_of(
                stop, process.session.run(), process.runtime.run(), control.run(), *watch
            )
        finally:
            await http.stop()
            await link.close()
            process.cloud.close()
    LOG.info("stopped")
    return 0


class _CloudProcess:
    """The role on its link, metered, its work in `executor`."""

    def __init__(self, site: CloudSite, executor: ThreadPoolExecutor) -> None:
        self._site, self._executor = site, executor
        if site.cells:
            fix = "leave cells out: a cloud serves one cell, without a name, as yet"
            raise UsageError("cannot serve these cells", where="cells", fix=fix)
        self.metrics = Metrics()
        self.runtime: Runtime
        self.session: RuntimeLink
        self.cloud = build(site, link=self._join)
        self.metrics.registry.register(Linked(self.runtime, {"cloud": self.session}))
        self.trust = TrustWatch(self.cloud, self.cloud.trust, LOG) if self.cloud.trust else None
        if self.trust is not None:
            self.metrics.registry.register(self.trust)

    def _join(self, cloud: CloudRole) -> Runtime:
        packet_bytes = self._site.limits.packet_bytes
        settings = link_settings(self._site.broker, "cloud", packet_bytes)
        topics = Topics()
        self.session = RuntimeLink(
            settings,
            [topics.cloud_in],
            fx.ProxyAddress(),
            lambda _to: topics.cloud_out,
            topics.sender_of,
        )
        counts = CloudMetrics(self.metrics, cloud.store, cloud.host, cloud.machine)
        self.runtime = Runtime(
            cloud.machine,
            MeteredHost(cloud.host, self.metrics, counts.watch),
            self.session.publish,
            JobTurns(self._executor, cloud.host.jobs.weight).of,
            LOG,
            packet_bytes,
            name_job=cloud.host.jobs.name,
        )
        return self.runtime

    def health(self, at: ListenAt) -> Health:
        """Link, machine and store."""
        store = self.cloud.store

        def stores() -> bool:
            try:
                store.counts()
            except StoreError:
                return False
            return writable(self._site.state_dir)

        probe = Probe(stores)
        return Health(
            {
                **({"trust": self.trust.healthy} if self.trust else {}),
                "broker": lambda: self.session.link.connected,
                "machine": lambda: self.runtime.step_s < STUCK_S,
                "store": lambda: False if store.away else probe(),
            },
            [lambda: warnings_of(at), *([self.trust.warnings] if self.trust else [])],
        )


def _said(connected: bool, reason: str) -> None:
    event = "broker_connected" if connected else "broker_lost"
    LOG.log(20 if connected else 30, event, extra={"reason": reason})
