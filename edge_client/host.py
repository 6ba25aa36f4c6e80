"""What a device's process does for its machine: open, consent, work, keep."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from edge_client.answer import (
    check_package,
    own_answers,
    release,
    seal_release,
    softmax_answer,
    training_answer,
)
from edge_client.conditions import why_not_now
from edge_client.consent import consent
from edge_client.identity import Identity
from edge_client.inference import InferenceSession
from edge_client.releases import ReleaseStore
from edge_client.store import DeviceStore
from fl_core.algorithms.base import Answer, Records
from fl_core.config import EdgeSite, Job
from fl_core.data.device import device_records
from fl_core.errors import DataError, PrivacyError, ProtocolError, UsageError
from fl_core.features import match_backbones
from fl_core.plan import JobPlan
from fl_core.privacy.ledger import Ledger, Receipt
from fl_core.privacy.policy import INFER
from fl_core.privacy.sampler import RandomBytes, os_random
from fl_core.protocol import effects as fx
from fl_core.protocol import sealed as real_sealing
from fl_core.protocol.messages import SEAL_OVERHEAD_BYTES, Manifest
from fl_core.protocol.package import JobPackage, RoundPackage, decode_package, unpack_tensors
from fl_core.protocol.sealed import Sealing
from fl_core.protocol.tasks import (
    Declined,
    Install,
    JobClosed,
    Learn,
    Learned,
    Open,
    Opened,
    Sealed,
    Work,
)

LOG = logging.getLogger("edgeveil.edge")
Load = Callable[[EdgeSite, bytes, float], tuple[Records, Records]]


def load_own(site: EdgeSite, split_key: bytes, share: float) -> tuple[Records, Records]:
    """(training, evaluation) records of this device."""
    return device_records(site.data, split_key, evaluation_share=share)


class DeviceHost:
    """One device's work. Its name never leaves this object but for the console."""

    def __init__(
        self,
        site: EdgeSite,
        identity: Identity,
        store: DeviceStore,
        ledger: Ledger,
        noise: RandomBytes = os_random,
        load: Load = load_own,
        say: Callable[[str], None] = lambda _line: None,
        sealing: Sealing = real_sealing,
    ) -> None:
        self.site, self.identity, self._sealing = site, identity, sealing
        self._store, self._ledger, self._noise, self._load = store, ledger, noise, load
        self._say = say
        self._releases = ReleaseStore(site.state_dir / "releases")
        self._membership: dict[bytes, bytes] = {}
        self._plans: dict[bytes, JobPlan] = {}
        self._session: InferenceSession | None = None
        self._records: tuple[float, Records, Records] | None = None

    # --- the machine's host ---

    def store(self, item: object) -> None:
        """Durable before the next effect."""
        if isinstance(item, JobClosed):  # the ledger first: a reservation must not outlive its job
            self._ledger.close_job(item.job_id.hex())
            self._plans.pop(item.job_id, None)
            train, infer = self._ledger.spent(), self._ledger.spent(purpose=INFER)
            self._say(
                f"a job ended, {item.status}; spent on '{self.site.data.name}' so far:"
                f" training: {train} (limit ε = {self.site.policy.lifetime_epsilon:g});"
                f" inference: {infer} (limit ε = {self.site.policy.max_inference_epsilon:g})"
            )
        self._store.store(item)

    def together(self) -> AbstractContextManager[None]:
        """Its few stores are each durable at once."""
        return nullcontext()

    def report(self, report: fx.Report) -> None:
        """A line on the owner's console, without the name in the log."""
        data = dict(report.data)
        level = (
            logging.WARNING
            if report.what in ("declined", "upload_refused", "unheard")
            else logging.DEBUG
        )
        LOG.log(level, report.what, extra=data)
        if report.what == "counted":
            self._say(f"round {data['round']}: {data['counted']} of {data['segments']} counted")
        if report.what == "model_installed":
            self._say("the job's final model is in use; try edgeveil predict")
        if report.what == "unheard":
            self._say("the proxy does not answer; has its operator admitted this device?")
        if report.what == "declined":
            self._say(f"round {data['round']} declined: {data['why']}")

    def perform(self, task: object) -> object:
        """Do one task; `Failed` and `Declined` are outcomes, not errors."""
        match task:
            case Open(manifest=manifest, blob=blob):
                return self._open(manifest, blob)
            case Learn(manifest=manifest, package=package):
                return self._learn(manifest, package)
            case Work(manifest=manifest, package=RoundPackage() as package):
                return self._work(manifest, package)
            case Install(manifest=manifest, package=package):
                meta = {"job_id": manifest.at.job_id.hex(), "sequence": manifest.sequence}
                self._releases.install(package.job_name, package.onnx, meta)
                self._store.put_fact("release_sequence", str(manifest.sequence))
                return Learned()
        return fx.Failed("malformed_package")

    # --- tasks ---

    def _open(self, manifest: Manifest, blob: bytes) -> Opened:
        opened = self._sealing.open_broadcast(self.identity.opening, manifest, blob)
        if opened is None:
            return Opened(None)
        package, membership = opened
        if manifest.kind == "round":  # a release may be opened while a round waits for its work
            self._membership = {manifest.blob.digest: membership}
        return Opened(decode_package(package))

    def _learn(self, manifest: Manifest, package: JobPackage) -> Learned:
        if hashlib.sha256(package.job).digest() != manifest.job_digest:
            raise ProtocolError("wrong_job")
        job = Job.from_canonical(package.job)
        try:
            found = match_backbones(job.features, package.backbones)
        except DataError as error:
            raise ProtocolError("wrong_backbone", str(error)) from None
        job_id = manifest.at.job_id
        self._store.put_job(job_id, package.job, package.graph, found.values())
        return Learned()

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

    def _work(self, manifest: Manifest, package: RoundPackage) -> Sealed | Declined:
        plan, graph = self._plan(manifest)
        exchange = check_package(plan, manifest, package)
        trains = self.site.role == "train"
        if not trains and not exchange.infer:
            return Declined("this round asks for no inference, and the role is infer")
        why = why_not_now(self.site.conditions) or self._too_large(manifest)
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
        membership = self._membership[manifest.blob.digest]
        return seal_release(*earlier, plan, manifest, membership, self._sealing)

    def _too_large(self, manifest: Manifest) -> str:
        """The reason to decline an upload that the outbox may not hold, or an empty string."""
        asked = sum(group.padded_bytes + SEAL_OVERHEAD_BYTES for group in manifest.groups)
        limit = self.site.limits.outbox_bytes
        return f"an upload of {asked} bytes passes limits.outbox_bytes {limit}" * (asked > limit)

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
        own = own_answers(plan, exchange, self._ledger, manifest.at.job_id.hex()) if trains else {}
        session = self._inference(graph, plan.job.data.classes) if exchange.infer else None
        training, evaluation = self._own_records(plan.job.data.evaluation_share)
        parts: list[Answer] = []
        if session is not None:
            weights = unpack_tensors(package.model)
            key = self.identity.split_key
            parts.append(softmax_answer(plan, session, weights, evaluation.x, self._noise, key))
        if trains:
            parts.append(
                training_answer(
                    plan, exchange, package, own, training, self._noise, self.site.device
                )
            )
        return release(self._ledger, manifest, parts)

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
            training, evaluation = self._load(self.site, self.identity.split_key, share)
            self._store.put_fact("evaluation_share", repr(share))
            self._records = (share, training, evaluation)
        return self._records[1], self._records[2]
