"""Staged rollout of a release: canary, then all devices, or withdrawn.

`RolloutDriver.look` requests missing steps from the stored state, so that a restart resumes. Too
many canary failures withdraw a release; enough good reports by the end of the soak time promote it;
otherwise its operator decides. It is sealed again for devices admitted later, and after a
withdrawal of a newer one. Each change sends a signed statement, renewed before it expires.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edgeveil.config.cloud import ReleaseValidity
from edgeveil.jobs.job import ReleaseRollout
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine, PublishRelease
from edgeveil.protocol.messages import RELEASES_NAMED, ReleaseOutcome, ReleaseStatement
from edgeveil.transport.runtime import Runner
from edgeveil_cloud.rollout_store import Rollout
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import StoreError
from edgeveil_cloud.stored_jobs import StoredJobs, wire_id

LOG = logging.getLogger("edgeveil.cloud")
PUBLISH_AGAIN_S = 10.0
RENEWALS = 7  # of a release per validity period
QUIET_S = 1.0  # since the last new device, before a release is sealed for new devices


def failed(counts: Mapping[str, int]) -> tuple[int, int]:
    """Return (failed reports, counted reports); a refusal by an owner's policy is not counted."""
    bad = sum(counts.get(one.value, 0) for one in ReleaseOutcome if one.failed)
    return bad, bad + counts.get(ReleaseOutcome.IN_USE.value, 0)


def verdict(rollout: Rollout, asked: ReleaseRollout, now_s: float) -> tuple[str, str]:
    """Return a canary's next stage (`all`, `withdrawn` or `canary`), and why."""
    bad, counted = failed(rollout.reports.get("canary", {}))
    if bad:
        return "withdrawn", f"of {rollout.canary} devices in the canary {bad} could not use it"
    enough = min(asked.canary_floor, rollout.canary)
    if now_s < rollout.sent_at + asked.soak_s or counted < enough:
        return "canary", ""
    return "all", f"{counted - bad} of {rollout.canary} devices in the canary use it"


def shown_rollout(rollout: Rollout, expires_at: float | None = None) -> dict[str, Any]:
    return {**asdict(rollout), "sequences": list(rollout.sequences), "expires_at": expires_at}


class RolloutDriver:
    def __init__(
        self,
        store: Store,
        jobs: StoredJobs,
        machine: CloudMachine,
        runner: Runner,
        validity: ReleaseValidity,
    ) -> None:
        self._store, self._jobs, self._machine = store, jobs, machine
        self._runner, self._validity = runner, validity
        self._stated: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._stated_at = self._asked_at = 0.0

    def look(self) -> None:
        found = self._found()
        if not found:
            return
        now_s = self._store.now_s()
        for rollout in found:
            if rollout.stage == "canary" and rollout.held:
                stage = "withdrawn"
                plan, why = self._jobs.plan_or_why(self._store.job(rollout.job))
                if plan is not None:
                    stage, why = verdict(rollout, plan.job.release, now_s)
                if stage != "canary":
                    self._move(rollout.job, stage, why)
        found = self._found()
        newest = {one.data_set: one for one in found if one.stage == "all"}
        self._state(found, newest, now_s)
        self._publish(found, newest, now_s)

    def _found(self) -> list[Rollout]:
        """Return the rollouts of ended jobs; a running job releases by itself."""
        return [one for one in self._store.rollouts.all() if self._store.job(one.job).ended]

    def shown(self, job: str | None = None) -> list[dict[str, Any]]:
        return [
            shown_rollout(one, self._expires(one))
            for one in self._store.rollouts.all()
            if job in (None, one.job)
        ]

    def _expires(self, rollout: Rollout) -> float | None:
        if rollout.stage == "withdrawn":
            return None
        renewed = set(rollout.sequences) & set(self._stated[0])
        renewed_s = self._stated_at + self._validity.valid_s if renewed else 0.0
        return max(rollout.expires_s, renewed_s)

    def withdraw(self, job: str) -> None:
        """Withdraw a release from devices; raises UnknownJob, or StoreError without a release."""
        self._move(self._store.job(job).id, "withdrawn", "withdrawn by the operator")

    def promote(self, job: str) -> None:
        """Release to all devices now; raises as `withdraw`, and if it was withdrawn."""
        entry = self._store.job(job)
        if self._store.release(job) is None or entry.status != "completed":
            raise StoreError(f"job '{job}' has no release: it is {entry.status}")
        if not self.shown(job):  # released by a version without rollouts
            source = self._jobs.plan(entry).job.data.source
            expires_s = self._store.now_s() + self._validity.valid_s
            self._store.rollouts.begin(job, source, [], expires_s)
        self._move(job, "all", "promoted by the operator")

    def _move(self, job: str, stage: str, why: str) -> None:
        self._store.rollouts.move(job, stage, why)  # type: ignore[arg-type]
        event = "release_withdrawn" if stage == "withdrawn" else "release_promoted"
        self._store.append_event(job, event, {"reason": why})
        LOG.warning(event, extra={"job": job, "reason": why})
        self._asked_at = 0.0

    def _state(self, found: Sequence[Rollout], newest: Mapping[str, Rollout], now_s: float) -> None:
        """Send the statement of valid and withdrawn releases if it changed or is due."""
        good = [
            one
            for one in found
            if one.stage != "withdrawn"
            and one.started_at >= newest.get(one.data_set, one).started_at
        ]
        bad = [one for one in found if one.stage == "withdrawn"]
        stated = _sequences(good), _sequences(bad)
        if stated == self._stated and now_s < self._stated_at + self._validity.valid_s / RENEWALS:
            return
        self._stated, self._stated_at = stated, now_s
        number, expires_s = self._store.next_number(), now_s + self._validity.valid_s
        self._runner.post(fx.Command(ReleaseStatement(number, expires_s, *stated)))

    def _publish(
        self, found: Sequence[Rollout], newest: Mapping[str, Rollout], now_s: float
    ) -> None:
        sealing = any(run.releasing for run in self._machine.runs.values())
        if sealing or now_s < self._asked_at + PUBLISH_AGAIN_S:
            return
        free = [cell for cell in self._machine.keys if not self._machine.offering(cell)]
        newest_key_at = self._store.rollouts.newest_key_at()
        came = newest_key_at if now_s > newest_key_at + QUIET_S else 0.0
        for data_set, rollout in newest.items():
            of_it = [one for one in found if one.data_set == data_set]
            later = [one for one in of_it if one.started_at > rollout.started_at]
            if any(one.stage == "canary" for one in later):
                continue  # the proxy stores one release per data set, now the canary's
            last = max(rollout.sequences, default=-1)
            hidden = any(last < max(one.sequences, default=-1) for one in later)
            to_all = not rollout.held or hidden or came >= rollout.sent_at
            lacking = self._machine.responding - set(
                rollout.cells
            )  # cells that are reachable again
            cells = tuple(cell for cell in free if to_all or cell in lacking)
            if cells:
                self._asked_at = now_s
                self._runner.post(fx.Command(PublishRelease(wire_id(rollout.job), cells)))
                return


def _sequences(rollouts: Sequence[Rollout]) -> tuple[int, ...]:
    return tuple(sorted(seq for one in rollouts for seq in one.sequences))[-RELEASES_NAMED:]
