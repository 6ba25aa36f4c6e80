"""The cloud process: one link, one machine, one store, one HTTP control."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from edgeveil import logs
from edgeveil.parts.own_records import held_records
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.cloud_tasks import CloudSettings
from edgeveil.protocol.messages import Signer
from edgeveil.protocol.transfer import part_bytes
from edgeveil.sites.cloud import CloudSite
from edgeveil.transport.http import STUCK_S, Health, Probe, writable
from edgeveil.transport.link import CLOUD_IN, CLOUD_OUT
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
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import LOG, CloudHost
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_thread import Desk, HttpThread
from edgeveil_cloud.http_token import load_or_make_token
from edgeveil_cloud.metrics import CloudMetrics
from edgeveil_cloud.recording import Recorder
from edgeveil_cloud.sealing import Limits
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_records import StoreError


def run(site: CloudSite) -> int:
    """Run until SIGINT or SIGTERM; 0 after a clean stop. Raises EdgeVeilError at start."""
    logs.setup(site.log.level, site.log.format)
    return run_until_stopped(lambda stop: _run_alone(site, stop))


async def _run_alone(site: CloudSite, stop: asyncio.Event) -> int:
    with OwnFolder(site.state_dir):
        return await _run(site, stop)


async def _run(site: CloudSite, stop: asyncio.Event) -> int:
    machine = _machine(site)  # its key makes the folder, for the owner alone
    store = Store(site.store_url or f"sqlite:///{site.state_dir / 'cloud.sqlite'}")
    host = _host(site, store)
    packet_bytes = site.limits.packet_bytes
    session = RuntimeLink(
        link_settings(site.broker, "cloud", packet_bytes),
        [CLOUD_IN],
        fx.ProxyAddress(),
        lambda _to: CLOUD_OUT,
    )

    def on_state(connected: bool, reason: str) -> None:
        event = "broker_connected" if connected else "broker_lost"
        LOG.log(20 if connected else 30, event, extra={"reason": reason})

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeveil-work") as executor:
        metrics = Metrics()
        seen = CloudMetrics(metrics, store, host, machine)
        runtime = Runtime(
            machine,
            MeteredHost(host, metrics, seen.watch),
            session.publish,
            executor,
            LOG,
            packet_bytes,
            name_job=host.jobs.name,
        )
        runtime.follow_logs()
        control = Control(
            store,
            host,
            machine,
            runtime,
            site.limits.jobs_queued,
            python_models=site.allow_python_models,
        )
        await session.attach(runtime, on_state)
        metrics.registry.register(Linked(runtime, {"cloud": session}))
        health, token = _health(site, session, runtime, store), load_or_make_token(site.state_dir)
        desk = Desk(asyncio.get_running_loop(), lambda: store.away)
        app = make_app(store, control, token, health, metrics, desk)
        http = HttpThread()
        await http.start(app, site.http.host, site.http.port)
        try:
            await session.link.connect_or_raise()
            LOG.info("running", extra={"http": http.url, "enrolled": store.counts().enrolled})
            await first_of(stop, session.link.run_forever(), runtime.run(), control.run())
        finally:
            await http.stop()
            await session.link.close()
            store.close()
    LOG.info("stopped")
    return 0


def _host(site: CloudSite, store: Store) -> CloudHost:
    limits = site.limits
    return CloudHost(
        store,
        held_records(site.test_data) if site.test_data else None,
        Limits(part_bytes(limits.packet_bytes), limits.blob_bytes, limits.spool_bytes),
        spool_dir=site.state_dir,
        recorder=Recorder(site.record_dir) if site.record_dir else None,
    )


def _machine(site: CloudSite) -> CloudMachine:
    limits = site.limits
    return CloudMachine(
        Signer("cloud", own_signing_key(site.state_dir, "cloud")),
        peer_key(site.proxy_key_file, "the proxy"),
        CloudSettings(
            packet_bytes=limits.packet_bytes,
            blob_bytes=limits.blob_bytes,
            spool_bytes=limits.spool_bytes,
        ),
    )


def _health(site: CloudSite, session: RuntimeLink, runtime: Runtime, store: Store) -> Health:
    def stores() -> bool:
        try:
            store.counts()
        except StoreError:
            return False
        return writable(site.state_dir)

    probe = Probe(stores)
    return Health(
        {
            "broker": lambda: session.link.connected,
            "machine": lambda: runtime.step_s < STUCK_S,
            "store": lambda: False if store.away else probe(),
        }
    )
