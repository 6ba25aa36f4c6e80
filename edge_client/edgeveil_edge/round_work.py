"""One round on a device: consent, computation and price.

Noised tensors and their privacy events are committed to the ledger in one transaction; sealing
requires the receipt. A repeated attempt seals the stored tensors again, and so does a round of
`buffered_rounds` with the tensors of an earlier round that missed its deadline.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace

from edgeveil.config.edge import EdgeSite
from edgeveil.errors import DataError, PrivacyError, ProtocolError, UsageError
from edgeveil.jobs.buffered_rounds import late_rounds, staleness_weight
from edgeveil.jobs.job import Job, JobData, Round
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.round import EVALUATIONS, KEPT, Answer, Array, Tensors
from edgeveil.privacy.derived import NoiseByContext, NoiseContext
from edgeveil.privacy.events import Event
from edgeveil.privacy.ledger import Ledger, Receipt
from edgeveil.protocol.device_round import WORK_SHARE, ComputeAnswer, NoAnswer, SealedAnswer
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Manifest, ReleaseOutcome, short_name
from edgeveil.protocol.sealed import (
    ReleasePackage,
    RoundCheck,
    RoundPackage,
    Sealing,
    check_factors,
)
from edgeveil.protocol.tensors import pack_tensors, tensor_views, unpack_tensors
from edgeveil_edge.compute import (
    TRIAL_MARGIN,
    Computation,
    Compute,
    ComputedAnswer,
    JobTrial,
    TaughtJob,
)
from edgeveil_edge.consent import consent, decline_cause, judge, release_refusal
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.release_trial import CHECKED
from edgeveil_edge.sealing import Masks, seal_dummies, seal_release
from edgeveil_edge.store import (
    READ_BY,
    SPLIT_SHARE,
    USUAL_SHARE,
    DeviceStore,
    memory_name,
    split_fact,
    trial_name,
)

_BY_VALUES = "by their values"
MOST_OVERRUNS = 3  # late answers of a job before it is declined
_FURTHER_ATTEMPTS = 3  # beyond the job's own, for a cloud that pauses or starts again


class RoundWork:
    """Answers rounds with this device's records; keeps compiled jobs between rounds."""

    def __init__(
        self,
        site: EdgeSite,
        identity: DeviceIdentity,
        store: DeviceStore,
        ledger: Ledger,
        noise_for: NoiseByContext,
        compute: Compute,
        sealing: Sealing,
        on_message: Callable[[str], None],
    ) -> None:
        self.site, self.identity, self._sealing = site, identity, sealing
        self._notify = on_message
        self._store, self._ledger, self._noise_for = store, ledger, noise_for
        self._compute = compute
        store.adopt_split(ledger.datasets or (ledger.dataset,))
        self._split_share = split_fact(SPLIT_SHARE, ledger.dataset)
        self._read_by = split_fact(READ_BY, ledger.dataset)
        self._jobs: dict[bytes, TaughtJob] = {}
        self.paused = False  # by the owner: rounds are declined

    # --- jobs ---

    def forget(self, job_id: bytes) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self._compute.forget(job)

    def times_s(self, manifest: Manifest) -> tuple[float, float]:
        """Return (this device's time budget, time of one answer) in seconds; 0 if unknown."""
        try:
            round_ = self._job(manifest).plan.job.round
        except ProtocolError:
            return 0.0, 0.0
        trial = self._trial(manifest.at.job_id) or JobTrial()
        return trial.budget_s(round_), TRIAL_MARGIN * trial.needed_s

    def assess(self, manifest: Manifest) -> None:
        """Decide before any record is read whether this device can run the job."""
        job_id, most = manifest.at.job_id, manifest.broadcast_bytes + manifest.stanza_bytes
        room = self.site.limits.blob_bytes
        if most > room:
            why = f"its models may have {most} bytes, limits.blob_bytes allows {room}"
            self._put_trial(job_id, JobTrial(refused=why))
            self._notify(f"a job is declined, {short_name(job_id)}: {why}")
        else:
            self._run_trial(job_id, self._job(manifest))

    def _run_trial(self, job_id: bytes, job: TaughtJob) -> None:
        try:
            judge(self.site, job.plan)
        except PrivacyError:
            return  # reported with the first round; nothing of the job is run
        found = self._compute.try_job(job, trains=self.site.role == "train")
        why = found.refused or self._too_slow(found, job.plan.job.round.time_budget_s * WORK_SHARE)
        if why:
            self._notify(f"a job is declined, {short_name(job_id)}: {why}")
        else:  # records read at the start may have another share, or were freed with a job
            self._read_ahead(job.plan.job)
        self._put_trial(job_id, replace(found, refused=why))

    def judge_release(
        self, manifest: Manifest, package: ReleasePackage
    ) -> tuple[ReleaseOutcome, str]:
        """Check a model by policy, job, price and a trial run; return (outcome, refusal)."""
        job_id = manifest.at.job_id
        plan = self._compiled(job_id).plan if self._store.job(job_id) is not None else None
        why = release_refusal(self.site, package, job_id.hex(), plan, self._ledger)
        if why:
            return ReleaseOutcome.REFUSED_BY_POLICY, why
        why = self._compute.try_release(package.onnx)
        if not why:
            return ReleaseOutcome.IN_USE, ""
        checked = why.startswith(CHECKED)
        outcome = ReleaseOutcome.REFUSED_BY_CHECK if checked else ReleaseOutcome.FAILED_TRIAL
        return outcome, why

    def warm_up(self) -> None:
        jobs = list(self._store.load().jobs)
        if self._store.fact(self._read_by) in (None, _BY_VALUES):  # a schema comes with a job
            self._compute.read_ahead(self._share(USUAL_SHARE))
        trials = {job_id: self._trial(job_id) for job_id in jobs}
        for job_id, trial in trials.items():
            job = self._compiled(job_id).plan.job
            if job.data.schema_ is not None and trial is not None and not trial.refused:
                self._read_ahead(job)
        for job_id, trial in trials.items():
            if trial is None:
                self._run_trial(job_id, self._compiled(job_id))
            elif not trial.refused:
                self._compute.try_job(self._compiled(job_id), trains=self.site.role == "train")

    def _read_ahead(self, job: Job) -> bool:
        read = False
        for share, schema in map(job.reading, job.phases_read):
            asks = schema is not None and schema.raw
            read |= self._compute.read_ahead(share if asks else self._share(share), schema)
        return read

    def _share(self, asked: float) -> float:
        fixed = self._store.fact(self._split_share)
        return asked if fixed is None else float(fixed)

    def _trial(self, job_id: bytes) -> JobTrial | None:
        known = json.loads(self._store.fact(trial_name(job_id)) or "{}")
        known.pop("again", None)  # of earlier versions
        return JobTrial(**known) if known else None

    def _put_trial(self, job_id: bytes, trial: JobTrial) -> None:
        self._store.put_fact(trial_name(job_id), json.dumps(asdict(trial)))

    def _too_slow(self, trial: JobTrial, allowed_s: float) -> str:
        if TRIAL_MARGIN * trial.needed_s <= allowed_s:
            return ""
        return (
            f"an answer takes this box {trial.needed_s:.3g} s on"
            f" {self.site.policy.max_records} made-up records (policy.max_records), and"
            f" {TRIAL_MARGIN:g} times as long has to fit the {allowed_s:.3g} s that the round's"
            " time budget (round.budget_s) leaves"
        )

    def _follow(self, found: ComputedAnswer, job_id: bytes, round_: Round) -> None:
        """Adapt the time budget to the load on the box and to an overrun."""
        before = self._trial(job_id) or JobTrial()
        slowdown = round(max(found.slowdown, (7 * before.slowdown + 1) / 8), 1)
        trial = replace(before, slowdown=slowdown, overruns=before.overruns + found.late)
        longest = before.budget_s(round_) == round_.time_budget_s
        if found.late and longest and trial.overruns >= MOST_OVERRUNS:
            why = f"{trial.overruns} answers were late: the box is slower than in its trial"
            trial = replace(trial, refused=why)
            self._notify(f"a job is declined, {short_name(job_id)}: {why}")
        if trial != before:
            self._put_trial(job_id, trial)

    def _job(self, manifest: Manifest) -> TaughtJob:
        job = self._compiled(manifest.at.job_id)
        if hashlib.sha256(job.canonical).digest() != manifest.job_digest:
            raise ProtocolError("wrong_job")
        return job

    def install_job(
        self, manifest: Manifest, canonical: bytes, graph: bytes, backbones: Iterable[bytes]
    ) -> None:
        """Store a job and try it out. Raises ProtocolError `bad_job` or `wrong_backbone`."""
        try:
            plan = self._compile(canonical, graph, backbones).plan
        except DataError as error:
            raise ProtocolError("wrong_backbone", str(error)) from None
        self._store.put_job(manifest.at.job_id, canonical, graph, plan.artifacts.values())
        self.assess(manifest)

    def _compile(self, canonical: bytes, graph: bytes, backbones: Iterable[bytes]) -> TaughtJob:
        try:
            return TaughtJob.of(canonical, graph, backbones)
        except ProtocolError as error:
            self._notify(f"a job is declined: {error}")
            raise

    def _compiled(self, job_id: bytes) -> TaughtJob:
        found = self._jobs.get(job_id)
        if found is None:
            stored = self._store.job(job_id)
            if stored is None:
                raise ProtocolError("unknown_job")
            found = self._jobs[job_id] = self._compile(*stored, self._store.backbones(job_id))
        return found

    # --- rounds ---

    def answer(
        self, task: ComputeAnswer, package: RoundPackage, membership: bytes | None
    ) -> SealedAnswer | NoAnswer:
        """Return the priced, sealed answer or a refusal. Raises ProtocolError."""
        manifest = task.manifest
        job = self._job(manifest)
        context = RoundContext.of(job.plan, manifest.at.round)
        check_package(context, manifest, package)
        if membership is None:
            raise ProtocolError("superseded_round")
        # Before any budget is spent: reject a key that cannot be sealed to, and check factors
        # other than those the proxy will enforce.
        if manifest.check:
            check_factors(manifest, RoundCheck.of_manifest(manifest, membership).key)
        masks = Masks.of(manifest, self.identity.device_id, task.round_key)
        if self.paused:
            return NoAnswer("the owner has paused the device", "conditions")
        why = nothing_to_give(self.site, context) or too_large(self.site, job.plan.upload_bytes)
        why = why or self._too_often(manifest, job.plan)
        if why:
            return NoAnswer(why)
        price = context.price(trains=self.site.role == "train")
        try:
            self._check_split(context.job.data)
            consent(self.site, job.plan, manifest, self._ledger)
            self._check_memory(task)
            self._check_trial(task)
            held = self._ledger.recall(manifest.at.job_id.hex(), manifest.at.round)
            if held is None:
                check_separation(context, manifest.at.job_id.hex(), self._ledger)
            late = None if held else self._late(manifest, job.plan)
            held, weight = late or (held, 1.0)
            parts = [] if held else self._computed(task, job, context, package, price)
            del package  # free the model before the answer is packed
            if held is None:
                held = release(self._ledger, manifest, parts, self.site.limits.memory_bytes)
        except (PrivacyError, DataError, UsageError) as error:
            return NoAnswer(str(error), decline_cause(error))
        sealed = seal_release(*held, context, manifest, membership, self._sealing, masks, weight)
        state = self._ledger.encrypted_state(manifest.at.job_id.hex())
        return replace(sealed, at_once=late is not None or not price, encrypted_state=state)

    def _late(self, manifest: Manifest, plan: Plan) -> tuple[tuple[Receipt, bytes], float] | None:
        at, job_id, since = manifest.at, manifest.at.job_id.hex(), list[int]()
        for earlier in late_rounds(plan, at.round):
            since.append(earlier.index)
            held = self._ledger.recall(job_id, earlier.index)
            if held is None:
                continue
            if self._store.was_taken(at.job_id, since):
                return None
            late = plan.round(at.round).number - earlier.number
            weight = staleness_weight(late)
            self._notify(
                f"job {short_name(at.job_id)}, round {at.round} is answered with the update of"
                f" round {earlier.index}, which was late for its own: it weighs {weight:.2f}"
            )
            return held, weight
        return None

    def dummies(self, manifest: Manifest, round_key: bytes) -> SealedAnswer | NoAnswer:
        """Seal zeros of an answer's sizes under a random membership; costs no privacy."""
        sizes = (group.padded_bytes + SEAL_OVERHEAD_BYTES for group in manifest.groups)
        why = too_large(self.site, sum(sizes))
        if why:
            return NoAnswer(why)
        every, masked = list(range(len(manifest.groups))), {one.group for one in manifest.masked}
        inferred = [g for g in every if g not in masked and manifest.groups[g].name == SOFTMAX]
        groups = every if self.site.role == "train" else inferred or every
        masks = Masks.of(manifest, self.identity.device_id, round_key)
        dummies = seal_dummies(manifest, groups, masks, self._sealing)
        return replace(dummies, encrypted_state=self._ledger.encrypted_state())

    def _too_often(self, manifest: Manifest, plan: Plan) -> str:
        # Answers of many attempts at one round could be compared.
        most = 1 + plan.job.round.retries + _FURTHER_ATTEMPTS
        asked = self._store.answered_before(manifest.at)
        return f"this round was answered {asked} times already" * (asked >= most)

    def _check_memory(self, task: ComputeAnswer) -> None:
        name = memory_name(task.manifest.at.job_id)
        memory, known = task.proxy_memory.hex(), self._store.fact(name)
        if task.manifest.masked and known is None and memory:
            self._store.put_fact(name, memory)
        elif task.manifest.masked and memory != (known or ""):
            what = "the proxy lost its memory, or has an older one, since the job was answered"
            raise PrivacyError(what, fix="start a new job")

    def _check_trial(self, task: ComputeAnswer) -> None:
        trial = self._trial(task.manifest.at.job_id)
        if trial is None:
            self.assess(task.manifest)  # may leave too little time for an answer
            what = "the job could be tried only now; the next round is answered"
            raise PrivacyError(what, where="conditions")
        if trial.refused:
            raise PrivacyError(trial.refused)
        late = self._too_slow(trial, task.allowed_s)
        if late:  # too little of this round is left, after a slow link or another job
            raise PrivacyError(late, where="conditions")

    def _computed(
        self,
        task: ComputeAnswer,
        job: TaughtJob,
        context: RoundContext,
        package: RoundPackage,
        price: tuple[Event, ...],
    ) -> list[Answer]:
        # No trial measures reading, so an answer never includes it: whether the answer is in time
        # would depend on the records.
        if self._read_ahead(job.plan.job):
            what = "the records could be read only now; the next round is answered"
            raise PrivacyError(what, where="conditions")
        manifest, trains, at = task.manifest, self.site.role == "train", task.manifest.at
        # Every attempt with the same package uses the same noise.
        place = self._ledger.dataset, at.job_id.hex(), at.round
        noise_context = NoiseContext(*place, manifest.package_digest)
        self._ledger.admit(manifest.at.job_id.hex(), price)
        own: Tensors = {}
        if trains:
            job_id = at.job_id.hex()
            kept = self._ledger.kept(job_id)
            own = own_answers(context, released_in(self._ledger, job_id))
            own = {**own, **kept_tensors(unpack_tensors(kept) if kept else {})}
        asked = job, context.round, package, own, trains
        noise = self._noise_for(noise_context)
        times = task.until_s, task.allowed_s, task.closes_s
        found = self._compute.answer(Computation(*asked, noise, *times))
        if found.without:
            where = f"job {short_name(at.job_id)}, round {at.round}"
            self._notify(f"{where} is answered without records: {found.without}")
        self._follow(found, manifest.at.job_id, job.plan.job.round)
        data = context.job.data
        if not data.asks:
            self._store.put_fact(self._split_share, repr(data.evaluation_share))
            self._store.put_fact(self._read_by, _read_by(data))
        check_price(price, found.parts)
        return list(found.parts)

    def _check_split(self, data: JobData) -> None:
        if data.asks:
            return
        fixed, share = self._store.fact(self._split_share), data.evaluation_share
        by = _read_by(data)
        read_by = self._store.fact(self._read_by) or (_BY_VALUES if fixed is not None else by)
        if read_by != by:
            what = f"the records were split {read_by}, the job would split them {by}"
            fix = "ask for a job that splits them so"
            raise PrivacyError(what, where="data.schema", fix=fix)
        if fixed is not None and float(fixed) != share:
            what = f"the records were split at {float(fixed):g}, the job asks for {share:g}"
            raise PrivacyError(what, where="data.evaluation_share")


def _read_by(data: JobData) -> str:
    if data.person is not None:
        return f"by the column '{data.person}'"
    return _BY_VALUES if data.schema_ is None else "as they are stored"


def nothing_to_give(site: EdgeSite, context: RoundContext) -> str:
    if context.round.evaluates:
        return ""
    if site.role != "train" and not context.round.infer:
        return "this round has no inference, and the device's role is infer"
    if site.role != "train" and context.plan.sums_inferences:
        return (
            "inferences of this job are summed under masks, together with the update that one of"
            " role infer does not have"
        )
    return ""


def too_large(site: EdgeSite, upload_bytes: int) -> str:
    limit = site.limits.outbox_bytes
    refusal = f"an upload of {upload_bytes} bytes passes limits.outbox_bytes {limit}"
    return refusal * (upload_bytes > limit)


def check_price(price: tuple[Event, ...], parts: tuple[Answer, ...]) -> None:
    """Raise PrivacyError unless the events of the answer match the admitted price."""
    events = [event for part in parts for event in part.events]
    if sorted(map(repr, events)) != sorted(map(repr, price)):
        raise PrivacyError("the answer's price differs from the job's")


# --- checks of the package, and tensors of earlier rounds ---


def check_package(context: RoundContext, manifest: Manifest, package: RoundPackage) -> None:
    """Raise ProtocolError unless the round's package and manifest match the job."""
    round = context.round
    asked = (package.phase, package.number, package.infer)
    if asked != (round.phase, round.number, round.infer) or manifest.phase != package.phase:
        raise ProtocolError("wrong_phase")
    if manifest.shuffled != context.shuffled:
        raise ProtocolError("wrong_shuffle")
    if manifest.min_batch < context.min_batch:
        raise ProtocolError("wrong_batch")  # shuffle amplification is computed for min_batch
    if manifest.groups != context.groups:
        raise ProtocolError("wrong_groups")
    if (manifest.masked, manifest.sets) != (context.masked, context.sets):
        raise ProtocolError("wrong_masks")
    if manifest.correlated != context.correlated or (context.correlated and not manifest.check):
        raise ProtocolError("wrong_noise")


def check_separation(context: RoundContext, job_id: str, ledger: Ledger) -> None:
    """Raise PrivacyError if a round too near was answered, for which the noise does not suffice."""
    noise = context.correlated
    if noise is None:
        return
    rounds = context.plan.of_method
    near = [e.index for e in rounds if 0 < abs(e.number - noise.number) < noise.min_separation]
    if ledger.released(job_id, near):
        what = f"this device answered one of the {noise.min_separation - 1} rounds before or after"
        raise PrivacyError(what, where="privacy.min_separation")


def released_in(ledger: Ledger, job_id: str) -> Callable[[int], bytes | None]:
    return lambda round: (ledger.recall(job_id, round) or (None, None))[1]


def own_answers(context: RoundContext, released: Callable[[int], bytes | None]) -> Tensors:
    """Return tensors released earlier in the job. Raises PrivacyError if one is missing."""
    result: dict[str, Array] = {}
    for earlier in context.recalled:
        payload = released(earlier.index)
        if payload is None:
            what = f"this device did not answer '{earlier.label}', on which this round builds"
            fix = "start a new job, or use ldp_fpca"
            raise PrivacyError(what, where="features", fix=fix)
        result |= tensor_views(payload)
    return result


def kept_tensors(kept: Tensors) -> Tensors:
    return {KEPT + name: array for name, array in kept.items()}


# --- priced ---


def release(
    ledger: Ledger, manifest: Manifest, parts: list[Answer], memory_bytes: int = 1 << 26
) -> tuple[Receipt, bytes]:
    """Commit events, tensors and kept state; return receipt and payload. Empties `parts`."""
    events = [event for part in parts for event in part.events]
    kept = None  # an evaluation leaves the kept tensors of the training rounds as they are
    if manifest.phase not in EVALUATIONS:
        tensors = kept_of(parts, memory_bytes)
        kept = pack_tensors(tensors) if tensors else b""
    payload = pack_tensors({name: a for part in parts for name, a in part.segments.items()})
    parts.clear()  # as large as the payload, which SQLite copies twice
    job_id, index = manifest.at.job_id.hex(), manifest.at.round
    receipt = ledger.commit(job_id, index, events, payload, kept)
    if receipt.covers(payload):
        return receipt, payload
    del payload  # an earlier release of this round takes precedence
    held = ledger.recall(job_id, index)
    if held is None:
        raise PrivacyError("the ledger lost a release")
    return held


def kept_of(parts: Sequence[Answer], memory_bytes: int) -> dict[str, Array]:
    kept = {name: array for part in parts for name, array in part.kept.items()}
    size_bytes = sum(array.nbytes for array in kept.values())
    if size_bytes > memory_bytes:  # depends on the job's model alone, never on records
        what = f"the job stores {size_bytes} bytes between rounds, more than {memory_bytes}"
        raise PrivacyError(what, where="limits.memory_bytes")
    return kept
