"""The site under faults: brokers, relays before them, supervised processes, batch workers."""

import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import yaml

from edgeveil.config.site_files import load_site
from edgeveil.privacy.ledger import LEDGER_FILE
from edgeveil.ray_cluster import join_cluster
from edgeveil_tools.local.fleet import WORKERS
from edgeveil_tools.local.job import site_of
from edgeveil_tools.site.broker_rules import of_cell
from edgeveil_tools.site.brokers import choose_engine, free_ports
from edgeveil_tools.site.provision import CellPorts, Ports, broker_processes, provision
from tests.chaos.evidence import (
    ANSWERS_FILE,
    CLOUD_STORE,
    spool_of,
    tap_ledger,
    tap_spool,
    tap_store,
)
from tests.chaos.faults import COMPUTE, FaultTargets, broker_of
from tests.chaos.noted_answers import ANSWERS
from tests.chaos.relays import Relays
from tests.chaos.supervisor import Supervisor
from tests.kits.live_site import start_again

WRONG_MASKS, NOTED_ANSWERS = "tests.chaos.wrong_masks", "tests.chaos.noted_answers"
_PACKET_BYTES = 4096  # so that models, uploads and batches go in parts, and are hit between them
_BLOCKS = {
    "devices-edge": ("edge", "broker"),
    "proxy-edge": ("proxy", "edge_broker"),
    "proxy-cloud": ("proxy", "cloud_broker"),
    "cloud-cloud": ("cloud", "broker"),
}

# --- workers that open batches: the cloud starts them, so the supervisor does not know them ---

ASKED_BY = "tests.chaos --engine"
_COMPUTE_WORKERS = 2
_HELD_S = 1.0  # suspended for so long before it is killed, so that it dies with work
_COMMANDS = ("edgeveil_cloud.compute.worker", "edgeveil_cloud.compute.on_ray")
_ON_RAY = ("ray::IDLE", "ray::task")


class ComputeWorkers:
    """Kills batch workers; raises UsageError if none can be started.

    With Ray, the run's own cluster outlives the cloud's restarts, as an operator's would."""

    def __init__(self, engine, seed):
        self._random = random.Random(f"{seed} compute")
        self._ray = None
        self.settings = {
            "engine": engine, "workers": _COMPUTE_WORKERS, "least_bytes": 0
        }  # fmt: skip
        if engine == "ray":
            self._ray = join_cluster(None, ASKED_BY, _COMPUTE_WORKERS)
            self.settings["address"] = self._ray.get_runtime_context().gcs_address
        self.killed = 0

    def kill(self):
        """Suspend a worker, if there is one, and SIGKILL it a moment later."""
        there = sorted(self._there(), key=lambda process: process.pid)
        with suppress(psutil.Error):
            if there:
                chosen = self._random.choice(there)
                chosen.suspend()
                time.sleep(_HELD_S)
                chosen.kill()
                self.killed += 1

    def stop(self):
        if self._ray is not None:
            self._ray.shutdown()

    def _there(self):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                words = process.cmdline()
                if words and (words[0].startswith(_ON_RAY) or any(c in words for c in _COMMANDS)):
                    yield process


# --- the site ---


class ChaosSite:
    """A generated site whose links pass through relays."""

    def __init__(self, job, run, folder, logs, seed, now_s, compute=None, cell_count=1):
        numbers = range(1, cell_count + 1) if cell_count > 1 else ()  # one cell needs no name
        cells = tuple(f"cell-{number}" for number in numbers)
        links = FaultTargets((), cells or ("",)).links
        ports = iter(free_ports(4 + 3 * len(cells) + len(links)))
        engine = choose_engine(run.broker)
        plan = replace(
            site_of(job, run, folder),
            ports=Ports(*(next(ports) for _ in range(4))),
            cells={cell: CellPorts(next(ports), next(ports), next(ports)) for cell in cells},
            engine=engine,
            protocol=4 if engine == "amqtt" else 5,
        )
        self.site = provision(plan, force=True)
        relayed = {link: (next(ports), plan.port(broker_of(link))) for link in links}
        self.relays = Relays(relayed, seed)
        self.compute = None if compute is None else ComputeWorkers(compute, seed)
        for path in (self.site.cloud, *self.site.proxies.values(), *self.site.edges):
            _adapt(path, {link: port for link, (port, _) in relayed.items()}, self.compute)
        self.brokers = broker_processes(plan)
        self.supervisor = Supervisor(logs, now_s)
        # Under masks the last device that trains has wrong ones, in a process of its own.
        self.wrong = {plan.devices - plan.infer_only} if job.aggregation.secure else set()
        sound = len(self.site.edges) - len(self.wrong)
        self._workers = min(run.workers or WORKERS, sound) + len(self.wrong)
        proxies = [of_cell("proxy", cell) for cell in plan.cell_names]
        processes = ("cloud", *proxies, *(f"worker-{k + 1}" for k in range(self._workers)))
        self.targets = FaultTargets(processes, plan.cell_names, compute is not None)
        self._lock = threading.Lock()

    def start(self):
        """Start brokers, relays, processes, in this order; wait only for the brokers."""
        for broker in self.brokers.values():
            broker.start()
        self.relays.start()
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # of modules of tests
        os.environ[ANSWERS] = str(self.site.spec.folder / ANSWERS_FILE)
        self.supervisor.start("cloud", ["cloud", "--config", str(self.site.cloud)])
        for path in self.site.proxies.values():
            self.supervisor.start(path.stem, ["proxy", "--config", str(path)], NOTED_ANSWERS)
        cells, workers = len(self.site.proxies), self._workers - len(self.wrong)
        sound = [n for n in range(len(self.site.edges)) if n + 1 not in self.wrong]
        for k in range(workers):  # devices take turns in the cells: each worker gets some of all
            self._start_worker(k + 1, [n for n in sound if n // cells % workers == k])
        for k, number in enumerate(sorted(self.wrong)):
            self._start_worker(workers + k + 1, [number - 1], WRONG_MASKS)

    def _start_worker(self, worker, mine, module="edgeveil_tools.cli"):
        configs = [word for n in mine for word in ("--config", str(self.site.edges[n]))]
        self.supervisor.start(f"worker-{worker}", ["edge", *configs], module)

    def tap(self):
        """Tap all databases, once every device is up and before the first job."""
        plan = self.site.spec
        tap_store(plan.folder / CLOUD_STORE)
        for cell in plan.cell_names:
            tap_spool(spool_of(plan, cell))
        for number in range(1, plan.devices + 1):
            tap_ledger(plan.edge_state(number) / LEDGER_FILE)

    def begin(self, fault):
        if fault.target == COMPUTE and self.compute is not None:
            self.compute.kill()
        elif fault.kind == "kill":
            self.supervisor.kill(fault.target)
        elif fault.kind == "disk":
            self.supervisor.fill(fault.target, True)
        elif fault.kind == "broker":
            with self._lock:
                self.brokers[fault.target].stop()
        else:
            self.relays.begin(fault)

    def end(self, fault):
        """End a fault that does not end by itself; raises BrokerError."""
        if fault.kind == "disk":
            self.supervisor.fill(fault.target, False)
        elif fault.kind == "broker":
            with self._lock:
                start_again(self.brokers[fault.target])

    def stop(self):
        """End everything, the brokers last; return the processes that had to be killed."""
        late = self.supervisor.stop()
        if self.compute is not None:
            self.compute.stop()
        self.relays.stop()
        for broker in self.brokers.values():
            broker.stop()
        return late


def _adapt(path, ports, compute):
    """Point the broker blocks of a site file at their relays, and keep its packets small."""
    settings = yaml.safe_load(path.read_text("utf-8"))
    for link, (party, block) in _BLOCKS.items():
        if party in settings:
            broker = settings[party][block]
            link = of_cell(link, settings[party].get("cell", ""))
            broker["url"] = f"mqtt://127.0.0.1:{ports[link]}"
            settings[party].setdefault("limits", {})["packet_bytes"] = _PACKET_BYTES
    if "cloud" in settings and compute is not None:
        settings["cloud"]["compute"] = compute.settings
    if "proxy" in settings:
        settings["proxy"]["limits"]["lot_bytes"] = settings["proxy"]["min_batch_floor"] = 1
    path.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    load_site(path)
