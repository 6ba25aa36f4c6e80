"""What the cloud's process does for its machine: seal, absorb, commit, release, record."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cloud_server.evaluation import Evaluation, clusters
from cloud_server.plans import graph_of, plan_of
from cloud_server.recording import Recorder
from cloud_server.rounds import (
    Choose,
    RoundSecret,
    aggregate,
    draw,
    open_batch,
    seal_round,
    select,
)
from cloud_server.store import Store
from cloud_server.store_records import ExchangeRecord, JobEntry
from cloud_server.summary import exchange_event, job_summary, round_timeline, shown_clusters
from fl_core.algorithms.base import Array, Exchange, Records
from fl_core.crypto.keys import SealingKey
from fl_core.errors import JobFailed
from fl_core.features import backbone_digests
from fl_core.models.softmax_head import bake
from fl_core.plan import SOFTMAX, JobPlan
from fl_core.protocol import effects as fx
from fl_core.protocol import sealed as real_sealing
from fl_core.protocol.blob import describe
from fl_core.protocol.cloud_tasks import (
    Absorb,
    Absorbed,
    Broadcast,
    JobStatus,
    RosterKept,
    SealJob,
    SealRelease,
    SealRound,
    TooFew,
)
from fl_core.protocol.messages import SEAL_OVERHEAD_BYTES, Batch, Commit, Exchanged
from fl_core.protocol.package import (
    JobPackage,
    Package,
    ReleasePackage,
    encode_package,
    pack_tensors,
    unpack_tensors,
)
from fl_core.protocol.sealed import Sealing, Terms

LOG = logging.getLogger("edgeveil.cloud")


def wire_id(job: str) -> bytes:
    """A job's 16 bytes on the wire."""
    return hashlib.sha256(b"edgeveil/v1/job-id\0" + job.encode()).digest()[:16]


class CloudHost:
    """The cloud's work; everything it decides is in the store before the machine goes on."""

    def __init__(
        self,
        store: Store,
        test: Records | None,
        part_bytes: int,
        blob_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.monotonic,
        sealing: Sealing = real_sealing,
        choose: Choose = draw,
        recorder: Recorder | None = None,
    ) -> None:
        self._store, self._part_bytes, self._clock = store, part_bytes, clock
        self._evaluation = Evaluation(test)
        self._blob_bytes, self._sealing, self._choose = blob_bytes, sealing, choose
        self._recorder = recorder
        self._cohort: tuple[bytes, ...] = ()
        self._times: dict[str, float] = {}
        self._sent_bytes = 0
        self._all_declined = False  # in the round that the job ended with

    # --- the machine's host ---

    def store(self, item: object) -> None:
        """Durable before the next effect."""
        match item:
            case RosterKept(keys=keys):
                self._store.set_enrolled({keys[i : i + 32] for i in range(0, len(keys), 32)})
            case JobStatus(job_id=job_id, status=status, reason=reason):
                entry = self.entry(job_id)
                if not entry.ended:
                    plan = self.plan(entry)
                    reason = reason or (plan.stop_note if status == "completed" else "")
                    data = job_summary(self._store, plan, entry.id, self._all_declined)
                    self._store.set_status(entry.id, status, reason, data)  # type: ignore[arg-type]

    def together(self) -> AbstractContextManager[None]:
        """Its few stores are each durable at once."""
        return nullcontext()

    def report(self, report: fx.Report) -> None:
        """Into the log, and into the job's events where a person follows the job."""
        data: Mapping[str, Any] = report.data
        self._times[report.what] = self._clock()
        LOG.info(report.what, extra=dict(data))
        running = [entry for entry in self._store.jobs() if entry.status == "running"]
        if running and report.what in ("job_started", "batch", "round_repeated", "all_declined"):
            self._store.append_event(running[0].id, report.what, dict(data))
        self._all_declined = report.what == "all_declined"

    def perform(self, task: object) -> object:
        """Do one task of the running job."""
        match task:
            case SealJob(job_id=job_id):
                return self._seal_job(self.entry(job_id))
            case SealRound():
                return self._seal_round(task)
            case Absorb(batch=batch, data=data):
                return self._absorb(batch, data)
            case SealRelease(job_id=job_id):
                return self._seal_release(self.entry(job_id))
        return fx.Failed("unknown task")

    # --- jobs ---

    def entry(self, job_id: bytes) -> JobEntry:
        """The stored job of a wire id; raises JobFailed."""
        for entry in self._store.jobs():
            if wire_id(entry.id) == job_id:
                return entry
        raise JobFailed("the job is not in the store")

    def plan(self, entry: JobEntry) -> JobPlan:
        """The plan of a stored job."""
        return plan_of(entry.canonical, self._store.backbone)

    def _graph(self, entry: JobEntry) -> bytes:
        return graph_of(entry.canonical, self._store.backbone)

    def state(self, entry: JobEntry) -> dict[str, Array]:
        """The method's state after the last commit."""
        last = self._store.last_commit(entry.id)
        return unpack_tensors(last.state) if last else self.plan(entry).cloud.initial_state()

    def _announce(self, entry: JobEntry, kind: str, selected: int, at: str) -> int:
        """Record a broadcast; the manifest's sequence.

        It grows with the store's own numbers, and with the clock, so that it goes on growing when
        a cloud starts over with a new store.
        """
        data = {"kind": kind, "selected": selected, "round": at}
        stored = self._store.append_event(entry.id, "broadcast", data)
        return max(stored.seq, int(stored.time * 1000))

    def _to_all(self, entry: JobEntry, kind: str, package: Package) -> Broadcast:
        """Seal for every enrolled device."""
        keys = [SealingKey(raw) for raw in self._store.enrolled()]
        if not keys:
            raise JobFailed(
                "no device is enrolled",
                fix="admit devices at the proxy: edgeveil proxy admit",
            )
        sequence = self._announce(entry, kind, len(keys), kind)
        terms = Terms(
            kind=kind,  # type: ignore[arg-type]
            at=Exchanged(wire_id(entry.id), 0, sequence % 2**31),
            sequence=sequence,
            job_digest=entry.digest,
            phase=kind,
        )
        plain = encode_package(package)
        manifest, data, _ = self._sealing.seal_broadcast(terms, plain, keys, self._part_bytes)
        if len(data) > self._blob_bytes:
            raise JobFailed(
                f"the sealed {kind} has {len(data)} bytes, the limit is {self._blob_bytes}",
                where=kind,
                fix="use a smaller backbone, or raise limits.blob_bytes at all parties",
            )
        return Broadcast(manifest, data)

    def _seal_job(self, entry: JobEntry) -> Broadcast:
        self._cohort = self._store.enrolled()
        plan = self.plan(entry)
        plan.check_backbones()
        backbones = tuple(plan.artifacts[one] for one in backbone_digests(plan.job.features))
        package = JobPackage(entry.canonical, self._graph(entry), backbones)
        return self._to_all(entry, "job", package)

    def _seal_round(self, task: SealRound) -> Broadcast:
        started = self._clock()
        entry = self.entry(task.job_id)
        plan, at = self.plan(entry), Exchanged(task.job_id, task.round, task.attempt)
        exchange = plan.exchange(task.round)
        recipients = self._asked(entry, plan, task)
        self._check_size(plan, exchange, len(recipients))
        sequence = self._announce(entry, "round", len(recipients), exchange.label)
        manifest, data, secret = seal_round(
            plan,
            exchange,
            self.state(entry),
            recipients,
            at,
            sequence,
            self._part_bytes,
            self._sealing,
        )
        self._store.put_round_key(entry.id, task.round, task.attempt, secret.to_bytes())
        self._times = {"seal": started, "sealed": self._clock()}
        self._sent_bytes = len(data)
        return Broadcast(manifest, data)

    def _asked(self, entry: JobEntry, plan: JobPlan, task: SealRound) -> list[bytes]:
        """Whom this attempt asks: as the first one did, else newly drawn; never a revoked key."""
        enrolled = set(self._store.enrolled())
        first = self._store.round_key(entry.id, task.round, 1)
        if first is None:
            cohort = [key for key in self._cohort if key in enrolled]
            return select(plan, cohort, self._choose)
        again = [key for key in RoundSecret.from_bytes(first).recipients if key in enrolled]
        if len(again) < plan.job.round.min_batch:
            raise JobFailed(f"{len(again)} of the devices selected are still enrolled")
        return again

    def _check_size(self, plan: JobPlan, exchange: Exchange, selected: int) -> None:
        """Raise JobFailed before anybody spends budget on a batch that could not be taken."""
        sizes = [g.padded_bytes + SEAL_OVERHEAD_BYTES for g in plan.groups(exchange)]
        if selected * sum(sizes) > self._blob_bytes:
            raise JobFailed(
                f"{selected} uploads of {sum(sizes)} bytes pass the cloud's limit of"
                f" {self._blob_bytes} bytes a batch",
                where=exchange.label,
                fix="raise limits.blob_bytes at cloud and proxy, or select fewer devices",
            )

    def _seal_release(self, entry: JobEntry) -> Broadcast:
        weights = self._evaluation.weights(self.plan(entry), self.state(entry))
        onnx = bake(self._graph(entry), weights)
        self._store.put_release(entry.id, onnx, pack_tensors(weights))
        return self._to_all(entry, "release", ReleasePackage(entry.name, onnx))

    # --- the end of a round ---

    def _absorb(self, batch: Batch, data: bytes) -> Absorbed | TooFew:
        started = self._clock()
        entry = self.entry(batch.at.job_id)
        plan, exchange = self.plan(entry), self.plan(entry).exchange(batch.at.round)
        last = self._store.last_commit(entry.id)
        again = self._store.batch_absorbed(entry.id, batch.blob.digest)
        if again and last is not None and last.index == exchange.index:
            return self._absorbed(batch.at, last.accepted)
        raw = self._store.round_key(entry.id, batch.at.round, batch.at.attempt)
        if raw is None:
            raise JobFailed("the round's key is gone", where=exchange.label)
        secret = RoundSecret.from_bytes(raw)
        opened = open_batch(
            plan, exchange, secret, batch, data, len(secret.recipients), self._sealing
        )
        before = self.state(entry)
        try:
            state, uploads = aggregate(plan, exchange, before, opened)
        except JobFailed as error:
            return TooFew(str(error))
        if self._recorder is not None:
            sent = plan.cloud.package(before, exchange)
            model = self._evaluation.weights(plan, state)
            self._recorder.keep(plan.job, exchange, sent, opened.arrays, model)
        vectors = opened.arrays.get(SOFTMAX, [])
        scores = clusters(plan, exchange, vectors)
        accuracy = self._evaluation.accuracy(plan, exchange, self._graph(entry), state)
        timeline = round_timeline(self._times, started, self._clock())
        record = ExchangeRecord(
            index=exchange.index,
            phase=exchange.phase,
            number=exchange.number,
            attempt=batch.at.attempt,
            uploads=uploads,
            accuracy=accuracy,
            scores=scores.to_dict() if scores else None,
            seconds=sum(timeline.values()),
            bytes={"cloud_out": self._sent_bytes, "cloud_in": len(data)},
        )
        event = {
            **exchange_event(record, plan, timeline),
            "declined": batch.declined,
            "accepted": len(opened.accepted),
            "refused": dict(opened.refused),
            "clusters": shown_clusters(scores, vectors),
        }
        self._store.commit_exchange(
            entry.id,
            record,
            pack_tensors(state),
            [("exchange_committed", event)],
            opened.accepted,
            batch.blob.digest,
        )
        return self._absorbed(batch.at, opened.accepted)

    def _absorbed(self, at: Exchanged, accepted: Sequence[bytes]) -> Absorbed:
        hashes = b"".join(sorted(accepted))
        return Absorbed(Commit(at, len(accepted), describe(hashes, self._part_bytes)), hashes)
