"""The job queue's driver: requests from HTTP, and the choice of the next job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from edgeveil.config.cloud import ReleaseValidity
from edgeveil.errors import DataError
from edgeveil.jobs import Plan, parse_plan
from edgeveil.jobs.artifacts import kept_digests
from edgeveil.jobs.plan import summands
from edgeveil.parts.features import match_artifacts
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CancelJob, CloudMachine, RepeatEnd
from edgeveil.protocol.cloud_job import CloudState, StartJob
from edgeveil.protocol.cloud_reasons import DISK, EARLIER, STALE_ROSTER, resumes_by_itself
from edgeveil.protocol.tensors import tensor_views
from edgeveil.transport.runtime import Runner
from edgeveil_cloud.early_stopping import is_over
from edgeveil_cloud.host import LOG, CloudHost
from edgeveil_cloud.rehearsal import rehearse_job
from edgeveil_cloud.rollouts import RolloutDriver
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobEntry, StoreAway
from edgeveil_cloud.stored_jobs import wire_id

LOOK_S = 0.5
RESUME_S = 10.0  # between attempts to resume a paused job
ENDS_REPEATED = 16  # ended jobs that a proxy stores


class Control:
    """Starts jobs, at most `running` at once, by priority; waiting jobs block no others.

    After a restart all jobs that ran resume. `able` returns whether so many bytes can be written.
    """

    def __init__(
        self,
        store: Store,
        host: CloudHost,
        machine: CloudMachine,
        runner: Runner,
        *,
        running: int = 1,
        python_models: bool = False,
        validity: ReleaseValidity | None = None,
        able: Callable[[int], bool] = lambda room_bytes: True,
    ) -> None:
        self._store, self._host, self._machine = store, host, machine
        self._runner, self._python_models = runner, python_models
        self.rollouts = RolloutDriver(
            store, host.jobs, machine, runner, validity or ReleaseValidity()
        )
        self._poke = asyncio.Event()
        self._most = running
        self._waiting: dict[str, int] = {}  # jobs that lack devices, and the number enrolled
        self._given: set[str] = set()  # running jobs started on the machine
        self._cancelled: set[str] = set()  # running jobs to cancel
        self._able = able
        self._tried_s: dict[str, float] = {}  # paused jobs: time of the last resumption
        self._rehearsed = b""  # digest of the last job that passed its rehearsal

    def submit(self, job_yaml: str) -> str:
        """Validate and queue a job; return its id. Raises ConfigError, DataError or JobFailed."""
        plan = self.check(job_yaml)
        job, untested = plan.job, self._host.evaluation.untested(plan)
        entry = self._store.submit_job(
            job.job, job.canonical(), job.digest(), priority=job.priority
        )
        if untested:
            self._store.append_event(entry.id, "untested", {"reason": untested})
        self._poke.set()
        return entry.id

    def check(self, job_yaml: str) -> Plan:
        """Validate and rehearse a job in seconds, on any thread; raises as `submit`."""
        plan = parse_plan(job_yaml)
        job = plan.job
        own = (*job.functions, job.test_metric or "")
        if any(own) and not self._python_models:
            what = f"the job runs Python code, {own[0]}, which may not run here"
            fix = "the operator allows it in the cloud's site file"
            raise DataError(what, where="cloud.allow_python_models", fix=fix)
        kept = {one: self._store.backbone(one) for one in kept_digests(job)}
        found = match_artifacts(kept_digests(job), (graph for graph in kept.values() if graph))
        plan = plan.with_artifacts(found)
        self._host.evaluation.check(plan)
        if job.digest() != self._rehearsed:
            # Devices rehearse their half before pricing it; here torch would stay in memory.
            rehearse_job(plan, self._host.limits, devices=False)
            self._rehearsed = job.digest()
        return plan

    def cancel(self, job: str) -> None:
        """Cancel a job; raises UnknownJob, or StoreError if it has ended."""
        entry = self._store.job(job)
        # After a restart a running job may wait for devices, unknown to the machine.
        if entry.status == "running" and job in self._given:
            self._cancelled.add(job)
            self._runner.post(fx.Command(CancelJob(wire_id(job))))
            return
        self._store.cancel(job)
        if entry.started_at is not None:
            self._runner.post(fx.Command(RepeatEnd(wire_id(job), "cancelled")))

    def resume(self, job: str) -> None:
        """Resume a paused job at its round; raises UnknownJob, or StoreError if not paused."""
        self._store.resume(job)
        self._given.discard(job)
        self._poke.set()

    def releases(self, job: str | None = None) -> list[dict[str, Any]]:
        return self.rollouts.shown(job)

    def withdraw(self, job: str) -> None:
        self.rollouts.withdraw(job)
        self._poke.set()

    def promote(self, job: str) -> None:
        self.rollouts.promote(job)
        self._poke.set()

    def status(self) -> Mapping[str, Any]:
        counts = self._store.counts()
        jobs = [
            {
                "job": self._host.jobs.name(run.job_id),
                "state": run.state.value,
                "round": run.round,
                "attempt": run.attempt,
            }
            for run in self._machine.runs.values()
        ]
        first = jobs[0] if jobs else {"state": CloudState.IDLE.value, "job": None, "round": None}
        return {
            "time_s": time.time(),
            **{name: first[name] for name in ("state", "job", "round")},  # of the oldest job
            "jobs": jobs,
            "most_running": self._most,
            "enrolled": counts.enrolled,
            "queued": counts.jobs.get("queued", 0),
            "paused": counts.jobs.get("paused", 0),
            "refused": dict(self._runner.refused),
        }

    async def run(self) -> None:
        self.repeat_ends()
        while True:
            self.look()
            self._poke.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poke.wait(), LOOK_S)

    def repeat_ends(self) -> None:
        """Repeat the ends of the newest jobs, which a crash may have kept from the proxies."""
        for old in [entry for entry in self._store.jobs() if entry.ended][-ENDS_REPEATED:]:
            self._runner.post(fx.Command(RepeatEnd(wire_id(old.id), old.status)))

    def look(self) -> None:
        self.rollouts.look()
        self._cancel_paused()
        self._resume_due()
        entries = self._store.next_jobs()
        self._given &= {entry.id for entry in entries if entry.status == "running"}
        for entry in entries:
            room = entry.status == "running" or len(self._given) < self._most
            if entry.id not in self._given and room and self._ready(entry):
                self.start(entry)

    def start(self, entry: JobEntry) -> None:
        self._given.add(entry.id)
        self._store.set_status(entry.id, "running")
        plan, last = self._host.jobs.plan(entry), self._store.last_commit(entry.id)
        index = (last.index if last else 0) + 1
        attempt = self._store.next_attempt(entry.id, index)
        whole, retries = len(plan.all_rounds), plan.job.round.retries
        if last is not None and is_over(plan, tensor_views(last.state)):
            whole = last.index  # only the release is missing
        self._runner.post(fx.Command(StartJob(wire_id(entry.id), index, attempt, whole, retries)))

    def _cancel_paused(self) -> None:
        for job in list(self._cancelled):
            status = self._store.job(job).status
            if status != "running":
                self._cancelled.discard(job)
            if status == "paused":
                self.cancel(job)

    def _resume_due(self) -> None:
        """Resume paused jobs once the cause of their pause has passed."""
        now_s, waiting = time.monotonic(), self._store.jobs("paused")
        tried_s = {job: at_s for job, at_s in self._tried_s.items() if now_s - at_s < RESUME_S}
        due = [one for one in waiting if resumes_by_itself(one.reason) and one.id not in tried_s]
        unreached = self._machine.unreached
        for entry in due:
            tried_s[entry.id] = now_s
            try:
                if not self._reaches_enough(entry) or not self._able(self._room_bytes(entry)):
                    continue
                self.resume(entry.id)
            except StoreAway as error:  # the cause may persist
                LOG.warning("job_cannot_go_on", extra={"job": entry.id, "why": error.what})
                continue
            LOG.info("job_goes_on", extra={"job": entry.id})
        for cell in unreached if due else ():
            self._runner.post(fx.PeerSilent(fx.ProxyAddress(cell)))
        self._tried_s = tried_s

    def _reaches_enough(self, entry: JobEntry) -> bool:
        """Return whether all cells, or enough devices in the reachable ones, can be reached."""
        cells = set(self._machine.keys).difference(self._machine.unreached)
        if STALE_ROSTER in entry.reason:
            cells = {cell for cell in cells if not self._store.roster_problem(cell)}
        if EARLIER in entry.reason and not self._host.checks_masks(cells):
            return False
        if not cells or len(cells) == len(self._machine.keys):
            return bool(cells)
        there = sum(one.enrolled for one in self._store.devices() if one.cell in cells)
        plan, _ = self._host.jobs.plan_or_why(entry)
        return plan is None or there >= self._wanted(entry, plan)

    def _room_bytes(self, entry: JobEntry) -> int:
        if DISK not in entry.reason:
            return 0
        plan, _ = self._host.jobs.plan_or_why(entry)
        if plan is None:
            return 0
        named = isinstance(plan.job.selection.devices, int)
        asked = summands(plan.job) if named else self._store.counts().enrolled
        return asked * plan.upload_bytes

    def _ready(self, entry: JobEntry) -> bool:
        """Return whether enough devices are enrolled, logging changes; fail unreadable jobs."""
        plan, why = self._host.jobs.plan_or_why(entry)
        if plan is None:
            LOG.error("job_unreadable", extra={"job": entry.id})
            self._store.set_status(entry.id, "failed", why)
            return False
        wanted, enrolled = self._wanted(entry, plan), self._store.counts().enrolled
        if enrolled >= wanted:
            self._waiting.pop(entry.id, None)
        elif self._waiting.get(entry.id) != enrolled:
            self._waiting[entry.id] = enrolled
            data = {"enrolled": enrolled, "wanted": wanted}
            self._store.append_event(entry.id, "job_waiting", data)
            LOG.warning("job_waiting", extra={"job": entry.id, **data})
        return enrolled >= wanted

    def _wanted(self, entry: JobEntry, plan: Plan) -> int:
        """Return the devices needed: at first start enough for all batches of the job."""
        job = plan.job
        wanted = max(job.selection.min_devices, job.round.min_batch)
        if job.round.mode != "buffered" and self._store.last_commit(entry.id) is None:
            wanted = max(wanted, -(-plan.rounds * job.round.min_batch // job.max_participations))
        if isinstance(job.selection.devices, int):
            wanted = max(wanted, job.selection.devices)
        return wanted
