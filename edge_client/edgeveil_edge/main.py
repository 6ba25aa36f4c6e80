"""The edge process: one or several devices, each with its own keys, link, store and ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from edgeveil import logs, plugins
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.device_tasks import DeviceSettings
from edgeveil.protocol.messages import Bye, Signer, encode
from edgeveil.sites.edge import EdgeSite
from edgeveil.transport.link import ALL_DOWN, Will, device_down, device_up
from edgeveil.transport.mqtt_link import RuntimeLink, link_settings
from edgeveil.transport.process import EXIT_S, OwnFolder, first_of, peer_key, run_until_stopped
from edgeveil.transport.runtime import Runtime
from edgeveil_edge.compute_process import ComputeProcess, RemoteComputer
from edgeveil_edge.host import LOG, DeviceHost
from edgeveil_edge.identity import Identity
from edgeveil_edge.store import DeviceStore


def run(sites: Sequence[EdgeSite]) -> int:
    """Run the devices until SIGINT or SIGTERM; 0 after a clean stop. Raises EdgeVeilError."""
    logs.setup(sites[0].log.level, sites[0].log.format)
    plugins.admit(one for site in sites for one in site.policy.allowed_plugins)
    computing = ComputeProcess(shared=len(sites))
    computing.fork_early()
    try:
        return run_until_stopped(lambda stop: _run(sites, computing, stop))
    finally:
        computing.end()


async def _run(sites: Sequence[EdgeSite], computing: ComputeProcess, stop: asyncio.Event) -> int:
    # One worker: the devices of a process share its cores, and torch uses them well alone.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeveil-work") as executor:
        devices = [Device(site, executor, computing) for site in sites]
        for device in devices:
            executor.submit(device.host.warm_up)
        LOG.info("running", extra={"devices": len(devices)})
        try:
            await first_of(stop, *(device.run() for device in devices))
        finally:
            computing.close()
            await asyncio.gather(*(device.stop() for device in devices))
    LOG.info("stopped")
    return 0


class Device:
    """One device on its link."""

    def __init__(
        self, site: EdgeSite, executor: ThreadPoolExecutor, computing: ComputeProcess
    ) -> None:
        self._folder = OwnFolder(site.state_dir)
        identity = Identity.load_or_create(site.state_dir)
        self.site, self.id = site, identity.device_id
        self.store = DeviceStore(site.state_dir / "device.sqlite", site.limits.receipts)
        self.ledger = Ledger(site.state_dir / LEDGER_FILE, site.data.name)
        signer = Signer(self.id, identity.signing)
        compute = RemoteComputer(computing, self.id, site, identity.split_key)
        host = self.host = DeviceHost(
            site, identity, self.store, self.ledger, say=self._say, compute=compute
        )
        limits = site.limits
        machine = DeviceMachine(
            signer,
            peer_key(site.cloud_key_file, "the cloud"),
            peer_key(site.proxy_key_file, "the proxy"),
            self.store.load(),
            DeviceSettings(
                limits.packet_bytes,
                limits.blob_bytes,
                limits.fetch_bytes,
                limits.jobs,
                require_cover=site.policy.require_cover,
            ),
        )
        # Signed beforehand, so that the broker can say it for us when the link breaks.
        will = Will(device_up(self.id), encode(signer.note(Bye(self.id))))
        self.session = RuntimeLink(
            link_settings(site.broker, self.id, limits.packet_bytes, will),
            [ALL_DOWN, device_down(self.id)],
            fx.ProxyAddress(),
            lambda _to: device_up(self.id),
        )
        self.runtime = Runtime(
            machine, host, self.session.publish, executor, LOG, limits.packet_bytes
        )

    def _say(self, line: str) -> None:
        """A line for the owner, on this box's console alone."""
        print(f"{self.site.name}: {line}", flush=True)

    async def run(self) -> None:
        """Until cancelled; a lost broker is tried again, with jitter."""
        self.runtime.follow_logs()
        await self.session.attach(self.runtime, _state_line())
        await asyncio.gather(self.session.link.run_forever(), self.runtime.run())

    async def stop(self) -> None:
        """Say good-bye where there is a link, and close the files."""
        if self.session.link.connected:
            try:
                await asyncio.wait_for(self.runtime.step(fx.Command("stop")), EXIT_S)
            except TimeoutError:
                LOG.warning("no_good_bye")
        await self.session.link.close()
        self.store.close()
        self.ledger.close()
        self._folder.release()


def _state_line() -> Callable[[bool, str], None]:
    def on_state(connected: bool, reason: str) -> None:
        level = logging.INFO if connected or reason.endswith("closed") else logging.WARNING
        LOG.log(level, "broker_connected" if connected else "broker_lost", extra={"reason": reason})

    return on_state
