"""One round on a device: consent, work, price, seal; or dummies that cover those who do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from secrets import SystemRandom

from edge_client.answer import (
    check_package,
    kept_tensors,
    own_answers,
    release,
    seal_dummies,
    seal_release,
    softmax_answer,
    training_answer,
)
from edge_client.conditions import why_not_now
from edge_client.consent import consent
from edge_client.identity import Identity
from edge_client.inference import InferenceSession
from edge_client.store import DeviceStore
from fl_core.algorithms.base import Answer, Exchange, Records, Tensors
from fl_core.config import EdgeSite, Job
from fl_core.data.device import device_records
from fl_core.errors import DataError, PrivacyError, ProtocolError, UsageError
from fl_core.features import match_backbones
from fl_core.plan import SOFTMAX, JobPlan
from fl_core.privacy.derived import NoiseFor, Question
from fl_core.privacy.ledger import Ledger, Receipt
from fl_core.protocol.messages import SEAL_OVERHEAD_BYTES, Manifest
from fl_core.protocol.package import RoundPackage, unpack_tensors
from fl_core.protocol.sealed import Sealing
from fl_core.protocol.tasks import Declined, Sealed

Load = Callable[[EdgeSite, bytes, float], tuple[Records, Records]]
_MEMBERSHIP_BYTES = 32
_FURTHER_ATTEMPTS = 3  # beyond the job's own, for a cloud that pauses or starts again
_chance = SystemRandom().random


def load_own(site: EdgeSite, split_key: bytes, share: float) -> tuple[Records, Records]:
    """(training, evaluation) records of this device."""
    return device_records(site.data, split_key, evaluation_share=share)


class RoundWork:
    """What a device computes for rounds; its records and plans are kept between them."""

    def __init__(
        self,
        site: EdgeSite,
        identity: Identity,
        store: DeviceStore,
        ledger: Ledger,
        noise_for: NoiseFor,
        load: Load,
        sealing: Sealing,
    ) -> None:
        self.site, self.identity, self._sealing = site, identity, sealing
        self._store, self._ledger, self._noise_for, self._load = store, ledger, noise_for, load
        self._plans: dict[bytes, JobPlan] = {}
        self._session: InferenceSession | None = None
        self._records: tuple[Records, Records] | None = None

    def forget(self, job_id: bytes) -> None:
        """The job has ended."""
        self._plans.pop(job_id, None)

    def answer(
        self, manifest: Manifest, package: RoundPackage, membership: bytes | None
    ) -> Sealed | Declined:
        """The round's answer, priced before it is sealed, or the owner's reason against it.

        Without `membership` the round is not the newest one that was opened. Raises ProtocolError
        for that, and for a package that is not what the job says.
        """
        plan, graph = self._plan(manifest)
        exchange = check_package(plan, manifest, package)
        if membership is None:
            raise ProtocolError("superseded_round")
        if self.site.role != "train" and not exchange.infer:
            return Declined("this round asks for no inference, and the role is infer")
        why = why_not_now(self.site.conditions) or self._too_large(manifest)
        why = why or self._too_often(manifest, plan)
        if why:
            return Declined(why)
        try:
            self._check_share(plan.job.data.evaluation_share)
            consent(self.site, plan, manifest, self._ledger)
            earlier = self._ledger.recall(manifest.at.job_id.hex(), manifest.at.round)
            if earlier is None:
                earlier = self._release(manifest, package, plan, graph)
        except (PrivacyError, DataError, UsageError) as error:
            return Declined(str(error))
        sealed = seal_release(*earlier, plan, manifest, membership, self._sealing)
        return replace(sealed, leave_at=_chance())

    def dummies(self, manifest: Manifest) -> Sealed | Declined:
        """What an answer of this device would look like, under a membership that nobody has.

        The cloud cannot open it and drops it. It is made of zeros, so it has no price.
        """
        why = self._too_large(manifest)
        if why:
            return Declined(why)
        every = list(range(len(manifest.groups)))
        inferred = [index for index in every if manifest.groups[index].name == SOFTMAX]
        groups = every if self.site.role == "train" else inferred or every
        membership = os.urandom(_MEMBERSHIP_BYTES)
        sealed = seal_dummies(manifest, groups, membership, self._sealing)
        return replace(sealed, leave_at=_chance())

    def _plan(self, manifest: Manifest) -> tuple[JobPlan, bytes]:
        known = self._store.job(manifest.at.job_id)
        if known is None:
            raise ProtocolError("unknown_job")
        canonical, graph = known
        if hashlib.sha256(canonical).digest() != manifest.job_digest:
            raise ProtocolError("wrong_job")
        plan = self._plans.get(manifest.at.job_id)
        if plan is None:
            job = Job.from_canonical(canonical)
            kept = match_backbones(job.features, self._store.backbones(manifest.at.job_id))
            plan = self._plans[manifest.at.job_id] = JobPlan(job, kept)
        return plan, graph

    def _too_large(self, manifest: Manifest) -> str:
        """The reason to decline an upload that the outbox may not hold, or an empty string."""
        asked = sum(group.padded_bytes + SEAL_OVERHEAD_BYTES for group in manifest.groups)
        limit = self.site.limits.outbox_bytes
        return f"an upload of {asked} bytes passes limits.outbox_bytes {limit}" * (asked > limit)

    def _too_often(self, manifest: Manifest, plan: JobPlan) -> str:
        """The reason to decline one more attempt at a round, or an empty string.

        Each seals the same tensors: who compares batches of other answerers learns whose they are.
        """
        most = 1 + plan.job.round.retries + _FURTHER_ATTEMPTS
        asked = self._store.answered_before(manifest.at)
        return f"this round was answered {asked} times already" * (asked >= most)

    def _release(
        self, manifest: Manifest, package: RoundPackage, plan: JobPlan, graph: bytes
    ) -> tuple[Receipt, bytes]:
        exchange = plan.exchange(manifest.at.round)
        trains = self.site.role == "train"
        asked = plan.device.price(exchange) if trains else ()
        if exchange.infer:
            asked += (plan.softmax_event(),)
        self._ledger.admit(manifest.at.job_id.hex(), asked)
        # Before records are read: a graph is refused for what it is, never for what it meets.
        if trains:
            plan.check_backbones()
        own = self._own_tensors(plan, exchange, manifest) if trains else {}
        session = self._inference(graph, plan.job.data.classes) if exchange.infer else None
        training, evaluation = self._own_records(plan.job.data.evaluation_share)
        noise = self._noise_for(self._question(manifest))
        parts: list[Answer] = []
        if session is not None:
            weights = unpack_tensors(package.model)
            key = self.identity.split_key
            parts.append(softmax_answer(plan, session, weights, evaluation.x, noise, key))
        if trains:
            parts.append(
                training_answer(plan, exchange, package, own, training, noise, self.site.device)
            )
        return release(self._ledger, manifest, parts, self.site.limits.memory_bytes)

    def _question(self, manifest: Manifest) -> Question:
        """What is asked: the same in every attempt that brings the same package."""
        at = manifest.at
        return Question(self._ledger.dataset, at.job_id.hex(), at.round, manifest.package_digest)

    def _own_tensors(self, plan: JobPlan, exchange: Exchange, manifest: Manifest) -> Tensors:
        job_id = manifest.at.job_id.hex()
        earlier = own_answers(plan, exchange, self._ledger, job_id)
        return {**earlier, **kept_tensors(self._ledger, job_id)}

    def _inference(self, graph: bytes, classes: int) -> InferenceSession:
        digest = hashlib.sha256(graph).digest()
        if self._session is None or self._session.digest != digest:
            self._session = InferenceSession(graph, digest, classes=classes)
        return self._session

    def _check_share(self, share: float) -> None:
        """A second job may not move the line between training and evaluation records."""
        fixed = self._store.fact("evaluation_share")
        if fixed is not None and float(fixed) != share:
            raise PrivacyError(
                f"the records were split at {float(fixed):g}, the job asks for {share:g}",
                where="data.evaluation_share",
            )

    def _own_records(self, share: float) -> tuple[Records, Records]:
        """This device's halves, loaded once."""
        if self._records is None:
            self._records = self._load(self.site, self.identity.split_key, share)
            self._store.put_fact("evaluation_share", repr(share))
        return self._records
