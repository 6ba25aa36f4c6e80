"""The end of a round: a batch is opened, aggregated, evaluated, and committed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeveil.errors import JobFailed
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.parts.exchange import Exchange
from edgeveil.privacy.sampler import RandomBytes
from edgeveil.protocol.cloud_tasks import RoundCommit, TooFewUploads
from edgeveil.protocol.messages import Batch, Commit, ExchangeId
from edgeveil.protocol.sealed import Sealing, pack_tensors
from edgeveil.protocol.transfer import Data, describe
from edgeveil_cloud.evaluation import Evaluation, clusters
from edgeveil_cloud.jobs import Jobs
from edgeveil_cloud.opening import open_batch
from edgeveil_cloud.recording import Recorder
from edgeveil_cloud.round_secret import RoundSecret
from edgeveil_cloud.rounds import TooFewDevices, aggregate
from edgeveil_cloud.sealing import RoundMarks
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_records import ExchangeRecord, JobEntry
from edgeveil_cloud.summary import exchange_event, round_timeline, shown_clusters, shown_mean


class Absorber:
    """Commits batches; the second time it only says again what was committed."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        evaluation: Evaluation,
        marks: RoundMarks,
        clock: Callable[[], float],
        sealing: Sealing,
        recorder: Recorder | None,
        part_bytes: int,
        random_bytes: RandomBytes,
    ) -> None:
        self._store, self._jobs, self._evaluation = store, jobs, evaluation
        self._marks, self._clock, self._sealing = marks, clock, sealing
        self._recorder, self._part_bytes = recorder, part_bytes
        self._random_bytes = random_bytes

    def absorb(self, batch: Batch, data: Callable[[], Data]) -> RoundCommit | TooFewUploads:
        """Open what `data` gives and commit it. Raises JobFailed or StoreError."""
        started_s = self._clock()
        entry = self._jobs.entry(batch.at.job_id)
        plan = self._jobs.plan(entry)
        exchange = plan.exchange(batch.at.exchange)
        if self._store.batch_absorbed(entry.id, batch.blob.digest):
            return self._before(batch.at)
        secret = self._secret(entry, exchange, batch)
        opened = open_batch(
            plan, exchange, secret, batch, data(), len(secret.recipients), self._sealing
        )
        before, graph = self._jobs.state(entry), self._jobs.graph(entry)
        score = self._evaluation.score(plan, exchange, graph, before)
        try:
            state, uploads = aggregate(plan, exchange, before, opened, self._random_bytes, score)
        except TooFewDevices as error:
            return TooFewUploads(str(error))
        if self._recorder is not None:
            sent = plan.cloud.package(before, exchange)
            model = self._evaluation.weights(plan, state)
            self._recorder.keep(plan.job, exchange, sent, opened.arrays, model)
        vectors = list(opened.arrays.get(SOFTMAX, ()))
        scores = clusters(plan, exchange, vectors)
        tested = self._evaluation.tested(plan, exchange, graph, state)
        timeline = round_timeline(self._marks.times_s, started_s, self._clock())
        record = ExchangeRecord(
            index=exchange.index,
            phase=exchange.phase,
            number=exchange.number,
            attempt=batch.at.attempt,
            uploads=uploads,
            accuracy=tested.accuracy if tested else None,
            loss=tested.loss if tested else None,
            scores=scores.to_dict() if scores else None,
            seconds=sum(timeline.values()),
            bytes={"cloud_out": self._marks.sent_bytes, "cloud_in": batch.blob.size_bytes},
        )
        event = {
            **exchange_event(record, plan, timeline),
            **shown_mean(plan, state),
            "declined": batch.declined,
            "accepted": len(opened.accepted),
            "refused": dict(opened.refused),
            "clusters": shown_clusters(scores, vectors),
        }
        done = self._store.commit_exchange(
            entry.id,
            record,
            pack_tensors(state),
            [("exchange_committed", event)],
            opened.accepted,
            batch.blob.digest,
        )
        return self._absorbed(batch.at, opened.accepted) if done else self._before(batch.at)

    def _secret(self, entry: JobEntry, exchange: Exchange, batch: Batch) -> RoundSecret:
        """What opens the round's first batch, and no other. Raises JobFailed."""
        at = batch.at
        raw = self._store.round_key(entry.id, at.exchange, at.attempt)
        if raw is None:
            raise JobFailed("the round's key is gone", where=exchange.label)
        if not self._store.open_once(entry.id, at.exchange, at.attempt, batch.blob.digest):
            raise JobFailed("another batch of this attempt was opened", where=exchange.label)
        return RoundSecret.from_bytes(raw)

    def _before(self, at: ExchangeId) -> RoundCommit:
        """The exchange was committed already: what counted is what stands there."""
        last = self._store.last_commit(self._jobs.entry(at.job_id).id)
        if last is None or last.index != at.exchange:
            raise JobFailed(f"exchange {at.exchange} is over")
        return self._absorbed(at, last.accepted)

    def _absorbed(self, at: ExchangeId, accepted: Sequence[bytes]) -> RoundCommit:
        hashes = b"".join(sorted(accepted))
        return RoundCommit(Commit(at, len(accepted), describe(hashes, self._part_bytes)), hashes)
