"""What the cloud broadcasts: a job, a round's model, the release; each sealed and written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgeveil.crypto.keys import SealingKey
from edgeveil.errors import JobFailed
from edgeveil.jobs.plan import Plan
from edgeveil.parts.exchange import Exchange
from edgeveil.parts.features import backbone_digests
from edgeveil.protocol.cloud_tasks import Broadcast, SealRound
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, ExchangeId
from edgeveil.protocol.sealed import (
    JobPackage,
    Package,
    ReleasePackage,
    Sealing,
    Terms,
    encode_package,
    pack_tensors,
)
from edgeveil_cloud.evaluation import Evaluation
from edgeveil_cloud.jobs import Jobs, wire_id
from edgeveil_cloud.round_secret import RoundSecret
from edgeveil_cloud.rounds import Choose, TooFewDevices, seal_round, select
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_records import JobEntry


@dataclass(frozen=True)
class Limits:
    """What one broadcast, one of its parts, and one batch may have."""

    part_bytes: int
    blob_bytes: int = 256 << 20
    batch_bytes: int = 1 << 30


@dataclass
class RoundMarks:
    """When the machine reported the phases of the round under way, and what was sent for it."""

    times_s: dict[str, float] = field(default_factory=dict)
    sent_bytes: int = 0


class Sealer:
    """Seals for the devices that the store knows."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        evaluation: Evaluation,
        limits: Limits,
        marks: RoundMarks,
        clock: Callable[[], float],
        sealing: Sealing,
        choose: Choose,
    ) -> None:
        self._store, self._jobs, self._evaluation = store, jobs, evaluation
        self._limits, self._marks, self._clock = limits, marks, clock
        self._sealing, self._choose = sealing, choose
        self._cohort: tuple[bytes, ...] = ()

    def job(self, entry: JobEntry) -> Broadcast:
        """The job and its graph, for every enrolled device: rounds select among these."""
        self._cohort = self._store.enrolled()
        plan = self._jobs.plan(entry)
        plan.check_backbones()
        self._evaluation.check(plan)
        backbones = tuple(plan.artifacts[one] for one in backbone_digests(plan.job.features))
        package = JobPackage(entry.canonical, self._jobs.graph(entry), backbones)
        return self._to_all(entry, "job", package)

    def round(self, task: SealRound) -> Broadcast:
        """A round's model for the devices selected; the round's secret is kept first."""
        started_s = self._clock()
        entry = self._jobs.entry(task.job_id)
        plan, at = self._jobs.plan(entry), ExchangeId(task.job_id, task.exchange, task.attempt)
        exchange = plan.exchange(task.exchange)
        recipients = self._asked(entry, plan, task)
        self._check_size(plan, exchange, len(recipients))
        sequence = self._announce(entry, "round", len(recipients), exchange.label)
        manifest, data, secret = seal_round(
            plan,
            exchange,
            self._jobs.state(entry),
            recipients,
            at,
            sequence,
            self._limits.part_bytes,
            self._sealing,
        )
        self._store.put_round_key(entry.id, task.exchange, task.attempt, secret.to_bytes())
        self._marks.times_s = {"seal": started_s, "sealed": self._clock()}
        self._marks.sent_bytes = len(data)
        return Broadcast(manifest, data)

    def release(self, entry: JobEntry) -> Broadcast:
        """The final model, kept and sealed for every enrolled device."""
        from edgeveil.parts.models.softmax_head import bake

        weights = self._evaluation.weights(self._jobs.plan(entry), self._jobs.state(entry))
        onnx = bake(self._jobs.graph(entry), weights)
        self._store.put_release(entry.id, onnx, pack_tensors(weights))
        return self._to_all(entry, "release", ReleasePackage(entry.name, onnx))

    def _announce(self, entry: JobEntry, kind: str, selected: int, at: str) -> int:
        """Record a broadcast; the manifest's sequence."""
        data = {"kind": kind, "selected": selected, "round": at}
        return self._store.announce(entry.id, data)

    def _to_all(self, entry: JobEntry, kind: str, package: Package) -> Broadcast:
        keys = [SealingKey(raw) for raw in self._store.enrolled()]
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
        )
        plain = encode_package(package)
        limits = self._limits
        manifest, data, _ = self._sealing.seal_broadcast(terms, plain, keys, limits.part_bytes)
        if len(data) > limits.blob_bytes:
            raise JobFailed(
                f"the sealed {kind} has {len(data)} bytes, the limit is {limits.blob_bytes}",
                where=kind,
                fix="use a smaller backbone, or raise limits.blob_bytes at all parties",
            )
        return Broadcast(manifest, data)

    def _asked(self, entry: JobEntry, plan: Plan, task: SealRound) -> list[bytes]:
        """Whom this attempt asks: as the first one did, else newly drawn; never a revoked key.

        The same tensors come again. Next to a batch that was opened, one without some of its
        devices would show which tensors are theirs.
        """
        enrolled = set(self._store.enrolled())
        first = self._store.round_key(entry.id, task.exchange, 1)
        if first is None:
            cohort = [key for key in self._cohort if key in enrolled]
            return select(plan, cohort, self._choose)
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

    def _check_size(self, plan: Plan, exchange: Exchange, selected: int) -> None:
        """Raise JobFailed before anybody spends budget on a batch that could not be taken."""
        sizes = [g.padded_bytes + SEAL_OVERHEAD_BYTES for g in plan.groups(exchange)]
        if selected * sum(sizes) > self._limits.batch_bytes:
            raise JobFailed(
                f"{selected} uploads of {sum(sizes)} bytes pass the cloud's limit of"
                f" {self._limits.batch_bytes} bytes a batch",
                where=exchange.label,
                fix="raise limits.spool_bytes at cloud and proxy, or select fewer devices",
            )
