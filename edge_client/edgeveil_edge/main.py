"""Edge process: one or several devices, each with its own keys, link, store and ledger."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from edgeveil import logs, plugins
from edgeveil.config.broker_profiles import PROFILES
from edgeveil.config.edge import EdgeSite
from edgeveil.data.records import Records
from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.jobs import Job
from edgeveil.privacy.ledger import LEDGER_FILE
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import (
    AdoptRelease,
    ApplyStatement,
    InstallJob,
    InstallRelease,
    SealReport,
)
from edgeveil.protocol.device_round import DEVICE_STATES, ComputeAnswer
from edgeveil.protocol.messages import Bye, encode
from edgeveil.transport.blob_client import BlobClient
from edgeveil.transport.health import (
    LINK_DOWN,
    OTHER_KEY,
    STUCK,
    UNHEARD,
    Health,
    HealthSocket,
    Probe,
    writable,
)
from edgeveil.transport.link import Topics
from edgeveil.transport.mqtt_link import RuntimeLink, link_settings
from edgeveil.transport.process import (
    EXIT_S,
    OwnFolder,
    first_of,
    notify_systemd,
    run_until_stopped,
)
from edgeveil.transport.runtime import Runtime
from edgeveil_edge import conditions
from edgeveil_edge.claim import due, is_unclaimed, renew, take_up_claim
from edgeveil_edge.compute_process import ComputeProcess, RemoteComputer
from edgeveil_edge.control import ControlSocket
from edgeveil_edge.host import LOG, DeviceHost
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.inference import InferenceService
from edgeveil_edge.role import DeviceRole, build
from edgeveil_edge.self_check import self_check
from edgeveil_edge.spending import OwnSpending

if TYPE_CHECKING:
    from edgeveil_edge.page import DevicePage

_OWN_TOPICS = 2  # besides those of its buckets
_PAUSED = "paused"  # a fact of the device's store
RELEASE_LOOK_S = 300.0
CERTIFICATE_LOOK_S = 6 * 3600.0


def run(sites: Sequence[EdgeSite]) -> int:
    """Run the devices until SIGINT or SIGTERM; return 0 if stopped. Raises EdgeVeilError."""
    logs.setup(sites[0].log.level, sites[0].log.format)
    plugins.admit(one for site in sites for one in site.policy.allowed_plugins)
    for site in filter(is_unclaimed, sites):
        if run_until_stopped(partial(_claim, site)):
            return 0
    Job.model_rebuild()  # once for this process and its children
    computing = ComputeProcess(shared=len(sites))
    computing.fork_early()
    try:
        return run_until_stopped(lambda stop: _run(sites, computing, stop))
    finally:
        computing.end()


async def _claim(site: EdgeSite, stop: asyncio.Event) -> int:
    """Enrol with the claim; return 1 if stopped before that."""
    await first_of(stop, take_up_claim(site))
    LOG.info("stopped" if stop.is_set() else "claimed")
    return int(stop.is_set())


async def _run(sites: Sequence[EdgeSite], computing: ComputeProcess, stop: asyncio.Event) -> int:
    with Lanes() as lanes:
        devices = [DeviceProcess(site, lanes, computing) for site in sites]
        for device in devices:
            lanes.warm_up(device.device.host)
        notify_systemd("READY=1")
        LOG.info("running", extra={"devices": len(devices)})
        try:
            await first_of(stop, *(device.run() for device in devices))
        finally:
            computing.close()
            await asyncio.gather(*(device.stop() for device in devices))
    LOG.info("stopped")
    return 0


class Lanes:
    """Threads shared by a process's devices.

    Work on records must not delay other work, since its duration may depend on them. Each lane runs
    one task at a time: `records` for answers; `trials` for trials, which wait for the computing
    process, and for installing or dropping releases; `others`.
    """

    def __init__(self) -> None:
        self.records, self.trials, self.others = (
            ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"edgeveil-{name}")
            for name in ("records", "trials", "others")
        )

    def of(self, task: object) -> Executor:
        match task:
            case ComputeAnswer():
                return self.records
            case InstallJob() | InstallRelease() | AdoptRelease() | ApplyStatement() | SealReport():
                return self.trials
        return self.others

    def warm_up(self, host: DeviceHost) -> None:
        """Load what rounds will need; errors are logged and recur in the round."""
        self.trials.submit(host.warm_up).add_done_callback(_log_failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for lane in (self.records, self.trials, self.others):
            lane.shutdown()


def _log_failure(done: Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:  # its text could quote data
        LOG.error("warm_up_failed", extra={"error": type(error).__name__})


class DeviceProcess:
    """Wires and runs one device; several share a process, its lanes and its computing child."""

    def __init__(
        self,
        site: EdgeSite,
        lanes: Lanes,
        computing: ComputeProcess,
        *,
        records: Records | None = None,
        on_message: Callable[[str], None] | None = None,
        sensors: conditions.BoxSensors | None = None,
    ) -> None:
        self._folder = OwnFolder(site.state_dir)
        self._lanes, self.site = lanes, site
        self.session: RuntimeLink
        self.runtime: Runtime
        self._report = on_message or self._notify

        def compute(site: EdgeSite, own: DeviceIdentity) -> RemoteComputer:
            return RemoteComputer(computing, own.device_id, site, own.split_key, records)

        self.device = build(site, link=self._join, on_message=self._report, compute=compute)
        self.inference = InferenceService(site.inference, self.device.host.releases)
        self.spending = OwnSpending(site.state_dir / LEDGER_FILE, site.data.name, site.policy)
        sensors = sensors or conditions.BoxSensors()
        self.presence = conditions.Presence(
            lambda: conditions.unmet(site.conditions, site.state_dir, sensors),
            self.runtime.post,
            self.device.host.moment,
        )
        self._problems: list[str] = []
        parts: dict[str, Callable[[], Any]] = {
            "broker": lambda: self.session.connected or LINK_DOWN,
            "proxy": lambda: not self.device.machine.unheard or UNHEARD,
            "keys": lambda: self.runtime.knows_keys or OTHER_KEY,
            "machine": lambda: self.runtime.turns or STUCK,
            "store": Probe(lambda: writable(site.state_dir)),
        }
        self._health = HealthSocket(site.state_dir, Health(parts))
        self._control = ControlSocket(site.state_dir, self._obey)
        self._page: DevicePage | None = None
        if site.page is not None:
            from edgeveil_edge.page import DevicePage  # most devices have none

            self._page = DevicePage(site.page, self)
        if self.device.store.fact(_PAUSED):
            self.pause(True)

    def _join(self, device: DeviceRole) -> Runtime:
        packet_bytes, topics = device.site.limits.packet_bytes, Topics(device.site.cell)
        up = topics.device_up(device.id)
        # Signed in advance: the broker publishes it when the link breaks.
        will = up, encode(device.signer.note(Bye(device.id)))
        settings = link_settings(device.site.broker, device.id, packet_bytes, will)
        # Older access lists have no rule for buckets: the device then requests its stanzas.
        buckets = self._buckets(device, topics)
        self.session = RuntimeLink(
            replace(settings, optional_topics=frozenset(buckets)),
            [topics.all_down, topics.device_down(device.id), *buckets],
            fx.ProxyAddress(),
            lambda _to: up,
            topics.sender_of,
        )
        blobs = device.site.blobs
        self._blobs = BlobClient(blobs.ca_file) if blobs else None
        ways = self.session.publish, self._lanes.of, LOG, packet_bytes
        self.runtime = Runtime(device.machine, device.host, *ways, blobs=self._blobs)
        return self.runtime

    def _buckets(self, device: DeviceRole, topics: Topics) -> list[str]:
        found = topics.buckets(device.identity.sealing_keys)
        most = PROFILES[device.site.broker.profile].subscriptions
        return found if most is None or len(found) + _OWN_TOPICS <= most else []

    def _notify(self, line: str) -> None:
        print(logs.printable(f"{self.site.name}: {line}"), flush=True)  # may contain a job's names

    async def run(self) -> None:
        """Run until cancelled; a lost broker is retried with jitter."""
        self.runtime.follow_logs()
        await self._health.start()
        self._problems = await asyncio.to_thread(self_check, self.site)
        for problem in self._problems:
            self._report(problem)
        await self.presence.settle()
        if self._page is not None:
            await self._page.start()  # before the control socket, which gives its address
        await self._control.start()
        await self.inference.start()
        await self.session.attach(self.runtime, _on_state)
        await asyncio.gather(
            self.session.run(),
            self.runtime.run(),
            self.presence.run(),
            self._folder.gone(),
            self._look_at_release(),
            self._look_at_certificate(),
        )

    def pause(self, paused: bool) -> None:
        """Decline rounds at once; the device leaves with the next change of presence."""
        self.presence.paused = paused
        self.device.host.pause(paused)
        if not paused:
            self.device.store.put_fact(_PAUSED, "")

    def order(self, command: str) -> None:
        """Execute `pause` or `resume`; a pause outlasts restarts."""
        if command == "pause":
            self.device.store.put_fact(_PAUSED, "yes")
        self.pause(command == "pause")

    async def roll_back(self) -> str:
        loop, back = asyncio.get_running_loop(), self.device.host.releases.rollback
        return (await loop.run_in_executor(self._lanes.trials, back)).version

    def status(self) -> dict[str, Any]:
        spent = self.spending.own()
        current = self.device.host.releases.current()
        budget = {key: spent.get(key) for key in ("training", "inference", "left", "next_refusal")}
        release = current.version if current else None
        return {**self.summary(spent), "release": release, "budget": budget}

    def summary(self, spent: Mapping[str, Any]) -> dict[str, Any]:
        """State of the device and of each open job in `spent`, its part of the ledger."""
        counted = [one for one in self.device.store.receipts() if one.state == "counted"]
        counted_of = {one.job_id.hex(): one.round for one in counted}
        rounds = {one.job_id.hex(): one for one in self.device.machine.rounds}
        jobs = []
        for job in (one["job"] for one in spent.get("jobs", ()) if one["open"]):
            here = rounds.get(job)
            state = here.state if here else DEVICE_STATES.start
            number = here.at.round if here and here.at else None
            work = {"job": job, "state": state.value, "round": number}
            jobs.append({**work, "last_counted_round": counted_of.get(job)})
        unmet = self.presence.unmet
        return {
            "device": self.device.id,
            "name": self.site.name,
            "state": "paused" if self.presence.paused else "waiting" if unmet else "running",
            "waiting_for": list(unmet),
            "problems": self._problems,
            "connected": self.session.connected,
            "last_counted_round": counted[-1].round if counted else None,
            "jobs": jobs,
            "refused_lately": self.device.store.refused_lately(),
            "max_jobs": self.site.policy.max_jobs,
        }

    async def _obey(self, command: str) -> dict[str, Any]:
        if command == "page":
            if self._page is None:
                what, fix = "this device has no page", "set page: {port: 8711} in its site file"
                raise UsageError(what, fix=f"{fix}, and start it again")
            return {"url": self._page.way_in()}
        if command != "status":
            self.order(command)
        return await asyncio.to_thread(self.status)

    async def _look_at_release(self) -> None:
        loop, look = asyncio.get_running_loop(), self.device.host.look_at_release
        while True:
            await loop.run_in_executor(self._lanes.trials, look, time.time())
            await asyncio.sleep(RELEASE_LOOK_S)

    async def _look_at_certificate(self) -> None:
        """Renew a claim's certificate in time, and if the proxy does not know the device."""
        while True:
            unheard, self.device.host.unheard = self.device.host.unheard, False
            now = datetime.datetime.now(datetime.UTC)
            old, soon = due(self.site, now)
            if unheard or old:
                try:
                    await renew(self.site, self.device.identity)
                    LOG.info("certificate_renewed")
                except EdgeVeilError as error:
                    LOG.warning("certificate_not_renewed")
                    if unheard or soon:
                        self._report(f"the broker certificate was not renewed: {error}")
            await asyncio.sleep(CERTIFICATE_LOOK_S)

    async def stop(self) -> None:
        if self.session.connected:
            try:
                await asyncio.wait_for(self.runtime.step(fx.Command("stop")), EXIT_S)
            except TimeoutError:
                LOG.warning("no_good_bye")
        await self.session.close()
        if self._blobs is not None:
            self._blobs.close()
        await self._control.stop()
        await self._health.stop()
        if self._page is not None:
            await self._page.stop()
        await self.inference.stop()
        self.device.close()
        self._folder.release()


def _on_state(connected: bool, reason: str) -> None:
    level = logging.INFO if connected or reason.endswith("closed") else logging.WARNING
    LOG.log(level, "broker_connected" if connected else "broker_lost", extra={"reason": reason})
