"""The site that is put under faults: its brokers, relays before them, and supervised processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from edgeveil.jobs import Job
from edgeveil.privacy.ledger import LEDGER_FILE
from edgeveil.sites.files import load_site
from edgeveil_lab.chaos.compute import ComputeEngine, ComputeWorkers
from edgeveil_lab.chaos.evidence import CLOUD_STORE, spool_of, tap_ledger, tap_spool, tap_store
from edgeveil_lab.chaos.faults import COMPUTE, Fault, FaultTargets, broker_of
from edgeveil_lab.chaos.relays import Relays
from edgeveil_lab.chaos.supervisor import Disks, Supervisor
from edgeveil_tools.local.fleet import WORKERS
from edgeveil_tools.local.job import site_of
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.site.brokers import BrokerProcess, choose_engine, free_ports
from edgeveil_tools.site.fleet_plan import of_cell
from edgeveil_tools.site.provision import CellPorts, Ports, broker_processes, provision

BACKOFF_CAP_S = 2.0
WRONG_MASKS = "edgeveil_lab.chaos.wrong_masks"
PACKET_BYTES = 4096  # so that models, uploads and batches go in parts, and are hit between them
_BLOCKS = {
    "devices-edge": ("edge", "broker"),
    "proxy-edge": ("proxy", "edge_broker"),
    "proxy-cloud": ("proxy", "cloud_broker"),
    "cloud-cloud": ("cloud", "broker"),
}


class ChaosSite:
    """A provisioned site whose links pass through relays. `start`, `apply` faults, `stop`."""

    def __init__(
        self,
        job: Job,
        run: LocalRun,
        disks: Disks,
        folder: Path,
        logs: Path,
        seed: int,
        now_s: Callable[[], float],
        compute: ComputeEngine | None = None,
    ) -> None:
        cells = run.cell_names
        links = FaultTargets((), cells or ("",)).links
        ports = iter(free_ports(4 + 3 * len(cells) + len(links)))
        engine = choose_engine(run.broker)
        plan = replace(
            site_of(job, run, folder),
            ports=Ports(*(next(ports) for _ in range(4))),
            cells={cell: CellPorts(next(ports), next(ports), next(ports)) for cell in cells},
            engine=engine,
            protocol=4 if engine == "amqtt" else int(run.protocol),
        )
        states = plan.folder / "state"
        states.mkdir(mode=0o700)
        proxies = [of_cell("proxy", cell) for cell in plan.cell_names]
        self._disks = {name: disks.under(states / name) for name in ("cloud", *proxies)}
        self._edge_disks = [disks.under(plan.edge_state(k + 1)) for k in range(plan.devices)]
        self.site, self.engine = provision(plan, force=True), engine
        relayed = {link: (next(ports), plan.port(broker_of(link))) for link in links}
        self.relays = Relays(relayed, seed)
        self.compute = None if compute is None else ComputeWorkers(compute, seed)
        for path in (self.site.cloud, *self.site.proxies.values(), *self.site.edges):
            _fit(path, {link: port for link, (port, _) in relayed.items()}, self.compute)
        self.brokers: dict[str, BrokerProcess] = broker_processes(plan)
        self.supervisor = Supervisor(logs, now_s)
        # Under masks the last device that trains has wrong ones, in a process of its own.
        self.wrong = {plan.devices - plan.infer_only} if job.aggregation.secure else set[int]()
        sound = len(self.site.edges) - len(self.wrong)
        self._workers = min(run.workers or WORKERS, sound) + len(self.wrong)
        self._lock = threading.Lock()

    @property
    def targets(self) -> FaultTargets:
        """What faults may hit."""
        cells = self.site.plan.cell_names
        proxies = [of_cell("proxy", cell) for cell in cells]
        workers = [f"worker-{k + 1}" for k in range(self._workers)]
        return FaultTargets(("cloud", *proxies, *workers), cells, self.compute is not None)

    def start(self) -> None:
        """Brokers, relays, processes, in this order; none is waited for but the brokers."""
        for broker in self.brokers.values():
            broker.start()
        self.relays.start()
        for path in (self.site.cloud, *self.site.proxies.values()):
            name, role = path.stem, path.stem.partition("-")[0]
            self.supervisor.start(name, [role, "--config", str(path)], self._disks[name])
        cells, workers = len(self.site.proxies), self._workers - len(self.wrong)
        sound = [n for n in range(len(self.site.edges)) if n + 1 not in self.wrong]
        for k in range(workers):
            # Devices take turns in the cells, so each worker gets some of every cell.
            self._start_worker(k + 1, [n for n in sound if n // cells % workers == k])
        for k, number in enumerate(sorted(self.wrong)):
            self._start_worker(workers + k + 1, [number - 1], WRONG_MASKS)

    def _start_worker(
        self, worker: int, mine: Sequence[int], module: str = "edgeveil_tools.cli"
    ) -> None:
        configs = [word for n in mine for word in ("--config", str(self.site.edges[n]))]
        disks = [disk for n in mine for disk in self._edge_disks[n]]
        self.supervisor.start(f"worker-{worker}", ["edge", *configs], disks, module)

    def tap(self) -> None:
        """Once every device is up, before its first job: no release is forgotten from now on, nor
        what is unmasked, nor whose batches were opened."""
        plan = self.site.plan
        tap_store(plan.folder / CLOUD_STORE)
        for cell in plan.cell_names:
            tap_spool(spool_of(plan, cell))
        for number in range(1, plan.devices + 1):
            tap_ledger(plan.edge_state(number) / LEDGER_FILE)

    def begin(self, fault: Fault) -> None:
        """Bring a fault. A relay ends its own; the others end with `end`."""
        if fault.target == COMPUTE and self.compute is not None:
            self.compute.kill()
        elif fault.kind == "kill" and fault.amount:
            self.supervisor.kill_starting(fault.target, fault.amount)
        elif fault.kind == "kill":
            self.supervisor.kill(fault.target)
        elif fault.kind == "disk":
            self.supervisor.fill(fault.target, True)
        elif fault.kind == "broker":
            with self._lock:
                self.brokers[fault.target].stop()
        else:
            self.relays.begin(fault)

    def end(self, fault: Fault) -> None:
        """Take the fault back. Raises BrokerError where a broker does not start again."""
        if fault.kind == "disk":
            self.supervisor.fill(fault.target, False)
        elif fault.kind == "broker":
            with self._lock:
                self.brokers[fault.target].start_again()

    def waiting(self) -> int:
        """Faults that were begun and are still to strike."""
        return self.supervisor.waiting + (self.compute.waiting if self.compute else 0)

    def stop(self) -> list[str]:
        """End everything, the brokers last; names of the processes that had to be killed."""
        late = self.supervisor.stop()
        if self.compute is not None:
            self.compute.stop()
        self.relays.stop()
        for broker in self.brokers.values():
            broker.stop()
        return late


def _fit(path: Path, ports: dict[str, int], compute: ComputeWorkers | None) -> None:
    """Point the broker blocks of a site file at their relays, and keep its packets and the lots of
    its masked uploads small: these go on as they come."""
    settings: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    for link, (party, block) in _BLOCKS.items():
        if party in settings:
            broker = settings[party][block]
            link = of_cell(link, settings[party].get("cell", ""))
            broker["url"] = f"mqtt://127.0.0.1:{ports[link]}"
            settings[party].setdefault("limits", {})["packet_bytes"] = PACKET_BYTES
    if "cloud" in settings and compute is not None:
        settings["cloud"]["compute"] = compute.settings
    if "proxy" in settings:
        settings["proxy"]["limits"]["lot_bytes"] = settings["proxy"]["min_batch_floor"] = 1
    path.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    load_site(path)
