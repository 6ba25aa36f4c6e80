"""One local run: its site, its processes, its job and what comes of it."""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cloud_server.http_token import read_token
from fl_core.config import Job, LocalRun
from fl_core.errors import EdgeVeilError, JobFailed
from fl_core.plan import JobPlan
from tools.broker_plan import BrokerPlan
from tools.brokers import BrokerProcess, choose_engine, free_port
from tools.cloud_client import CloudClient
from tools.progress import MemoryPeak, Progress, View
from tools.provision import SIDES, Site, provision
from tools.result import Facts, Record, build, finite, privacy_of, write_whole
from tools.run_children import Children, tail
from tools.run_job import source, submitted
from tools.run_reference import Reference
from tools.site_plan import Ports, SitePlan

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

    def __init__(self, job: Job, run: LocalRun, folder: Path, out: Path, stream: IO[str]) -> None:
        self.job, self.settings, self.out = job, run, out
        self.plan = JobPlan(job)
        self._whole = self.plan.quote()
        self.record = Record()
        view = View(len(self.plan.exchanges), job.rounds, run.devices)
        self.progress = Progress(view, stream)
        self._folder, self._logs = folder, out / "logs"
        self._children = Children(self._logs)
        self._memory = MemoryPeak(self._children)
        self._brokers: dict[str, BrokerProcess] = {}
        self._broker_name, self._protocol = "", int(run.protocol)
        self._proxy_status = ""
        self._hops: dict[str, int] = {}
        self._reference: Reference | None = None
        self._stop = threading.Event()

    # --- the course of a run ---

    def run(self) -> None:
        """From keys to models. Raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""
        site = self._provision()
        self._start_brokers(site)
        self._start_processes(site)
        self._reference = Reference(self.job, self.settings, site.plan)
        self._reference.start()
        self._wait_for_devices(site)
        client = CloudClient(site.plan.url, site.token_file)
        job = client.submit(submitted(self.job))
        self._follow(client, job)
        if self.record.ended != "completed":
            raise JobFailed(
                self.record.reason or f"the job was {self.record.ended}",
                where=job,
                fix=f"What each process said is in {self._logs}",
            )
        for kind in ("onnx", "safetensors"):
            write_whole(self.out / f"model.{kind}", client.model(job, kind))
        self._look()
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
        event = self.plan.softmax_event() if self.plan.softmax_epsilon is not None else None
        once = getattr(event, "epsilon", None)
        quote = self.plan.quote(self.record.asked if reason else None)
        return build(
            self.record,
            Facts(
                job=self.job.job,
                status="failed" if reason else "completed",
                reason=reason,
                broker=self._broker_name,
                protocol=self._protocol,
                devices=self.settings.devices,
                infer_only=self.settings.infer_only,
                seconds=self.progress.elapsed_s,
                memory_peak_bytes=self._memory.peak_bytes or None,
                reference=self._reference.rounds if self._reference else [],
                bytes=self._hops,
                privacy=privacy_of(quote, float(once) if once is not None else None),
            ),
        )

    # --- start ---

    def _provision(self) -> Site:
        run, ports, data = self.settings, _free_ports(), source(self.job, self.settings)
        engine = choose_engine(run.broker)
        self._protocol = 4 if engine == "amqtt" else int(run.protocol)
        plan = SitePlan(
            folder=self._folder,
            devices=run.devices,
            infer_only=run.infer_only,
            ports=ports,
            engine=engine,
            protocol=self._protocol,
            data_name=self.job.data.source,
            data_source=data.source,
            data_path=data.path,
            test_records=run.test_records,
            partition=run.partition,
            seed=run.seed,
            policy=run.policy,
            min_batch_floor=min(3, self.job.round.min_batch),
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
                known = int(_get(f"{site.plan.url}/status", token).get("enrolled", 0))
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

    def _follow(self, client: CloudClient, job: str) -> None:
        """Take the job's events until its last one, and look after everything meanwhile."""
        found: queue.Queue[dict[str, Any] | EdgeVeilError] = queue.Queue()
        reader = threading.Thread(
            target=self._read, args=(client, job, found), daemon=True, name="events"
        )
        reader.start()
        with (self.out / "events.jsonl").open("w", encoding="utf-8") as file:
            while True:
                with suppress(queue.Empty):
                    event = found.get(timeout=_LOOK_S)
                    while True:
                        if isinstance(event, EdgeVeilError):
                            self._children.check()  # a dead cloud says more than a refused call
                            raise event
                        self._take(event, file)
                        event = found.get_nowait()
                if self.record.ended:
                    return
                self._look()

    def _read(self, client: CloudClient, job: str, found: queue.Queue[Any]) -> None:
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

    def _take(self, event: dict[str, Any], file: IO[str]) -> None:
        event = finite(event)
        self.record.take(event)
        file.write(json.dumps(event, allow_nan=False) + "\n")
        file.flush()
        view, data = self.progress.view, event["data"]
        if event["type"] == "broadcast" and data.get("kind") == "round":
            view.selected, view.uploads, view.declined = data.get("selected"), 0, 0
            view.doing = str(data.get("round"))
        elif event["type"] == "exchange_committed":
            view.committed, view.round = self.record.committed, len(self.record.rounds)
            view.uploads, view.declined = data["uploads"], data.get("declined", 0)
            view.accuracy = self.record.accuracy
            view.reference = self._reference.at(view.round) if self._reference else None
            spent, quote = data.get("epsilon", {}), self._whole
            view.training_epsilon = spent.get("training") if quote.training.proven else None
            view.inference_epsilon = spent.get("inference") if quote.inference.proven else None
            self.progress.committed()
        elif event["type"] == "round_repeated":
            self.progress.doing(f"{view.doing} again: {data.get('why', '')}")

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
            status = _get(self._proxy_status)
            view.online = int(status.get("online", 0))
            self._hops = {
                _HOPS[k]: int(v) for k, v in status.get("bytes", {}).items() if k in _HOPS
            }
            open_round = status.get("round") or {}
            view.uploads = int(open_round.get("uploads", view.uploads))
            view.declined = int(open_round.get("declined", view.declined))


def _free_ports() -> Ports:
    found: list[int] = []
    while len(found) < 4:
        port = free_port()
        if port not in found:
            found.append(port)
    return Ports(*found)


def _get(url: str, token: str = "") -> dict[str, Any]:
    """A JSON object over HTTP, from this machine; OSError when there is none."""
    request = urllib.request.Request(url)  # noqa: S310 - our own address
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=2.0) as answer:
            found = json.load(answer)
    except (ValueError, urllib.error.URLError) as error:
        raise OSError(str(error)) from error
    return found if isinstance(found, dict) else {}
