"""One round on a device: consent, work, price, seal; or dummies that cover those who do."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace

from edgeveil.errors import DataError, PrivacyError, ProtocolError, UsageError
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.job import JobData
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.parts.exchange import Answer, Exchange, Tensors
from edgeveil.parts.features import match_backbones
from edgeveil.privacy.derived import NoiseFor, Question
from edgeveil.privacy.events import Event
from edgeveil.privacy.ledger import Ledger, Receipt
from edgeveil.protocol.device_round import WORK_SHARE
from edgeveil.protocol.device_tasks import ComputeAnswer, NoAnswer, SealedAnswer
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Manifest
from edgeveil.protocol.sealed import RoundPackage, Sealing
from edgeveil.sites.edge import EdgeSite
from edgeveil_edge.answer import (
    check_package,
    kept_tensors,
    own_answers,
    release,
    seal_dummies,
    seal_release,
)
from edgeveil_edge.computation import Computation, Compute, JobTrial, TaughtJob
from edgeveil_edge.conditions import why_not_now
from edgeveil_edge.consent import consent, judge
from edgeveil_edge.identity import Identity
from edgeveil_edge.store import DeviceStore, trial_name

USUAL_SHARE = float(JobData.model_fields["evaluation_share"].default)
_MEMBERSHIP_BYTES = 32
_FURTHER_ATTEMPTS = 3  # beyond the job's own, for a cloud that pauses or starts again


class RoundWork:
    """What a device computes for rounds; its plans are kept between them."""

    def __init__(
        self,
        site: EdgeSite,
        identity: Identity,
        store: DeviceStore,
        ledger: Ledger,
        noise_for: NoiseFor,
        compute: Compute,
        sealing: Sealing,
        say: Callable[[str], None],
    ) -> None:
        self.site, self.identity, self._sealing, self._say = site, identity, sealing, say
        self._store, self._ledger, self._noise_for = store, ledger, noise_for
        self._compute = compute
        self._jobs: dict[bytes, TaughtJob] = {}

    # --- jobs ---

    def forget(self, job_id: bytes) -> None:
        """The job has ended."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self._compute.forget(job)

    def budget_s(self, manifest: Manifest) -> float:
        """The time budget of the job's rounds; 0 for a job that is not known here."""
        try:
            return self._job(manifest).plan.job.round.time_budget_s
        except ProtocolError:
            return 0.0

    def take_up(self, manifest: Manifest) -> None:
        """Play a new job on made-up records, unless the owner refuses it anyway.

        Before any record is read it is settled, once and for all rounds, whether this device can
        play the job within its time budget.
        """
        self._try_out(manifest.at.job_id, self._job(manifest))

    def _try_out(self, job_id: bytes, job: TaughtJob) -> None:
        try:
            judge(self.site, job.plan)
        except PrivacyError:
            return  # told with the first round, and nothing of the job is run
        found = self._compute.try_job(job, trains=self.site.role == "train")
        why = found.refused or self._too_slow(found, job.plan.job.round.time_budget_s * WORK_SHARE)
        if why:
            self._say(f"a job is declined: {why}")
        if not why:  # those of the start may have been of another share, or gone with a job
            self._compute.read_ahead(self._share(job.plan.job.data.evaluation_share))
        trial = JobTrial(found.needed_s, why)
        self._store.put_fact(trial_name(job_id), json.dumps(asdict(trial)))

    def warm_up(self) -> None:
        """At a start: read the records, and load what jobs under way need.

        Their trials stand; those that the owner allows by now are tried.
        """
        self._compute.read_ahead(self._share(USUAL_SHARE))
        for job_id in self._store.load().jobs:
            trial = self._trial(job_id)
            if trial is None:
                self._try_out(job_id, self._known(job_id))
            elif not trial.refused:
                self._compute.try_job(self._known(job_id), trains=self.site.role == "train")

    def _share(self, asked: float) -> float:
        """The share that the records are split by: the first job's, for good."""
        fixed = self._store.fact("evaluation_share")
        return asked if fixed is None else float(fixed)

    def _trial(self, job_id: bytes) -> JobTrial | None:
        fact = self._store.fact(trial_name(job_id))
        return JobTrial(**json.loads(fact)) if fact else None

    def _too_slow(self, trial: JobTrial, allowed_s: float) -> str:
        if trial.needed_s <= allowed_s:
            return ""
        return (
            f"an answer takes this box {trial.needed_s:.3g} s on made-up records, and the round's"
            f" time budget (round.budget_s) leaves {allowed_s:.3g} s"
        )

    def _job(self, manifest: Manifest) -> TaughtJob:
        job = self._known(manifest.at.job_id)
        if hashlib.sha256(job.canonical).digest() != manifest.job_digest:
            raise ProtocolError("wrong_job")
        return job

    def _known(self, job_id: bytes) -> TaughtJob:
        found = self._jobs.get(job_id)
        if found is None:
            known = self._store.job(job_id)
            if known is None:
                raise ProtocolError("unknown_job")
            canonical, graph = known
            plan = compile_canonical(canonical)
            kept = match_backbones(plan.job.features, self._store.backbones(job_id))
            found = TaughtJob(plan.with_artifacts(kept), canonical, graph)
            self._jobs[job_id] = found
        return found

    # --- rounds ---

    def answer(
        self, task: ComputeAnswer, package: RoundPackage, membership: bytes | None
    ) -> SealedAnswer | NoAnswer:
        """The round's answer, priced before it is sealed, or the owner's reason against it.

        Without `membership` the round is not the newest one that was opened. Raises ProtocolError
        for that, and for a package that is not what the job says.
        """
        manifest = task.manifest
        job = self._job(manifest)
        plan = job.plan
        exchange = check_package(plan, manifest, package)
        if membership is None:
            raise ProtocolError("superseded_round")
        if self.site.role != "train" and not exchange.infer:
            return NoAnswer("this round asks for no inference, and the role is infer")
        why = why_not_now(self.site.conditions) or self._too_large(manifest)
        why = why or self._too_often(manifest, plan)
        if why:
            return NoAnswer(why)
        price = self._price(plan, exchange)
        try:
            self._check_share(plan.job.data.evaluation_share)
            consent(self.site, plan, manifest, self._ledger)
            self._check_trial(task)
            earlier = self._ledger.recall(manifest.at.job_id.hex(), manifest.at.exchange)
            if earlier is None:
                earlier = self._release(task, job, exchange, package, price)
        except (PrivacyError, DataError, UsageError) as error:
            return NoAnswer(str(error))
        sealed = seal_release(*earlier, plan, manifest, membership, self._sealing)
        return replace(sealed, at_once=not price)

    def dummies(self, manifest: Manifest) -> SealedAnswer | NoAnswer:
        """What an answer of this device would look like, under a membership that nobody has.

        The cloud cannot open it and drops it. It is made of zeros, so it has no price.
        """
        why = self._too_large(manifest)
        if why:
            return NoAnswer(why)
        every = list(range(len(manifest.groups)))
        inferred = [index for index in every if manifest.groups[index].name == SOFTMAX]
        groups = every if self.site.role == "train" else inferred or every
        membership = os.urandom(_MEMBERSHIP_BYTES)
        return seal_dummies(manifest, groups, membership, self._sealing)

    def _too_large(self, manifest: Manifest) -> str:
        """The reason to decline an upload that the outbox may not hold, or an empty string."""
        asked = sum(group.padded_bytes + SEAL_OVERHEAD_BYTES for group in manifest.groups)
        limit = self.site.limits.outbox_bytes
        return f"an upload of {asked} bytes passes limits.outbox_bytes {limit}" * (asked > limit)

    def _too_often(self, manifest: Manifest, plan: Plan) -> str:
        """The reason to decline one more attempt at a round, or an empty string.

        Each seals the same tensors: who compares batches of other answerers learns whose they are.
        """
        most = 1 + plan.job.round.retries + _FURTHER_ATTEMPTS
        asked = self._store.answered_before(manifest.at)
        return f"this round was answered {asked} times already" * (asked >= most)

    def _price(self, plan: Plan, exchange: Exchange) -> tuple[Event, ...]:
        price = plan.device.price(exchange) if self.site.role == "train" else ()
        return (*price, plan.softmax_event()) if exchange.infer else price

    def _check_trial(self, task: ComputeAnswer) -> None:
        """Raise PrivacyError where the job's trial, before any record was read, was against it."""
        trial = self._trial(task.manifest.at.job_id)
        if trial is None:  # of this round's time: what is left may be too little for an answer
            self.take_up(task.manifest)
            raise PrivacyError("the job could be tried only now; the next round is answered")
        why = trial.refused or self._too_slow(trial, task.allowed_s)
        if why:
            raise PrivacyError(why)

    def _release(
        self,
        task: ComputeAnswer,
        job: TaughtJob,
        exchange: Exchange,
        package: RoundPackage,
        price: tuple[Event, ...],
    ) -> tuple[Receipt, bytes]:
        manifest, trains = task.manifest, self.site.role == "train"
        self._ledger.admit(manifest.at.job_id.hex(), price)
        found = self._compute.answer(
            Computation(
                job,
                exchange,
                package,
                self._own_tensors(job.plan, exchange, manifest) if trains else {},
                trains,
                self._noise_for(self._question(manifest)),
                task.until_s,
                task.allowed_s,
                task.begun_s + manifest.deadline_s,
            )
        )
        if found.without:
            self._say(f"round {manifest.at.exchange} is answered without records: {found.without}")
        self._store.put_fact("evaluation_share", repr(job.plan.job.data.evaluation_share))
        _check_price(price, found.parts)
        return release(self._ledger, manifest, list(found.parts), self.site.limits.memory_bytes)

    def _question(self, manifest: Manifest) -> Question:
        """What is asked: the same in every attempt that brings the same package."""
        at = manifest.at
        return Question(self._ledger.dataset, at.job_id.hex(), at.exchange, manifest.package_digest)

    def _own_tensors(self, plan: Plan, exchange: Exchange, manifest: Manifest) -> Tensors:
        job_id = manifest.at.job_id.hex()
        earlier = own_answers(plan, exchange, self._ledger, job_id)
        return {**earlier, **kept_tensors(self._ledger, job_id)}

    def _check_share(self, share: float) -> None:
        """A second job may not move the line between training and evaluation records."""
        fixed = self._store.fact("evaluation_share")
        if fixed is not None and float(fixed) != share:
            raise PrivacyError(
                f"the records were split at {float(fixed):g}, the job asks for {share:g}",
                where="data.evaluation_share",
            )


def _check_price(price: tuple[Event, ...], parts: tuple[Answer, ...]) -> None:
    """Raise PrivacyError unless what was computed costs what the ledger admitted."""
    events = [event for part in parts for event in part.events]
    if sorted(map(repr, events)) != sorted(map(repr, price)):
        raise PrivacyError("the answer was made at another price than the job says")
