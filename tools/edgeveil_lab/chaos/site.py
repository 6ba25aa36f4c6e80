"""The site that is put under faults: two brokers, relays before them, and supervised processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import BrokerError
from edgeveil.jobs import Job
from edgeveil.privacy.ledger import LEDGER_FILE
from edgeveil.sites.files import load_site
from edgeveil_lab.chaos.evidence import tap_ledger, tap_spool
from edgeveil_lab.chaos.faults import LINKS, SIDES, Fault
from edgeveil_lab.chaos.relays import Relays
from edgeveil_lab.chaos.supervisor import Disks, Supervisor
from edgeveil_proxy.spool import SPOOL_FILE
from edgeveil_tools.local.fleet import WORKERS
from edgeveil_tools.local.job import site_of
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess, choose_engine, free_ports
from edgeveil_tools.site.provision import Ports, provision

BACKOFF_CAP_S = 2.0
PACKET_BYTES = 4096  # so that models, uploads and batches go in parts, and are hit between them
_BROKER_START_S = 30.0
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
    ) -> None:
        ports = dict(
            zip(("edge", "cloud", "cloud_http", "proxy_http", *LINKS), free_ports(8), strict=True)
        )
        engine = choose_engine(run.broker)
        plan = replace(
            site_of(job, run, folder),
            ports=Ports(*list(ports.values())[:4]),
            engine=engine,
            protocol=4 if engine == "amqtt" else int(run.protocol),
        )
        states = plan.folder / "state"
        states.mkdir(mode=0o700)
        self._disks = {name: disks.under(states / name) for name in ("cloud", "proxy")}
        self._edge_disks = [disks.under(plan.edge_state(k + 1)) for k in range(plan.devices)]
        self.site, self.engine = provision(plan, force=True), engine
        relayed = {link: (ports[link], ports[link.partition("-")[2]]) for link in LINKS}
        self.relays = Relays(relayed, seed)
        for path in (self.site.cloud, self.site.proxy, *self.site.edges):
            _fit(path, {link: port for link, (port, _) in relayed.items()})
        self.brokers = {
            side: BrokerProcess(
                BrokerPlan(
                    engine=engine,
                    port=ports[side],
                    acl=side,  # type: ignore[arg-type]
                    max_queued_bytes=plan.queued_bytes,
                ),
                folder / f"broker-{side}",
                users_file=folder / "passwords" / f"{side}-broker.users",
            )
            for side in SIDES
        }
        self.supervisor = Supervisor(logs, now_s)
        self._workers = min(run.workers or WORKERS, len(self.site.edges))
        self._lock = threading.Lock()

    @property
    def processes(self) -> tuple[str, ...]:
        """What may be killed."""
        return ("cloud", "proxy", *(f"worker-{k + 1}" for k in range(self._workers)))

    def start(self) -> None:
        """Brokers, relays, processes, in this order; none is waited for but the brokers."""
        for broker in self.brokers.values():
            broker.start()
        self.relays.start()
        for name, path in (("cloud", self.site.cloud), ("proxy", self.site.proxy)):
            self.supervisor.start(name, [name, "--config", str(path)], self._disks[name])
        for k in range(self._workers):
            mine = self.site.edges[k :: self._workers]
            configs = [word for path in mine for word in ("--config", str(path))]
            disks = [disk for made in self._edge_disks[k :: self._workers] for disk in made]
            self.supervisor.start(f"worker-{k + 1}", ["edge", *configs], disks)

    def tap(self) -> None:
        """Once every device is up, before its first job: no release is forgotten from now on, nor
        what is unmasked."""
        tap_spool(self.site.plan.folder / "state" / "proxy" / SPOOL_FILE)
        for number in range(1, self.site.plan.devices + 1):
            tap_ledger(self.site.plan.edge_state(number) / LEDGER_FILE)

    def begin(self, fault: Fault) -> None:
        """Bring a fault. A relay ends its own; the others end with `end`."""
        if fault.kind == "kill" and fault.amount:
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
                _start_broker(self.brokers[fault.target])

    def waiting(self) -> int:
        """Faults that were begun and are still to strike."""
        return self.supervisor.waiting

    def stop(self) -> list[str]:
        """End everything, the brokers last; names of the processes that had to be killed."""
        late = self.supervisor.stop()
        self.relays.stop()
        for broker in self.brokers.values():
            broker.stop()
        return late


def _start_broker(broker: BrokerProcess) -> None:
    """Its old connections may hold the port for a moment."""
    end_s = time.monotonic() + _BROKER_START_S
    while True:
        try:
            broker.start()
        except BrokerError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)
        else:
            return


def _fit(path: Path, ports: dict[str, int]) -> None:
    """Point the broker blocks of a site file at their relays, and keep its packets and the lots of
    its masked uploads small: these go on as they come."""
    settings: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    for link, (party, block) in _BLOCKS.items():
        if party in settings:
            broker = settings[party][block]
            broker["url"] = f"mqtt://127.0.0.1:{ports[link]}"
            broker["backoff_cap_s"] = BACKOFF_CAP_S
            settings[party].setdefault("limits", {})["packet_bytes"] = PACKET_BYTES
    if "proxy" in settings:
        settings["proxy"]["limits"]["lot_bytes"] = settings["proxy"]["min_batch_floor"] = 1
    path.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    load_site(path)
