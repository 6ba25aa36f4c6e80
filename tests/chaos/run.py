"""One chaos run: a site, successive jobs, faults, a quiet time."""

import threading
import time
from collections import Counter
from contextlib import suppress

from edgeveil.config.addresses import place
from edgeveil.errors import DataError, EdgeVeilError, JobFailed
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.local.job import submitted
from tests.chaos.checks import ChaosFacts
from tests.chaos.faults import schedule
from tests.chaos.site import ChaosSite

_ENDED_HERE = ("broker", "disk")  # a relay ends its faults itself


class Director:
    """Injects each fault at its time and ends it, each on a thread; `now_s` is the clock.

    Faults of one kind on one target follow in order: a broker is back before it is stopped
    again."""

    def __init__(self, site, faults, now_s):
        self._site, self._now_s = site, now_s
        self._stop = threading.Event()
        self._locks = {(fault.kind, fault.target): threading.Lock() for fault in faults}
        self._threads = [
            threading.Thread(target=self._bring, args=(fault,), daemon=True) for fault in faults
        ]
        self._errors = []
        self.done = []

    def start(self):
        for thread in self._threads:
            thread.start()

    def over(self):
        """Return whether every fault has ended; raises BrokerError if a broker did not return."""
        if self._errors:
            raise self._errors[0]
        return not any(one.is_alive() for one in self._threads)

    def stop(self):
        """Inject no more faults; returns when none is being injected."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _bring(self, fault):
        if self._stop.wait(max(0.0, fault.at_s - self._now_s())):
            return
        try:
            with self._locks[fault.kind, fault.target]:
                self.done.append(fault)
                self._site.begin(fault)
                self._stop.wait(max(0.0, fault.until_s - self._now_s()))
                if fault.kind in _ENDED_HERE and not self._stop.is_set():
                    self._site.end(fault)
        except (EdgeVeilError, OSError) as error:
            self._errors.append(error)


class CloudJobs:
    """The jobs of one cloud, over its HTTP control, which may be unreachable at any moment.

    `known` is read anew each time, since the answer to a submission may be lost. Paused jobs are
    resumed; while `feeding`, a new job follows the last."""

    def __init__(self, connect, job_yaml):
        self._connect, self._yaml = connect, job_yaml
        self.known = []
        self.committed = 0  # rounds of the jobs under way
        self.resumed = Counter()
        self.feeding = False

    def look(self):
        """Read the state of all jobs; returns False if the cloud does not answer."""
        with suppress(EdgeVeilError):
            cloud = self._connect()
            self.known = cloud.list()
            for job in self.known:
                if job["status"] == "paused":
                    cloud.resume(job["id"])
                    self.resumed[job["id"]] += 1
            going = [job["id"] for job in self.known if not job["ended_at"]]
            self.committed = sum(len(cloud.job(job)["exchanges"]) for job in going)
            if self.feeding and self.idle:
                cloud.submit_yaml(self._yaml)
            return True
        return False

    @property
    def idle(self):
        return all(job["ended_at"] for job in self.known)

    @property
    def completed(self):
        return [job["id"] for job in self.known if job["status"] == "completed"]

    @property
    def mark(self):
        """Return a value that changes with a job's progress, but not with a resumption."""
        return len(self.known), sum(bool(job["ended_at"]) for job in self.known), self.committed


START_S = 120.0
_RELEASES_S = 60.0
_STALL_S = 120.0  # a quiet site whose jobs make no progress for so long has hung
_LOOK_S = 0.4
_LINE_EVERY_S = 10.0
_START_ENDS = 3  # so many ends by themselves, and the site will not start
_TOUCHES = {  # by kind of fault, counters of the relays
    "cut": ("cut", "refused"),
    "delay": ("delayed",),
    "corrupt": ("corrupted",),
    "duplicate": ("duplicated",),
}


class ChaosRun:
    """Call `run` once, then `stop`; the results are on the site's disks.

    `say` prints a line; `engine` runs batch workers (default: none)."""

    def __init__(self, job, run, kills, seed, engine, folder, logs, say, cells=1):
        self.kills, self.seed, self._logs, self._say = kills, seed, logs, say
        self._begun_s, self.begun_at = time.monotonic(), time.time()
        self.site = ChaosSite(job, run, folder, logs, seed, self.now_s, engine, cells)
        self.faults = schedule(seed, kills, self.site.targets)
        self.jobs = CloudJobs(self._cloud, submitted(job))
        self.late = []
        self.stalled = None
        self.up_s = self.quiet_s = 0.0
        self.director = None
        self._moved = (0.0, ())
        self._said = ("", 0.0)

    def run(self):
        """Run until everything has recovered, or nothing progresses any more (`stalled`).

        Raises BrokerError, or JobFailed if the site does not start."""
        self.site.start()
        self._until(self._all_online, START_S, "the site did not start")
        self.site.tap()
        self.jobs.feeding = True
        self._until(lambda: self.jobs.committed > 0, START_S, "no round was committed")
        begun_s = time.monotonic()
        self.up_s = self.now_s()
        self.director = Director(self.site, self.faults, lambda: time.monotonic() - begun_s)
        self.director.start()
        while not self.director.over():
            self._look("faults")
        self.quiet_s = self.now_s()
        self.jobs.feeding = False
        if self._progress(lambda: self.jobs.idle, "everything comes back"):
            before, self.jobs.feeding = len(self.jobs.known), True
            if self._progress(lambda: len(self.jobs.known) > before, "a last job"):
                self.jobs.feeding = False
                if self._progress(lambda: self.jobs.idle, "a last job"):
                    with suppress(JobFailed):  # the checks name the device that lacks it
                        self._until(self._releases_there, _RELEASES_S, "a release is missing")

    def stop(self):
        """End everything; may be called twice."""
        if self.director is not None:
            self.director.stop()
        self.late += self.site.stop()

    def facts(self):
        done = self.director.done if self.director is not None else []
        links = self.site.relays.counts().values()
        touched = {
            kind: sum(link.get(what, 0) for link in links for what in whats)
            for kind, whats in _TOUCHES.items()
        }
        seen = self.site.supervisor
        workers = self.site.compute.killed if self.site.compute is not None else 0
        touched["kill"] = sum(end.how == "killed" for end in seen.ends) + workers
        touched["broker"] = sum(fault.kind == "broker" for fault in done)
        touched["disk"] = seen.filled
        times = (self.up_s, self.quiet_s, self.begun_at)
        return ChaosFacts(done, *times, touched, seen.ends, seen.traces, self.late, self.stalled)

    # --- waiting ---

    def _progress(self, holds, doing):
        """Wait for a state of the jobs; returns False and sets `stalled` if they hang."""
        self._moved = (self.now_s(), ())
        while not (self._look(doing) and holds()):
            if self.jobs.mark != self._moved[1]:
                self._moved = (self.now_s(), self.jobs.mark)
            if self.now_s() - self._moved[0] > _STALL_S:
                alive = self.site.supervisor.alive()
                self.stalled = {"at_s": self.now_s(), "alive": alive, "jobs": self.jobs.known}
                return False
        return True

    def _until(self, holds, limit_s, otherwise):
        end_s = self.now_s() + limit_s
        while not holds():
            ended = [end for end in self.site.supervisor.ends if end.how == "by itself"]
            if self.now_s() > end_s or (not self.up_s and len(ended) >= _START_ENDS):
                said = f", {ended[-1].name} said: {ended[-1].said}" if ended else ""
                fix = f"See the logs in {self._logs}{said}"
                raise JobFailed(f"{otherwise} within {limit_s:.0f} s", fix=fix)
            self._look("waiting")

    def _all_online(self):
        return self._online() == self.site.site.spec.devices and self.jobs.look()

    def _releases_there(self):
        """Return whether every device uses the release of the last completed job."""
        if not self.jobs.completed:
            return False
        wanted, plan = wire_id(self.jobs.completed[-1]).hex(), self.site.site.spec
        with suppress(DataError):
            states = [plan.edge_state(number) for number in range(1, plan.devices + 1)]
            held = [ReleaseStore(state / "releases").current() for state in states]
            return all(one and one.meta.get("job_id") == wanted for one in held)
        return False

    # --- looking ---

    def _look(self, doing):
        """Read the state of all jobs; return whether the cloud answers."""
        time.sleep(_LOOK_S)
        answers = self.jobs.look()
        said, at_s = self._said
        if said != doing or self.now_s() - at_s >= _LINE_EVERY_S:
            self._said = (doing, self.now_s())
            faults = len(self.director.done) if self.director is not None else 0
            counts = Counter(job["status"] for job in self.jobs.known)
            jobs = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            self._say(
                f"{self.now_s():6.1f} s  {doing}: {faults}/{len(self.faults)} faults,"
                f" jobs: {jobs or 'none'}, round {self.jobs.committed}"
            )
        return answers

    def _online(self):
        plan = self.site.site.spec
        places = (place(plan.host, plan.ports_of(cell).proxy_http) for cell in plan.cell_names)
        with suppress(OSError):
            pages = [get_json(f"http://{one}", "/status") for one in places]
            return sum(int(page.get("online", 0)) for page in pages)
        return 0

    def _cloud(self):
        return Cloud(self.site.site.spec.url, self.site.site.token_file)

    def now_s(self):
        return time.monotonic() - self._begun_s
