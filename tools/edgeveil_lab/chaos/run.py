"""One chaos run: a site, jobs one after the other, faults, a quiet time, the checks."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeveil.errors import DataError, EdgeVeilError, JobFailed
from edgeveil.jobs import Job
from edgeveil.sites.addresses import place
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_edge.releases import ReleaseStore
from edgeveil_lab.chaos.checks import ChaosFacts
from edgeveil_lab.chaos.compute import ComputeEngine
from edgeveil_lab.chaos.faults import Fault, schedule
from edgeveil_lab.chaos.site import ChaosSite
from edgeveil_lab.chaos.supervisor import Disks
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.local.children import tail
from edgeveil_tools.local.job import submitted
from edgeveil_tools.local.local_run import LocalRun

# --- bringing the faults of a schedule at their times, and taking them back ---

_ENDED_HERE = ("broker", "disk")


class Director:
    """One thread that keeps to the schedule, and a few for what takes its time."""

    def __init__(
        self, site: ChaosSite, faults: Sequence[Fault], now_s: Callable[[], float]
    ) -> None:
        """`now_s` counts from the moment that the schedule counts from."""
        self._site, self._now_s = site, now_s
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="faults")
        self._under_way: list[Future[None]] = []
        steps = [(f.at_s, False, k, f) for k, f in enumerate(faults)]
        steps += [(f.until_s, True, k, f) for k, f in enumerate(faults) if f.kind in _ENDED_HERE]
        heapq.heapify(steps)
        self._steps = steps
        self._thread = threading.Thread(target=self._run, daemon=True, name="director")
        self.done: list[Fault] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def over(self) -> bool:
        """Whether every fault has come and gone. Raises BrokerError: one did not come back."""
        for work in self._under_way:
            if work.done():
                work.result()
        if self._thread.is_alive() or self._site.waiting():
            return False
        return all(work.done() for work in self._under_way)

    def stop(self) -> None:
        """Bring no more faults; returns when none is being brought."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> None:
        before: dict[str, Future[None]] = {}
        while self._steps and not self._stop.is_set():
            at_s, ends, _, fault = self._steps[0]
            if self._stop.wait(max(0.0, at_s - self._now_s())):
                return
            heapq.heappop(self._steps)
            if fault.kind == "kill":
                self._site.begin(fault)
            else:
                # A broker goes down and comes up in order, and the kills keep their times.
                key = f"{fault.kind} {fault.target}"
                act = self._site.end if ends else self._site.begin
                before[key] = self._pool.submit(_after, before.get(key), act, fault)
                self._under_way.append(before[key])
            if not ends:
                self.done.append(fault)
        left_s = max((fault.until_s for fault in self.done), default=0.0) - self._now_s()
        self._stop.wait(max(0.0, left_s))


def _after(earlier: Future[None] | None, act: Callable[[Fault], None], fault: Fault) -> None:
    if earlier is not None:
        earlier.result()
    act(fault)


# --- keeping the cloud at work ---

ENDED = ("completed", "failed", "cancelled")


class JobFeeder:
    """The jobs of one cloud, over its HTTP control, which may be away at any moment.

    What is known of them is read anew at every look: an answer to a submission may be lost.
    """

    def __init__(self, connect: Callable[[], Cloud], job_yaml: bytes) -> None:
        self._connect, self._yaml = connect, job_yaml
        self._client: Cloud | None = None
        self.known: list[dict[str, Any]] = []
        self.committed = 0  # exchanges of the jobs that go on
        self.resumed: Counter[str] = Counter()

    def look(self) -> bool:
        """Ask for the state of all jobs; False while the cloud does not answer."""
        with suppress(EdgeVeilError):
            client = self._cloud()
            self.known = client.list()
            for job in self.known:
                if job["status"] == "paused":
                    client.resume(job["id"])
                    self.resumed[job["id"]] += 1
            going = [job["id"] for job in self.known if job["status"] not in ENDED]
            self.committed = sum(len(client.job(job)["exchanges"]) for job in going)
            return True
        return False

    def submit(self) -> None:
        """Queue one more; the next look tells whether it came through."""
        with suppress(EdgeVeilError):
            self._cloud().submit_yaml(self._yaml)

    @property
    def idle(self) -> bool:
        """Whether every known job has ended."""
        return all(job["status"] in ENDED for job in self.known)

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs have each status."""
        return dict(Counter(job["status"] for job in self.known))

    @property
    def mark(self) -> tuple[object, ...]:
        """Something that changes whenever a job gets on; a resumption alone does not count."""
        ended = sum(job["status"] in ENDED for job in self.known)
        return len(self.known), ended, self.committed

    def _cloud(self) -> Cloud:
        self._client = self._client or self._connect()
        return self._client


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
class ChaosOptions:
    """What a run is asked to do. A quiet site whose jobs stand still for `stall_s` has hung."""

    kills: int = 20
    seed: int = 1
    every_s: float = 1.5
    stall_s: float = 120.0
    engine: ComputeEngine | None = None  # of the workers that open batches; None: no workers


@dataclass
class ChaosProgress:
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


class ChaosRun:
    """`run` once, then `stop`; what it leaves behind is on the site's disks."""

    def __init__(
        self,
        job: Job,
        run: LocalRun,
        asked: ChaosOptions,
        disks: Disks,
        folder: Path,
        logs: Path,
        look: Callable[[ChaosProgress], None],
    ) -> None:
        self.asked, self._logs, self._show = asked, logs, look
        self.disk_by = disks.by
        self._begun_s = self._faults_s = time.monotonic()
        self.begun_at = time.time()
        self.site = ChaosSite(job, run, disks, folder, logs, asked.seed, self._now_s, asked.engine)
        self.faults = schedule(asked.seed, asked.kills, self.site.targets, asked.every_s)
        self.jobs = JobFeeder(self._client, submitted(job))
        self.state = ChaosProgress(faults=len(self.faults))
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
        self.site.tap()
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

    def facts(self) -> ChaosFacts:
        """What the checks want to know of the run."""
        supervisor = self.site.supervisor
        return ChaosFacts(
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
        if self.site.compute is not None:
            found["kill"] += self.site.compute.killed
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
                names = [ended[-1].name] if ended else self.site.supervisor.names
                ends = "\n".join(f"  {name}:\n{tail(self._logs / f'{name}.log')}" for name in names)
                fix = f"See the logs in {self._logs}, which end:\n{ends}"
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
            pages = [self._proxy_status(cell) for cell in self.site.site.proxies]
            state.online = sum(int(page.get("online", 0)) for page in pages)
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
        for cell, path in self.site.site.proxies.items():
            with suppress(OSError):
                found[path.stem] = self._proxy_status(cell)
        with suppress(OSError, EdgeVeilError):
            found["cloud"] = self._client().status()
        return found

    def _proxy_status(self, cell: str) -> dict[str, Any]:
        plan = self.site.site.plan
        return get_json(f"http://{place(plan.host, plan.ports_of(cell).proxy_http)}", "/status")

    def _client(self) -> Cloud:
        return Cloud(self.site.site.plan.url, self.site.site.token_file)

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _since_up_s(self) -> float:
        return time.monotonic() - self._faults_s
