"""One local run: its site, its processes, its job and what comes of it."""

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
from edgeveil.parts.features import read_backbones
from edgeveil_cloud.http_token import read_token
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.local.children import Children, MemoryPeak, tail
from edgeveil_tools.local.job import site_of, submitted
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import Reference, has_reference
from edgeveil_tools.local.run_log import Listener, RunLog, RunReporter, unheard
from edgeveil_tools.result import write_whole
from edgeveil_tools.site.broker_plan import BrokerPlan
from edgeveil_tools.site.brokers import BrokerProcess, choose_engine, free_ports
from edgeveil_tools.site.provision import SIDES, Site, provision
from edgeveil_tools.site.site_plan import Ports

START_S = 60.0
START_PER_DEVICE_S = 0.5
REFERENCE_S = 30.0
_LOOK_S = 0.25
_WAIT_S = 10.0
_HOPS = {
    "cloud_in": "cloud_to_proxy",
    "devices_out": "proxy_to_devices",
    "devices_in": "devices_to_proxy",
    "cloud_out": "proxy_to_cloud",
}


class Fleet:
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
        self.job, self.settings, self.out = job, run, out
        self.log = RunLog(job, run, out, hear, stop)
        self._folder, self._logs = folder, out / "logs"
        self._children = Children(self._logs)
        self._memory = MemoryPeak(self._children)
        self._brokers: dict[str, BrokerProcess] = {}
        self._broker_name, self._protocol = "", int(run.protocol)
        self._proxy_status = ""
        self._hops: dict[str, int] = {}
        self._wants_reference, self._record_dir = reference and has_reference(job), record_dir
        self._reference: Reference | None = None
        self._stop = threading.Event()

    # --- the course of a run ---

    def run(self) -> None:
        """From keys to models. Raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""
        site = self._provision()
        self._start_brokers(site)
        self._start_processes(site)
        if self._wants_reference:
            self._reference = Reference(self.job, self.settings, site.plan)
            self._reference.start()
        self._wait_for_devices(site)
        client = Cloud(site.plan.url, site.token_file)
        backbones = read_backbones(self.job.features)
        job = client.submit_yaml(submitted(self.job), backbones.values())
        self._follow(client, job)
        self.log.require_completed(job)
        for kind in ("onnx", "safetensors"):
            write_whole(self.out / f"model.{kind}", client.model(job, kind))
        self._look()
        if self._reference:
            self.progress.doing("waiting for the noise-free reference")
            self._reference.wait(REFERENCE_S)

    def stop(self) -> None:
        """End all processes; the brokers last. Keeps their logs."""
        self._stop.set()
        self._children.stop()
        if self._reference:
            self._reference.stop()
        for side, broker in self._brokers.items():
            broker.stop()
            with suppress(OSError):
                raw = (self._folder / f"broker-{side}" / "broker.log").read_bytes()
                (self._logs / f"broker-{side}.log").write_bytes(raw)

    def result(self, reason: str) -> dict[str, Any]:
        """The content of `result.json`; `reason` is empty when the job completed."""
        return self.log.result(
            reason,
            broker=self._broker_name,
            protocol=self._protocol,
            memory_peak_bytes=self._memory.peak_bytes or None,
            reference=self._reference.rounds if self._reference else [],
            bytes=self._hops,
        )

    @property
    def progress(self) -> RunReporter:
        """What a person sees."""
        return self.log.progress

    # --- start ---

    def _provision(self) -> Site:
        run, ports = self.settings, Ports(*free_ports(4))
        engine = choose_engine(run.broker)
        self._protocol = 4 if engine == "amqtt" else int(run.protocol)
        plan = replace(
            site_of(self.job, run, self._folder, self._record_dir),
            ports=ports,
            engine=engine,
            protocol=self._protocol,
            upload_bytes=self.log.plan.upload_bytes,
        )
        self._proxy_status = f"http://{plan.host}:{ports.proxy_http}/status"
        return provision(plan)

    def _start_brokers(self, site: Site) -> None:
        plan, shown = site.plan, []
        for side in SIDES:
            broker = BrokerProcess(
                BrokerPlan(
                    engine=plan.engine,  # type: ignore[arg-type]
                    port=getattr(plan.ports, side),
                    acl=side,  # type: ignore[arg-type]
                    max_queued_bytes=plan.queued_bytes,
                ),
                self._folder / f"broker-{side}",
                users_file=self._folder / "passwords" / f"{side}-broker.users",
            )
            self._brokers[side] = broker
            broker.start()
            self._children.count(f"broker-{side}", broker.pid)
            shown.append(f"{side} side {plan.host}:{broker.port}")
        self._broker_name = self._brokers["edge"].name
        how = "tuned" if plan.engine == "mosquitto" else "MQTT 3.1.1"
        self.progress.note(f"Brokers: {self._broker_name} ({how}), {', '.join(shown)}")

    def _start_processes(self, site: Site) -> None:
        self._children.start("cloud", ["cloud", "--config", str(site.cloud)])
        self._children.start("proxy", ["proxy", "--config", str(site.proxy)])
        workers = min(self.settings.workers, len(site.edges))
        for number in range(workers):
            configs = [a for e in site.edges[number::workers] for a in ("--config", str(e))]
            self._children.start(f"worker-{number + 1}", ["edge", *configs], threads=1)
        what = f"{workers} workers with {len(site.edges)} devices"
        self.progress.doing(f"starting a cloud, a proxy and {what}")

    def _wait_for_devices(self, site: Site) -> None:
        """Until all devices are online at the proxy and known to the cloud."""
        wanted = self.settings.devices
        timeout_s = START_S + START_PER_DEVICE_S * wanted
        deadline = time.monotonic() + timeout_s
        known = 0
        while time.monotonic() < deadline:
            self._look()
            with suppress(OSError, EdgeVeilError):
                token = read_token(site.token_file)
                known = int(get_json(f"{site.plan.url}/status", token).get("enrolled", 0))
            if self.progress.view.online >= wanted and known >= wanted:
                return
            time.sleep(_LOOK_S)
        raise JobFailed(
            f"after {timeout_s:.0f} s {self.progress.view.online} of {wanted} devices are online"
            f" and {known} are known to the cloud",
            fix=f"See the logs in {self._logs}; the proxy's ends:\n"
            f"{tail(self._logs / 'proxy.log')}",
        )

    # --- the job ---

    def _follow(self, client: Cloud, job: str) -> None:
        """Take the job's events until its last one, and look after everything meanwhile."""
        found: queue.Queue[dict[str, Any] | EdgeVeilError] = queue.Queue()
        reader = threading.Thread(
            target=self._read, args=(client, job, found), daemon=True, name="events"
        )
        reader.start()
        while not self.log.record.ended:
            with suppress(queue.Empty):
                event = found.get(timeout=_LOOK_S)
                while True:
                    if isinstance(event, EdgeVeilError):
                        self._children.check()  # a dead cloud says more than a refused call
                        raise event
                    self.log.take(event, self._reference)
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
        self._children.check()
        for side, broker in self._brokers.items():
            if not broker.running():
                raise JobFailed(f"the broker of the {side} side ended by itself")
        view = self.progress.view
        view.memory_bytes = self._memory.look()
        with suppress(OSError):
            status = get_json(self._proxy_status)
            view.online = int(status.get("online", 0))
            self._hops = {
                _HOPS[k]: int(v) for k, v in status.get("bytes", {}).items() if k in _HOPS
            }
            open_round = status.get("round") or {}
            view.uploads = int(open_round.get("uploads", view.uploads))
            view.declined = int(open_round.get("declined", view.declined))
        self.log.look()
