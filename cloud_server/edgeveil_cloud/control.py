"""The job queue's driver: what HTTP asks for, and which job the machine runs next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from edgeveil.errors import DataError, EdgeVeilError
from edgeveil.jobs import Job, parse_plan
from edgeveil.parts.features import backbone_digests, match_backbones
from edgeveil.parts.models import runs_python
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine, CloudState
from edgeveil.protocol.cloud_tasks import CancelJob, RepeatEnd, StartJob
from edgeveil.sites.cloud import ReleaseValidity
from edgeveil.transport.runtime import Runner
from edgeveil_cloud.host import LOG, CloudHost
from edgeveil_cloud.rehearsal import rehearse_job
from edgeveil_cloud.rollouts import RolloutDriver
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobEntry
from edgeveil_cloud.stored_jobs import wire_id

LOOK_S = 0.5
TELL_AGAIN = 16  # as many ends as a proxy keeps


class Control:
    """Submits, cancels, resumes and starts jobs; one runs at a time, in the order they came."""

    def __init__(
        self,
        store: Store,
        host: CloudHost,
        machine: CloudMachine,
        runner: Runner,
        queue: int,
        *,
        python_models: bool = False,
        validity: ReleaseValidity | None = None,
    ) -> None:
        self._store, self._host, self._machine = store, host, machine
        self._runner, self._queue, self._python_models = runner, queue, python_models
        self.rollouts = RolloutDriver(
            store, host.jobs, machine, runner, validity or ReleaseValidity()
        )
        self._poke = asyncio.Event()
        self._waiting: tuple[str, int] | None = None
        self._given = ""  # the job that the machine was given last
        self._cancelled = ""  # the running job that was to be cancelled last
        self._rehearsed = b""  # the job that was found possible last

    def check(self, job_yaml: str) -> None:
        """Raise what `submit` would of the job itself. On any thread: it is played on made-up
        records, which takes seconds; `submit` then knows that it can be done.
        """
        self._read(job_yaml)

    def submit(self, job_yaml: str) -> str:
        """Validate and queue; the job's id. Raises ConfigError with every problem.

        DataError if a backbone that the job names was not put before, or is not what it says, if
        its model is Python code that may not run here, or if some later stage of it would fail on
        made-up records; JobFailed if this cloud lacks the records that its rule asks for.
        """
        job = self._read(job_yaml)
        entry = self._store.submit_job(
            job.job, job.canonical(), job.digest(), queue_limit=self._queue
        )
        self._poke.set()
        return entry.id

    def _read(self, job_yaml: str) -> Job:
        plan = parse_plan(job_yaml)
        job = plan.job
        if runs_python(job.model) and not self._python_models:
            raise DataError(
                "the job's model is Python code, which may not run here",
                where="cloud.allow_python_models",
                fix="the operator allows it in the cloud's site file",
            )
        kept = {one: self._store.backbone(one) for one in backbone_digests(job.features)}
        found = match_backbones(job.features, (graph for graph in kept.values() if graph))
        plan = plan.with_artifacts(found)
        self._host.evaluation.check(plan)
        if job.digest() != self._rehearsed:
            # Devices play their own half before they price it; here torch would stay in memory.
            rehearse_job(plan, self._host.limits, devices=False)
            self._rehearsed = job.digest()
        return job

    def cancel(self, job: str) -> None:
        """Cancel a job that has not ended. Raises UnknownJob, or StoreError if it has."""
        entry = self._store.job(job)
        # A job that ran before a restart may wait for devices now, unknown to the machine.
        if entry.status == "running" and job == self._given:
            self._cancelled = job
            self._runner.post(fx.Command(CancelJob(wire_id(job))))
            return
        self._store.cancel(job)
        if entry.started_at is not None:
            self._runner.post(fx.Command(RepeatEnd(wire_id(job), "cancelled")))

    def resume(self, job: str) -> None:
        """Let a paused job go on at its round. Raises UnknownJob, or StoreError if it is not."""
        self._store.resume(job)
        if job == self._given:
            self._given = ""
        self._poke.set()

    def releases(self, job: str | None = None) -> list[dict[str, Any]]:
        """All releases, or that of one job, as HTTP shows them."""
        return self.rollouts.shown(job)

    def withdraw(self, job: str) -> None:
        """Have devices leave a release. Raises UnknownJob, or StoreError where there is none."""
        self.rollouts.withdraw(job)
        self._poke.set()

    def promote(self, job: str) -> None:
        """Bring a release to all devices now. Raises as `withdraw`, and of a withdrawn one."""
        self.rollouts.promote(job)
        self._poke.set()

    def status(self) -> Mapping[str, Any]:
        """What the cloud does now; counts only."""
        job, counts = self._machine.job, self._store.counts()
        return {
            "time_s": time.time(),
            "state": self._machine.state.value,
            "job": self._host.jobs.name(job.start.job_id) if job else None,
            "round": job.exchange if job else None,
            "enrolled": counts.enrolled,
            "queued": counts.jobs.get("queued", 0),
            "paused": counts.jobs.get("paused", 0),
            "refused": dict(self._runner.refused),
        }

    async def run(self) -> None:
        """Start the next job whenever none runs, until cancelled."""
        self.tell_ends()
        while True:
            self.look()
            self._poke.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poke.wait(), LOOK_S)

    def tell_ends(self) -> None:
        """Say again how the newest jobs ended: the process may have died before it was heard."""
        for old in [entry for entry in self._store.jobs() if entry.ended][-TELL_AGAIN:]:
            self._runner.post(fx.Command(RepeatEnd(wire_id(old.id), old.status)))

    def look(self) -> None:
        """Start the next job if none runs; see to the releases of those before."""
        self.rollouts.look()
        if self._machine.state is not CloudState.IDLE:
            return
        if self._cancelled:
            self._cancel_paused()
        entry = self._store.next_job()
        if entry is not None and self._ready(entry):
            self.start(entry)

    def start(self, entry: JobEntry) -> None:
        """Give a job to the machine, which runs none."""
        self._given = entry.id
        self._store.set_status(entry.id, "running")
        self._runner.post(fx.Command(self._start(entry)))

    def _cancel_paused(self) -> None:
        """A job may have paused before the machine heard that it is cancelled."""
        job, self._cancelled = self._cancelled, ""
        if self._store.job(job).status == "paused":
            self.cancel(job)

    def _ready(self, entry: JobEntry) -> bool:
        """Whether to start it now. A job that this version cannot plan fails, and not the cloud."""
        try:
            self._host.jobs.plan(entry)
        except EdgeVeilError as error:
            LOG.error("job_unreadable", extra={"job": entry.id})
            self._store.set_status(entry.id, "failed", f"the stored job cannot be read: {error}")
            return False
        return entry.id != self._given and self._enough_devices(entry)

    def _enough_devices(self, entry: JobEntry) -> bool:
        """Whether the job can select as many as it asks for; said once while it cannot."""
        job = self._host.jobs.plan(entry).job
        wanted = max(job.selection.min_devices, job.round.min_batch)
        if isinstance(job.selection.devices, int):
            wanted = max(wanted, job.selection.devices)
        enrolled = self._store.counts().enrolled
        if enrolled < wanted and self._waiting != (entry.id, enrolled):
            self._waiting = (entry.id, enrolled)
            data = {"enrolled": enrolled, "wanted": wanted}
            self._store.append_event(entry.id, "job_waiting", data)
            LOG.warning("job_waiting", extra={"job": entry.id, **data})
        return enrolled >= wanted

    def _start(self, entry: JobEntry) -> StartJob:
        """From the last committed exchange on, with an attempt number not used before."""
        plan = self._host.jobs.plan(entry)
        last = self._store.last_commit(entry.id)
        index = (last.index if last else 0) + 1
        attempt = self._store.next_attempt(entry.id, index)
        retries = plan.job.round.retries
        return StartJob(wire_id(entry.id), index, attempt, len(plan.exchanges), retries)
