"""The acts of the trust drill, in order: each does its harm, and what an operator does about it."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from edgeveil.errors import DataError, EdgeVeilError, JobFailed
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_edge.releases import ReleaseStore
from edgeveil_lab.chaos.leaked_key import AHEAD_S, LeakedKey
from edgeveil_lab.chaos.trust_fleet import BROKERS, TrustFleet

DEVICES = 7  # of which one is revoked
CLAIMED = "box-ward"  # comes later, with a claim
RENEWED = "certificate_renewed"
WAIT_S = 180.0  # who was refused for long tries more rarely
CLOUD_STORE = "cloud.sqlite"
_LOOK_S = 0.25
# What a person is told in logs and reasons. The outcomes are checked apart from these words.
WORDS = {
    "expired": r"certificate[^\n]*(?:it has ended|expired)",
    "rebuilt": "registry was rebuilt",
    "behind": "older than what the proxy knows",
}


class ActFailed(JobFailed):
    """What an act waits for did not come."""


@dataclass
class DrillAct:
    """One act: when it began, how long it took, what was seen, and what it waited for in vain."""

    name: str
    at_s: float
    seconds: float = 0.0
    steps: list[tuple[float, str]] = field(default_factory=list)
    failed: str = ""


@dataclass(frozen=True)
class OtherStore:
    """A copy of a device's state that is not its last one, and why it is there."""

    box: str
    state: Path
    why: str


@dataclass
class DrillNotes:
    """What the acts wrote down for the checks. Jobs by the cloud's names for them."""

    revoked: dict[str, tuple[str, ...]] = field(default_factory=dict)  # box: jobs before
    others: list[OtherStore] = field(default_factory=list)
    twins: dict[str, tuple[str, ...]] = field(default_factory=dict)  # box: jobs while it had a copy
    lost_stores: list[Path] = field(default_factory=list)  # of the cloud
    last_job: str = ""


class DrillJobs:
    """Keeps one job after the other going at the cloud; acts say when it rests."""

    def __init__(self, fleet: TrustFleet, job_yaml: bytes) -> None:
        self._fleet, self._yaml = fleet, job_yaml
        self.known: list[dict[str, Any]] = []
        self.feeding = False
        self.resuming = True

    def look(self) -> None:
        """Ask how all stand; go on where there is nothing to do. A cloud that is away is passed."""
        with suppress(EdgeVeilError):
            cloud = self._fleet.cloud()
            self.known = cloud.list()
            for job in self.known:
                if job["status"] == "paused" and self.resuming:
                    cloud.resume(job["id"])
            if self.feeding and self.idle:
                cloud.submit_yaml(self._yaml)

    @property
    def idle(self) -> bool:
        """Whether every known job has ended."""
        return all(job["ended_at"] for job in self.known)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all jobs."""
        return tuple(job["id"] for job in self.known)

    @property
    def going(self) -> str:
        """The job that has not ended; empty without one."""
        return next((job["id"] for job in self.known if not job["ended_at"]), "")

    @property
    def completed(self) -> tuple[str, ...]:
        """Of the jobs that came to their end."""
        return tuple(job["id"] for job in self.known if job["status"] == "completed")

    def submit(self) -> str:
        """One more; its name."""
        return self._fleet.cloud().submit_yaml(self._yaml)

    def status(self, job: str) -> tuple[str, str]:
        """Its state and why."""
        found = next((one for one in self.known if one["id"] == job), {})
        return str(found.get("status", "")), str(found.get("reason", ""))

    def exchanges(self, job: str) -> list[dict[str, Any]]:
        """What of it was committed."""
        with suppress(EdgeVeilError):
            return list(self._fleet.cloud().job(job)["exchanges"])
        return []


class TrustActs:
    """Plays them on a fleet; `tell` hears of every act and step."""

    def __init__(
        self, fleet: TrustFleet, job_yaml: bytes, folder: Path, tell: Callable[[DrillAct], None]
    ) -> None:
        self.fleet, self._folder, self._tell = fleet, folder, tell
        self.jobs = DrillJobs(fleet, job_yaml)
        self.notes, self.acts = DrillNotes(), list[DrillAct]()
        self._begun_s = time.monotonic()
        self._kept = 0

    @property
    def remaining(self) -> tuple[str, ...]:
        """Boxes that were not revoked."""
        return tuple(box for box in self.fleet.boxes if box not in self.notes.revoked)

    def _all_online(self) -> bool:
        return self.fleet.online() == len(self.remaining)

    def _all_known(self) -> bool:
        """The cloud's newest roster is of all that are there."""
        counts = re.findall(r"enrolled=(\d+)", self.fleet.log("cloud"))
        return bool(counts) and int(counts[-1]) == len(self.remaining)

    def play(self) -> None:
        """All acts, up to the first that fails: what follows would show nothing."""
        for name, act in self.ACTS.items():
            with self._act(name):
                act(self)
            if self.acts[-1].failed:
                return

    # --- the acts ---

    def _begin(self) -> None:
        fleet = self.fleet
        fleet.start(*BROKERS)
        for broker in BROKERS:
            self._until(lambda: "listens on" in fleet.log(broker), f"the start of {broker}")  # noqa: B023
        fleet.start("cloud", "proxy", *fleet.boxes)
        self._until(fleet.answers, "the cloud's start")
        self._until(lambda: fleet.online() == DEVICES, "all hellos")
        fleet.tap(fleet.boxes)
        self._step(f"{DEVICES} devices are there")
        self._one_job("a first job of all devices")
        out = fleet.boxes[-1]
        self.notes.revoked[out] = self.jobs.names
        fleet.operator("revoke", out)
        fleet.install("broker-edge", "proxy")
        self._until(self._all_online, "the revoked device's end")
        self._step(f"{out} is revoked and cut off")
        self._one_job("a job of the others")

    def _leaked_key(self) -> None:
        fleet, jobs = self.fleet, self.jobs
        thief = LeakedKey(fleet.config("cloud"), fleet.state("cloud"))
        jobs.feeding, jobs.resuming = True, False
        self._until(lambda: bool(jobs.going and jobs.exchanges(jobs.going)), "a job under way")
        job, begun_s = jobs.going, time.monotonic()
        forged = thief.publish()
        self._until(lambda: self._all_use(forged), "the forged release at every device")
        self._step("a forged release with the largest number that is taken is in use everywhere")
        self._rotate_cloud()
        jobs.resuming = True
        self._until(lambda: job in jobs.completed, "the end of the job under way")
        self._step(f"the job under way goes on, {time.monotonic() - begun_s:.1f} s after the theft")
        jobs.feeding = False
        self._rest()
        self._releases_there()
        again = thief.publish()
        job = self._one_job("the thief says one more, and a job goes on")
        self._releases_there()
        if self._any_uses(again):
            raise ActFailed("a release of the leaked key was put in use after the rotation")
        self._step(f"the release of {job} is in use everywhere, the thief's nowhere")

    def _rotate_cloud(self) -> None:
        fleet, state = self.fleet, self.fleet.state("cloud")
        fleet.command("cloud", "keys", "--config", str(fleet.config("cloud")), "--next")
        fleet.trust("rotate", "cloud-jobs", str(state / "cloud-next.pub"))
        fleet.trust("rotate", "cloud-releases", str(state / "releases-next.pub"))
        self._step("the operator has rotated both keys of the cloud")

    def _cloud_lost(self) -> None:
        fleet, jobs, store = self.fleet, self.jobs, self.fleet.state("cloud") / CLOUD_STORE
        self._rest()
        fleet.stop_one("cloud")
        with closing(sqlite3.connect(store)) as db, db:
            db.execute("UPDATE sequence SET last = ?", (int((time.time() + AHEAD_S) * 1000),))
        fleet.start("cloud")
        self._until(fleet.answers, "the cloud's start")
        self._one_job("a job numbered by a clock that is 20 hours ahead")
        self._releases_there()
        fleet.stop_one("cloud")
        lost = self._folder / "cloud-lost"
        lost.mkdir()
        for path in store.parent.glob(f"{CLOUD_STORE}*"):
            path.rename(lost / path.name)
        self.notes.lost_stores.append(lost / CLOUD_STORE)
        fleet.start("cloud")
        self._until(fleet.answers, "the cloud's start")
        jobs.look()
        job = self._paused_unpaid()
        self._step(f"it numbers anew, which no device follows: {jobs.status(job)[1]}")
        self._rotate_cloud()
        jobs.resuming = True
        self._until(lambda: job in jobs.completed, "the end of the paused job")
        self._releases_there()
        self._step("numbers begin anew with new keys: the job goes on, its release is in use")

    def _paused_unpaid(self) -> str:
        """A job that cannot begin, from its start to its pause; nobody has paid for it."""
        jobs = self.jobs
        jobs.resuming = False
        job = jobs.submit()
        self._until(lambda: jobs.status(job)[0] == "paused", "the pause")
        paid = [box for box in self.remaining if self._paid(box, job)]
        if paid or jobs.exchanges(job):
            raise ActFailed(f"{', '.join(paid) or 'nobody'} paid for a job that could not begin")
        return job

    def _registry_lost(self) -> None:
        fleet, jobs = self.fleet, self.jobs
        self._rest()
        fleet.stop_one("proxy")
        for path in fleet.state("proxy").glob("registry.sqlite*"):
            path.unlink()
        fleet.start("proxy")
        self._until(self._all_online, "the devices at the new registry")
        self._step("the proxy has a new registry, from the plan's list of devices")
        job = self._paused_unpaid()
        why = jobs.status(job)[1]
        if WORDS["rebuilt"] not in why:
            raise ActFailed(f"the job was paused for another reason: {why}")
        self._step("the job pauses with the reason, and nobody has paid")
        lineage = fleet.command("proxy", "lineage", "--config", str(fleet.config("proxy"))).strip()
        fleet.trust("recover", "registry", lineage)
        jobs.resuming = True
        self._until(lambda: job in jobs.completed, "the end of the paused job")
        self._step("the root vouches for the registry: the job goes on")

    def _certificate_expired(self) -> None:
        fleet, box = self.fleet, CLAIMED
        self._rest()
        fleet.claim(box)
        fleet.start(box)
        self._until(self._all_online, "the box with a claim")
        self._until(self._all_known, "the roster with it")
        fleet.tap([box])
        self._one_job(f"{box}, which nobody had prepared, answers with the others", of=box)
        fleet.stop_one(box)
        self._until(lambda: fleet.online() == len(self.remaining) - 1, "its good-bye")
        fleet.expire(box)
        fleet.start(box)
        self._until(lambda: RENEWED in fleet.log(box), "its next certificate")
        self._until(self._all_online, "the device with its new certificate")
        self._step(f"{box} got its next certificate over the wire")
        self._one_job("a job of all", of=box)

    def _expired(self, box: str, after: int) -> str:
        """What it said of an expired certificate."""
        found = re.search(WORDS["expired"], self.fleet.log(box)[after:])
        return found[0] if found else ""

    def _broker_expired(self) -> None:
        fleet, broker = self.fleet, BROKERS[0]
        self._rest()
        fleet.stop_one(broker)
        fleet.expire(broker)
        said = {box: len(fleet.log(box)) for box in self.remaining}
        fleet.start(broker)
        self._until(
            lambda: all(self._expired(box, at) for box, at in said.items()),
            "every device's word that the broker's certificate has expired",
        )
        self._step("no device takes the broker for its own, and each says why")
        fleet.operator("renew", broker)
        fleet.install(broker)
        self._until(self._all_online, "all devices at the renewed broker")
        self._step("the broker took up its renewed certificate by itself; all are back")
        self._one_job("a job of all")

    def _clone(self) -> None:
        fleet, box = self.fleet, self.fleet.boxes[1]
        self._rest()
        fleet.stop_one(box)
        twin = f"{box}-clone"
        fleet.copy(box, fleet.places / twin)
        before = self.jobs.names
        fleet.start(box)
        self._until(self._all_online, "the original again")
        fleet.start(twin)
        self._until(lambda: "broker_connected" in fleet.log(twin), "the clone's connection")
        self._step(f"{box} and a clone of it run side by side")
        self._one_job("a job with both")
        self._one_job("another one")
        if twin in fleet.gone():
            self._step("the clone has ended by itself")
        fleet.stop_one(twin)
        self.notes.twins[box] = tuple(job for job in self.jobs.names if job not in before)
        self.notes.others.append(OtherStore(box, fleet.state(twin), "the clone"))
        self._one_job("the original answers alone again", of=box)
        self._until(self._all_online, "the original, known to be there")

    def _rolled_back(self) -> None:
        fleet, box = self.fleet, self.fleet.boxes[2]
        early, whole = self._folder / f"{box}-early", self._folder / f"{box}-whole"
        self._rest()
        fleet.stop_one(box)
        shutil.copytree(fleet.state(box), early)
        fleet.start(box)
        self._until(self._all_online, "the device again")
        self._one_job("a job that the copy knows nothing of", of=box)
        fleet.stop_one(box)
        fleet.state(box).rename(whole)
        shutil.copytree(early, fleet.state(box))
        self.notes.others.append(OtherStore(box, whole, "before it was rolled back"))
        fleet.start(box)
        self._until(self._all_online, "the device with its old store")
        told = WORDS["behind"] in fleet.log(box)
        self._step(f"{box} came back with an older store{', and says so' if told else ''}")
        self._one_job("it answers again, without a visit", of=box)

    def _last_job(self) -> None:
        self._rest()
        self.notes.last_job = self._one_job("everybody answers")
        self._releases_there()

    ACTS: ClassVar[Mapping[str, Callable[[TrustActs], None]]] = {
        "a fleet, one device revoked": _begin,
        "a leaked key and a fast-forward": _leaked_key,
        "a cloud's clock ahead, and its store lost": _cloud_lost,
        "the registry lost": _registry_lost,
        "a device's certificate expired": _certificate_expired,
        "the edge broker's certificate expired": _broker_expired,
        "a clone beside the original": _clone,
        "a store rolled back": _rolled_back,
        "a last job": _last_job,
    }

    # --- what acts are made of ---

    def _rest(self) -> None:
        """No job is under way."""
        self.jobs.feeding = False
        self._until(lambda: self.jobs.idle, "the end of the jobs under way")

    def _one_job(self, said: str, of: str = "") -> str:
        """One job to its end; its name. `of`: a device that must have paid for it."""
        self._rest()
        begun_s = time.monotonic()
        job = self.jobs.submit()
        self._until(lambda: job in self.jobs.names and self.jobs.idle, f"the end of {job}")
        status, reason = self.jobs.status(job)
        if status != "completed":
            raise ActFailed(f"{job} is {status}: {reason}")
        if of and not self._paid(of, job):
            raise ActFailed(f"{of} did not answer {job}")
        self._step(f"{said}: {time.monotonic() - begun_s:.1f} s")
        return job

    def _releases_there(self) -> None:
        wanted = wire_id(self.jobs.completed[-1]).hex()
        self._until(lambda: self._all_use(wanted), "the last release at every device")

    def _all_use(self, job: str) -> bool:
        return all(self._in_use(box) == job for box in self.remaining)

    def _any_uses(self, job: str) -> bool:
        return any(self._in_use(box) == job for box in self.remaining)

    def _in_use(self, box: str) -> str:
        with suppress(DataError):
            held = ReleaseStore(self.fleet.state(box) / "releases").current()
            return "" if held is None else str(held.meta.get("job_id"))
        return ""

    def _paid(self, box: str, job: str) -> bool:
        """Whether its ledger holds an answer to the job."""
        accounts = read_ledger(self.fleet.state(box) / LEDGER_FILE).accounts.values()
        return any(wire_id(job).hex() in account.jobs for account in accounts)

    def _until(self, holds: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
        """Rounds go on meanwhile. Raises ActFailed."""
        end_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > end_s:
                raise ActFailed(f"{what}: not within {limit_s:.0f} s; {self._picture()}")
            time.sleep(_LOOK_S)
            self.jobs.look()
            self._tell(self.acts[-1])

    def _picture(self) -> str:
        going = self.jobs.going
        job = f"{going} is {' '.join(self.jobs.status(going))}" if going else "no job is under way"
        gone = ", ".join(self.fleet.gone()) or "no process"
        return f"{job}, {self.fleet.online()} online, {gone} ended"

    def _step(self, said: str) -> None:
        self.acts[-1].steps.append((self.now_s(), said))
        self._tell(self.acts[-1])

    def now_s(self) -> float:
        """Since the drill began."""
        return time.monotonic() - self._begun_s

    @contextmanager
    def _act(self, name: str) -> Iterator[None]:
        act = DrillAct(name, self.now_s())
        self.acts.append(act)
        self._tell(act)
        try:
            yield
        except EdgeVeilError as error:
            act.failed = str(error)
        finally:
            act.seconds = self.now_s() - act.at_s
            self._tell(act)
