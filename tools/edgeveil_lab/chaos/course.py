"""One chaos run: a site, jobs one after the other, faults, a quiet time, the checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeveil.errors import DataError, JobFailed
from edgeveil.jobs import Job
from edgeveil_cloud.host import wire_id
from edgeveil_edge.releases import ReleaseStore
from edgeveil_lab.chaos import checks
from edgeveil_lab.chaos.director import Director
from edgeveil_lab.chaos.disks import Disks
from edgeveil_lab.chaos.jobs import Jobs
from edgeveil_lab.chaos.plan import Fault, schedule
from edgeveil_lab.chaos.site import ChaosSite
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.local.children import tail
from edgeveil_tools.local.job import submitted
from edgeveil_tools.local.local_run import LocalRun

START_S = 120.0
TOUCHES = {  # by kind of fault, what the relays count
    "cut": ("cut", "refused"),
    "delay": ("delayed",),
    "corrupt": ("corrupted",),
    "duplicate": ("duplicated",),
}
RELEASES_S = 60.0
_LOOK_S = 0.4
_START_ENDS = 3  # so many ends by themselves, and the site will not start


@dataclass(frozen=True)
class Asked:
    """What a run is asked to do. A quiet site whose jobs stand still for `stall_s` has hung."""

    kills: int = 20
    seed: int = 1
    every_s: float = 1.5
    stall_s: float = 120.0


@dataclass
class State:
    """How the run stands, for who looks on."""

    doing: str = "starting"
    elapsed_s: float = 0.0
    faults_done: int = 0
    faults: int = 0
    kills_done: int = 0
    starts: int = 0
    jobs: dict[str, int] = field(default_factory=dict)
    committed: int = 0
    online: int = 0


class Course:
    """`run` once, then `stop`; what it leaves behind is on the site's disks."""

    def __init__(
        self,
        job: Job,
        run: LocalRun,
        asked: Asked,
        disks: Disks,
        folder: Path,
        logs: Path,
        look: Callable[[State], None],
    ) -> None:
        self.asked, self._logs, self._show = asked, logs, look
        self.disk_by = disks.by
        self._begun_s = self._faults_s = time.monotonic()
        self.begun_at = time.time()
        self.site = ChaosSite(job, run, disks, folder, logs, asked.seed, self._now_s)
        self.faults = schedule(asked.seed, asked.kills, self.site.processes, asked.every_s)
        self.jobs = Jobs(self._client, submitted(job))
        self.state = State(faults=len(self.faults))
        self.late: list[str] = []
        self.stalled: dict[str, Any] | None = None
        self.up_s = self.quiet_s = 0.0
        self._director: Director | None = None
        self._last_seen: tuple[object, ...] = ()
        self._moved_s = 0.0

    def run(self) -> None:
        """Until everything has come back, or nothing moves any more (`stalled` says it).

        Raises BrokerError, or JobFailed where the site did not even start.
        """
        self.site.start()
        self._until(self._all_online, START_S, "the site did not start")
        self.site.tap_ledgers()
        self.state.doing = "a first round"
        self._until(self._first_round, START_S, "no round was committed")
        self.up_s = self._now_s()
        self._faults_s = time.monotonic()
        director = self._director = Director(self.site, self.faults, self._since_up_s)
        director.start()
        self.state.doing = "faults"
        while not director.over():
            if self._look() and self.jobs.idle:
                self.jobs.submit()
        self.quiet_s = self._now_s()
        self.state.doing = "everything comes back"
        if self._jobs_end() and self._one_more():
            self.state.doing = "releases reach the devices"
            with suppress(JobFailed):  # the checks say which device lacks it
                self._until(self._releases_there, RELEASES_S, "a release is missing")

    def stop(self) -> None:
        """End everything; may be called twice."""
        self.state.doing = "stopping"
        self._show(self.state)
        if self._director is not None:
            self._director.stop()
        self.late += self.site.stop()

    @property
    def faults_done(self) -> list[Fault]:
        """What was brought."""
        return self._director.done if self._director is not None else []

    def facts(self) -> checks.Course:
        """What the checks want to know of the run."""
        supervisor = self.site.supervisor
        return checks.Course(
            self.faults_done,
            self.up_s,
            self.quiet_s,
            self.begun_at,
            self.touched(),
            supervisor.ends,
            supervisor.traces,
            self.late,
            self.stalled,
        )

    def touched(self) -> dict[str, int]:
        """How many packets, connections or processes the faults of each kind met."""
        links = self.site.relays.counts().values()
        found = {
            kind: sum(link.get(what, 0) for link in links for what in whats)
            for kind, whats in TOUCHES.items()
        }
        found["kill"] = sum(end.how == "killed" for end in self.site.supervisor.ends)
        found["broker"] = sum(fault.kind == "broker" for fault in self.faults_done)
        return found | {"disk": self.site.supervisor.filled}

    # --- waiting ---

    def _jobs_end(self) -> bool:
        """Wait until no job is left; False, with `stalled` told, where they stand still."""
        self._moved_s = self._now_s()
        while True:
            answers = self._look()
            if answers and self.jobs.idle:
                return True
            if self.jobs.mark != self._last_seen:
                self._last_seen, self._moved_s = self.jobs.mark, self._now_s()
            if self._now_s() - self._moved_s > self.asked.stall_s:
                self.stalled = self._picture()
                return False

    def _one_more(self) -> bool:
        """A last job without faults shows that everything works again."""
        before = len(self.jobs.known)
        self.state.doing = "a last job"
        self._moved_s = self._now_s()
        while len(self.jobs.known) == before:
            self.jobs.submit()
            self._look()
            if self._now_s() - self._moved_s > self.asked.stall_s:
                self.stalled = self._picture()
                return False
        return self._jobs_end()

    def _until(self, holds: Callable[[], bool], limit_s: float, otherwise: str) -> None:
        end_s = self._now_s() + limit_s
        while not holds():
            ended = [end for end in self.site.supervisor.ends if end.how == "by itself"]
            if self._now_s() > end_s or (not self.up_s and len(ended) >= _START_ENDS):
                name = ended[-1].name if ended else "proxy"
                log = self._logs / f"{name}.log"
                fix = f"See the logs in {self._logs}; the {name}'s ends:\n{tail(log)}"
                raise JobFailed(f"{otherwise} within {limit_s:.0f} s", fix=fix)
            self._look()

    def _first_round(self) -> bool:
        if self.jobs.idle:
            self.jobs.submit()
        return self.jobs.committed > 0

    def _all_online(self) -> bool:
        return self.state.online >= self.site.site.plan.devices and self.jobs.look()

    def _releases_there(self) -> bool:
        completed = [job["id"] for job in self.jobs.known if job["status"] == "completed"]
        if not completed:
            return True
        wanted = wire_id(completed[-1]).hex()
        plan = self.site.site.plan
        for number in range(1, plan.devices + 1):
            with suppress(DataError):
                held = ReleaseStore(plan.edge_state(number) / "releases").current()
                if held is not None and held.meta.get("job_id") == wanted:
                    continue
            return False
        return True

    # --- looking ---

    def _look(self) -> bool:
        """Take a look at everything; whether the cloud answers."""
        time.sleep(_LOOK_S)
        answers = self.jobs.look()
        state = self.state
        with suppress(OSError):
            state.online = int(self._proxy_status().get("online", 0))
        state.elapsed_s, state.starts = self._now_s(), self.site.supervisor.starts()
        state.jobs, state.committed = self.jobs.counts, self.jobs.committed
        state.faults_done = len(self.faults_done)
        state.kills_done = sum(fault.kind == "kill" for fault in self.faults_done)
        self._show(state)
        return answers

    def _picture(self) -> dict[str, Any]:
        """Where everybody stands, for a run in which nothing moves any more."""
        found: dict[str, Any] = {
            "at_s": self._now_s(),
            "alive": self.site.supervisor.alive(),
            "jobs": self.jobs.known,
            "logs": {
                name: tail(self._logs / f"{name}.log").splitlines()
                for name in self.site.supervisor.names
            },
        }
        with suppress(OSError):
            found["proxy"] = self._proxy_status()
        with suppress(OSError):
            token = self.site.site.token_file.read_text("ascii").strip()
            found["cloud"] = get_json(f"{self.site.site.plan.url}/status", token)
        return found

    def _proxy_status(self) -> dict[str, Any]:
        plan = self.site.site.plan
        return get_json(f"http://{plan.host}:{plan.ports.proxy_http}/status")

    def _client(self) -> Cloud:
        return Cloud(self.site.site.plan.url, self.site.site.token_file)

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _since_up_s(self) -> float:
        return time.monotonic() - self._faults_s
