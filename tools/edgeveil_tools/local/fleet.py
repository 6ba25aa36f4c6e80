"""The fleet of a local run: `FleetProcesses` starts brokers, cloud, proxy and workers; `Simulation`
plays the rounds alone, in worker processes or on Ray, and protects nothing."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
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
from edgeveil.parts.models.heads import described
from edgeveil.protocol.transfer import LEAST_BYTES
from edgeveil.ray_cluster import check_cluster, imported_ray
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.local.children import Children, MemoryPeak, tail
from edgeveil_tools.local.data import dealt, is_published
from edgeveil_tools.local.job import site_of, submitted
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import has_reference, train
from edgeveil_tools.local.run_log import Listener, RunLog, RunReporter, RunStopped, unheard
from edgeveil_tools.result import SIMULATED, write_whole
from edgeveil_tools.simulation.devices import SimulatedFleet
from edgeveil_tools.simulation.rounds import SimulatedRounds
from edgeveil_tools.simulation.workers import HERE, RAY_KEY, ProcessWorkers, RayWorkers, Workers
from edgeveil_tools.site.brokers import BrokerProcess, choose_engine, free_ports
from edgeveil_tools.site.provision import CellPorts, Ports, Site, broker_processes, provision

START_S = 60.0
START_PER_DEVICE_S = 0.5
WORKERS = 2  # processes that host devices, where nobody says how many
KEPT_BYTES = 256 << 20  # of a round's uploads in a worker's memory; the rest waits on the disk
_LOOK_S = 0.25
_LOOK_ROUNDS_S = 0.1
_WAIT_S = 10.0
_HOPS = {
    "cloud_in": "cloud_to_proxy",
    "devices_out": "proxy_to_devices",
    "devices_in": "devices_to_proxy",
    "cloud_out": "proxy_to_cloud",
}


class LocalFleet:
    """Everything that runs for one job. `run` once, then `stop`, then `result`."""

    def __init__(
        self,
        job: Job,
        run: LocalRun,
        folder: Path,
        out: Path,
        hear: Listener = unheard,
        stop: threading.Event | None = None,
        *,
        reference: bool = True,
        record_dir: Path | None = None,
    ) -> None:
        self.job, self.settings, self.folder, self.out = job, run, folder, out
        self.log = RunLog(job, run, out, hear, stop)
        self.site = site_of(job, run, folder, record_dir)
        self.children = Children(out / "logs")
        self.memory = MemoryPeak(self.children)
        self._wants_reference = reference and has_reference(job)
        self.reference: list[float] = []
        self._players = Simulation(self) if run.simulate else FleetProcesses(self)

    @property
    def progress(self) -> RunReporter:
        """What a person sees."""
        return self.log.progress

    def run(self) -> None:
        """From keys to models. Raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""
        self._players.play()

    def stop(self) -> None:
        """End what is under way, and let nothing of it stay but its logs."""
        self._players.stop()

    def keep_models(self, onnx: bytes, safetensors: bytes) -> None:
        """The final model, where the run's other files go."""
        if self.settings.simulate:  # nobody may take it for protected who has the file alone
            onnx = described(onnx, {"edgeveil.note": SIMULATED})
        write_whole(self.out / "model.onnx", onnx)
        write_whole(self.out / "model.safetensors", safetensors)

    def train_reference(self) -> None:
        """Learn the same without noise, where that is wanted; a failure of it fails no run."""
        if not self._wants_reference:
            return
        self.progress.doing("training the noise-free reference")
        try:
            self.reference = train(self.job, self.settings, self.site, lambda _: self.log.look())
        except RunStopped:
            raise
        except Exception as error:  # the run goes on without its yardstick
            logging.getLogger("edgeveil.run").warning("no reference: %s", error)

    def result(self, reason: str) -> dict[str, Any]:
        """The content of `result.json`; `reason` is empty when the job completed."""
        return self.log.result(
            reason,
            memory_peak_bytes=self.memory.peak_bytes or None,
            reference=self.reference,
            **self._players.facts(),
        )


# --- processes over brokers ---


class FleetProcesses:
    """Two brokers, a cloud, a proxy and workers that host the devices, each a process."""

    def __init__(self, run: LocalFleet) -> None:
        self._run = run
        self._brokers: dict[str, BrokerProcess] = {}
        self._broker_name, self._protocol = "", 5
        self._proxy_urls: list[str] = []
        self._hops: dict[str, int] = {}
        self._stop = threading.Event()

    def play(self) -> None:
        """From keys to models. Raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""
        run, job = self._run, self._run.job
        site = self._provision()
        self._start_brokers(site)
        self._start_processes(site)
        self._wait_for_devices(site)
        client = Cloud(site.plan.url, site.token_file)
        submitted_id = client.submit_yaml(submitted(job), read_artifacts(job).values())
        self._follow(client, submitted_id)
        run.log.require_completed(submitted_id)
        run.keep_models(*(client.model(submitted_id, kind) for kind in ("onnx", "safetensors")))
        self._look()
        run.train_reference()

    def stop(self) -> None:
        """End everything, the brokers last; may be called at any moment."""
        self._stop.set()
        self._run.children.stop()
        for domain, broker in self._brokers.items():
            broker.stop()
            with suppress(OSError):
                raw = (self._run.folder / f"broker-{domain}" / "broker.log").read_bytes()
                (self._run.out / "logs" / f"broker-{domain}.log").write_bytes(raw)

    def facts(self) -> dict[str, Any]:
        """Its part of `RunLog.result`."""
        return {"broker": self._broker_name, "protocol": self._protocol, "bytes": self._hops}

    # --- start ---

    def _provision(self) -> Site:
        run = self._run.settings
        edge, cloud, cloud_http, proxy_http, *blobs = free_ports(6)
        ports = Ports(
            edge, cloud, cloud_http, proxy_http, proxy_blobs=blobs[0], cloud_blobs=blobs[1]
        )
        upload_bytes = self._run.log.plan.upload_bytes
        cells = {name: CellPorts(*free_ports(3)) for name in run.cell_names}
        engine = choose_engine(run.broker)
        self._protocol = 4 if engine == "amqtt" else 5
        plan = replace(
            self._run.site,
            ports=ports,
            cells=cells,
            engine=engine,
            protocol=self._protocol,
            upload_bytes=upload_bytes,
            blobs=upload_bytes >= LEAST_BYTES and not cells,
        )
        pages = [plan.ports_of(cell).proxy_http for cell in plan.cell_names]
        self._proxy_urls = [f"http://{place(plan.host, port)}" for port in pages]
        return provision(plan)

    def _start_brokers(self, site: Site) -> None:
        plan, shown = site.plan, []
        self._brokers = broker_processes(plan)
        for domain, broker in self._brokers.items():
            broker.start()
            self._run.children.count(f"broker-{domain}", broker.pid)
            shown.append(f"{domain} side {place(plan.host, broker.port)}")
        self._broker_name = self._brokers["cloud"].name
        how = "tuned" if plan.engine == "mosquitto" else "MQTT 3.1.1"
        self._run.progress.note(f"Brokers: {self._broker_name} ({how}), {', '.join(shown)}")

    def _start_processes(self, site: Site) -> None:
        self._run.children.start("cloud", ["cloud", "--config", str(site.cloud)])
        for config in site.proxies.values():
            self._run.children.start(config.stem, ["proxy", "--config", str(config)])
        workers = min(self._run.settings.workers or WORKERS, len(site.edges))
        for number in range(workers):
            configs = [a for e in site.edges[number::workers] for a in ("--config", str(e))]
            self._run.children.start(f"worker-{number + 1}", ["edge", *configs], threads=1)
        what = f"{workers} workers with {len(site.edges)} devices"
        proxies = "a proxy" if len(site.proxies) == 1 else f"{len(site.proxies)} proxies"
        self._run.progress.doing(f"starting a cloud, {proxies} and {what}")

    def _wait_for_devices(self, site: Site) -> None:
        """Until all devices are online at the proxy and known to the cloud."""
        wanted = self._run.settings.devices
        timeout_s = START_S + START_PER_DEVICE_S * wanted
        deadline = time.monotonic() + timeout_s
        known = 0
        while time.monotonic() < deadline:
            self._look()
            with suppress(OSError, EdgeVeilError):
                known = int(Cloud(site.plan.url, site.token_file).status().get("enrolled", 0))
            if self._run.progress.view.online >= wanted and known >= wanted:
                return
            time.sleep(_LOOK_S)
        online, logs_dir = self._run.progress.view.online, self._run.out / "logs"
        raise JobFailed(
            f"after {timeout_s:.0f} s {online} of {wanted} devices are online"
            f" and {known} are known to the cloud",
            fix=f"See the logs in {logs_dir}; the proxy's ends:\n{tail(logs_dir / 'proxy.log')}",
        )

    # --- the job ---

    def _follow(self, client: Cloud, job: str) -> None:
        """Take the job's events until its last one, and look after everything meanwhile."""
        found: queue.Queue[dict[str, Any] | EdgeVeilError] = queue.Queue()
        reader = threading.Thread(
            target=self._read, args=(client, job, found), daemon=True, name="events"
        )
        reader.start()
        while not self._run.log.record.ended:
            with suppress(queue.Empty):
                event = found.get(timeout=_LOOK_S)
                while True:
                    if isinstance(event, EdgeVeilError):
                        self._run.children.check()  # a dead cloud says more than a refused call
                        raise event
                    self._run.log.take(event)
                    event = found.get_nowait()
            self._look()

    def _read(self, client: Cloud, job: str, found: queue.Queue[Any]) -> None:
        after = 0
        while not self._stop.is_set():
            try:
                events = client.events(job, after, _WAIT_S)
            except EdgeVeilError as error:
                found.put(error)
                return
            for event in events:
                after = int(event["seq"])
                found.put(event)

    # --- looking after ---

    def _look(self) -> None:
        """Check the children, the proxy's status and the memory."""
        self._run.children.check()
        for domain, broker in self._brokers.items():
            if not broker.running():
                raise JobFailed(f"the broker of the {domain} side ended by itself")
        view = self._run.progress.view
        view.memory_bytes = self._run.memory.look()
        with suppress(OSError):
            pages = [get_json(url, "/status") for url in self._proxy_urls]
            view.online = sum(int(page.get("online", 0)) for page in pages)
            self._hops = {
                hop: sum(int(page.get("bytes", {}).get(key, 0)) for page in pages)
                for key, hop in _HOPS.items()
            }
            rounds = [page.get("round") or {} for page in pages]
            for what in ("uploads", "declined"):
                counts = [int(one[what]) for one in rounds if what in one]
                setattr(view, what, sum(counts) if counts else getattr(view, what))
        self._run.log.look()


# --- rounds alone ---


class Simulation:
    """The same rounds without parties, brokers and encryption; all chance comes from the seed."""

    def __init__(self, run: LocalFleet) -> None:
        self._run = run
        self._workers: Workers | None = None
        self._rounds: SimulatedRounds | None = None
        self._events, self._next_look_s = 0, 0.0
        self._seconds: float | None = None
        self._declined = ""

    def play(self) -> None:
        """From records to models. Raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""
        run = self._run
        from threadpoolctl import threadpool_limits

        # The last bits of a product depend on how many threads compute it.
        with threadpool_limits(1), _log_file(run.out / "logs" / "simulation.log"):
            self._play()
        self._seconds = run.progress.elapsed_s
        run.train_reference()

    def stop(self) -> None:
        """End everything; may be called at any moment."""
        if self._workers is not None:
            self._workers.stop()

    def facts(self) -> dict[str, Any]:
        """Its part of `RunLog.result`."""
        ray = self._run.settings.ray_address is not None
        count = self._workers.count if self._workers else 0
        return {
            "broker": "none (simulated)",
            "protocol": None,
            "bytes": {},
            "seconds": self._seconds,
            "simulated": True,
            "engine": {"name": "ray" if ray else "processes", "workers": count},
        }

    def _play(self) -> None:
        run, job, settings = self._run, self._run.job, self._run.settings
        run.progress.doing(f"making {settings.devices} devices")
        dealt(job, settings)  # read once, before workers share it
        found = read_artifacts(job)
        carried = tuple(found[digest] for digest in carried_digests(job))
        fleet = SimulatedFleet(run.site, job.canonical(), carried, KEPT_BYTES)
        count = min(settings.workers or os.cpu_count() or 1, settings.devices)
        address = settings.ray_address
        workers = self._workers = (
            ProcessWorkers(fleet, count) if address is None else RayWorkers(fleet, count, address)
        )
        where = f"{workers.count} worker{'s' * (workers.count > 1)} ({workers.name})"
        run.progress.note(f"Simulation of rounds by {where}: encryption off, noise seeded")
        for number, pid in enumerate(workers.pids, start=1):
            run.children.count(f"worker-{number}", pid)
        rounds = self._rounds = SimulatedRounds(
            job,
            run.site,
            workers,
            tell=self._tell,
            say=self._hear,
            look=self._look,
        )
        run.progress.view.online = settings.devices
        model = rounds.play()
        # What a device told its owner may quote a record: of own records, for this console alone.
        published = is_published(job, settings)
        if self._declined and not published:
            run.progress.note(self._declined)
        run.log.require_completed(job.job, self._declined if published else "")
        if model is not None:
            run.keep_models(*model)

    def _tell(self, kind: str, data: Mapping[str, Any]) -> None:
        self._events += 1
        named = {"seq": self._events, "job": self._run.job.job, "time": time.time()}
        self._run.log.take({**named, "type": kind, "data": dict(data)})

    def _hear(self, number: int, line: str) -> None:
        """A line for an owner; the first reason to decline is kept."""
        logging.getLogger("edgeveil.devices").info(f"box-{number}: {line}")
        if not self._declined and " declined: " in line:
            self._declined = f"box-{number}: {line}"

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_look_s or self._rounds is None:
            return
        self._next_look_s = now_s + _LOOK_ROUNDS_S
        view = self._run.progress.view
        view.memory_bytes = self._run.memory.look()
        view.uploads, view.declined = self._rounds.uploads, self._rounds.declined
        self._run.log.look()


def refuse_unplayable(job: Job, run: LocalRun, *, keep: bool = False) -> None:
    """Raise UsageError for what a simulation cannot play, or where its Ray is not there."""
    fix = "leave out --simulate: `edgeveil run` plays it with brokers and processes"
    if keep:
        raise UsageError("a simulation has no keys, ledgers or stores", where="--keep", fix=fix)
    if job.round.mode == "buffered":
        what = "is for devices that are late, and in a simulation none is"
        raise UsageError(what, where="round.mode: buffered", fix=fix)
    if run.ray_address is not None:
        imported_ray(RAY_KEY)
        if run.ray_address != HERE:
            check_cluster(run.ray_address, RAY_KEY)


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """The library's log goes to one file meanwhile, and not over the progress."""
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
