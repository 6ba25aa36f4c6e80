"""The fleet of a local run: its parties as processes over brokers, or simulated.

`LocalFleet` is what a run is to whoever started it: its course, its reference, its result. What
plays the job is one of three: `FleetProcesses` provisions a site and starts brokers, cloud, proxy
and workers; the other two simulate (`simulated.py`).
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeveil.errors import EdgeVeilError, JobFailed
from edgeveil.jobs import Job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.parts.models.softmax_head import described
from edgeveil.protocol.transfer import LEAST_BYTES
from edgeveil.sites.addresses import place
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.local.children import Children, MemoryPeak, tail
from edgeveil_tools.local.job import site_of, submitted
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import Reference, has_reference
from edgeveil_tools.local.run_log import Listener, RunLog, RunReporter, unheard
from edgeveil_tools.local.simulated import FleetInMemory, FleetOfWorkers, FleetPlayers, engine_of
from edgeveil_tools.result import SIMULATED, write_whole
from edgeveil_tools.site.brokers import BrokerProcess, choose_engine, free_ports
from edgeveil_tools.site.provision import CellPorts, Ports, Site, broker_processes, provision

START_S = 60.0
START_PER_DEVICE_S = 0.5
REFERENCE_S = 30.0
WORKERS = 2  # processes that host devices, where nobody says how many
_LOOK_S = 0.25
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
        keep: bool = False,
        resume: bool = False,
    ) -> None:
        self.job, self.settings, self.folder, self.out = job, run, folder, out
        self.log = RunLog(job, run, out, hear, stop)
        self.site = site_of(job, run, folder, record_dir)
        self.children = Children(out / "logs")
        self.memory = MemoryPeak(self.children)
        wanted = reference and has_reference(job)
        self.reference = Reference(job, run, self.site) if wanted else None
        self._players: FleetPlayers = self._chosen(keep, resume)

    def _chosen(self, keep: bool, resume: bool) -> FleetPlayers:
        if not self.settings.simulate:
            return FleetProcesses(self)
        engine = engine_of(self.job, self.settings, keep=keep)
        if engine == "faithful":
            return FleetInMemory(self)
        return FleetOfWorkers(self, engine, resume=resume)

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

    def result(self, reason: str) -> dict[str, Any]:
        """The content of `result.json`; `reason` is empty when the job completed."""
        return self.log.result(
            reason,
            memory_peak_bytes=self.memory.peak_bytes or None,
            reference=self.reference.rounds if self.reference else [],
            **self._players.facts(),
        )


# --- processes over brokers ---


class FleetProcesses:
    """Two brokers, a cloud, a proxy and workers that host the devices, each a process."""

    def __init__(self, run: LocalFleet) -> None:
        self._run = run
        self._brokers: dict[str, BrokerProcess] = {}
        self._broker_name, self._protocol = "", int(run.settings.protocol)
        self._proxy_urls: list[str] = []
        self._hops: dict[str, int] = {}
        self._stop = threading.Event()

    def play(self) -> None:
        """See `FleetPlayers`."""
        run, job = self._run, self._run.job
        site = self._provision()
        self._start_brokers(site)
        self._start_processes(site)
        if run.reference:
            run.reference.start()
        self._wait_for_devices(site)
        client = Cloud(site.plan.url, site.token_file)
        submitted_id = client.submit_yaml(submitted(job), read_artifacts(job).values())
        self._follow(client, submitted_id)
        run.log.require_completed(submitted_id)
        run.keep_models(*(client.model(submitted_id, kind) for kind in ("onnx", "safetensors")))
        self._look()
        if run.reference:
            run.progress.doing("waiting for the noise-free reference")
            run.reference.wait(REFERENCE_S)

    def stop(self) -> None:
        """See `FleetPlayers`; the brokers end last."""
        self._stop.set()
        self._run.children.stop()
        if self._run.reference:
            self._run.reference.stop()
        for domain, broker in self._brokers.items():
            broker.stop()
            with suppress(OSError):
                raw = (self._run.folder / f"broker-{domain}" / "broker.log").read_bytes()
                (self._run.out / "logs" / f"broker-{domain}.log").write_bytes(raw)

    def facts(self) -> dict[str, Any]:
        """See `FleetPlayers`."""
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
        self._protocol = 4 if engine == "amqtt" else int(run.protocol)
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
                    self._run.log.take(event, self._run.reference)
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
