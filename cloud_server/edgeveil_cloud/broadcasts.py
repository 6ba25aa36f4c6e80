"""What the cloud broadcasts: a job, a round's model, the release; each sealed and written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeveil.crypto.buckets import CAPACITY, bucket_bytes, fitting
from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.errors import JobFailed
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.jobs.round_traffic import BrokerUse
from edgeveil.parts.exchange import Array
from edgeveil.parts.features import backbone_digests
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud_tasks import (
    AskUnmask,
    Broadcast,
    CountReports,
    ReportsCounted,
    SealRound,
)
from edgeveil.protocol.messages import ExchangeId, Manifest, data_set_tag
from edgeveil.protocol.release_health import HEALTH, ReleaseOutcome
from edgeveil.protocol.sealed import (
    JobPackage,
    Package,
    ReleasePackage,
    RoundPackage,
    Sealing,
    Terms,
    encode_package,
    in_pieces,
    pack_tensors,
)
from edgeveil.selection import how_many, rounded_up, uniform
from edgeveil_cloud.evaluation import Evaluation
from edgeveil_cloud.rollout_store import Stage, report_digest
from edgeveil_cloud.round_secret import RoundSecret
from edgeveil_cloud.secure_round import KeptSums
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobEntry
from edgeveil_cloud.stored_jobs import StoredJobs, wire_id


class TooFewDevices(JobFailed):
    """Not enough devices are enrolled, or answered, for a round."""


class TooManyDevices(JobFailed):
    """More devices would be asked than a sum under masks has room for."""


class UnknownAdmissions(JobFailed):
    """The proxy's roster is stale or refused: a revoked device could be asked."""


Choose = Callable[[Sequence[bytes], int], list[bytes]]
"""Draws so many of the keys given."""


def draw(enrolled: Sequence[bytes], count: int) -> list[bytes]:
    """Uniformly, from the operating system's randomness."""
    return uniform(enrolled, count, None)


def select(plan: Plan, enrolled: Sequence[bytes], choose: Choose = draw) -> list[bytes]:
    """The public keys of a new round. Raises TooFewDevices, TooManyDevices: no sum may leave its
    ring."""
    asked, floor = plan.job.selection, plan.job.round.min_batch
    count = how_many(asked.devices, len(enrolled), asked.over_select)
    least = max(asked.min_devices, floor)
    if count < least:
        raise TooFewDevices(
            f"{count} devices can be selected, at least {least} are needed",
            where="selection",
            fix="enrol more devices, or lower round.min_batch and selection.min_devices",
        )
    most = plan.setting.summed
    if most and count > most:
        raise TooManyDevices(
            f"{count} devices would be selected, and a sum under masks takes at most {most}",
            where="selection.devices",
            fix="cancel the job, and submit it with a number of devices in place of 'all'",
        )
    return choose(enrolled, count)


def round_package(context: RoundContext, state: Mapping[str, Array]) -> RoundPackage:
    """What the devices of a round are sent."""
    exchange, cloud = context.exchange, context.plan.cloud
    return RoundPackage(
        exchange.phase,
        exchange.number,
        exchange.infer,
        pack_tensors(cloud.package(state, exchange)),
        pack_tensors(cloud.model(state)) if exchange.infer else b"",
    )


def seal_round(
    context: RoundContext,
    state: Mapping[str, Array],
    recipients: Sequence[bytes],
    at: ExchangeId,
    sequence: int,
    part_bytes: int,
    sealing: Sealing = real_sealing,
    *,
    bucketed: bool = False,
) -> tuple[Manifest, bytes, RoundSecret]:
    """The round's manifest and blob, and the secret that will open its answers."""
    opening = OpeningKey.generate()
    exchange, job = context.exchange, context.job
    terms = Terms(
        kind="round",
        at=at,
        sequence=sequence,
        job_digest=job.digest(),
        phase=exchange.phase,
        min_batch=context.min_batch,
        quorum=rounded_up(len(recipients), job.round.quorum),
        deadline_s=job.round.deadline_s,
        grace_s=job.round.grace_s,
        groups=context.groups,
        cloud_key=opening.public().to_bytes(),
        shuffled=context.shuffled,
        masked=context.masked,
        sets=context.sets,
    )
    keys = [SealingKey(raw) for raw in recipients]
    plain = encode_package(round_package(context, state))
    manifest, data, membership = sealing.seal_broadcast(
        terms, plain, keys, part_bytes, bucketed=bucketed
    )
    return manifest, data, RoundSecret(opening, membership, tuple(recipients))


@dataclass(frozen=True)
class BroadcastLimits:
    """What one broadcast, one of its parts, and one batch may have, and the brokers they pass."""

    part_bytes: int
    blob_bytes: int = 256 << 20
    batch_bytes: int = 1 << 30
    brokers: tuple[BrokerUse, ...] = ()


@dataclass
class RoundMarks:
    """When the machine reported the phases of a job's round under way, and what was sent for it."""

    times_s: dict[str, float] = field(default_factory=dict)
    sent_bytes: int = 0


class MarksOfJobs:
    """The marks of each job that runs, by its id on the wire."""

    def __init__(self) -> None:
        self._by_job: dict[bytes, RoundMarks] = {}

    def of(self, job_id: bytes) -> RoundMarks:
        """The job's; empty at first."""
        return self._by_job.setdefault(job_id, RoundMarks())

    def forget(self, job_id: bytes) -> None:
        """The job runs no more."""
        self._by_job.pop(job_id, None)


class Sealer:
    """Seals for the devices that the store knows."""

    def __init__(
        self,
        store: Store,
        jobs: StoredJobs,
        evaluation: Evaluation,
        limits: BroadcastLimits,
        marks: MarksOfJobs,
        clock: Callable[[], float],
        sealing: Sealing,
        choose: Choose,
        valid_s: float,
    ) -> None:
        """A release is stale `valid_s` after it was made, unless it is renewed."""
        self._valid_s = valid_s
        self._store, self._jobs, self._evaluation = store, jobs, evaluation
        self._limits, self._marks, self._clock = limits, marks, clock
        self._sealing, self._choose = sealing, choose
        self._cohorts: dict[str, tuple[bytes, ...]] = {}  # whom each running job was announced to
        self.buckets = False  # whether every device looks for its stanza in a bucket

    def job(self, entry: JobEntry) -> Broadcast:
        """The job and its graph, for every enrolled device: rounds select among these."""
        self._check_roster()
        self._cohorts[entry.id] = self._store.enrolled()
        plan = self._jobs.plan(entry)
        plan.check_backbones()
        self._evaluation.check(plan)
        backbones = tuple(plan.artifacts[one] for one in backbone_digests(plan.job.features))
        package = JobPackage(entry.canonical, self._jobs.graph(entry), backbones)
        manifest, data, _ = self._sealed(entry, "job", package, self._store.enrolled())
        return Broadcast(manifest, data)

    def round(self, task: SealRound) -> Broadcast | AskUnmask:
        """A round's model for the devices selected; the round's secret is kept first.

        Of one whose masks were asked for, that question again.
        """
        started_s = self._clock()
        self._check_roster()
        entry = self._jobs.entry(task.job_id)
        kept = self._store.kept_sums(entry.id, task.exchange)
        if kept is not None:
            return AskUnmask(KeptSums.from_bytes(kept).unmask)
        context = RoundContext.of(self._jobs.plan(entry), task.exchange)
        recipients = self._recipients(entry, context.plan, task)
        self._check_size(context, len(recipients))
        sequence = self._announce(entry, "round", len(recipients), context.exchange.label)
        manifest, data, secret = seal_round(
            context,
            self._jobs.state(entry),
            recipients,
            ExchangeId(task.job_id, task.exchange, task.attempt),
            sequence,
            self._limits.part_bytes,
            self._sealing,
            bucketed=self._bucketed,
        )
        if manifest.buckets == 1 and len(recipients) < len(self._store.enrolled()):
            manifest = in_pieces(manifest, data)
        self._store.put_round_key(entry.id, task.exchange, task.attempt, secret.to_bytes())
        marks = self._marks.of(task.job_id)
        marks.times_s = {"seal": started_s, "sealed": self._clock()}
        marks.sent_bytes = len(data)
        return Broadcast(manifest, data)

    def forget(self, job: str) -> None:
        """The job runs no more; whoever starts it announces it first."""
        self._cohorts.pop(job, None)

    def release(self, entry: JobEntry) -> Broadcast:
        """The final model, kept and sealed for the devices that get it first."""
        from edgeveil.parts.models.softmax_head import bake

        plan = self._jobs.plan(entry)
        weights = self._evaluation.weights(plan, self._jobs.state(entry))
        onnx = bake(self._jobs.graph(entry), weights)
        self._store.put_release(entry.id, onnx, pack_tensors(weights))
        self._check_roster()
        rollouts, enrolled = self._store.rollouts, self._store.enrolled()
        asked, source = plan.job.release, plan.job.data.source
        count = max(asked.canary_floor, rounded_up(len(enrolled), asked.canary_share))
        chosen = self._choose(enrolled, count) if count < len(enrolled) else []
        rollouts.begin(entry.id, source, chosen, self._store.now_s() + self._valid_s)
        first = [key for key in rollouts.canary(entry.id) if key in enrolled]
        return self._release(entry, onnx, first)

    def publication(self, entry: JobEntry) -> Broadcast:
        """A release, sealed (again) for every enrolled device."""
        self._check_roster()
        kept = self._store.release(entry.id)
        if kept is None:
            raise JobFailed("the job has no release")
        return self._release(entry, kept.onnx, [])

    def _release(self, entry: JobEntry, onnx: bytes, canary: Sequence[bytes]) -> Broadcast:
        """For the canary, or for all; the secret that opens the reports is kept first.

        The package's bytes are the same each time: a device that has it need not fetch it again.
        """
        plan, opening = self._jobs.plan(entry), OpeningKey.generate()
        rollout = next(one for one in self._store.rollouts.all() if one.job == entry.id)
        source = plan.job.data.source
        package = ReleasePackage(entry.name, onnx, source, rollout.expires_s)
        manifest, data, membership = self._sealed(
            entry,
            "release",
            package,
            canary or self._store.enrolled(),
            groups=(HEALTH,),
            deadline_s=plan.job.release.soak_s / 2,
            cloud_key=opening.public().to_bytes(),
            data_set=data_set_tag(source),
        )
        secret = RoundSecret(opening, membership).to_bytes()
        stage: Stage = "canary" if canary else "all"
        self._store.rollouts.sent(entry.id, manifest.sequence, stage, manifest.selected, secret)
        return Broadcast(manifest, data)

    def count_reports(self, task: CountReports) -> ReportsCounted:
        """Open reports, and count each once; what is not of a device that was asked is dropped."""
        job = self._jobs.name(task.at.job_id)
        found = self._store.rollouts.secret(job, task.at.attempt)
        if found is None:
            return ReportsCounted()
        sequence, secret = found[0], RoundSecret.from_bytes(found[1])
        digest, counted = self._store.job(job).digest, dict[bytes, str]()
        for sealed in task.sealed:
            opened = self._sealing.open_segment(
                secret.opening, task.at, digest, HEALTH, secret.membership, sealed
            )
            outcome = ReleaseOutcome.from_bytes(opened) if opened is not None else None
            if outcome is not None:
                counted[report_digest(sealed)] = outcome.value
        self._store.rollouts.count(sequence, counted)
        return ReportsCounted()

    @property
    def _bucketed(self) -> bool:
        """Not for devices of an earlier version, nor where packets are too small for a bucket."""
        return self.buckets and bucket_bytes(CAPACITY) <= self._limits.part_bytes

    def _fitting(self, keys: Sequence[bytes]) -> list[bytes]:
        """Without those that crowd a bucket, whichever of them chance leaves out."""
        if not self._bucketed or len(fitting(keys)) == len(keys):
            return list(keys)
        return fitting(self._choose(keys, len(keys)))

    def _check_roster(self) -> None:
        problem = self._store.roster_problem()
        if problem:
            raise UnknownAdmissions(problem)

    def _announce(self, entry: JobEntry, kind: str, selected: int, at: str) -> int:
        """Record a broadcast; the manifest's sequence."""
        data = {"kind": kind, "selected": selected, "round": at}
        return self._store.announce(entry.id, data)

    def _sealed(
        self,
        entry: JobEntry,
        kind: str,
        package: Package,
        recipients: Sequence[bytes],
        **terms_of_it: Any,
    ) -> tuple[Manifest, bytes, bytes]:
        """Manifest, blob and membership tag of what is sealed whole, beside the rounds."""
        keys = [SealingKey(raw) for raw in self._fitting(recipients)]
        if not keys:
            raise TooFewDevices(
                "no device is enrolled",
                fix="admit devices at the proxy: edgeveil proxy admit",
            )
        sequence = self._announce(entry, kind, len(keys), kind)
        terms = Terms(
            kind=kind,  # type: ignore[arg-type]
            at=ExchangeId(wire_id(entry.id), 0, sequence % 2**31),
            sequence=sequence,
            job_digest=entry.digest,
            phase=kind,
            **terms_of_it,
        )
        plain = encode_package(package)
        limits = self._limits
        manifest, data, membership = self._sealing.seal_broadcast(
            terms, plain, keys, limits.part_bytes, bucketed=self._bucketed
        )
        if len(data) > limits.blob_bytes:
            raise JobFailed(
                f"the sealed {kind} has {len(data)} bytes, the limit is {limits.blob_bytes}",
                where=kind,
                fix="use a smaller backbone, or raise limits.blob_bytes at all parties",
            )
        return manifest, data, membership

    def _recipients(self, entry: JobEntry, plan: Plan, task: SealRound) -> list[bytes]:
        """Whom this attempt asks: as the first one did, else newly drawn; never a revoked key.

        The same tensors come again. Next to a batch that was opened, one without some of its
        devices would show which tensors are theirs.
        """
        enrolled = set(self._store.enrolled())
        first = self._store.round_key(entry.id, task.exchange, 1)
        if first is None:
            cohort = [key for key in self._cohorts.get(entry.id, ()) if key in enrolled]
            return self._fitting(select(plan, cohort, self._choose))
        asked = RoundSecret.from_bytes(first).recipients
        again = [key for key in asked if key in enrolled]
        if len(again) < len(asked) and self._store.any_opened(entry.id, task.exchange):
            raise TooFewDevices(
                f"uploads of this round were opened and could not be used, and "
                f"{len(asked) - len(again)} of its devices are enrolled no longer: to ask the "
                f"others alone would show whose uploads are missing",
                fix="admit them again, or cancel the job",
            )
        if len(again) < plan.job.round.min_batch:
            raise TooFewDevices(
                f"{len(again)} of the devices selected are still enrolled, at least "
                f"{plan.job.round.min_batch} are needed",
                fix="admit them again, or cancel the job",
            )
        return again

    def _check_size(self, context: RoundContext, selected: int) -> None:
        """Raise JobFailed before anybody spends budget on a batch that could not be taken."""
        if selected * context.upload_bytes > self._limits.batch_bytes:
            raise JobFailed(
                f"{selected} uploads of {context.upload_bytes} bytes pass the cloud's limit of"
                f" {self._limits.batch_bytes} bytes a batch",
                where=context.exchange.label,
                fix="raise limits.spool_bytes at cloud and proxy, or select fewer devices",
            )
