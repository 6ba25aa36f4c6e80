"""The fleet of a local run: processes, or a simulation of the rounds, which protects nothing."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeveil import logs
from edgeveil.config.addresses import place
from edgeveil.errors import EdgeVeilError, JobFailed, UsageError
from edgeveil.jobs import Job
from edgeveil.jobs.artifacts import carried_digests, read_artifacts
from edgeveil.parts.methods import trains_model
from edgeveil.parts.models.heads import described
from edgeveil.privacy.one_run_audit import OneRunAudit
from edgeveil.protocol.transfer import LEAST_BYTES
from edgeveil.ray_cluster import check_cluster, imported_ray
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.local.children import Children, tail
from edgeveil_tools.local.data import dealt, is_published
from edgeveil_tools.local.job import site_of, submitted
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import has_reference, train
from edgeveil_tools.local.run_log import Listener, RunLog, RunStopped, ignore_progress
from edgeveil_tools.result import SIMULATED, audit_text, write_whole
from edgeveil_tools.simulation.devices import SimulatedFleet
from edgeveil_tools.simulation.rounds import SimulatedRounds
from edgeveil_tools.simulation.workers import (
    HERE,
    RAY_KEY,
    InProcess,
    ProcessWorkers,
    RayWorkers,
    Workers,
    one_thread,
)
from edgeveil_tools.site.brokers import BrokerProcess, choose_engine, free_ports
from edgeveil_tools.site.provision import Ports, Site, SiteSpec, broker_processes, provision

START_S = 60.0
START_PER_DEVICE_S = 0.5
WORKERS = 2  # default number of processes that host devices
_LOOK_S = 0.25
_LOOK_ROUNDS_S = 0.1
_HOPS = {
    "cloud_in": "cloud_to_proxy",
    "devices_out": "proxy_to_devices",
    "devices_in": "devices_to_proxy",
    "cloud_out": "proxy_to_cloud",
}


class LocalFleet(ABC):
    """Everything that runs for one job: `play` once, then `stop`, then `result`."""

    @staticmethod
    def of(job: Job, run: LocalRun, *places: Any, **options: Any) -> LocalFleet:
        return (Simulation if run.simulate else FleetProcesses)(job, run, *places, **options)

    def __init__(
        self,
        job: Job,
        run: LocalRun,
        folder: Path,
        out: Path,
        listener: Listener = ignore_progress,
        stop: threading.Event | None = None,
        *,
        reference: bool = True,
        record_dir: Path | None = None,
    ) -> None:
        self.job, self.settings, self.folder, self.out = job, run, folder, out
        self.log = RunLog(job, run, out, listener, stop)
        self.view = self.log.view
        self.site = site_of(job, run, folder, record_dir)
        self.children = Children(out / "logs")
        self._wants_reference = reference and has_reference(job)
        self.reference: list[float] = []

    @abstractmethod
    def play(self) -> None:
        """Run the job; raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all processes and keep their logs; may be called at any time."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return its part of `RunLog.result`."""

    def keep_models(self, onnx: bytes, safetensors: bytes) -> None:
        write_whole(self.out / "model.onnx", onnx)
        write_whole(self.out / "model.safetensors", safetensors)

    def train_reference(self) -> None:
        if not self._wants_reference:
            return
        self.log.doing("training the noise-free reference")
        try:
            self.reference = train(self.job, self.settings, self.site, lambda _: self.log.look())
        except RunStopped:
            raise
        except Exception as error:  # the run goes on without a reference
            logging.getLogger("edgeveil.run").warning("no reference: %s", error)

    def result(self, reason: str) -> dict[str, Any]:
        return self.log.result(
            reason,
            memory_peak_bytes=self.children.memory_peak_bytes or None,
            reference=self.reference,
            **self.facts(),
        )


class FleetProcesses(LocalFleet):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._brokers: dict[str, BrokerProcess] = {}
        self._protocol = 5
        self._hops: dict[str, int] = {}

    def play(self) -> None:
        site = provision(self._whole_site())
        self._start(site)
        client = self._wait_for_devices(site)
        job = client.submit_yaml(submitted(self.job), read_artifacts(self.job).values())
        self._follow(client, job)
        self.log.require_completed(job)
        if self.log.plan.releases:
            self.keep_models(*(client.model(job, kind) for kind in ("onnx", "safetensors")))
        self._look()
        self.train_reference()

    def stop(self) -> None:
        self.children.stop()
        for domain, broker in self._brokers.items():
            broker.stop()
            with suppress(OSError):
                log = self.folder / f"broker-{domain}" / "broker.log"
                shutil.copyfile(log, self.out / "logs" / f"broker-{domain}.log")

    def facts(self) -> dict[str, Any]:
        name = self._brokers["cloud"].name if self._brokers else ""
        return {"broker": name, "protocol": self._protocol, "bytes": self._hops}

    # --- start ---

    def _whole_site(self) -> SiteSpec:
        a, b, c, d, proxy_blobs, cloud_blobs = free_ports(6)
        upload_bytes = self.log.plan.upload_bytes
        engine = choose_engine(self.settings.broker)
        self._protocol = 4 if engine == "amqtt" else 5
        return replace(
            self.site,
            ports=Ports(a, b, c, d, proxy_blobs=proxy_blobs, cloud_blobs=cloud_blobs),
            engine=engine,
            protocol=self._protocol,
            upload_bytes=upload_bytes,
            blobs=upload_bytes >= LEAST_BYTES,
        )

    def _start(self, site: Site) -> None:
        plan, shown = site.spec, []
        self._proxy_url = f"http://{place(plan.host, plan.ports.proxy_http)}"
        self._brokers = broker_processes(plan)
        for domain, broker in self._brokers.items():
            broker.start()
            self.children.count(f"broker-{domain}", broker.pid)
            shown.append(f"{domain} side {place(plan.host, broker.port)}")
        how = "tuned" if plan.engine == "mosquitto" else "MQTT 3.1.1"
        self.log.note(f"Brokers: {self._brokers['cloud'].name} ({how}), {', '.join(shown)}")
        self.children.start("cloud", ["cloud", "--config", str(site.cloud)])
        self.children.start("proxy", ["proxy", "--config", str(site.proxy)])
        workers = min(self.settings.workers or WORKERS, len(site.edges))
        loaded = "torch,torch.func" if trains_model(self.job.train.method) else ""
        words = [str(self.out / "logs"), str(workers), loaded, *map(str, site.edges)]
        module = "edgeveil_tools.local.edge_workers"
        self.children.start("workers", words, threads=1, module=module)
        what = f"{workers} workers with {len(site.edges)} devices"
        self.log.doing(f"starting a cloud, a proxy and {what}")

    def _wait_for_devices(self, site: Site) -> Cloud:
        wanted, known, begun_s = self.settings.devices, 0, time.monotonic()
        timeout_s = START_S + START_PER_DEVICE_S * wanted
        while time.monotonic() - begun_s < timeout_s:
            self._look()
            with suppress(OSError, EdgeVeilError):  # the token is written at the first start
                client = Cloud(site.spec.url, site.token_file)
                known = int(client.status().get("enrolled", 0))
            if self.view.online >= wanted and known >= wanted:
                return client
            time.sleep(_LOOK_S)
        logs_dir = self.out / "logs"
        raise JobFailed(
            f"after {timeout_s:.0f} s {self.view.online} of {wanted} devices are online"
            f" and {known} are known to the cloud",
            fix=f"See the logs in {logs_dir}; the proxy's ends:\n{tail(logs_dir / 'proxy.log')}",
        )

    # --- the job ---

    def _follow(self, client: Cloud, job: str) -> None:
        after = 0
        while not self.log.record.ended:
            try:
                events = client.events(job, after, _LOOK_S)
            except EdgeVeilError:
                self.children.check()  # report a dead cloud rather than the call
                raise
            for event in events:
                self.log.take(event)
                after = int(event["seq"])
            self._look()

    def _look(self) -> None:
        self.children.check()
        for domain, broker in self._brokers.items():
            if not broker.running():
                raise JobFailed(f"the broker of the {domain} side ended by itself")
        self.view.memory_bytes = self.children.memory_bytes()
        with suppress(OSError):
            page = get_json(self._proxy_url, "/status")
            moved, here = page.get("bytes", {}), page.get("round") or {}
            self.view.online = int(page.get("online", 0))
            self._hops = {hop: int(moved.get(key, 0)) for key, hop in _HOPS.items()}
            self.view.uploads = int(here.get("uploads", self.view.uploads))
            self.view.declined = int(here.get("declined", self.view.declined))
        self.log.look()


class Simulation(LocalFleet):
    """The same rounds without parties, brokers and encryption; seeded."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._workers: Workers | None = None
        self._events, self._next_look_s = 0, 0.0
        self._seconds: float | None = None
        self._declined, self._audit = "", dict[str, Any]()

    def play(self) -> None:
        with one_thread(), _log_file(self.out / "logs" / "simulation.log"):
            self._play()
        self._seconds = self.log.elapsed_s
        self.train_reference()

    def stop(self) -> None:
        if self._workers is not None:
            self._workers.stop()

    def facts(self) -> dict[str, Any]:
        workers = self._workers
        engine = {
            "name": workers.name if workers else "processes",
            "workers": workers.count if workers else 0,
        }
        fixed = {"broker": "none (simulated)", "protocol": None, "simulated": True}
        audit = {"audit": self._audit} if self._audit else {}
        return {**fixed, **audit, "bytes": {}, "seconds": self._seconds, "engine": engine}

    def _play(self) -> None:
        job, settings = self.job, self.settings
        self.log.doing(f"making {settings.devices} devices")
        dealt(job, settings)  # read once, before workers share it
        found = read_artifacts(job)
        carried = tuple(found[digest] for digest in carried_digests(job))
        canaries = settings.audit.canaries if settings.audit else 0
        fleet = SimulatedFleet(self.site, job.canonical(), carried, canaries)
        count = min(settings.workers or os.cpu_count() or 1, settings.devices)
        workers = self._workers = self._workers_of(fleet, count)
        where = f"{workers.count} worker{'s' * (workers.count > 1)} ({workers.name})"
        self.log.note(f"Simulation of rounds by {where}: encryption off, noise seeded")
        for number, pid in enumerate(workers.pids, start=1):
            self.children.count(f"worker-{number}", pid)
        heard: Any = {"notify": self._notify, "report": self._report, "look": self._look}
        rounds = self._rounds = SimulatedRounds(job, self.site, workers, **heard, canaries=canaries)
        self.view.online = settings.devices
        model = rounds.play()
        # A refusal may quote a record: of own records it is only for this console.
        published = is_published(job, settings)
        if self._declined and not published:
            self.log.note(self._declined)
        self.log.require_completed(job.job, self._declined if published else "")
        if model is not None:  # the file itself says that it is unprotected
            self.keep_models(described(model[0], {"edgeveil.note": SIMULATED}), model[1])
        if rounds.auditor is not None:
            self._judge(rounds.auditor.guess())

    def _judge(self, audit: OneRunAudit) -> None:
        """Keep an audit's result; raises JobFailed if it refutes the proven guarantee."""
        printed = self.log.plan.quote().training
        self._audit = {**audit.plain, "printed_epsilon": printed.epsilon}
        if printed.proven and audit.epsilon > printed.epsilon:
            what = f"the audit refutes the printed guarantee: {audit_text(self._audit)}"
            raise JobFailed(what, where=self.job.job, fix="report it; use no figure of this run")

    def _workers_of(self, fleet: SimulatedFleet, count: int) -> Workers:
        if self.settings.ray_address is not None:
            return RayWorkers(fleet, count, self.settings.ray_address)
        return InProcess(fleet) if self.settings.workers == 0 else ProcessWorkers(fleet, count)

    def _notify(self, kind: str, data: Mapping[str, Any]) -> None:
        self._events += 1
        named = {"seq": self._events, "job": self.job.job, "time": time.time()}
        self.log.take({**named, "type": kind, "data": dict(data)})

    def _report(self, number: int, line: str) -> None:
        logging.getLogger("edgeveil.devices").info(f"box-{number}: {line}")
        if not self._declined and " declined: " in line:
            self._declined = f"box-{number}: {line}"

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_ROUNDS_S
        self.view.memory_bytes = self.children.memory_bytes()
        self.view.uploads, self.view.declined = self._rounds.uploads, self._rounds.declined
        self.log.look()


def refuse_unplayable(job: Job, run: LocalRun, *, keep: bool = False) -> None:
    """Raise UsageError for a job that a simulation cannot play, or without its Ray."""
    fix = "leave out --simulate: `edgeveil run` plays it with brokers and processes"
    if keep:
        raise UsageError("a simulation has no keys, ledgers or stores", where="--keep", fix=fix)
    if job.round.mode == "buffered":
        what = "is for late devices, which a simulation does not have"
        raise UsageError(what, where="round.mode: buffered", fix=fix)
    if run.audit is not None and not is_published(job, run):
        fix = "leave it out, or audit the same job on digits or a published set"
        raise UsageError("is for public records", where="local_run.audit", fix=fix)
    if run.ray_address is not None:
        imported_ray(RAY_KEY)
        if run.ray_address != HERE:
            check_cluster(run.ray_address, RAY_KEY)


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Send the library's log to a file in the context, away from the progress display."""
    log, handler = logging.getLogger("edgeveil"), logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logs.formatter("text"))
    before = (log.level, log.propagate)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(before[0])
        log.propagate = before[1]
