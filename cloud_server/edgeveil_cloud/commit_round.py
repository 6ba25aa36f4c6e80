"""Completion of a round: validate, aggregate, evaluate, and commit once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import JobFailed, ProtocolError
from edgeveil.evaluation.figures import GUESSING, METRIC, baselines, own_metric
from edgeveil.jobs.federated_evaluation import COUNTS
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.aggregation import Uploads
from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.aggregation.rule import Score
from edgeveil.parts.models.heads import THRESHOLD
from edgeveil.parts.round import ASK, TRAIN, Array
from edgeveil.privacy.policy import told
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol.cloud_job import (
    AskChecks,
    AskUnmask,
    RoundCommit,
    TakeChecks,
    TakeMasks,
    TooFewUploads,
)
from edgeveil.protocol.cloud_reasons import RoundAnswers
from edgeveil.protocol.messages import KNOWS_RECORDS, Batch, CheckMasks, Misfits, RoundId
from edgeveil.protocol.sealed import RoundCheck, choice, dealt
from edgeveil.protocol.tensors import pack_tensors, tensor_views
from edgeveil.protocol.transfer import describe_record
from edgeveil.statistics.drift import drift
from edgeveil_cloud.broadcasts import CloudWork, TooFewDevices
from edgeveil_cloud.early_stopping import is_over, judged, shown
from edgeveil_cloud.evaluation import (
    Evaluation,
    answers_of,
    cluster_figures,
    clusters,
    federated_figures,
    mean_softmax,
)
from edgeveil_cloud.open_segments import RoundSecret
from edgeveil_cloud.round_report import round_event, round_timeline, shown_clusters, shown_facts
from edgeveil_cloud.store_tables import JobEntry, RoundRecord
from edgeveil_cloud.stored_jobs import LazyState, state_after
from edgeveil_cloud.validate_batch import (
    JoinedArrays,
    KeptSums,
    MaskedUploads,
    SpooledBatch,
    ValidatedBatch,
    kept_unmasks,
    needs_mean_only,
    pack_kept,
    under_rule,
    unpack_kept,
    validate_batch,
)

LOG = logging.getLogger("edgeveil.cloud")

NOISE_HALF = "noise-half/"  # prefix of the state's halves of correlated noise, by round and cell
_QUESTION_BYTES = 32

CellSum = tuple[int, Mapping[str, NDArray[np.int64]]]
"""Number of uploads in a sum, and the sum of each segment."""


def aggregate(
    context: RoundContext,
    state: Mapping[str, Array],
    batch: ValidatedBatch,
    random_bytes: RandomBytes = os_random,
    score: Score | None = None,
) -> tuple[dict[str, Array], int]:
    """Return the next state and the number of uploads in it; raises TooFewDevices.

    Evaluation rounds, and preparation rounds if the rule is not defined on sums, are averaged."""
    plan, round = context.plan, context.round
    training = {name: arrays for name, arrays in batch.arrays.items() if name != SOFTMAX}
    uploads = uploads_in(batch)
    ruled = under_rule(context)
    check_enough(context, uploads, plan.rule.least if ruled else 1)
    if not ruled:
        return plan.next_state(state, round, mean(training), uploads), uploads
    # A rule that needs only the mean uses no direction.
    aim = None if needs_mean_only(context) else plan.cloud.aim(state, round)
    combined = plan.rule.combine(Uploads(training, aim, random_bytes, score))
    return plan.next_state(state, round, combined, plan.rule.counted(uploads)), uploads


def uploads_in(batch: ValidatedBatch) -> int:
    """Return the number of counted uploads: those of the least frequent training segment."""
    return min((len(arrays) for name, arrays in batch.arrays.items() if name != SOFTMAX), default=0)


def combine_sums(
    context: RoundContext,
    state: Mapping[str, Array],
    sums: Sequence[CellSum],
    random_bytes: RandomBytes = os_random,
) -> dict[str, Array]:
    """Return the next state from upload counts and exact sums; same rules as `aggregate`.

    Sums with correlated noise have one public divisor: that of the noise that is taken back."""
    plan, round, sets = context.plan, context.round, context.sets
    uploads = sum(of_set for of_set, _ in sums)
    public = plan.context.devices if context.correlated is not None else 0
    means = {
        name: [arrays[name].astype(np.float64) / (public or of_set) for of_set, arrays in sums]
        for name in sums[0][1]
        if name != SOFTMAX
    }
    if sets == 1 or not under_rule(context):
        return plan.next_state(state, round, mean(means), uploads)
    combined = plan.rule.combine(Uploads(means, plan.cloud.aim(state, round), random_bytes))
    counted = max(1, plan.rule.counted(len(sums)) * uploads // len(sums))
    return plan.next_state(state, round, combined, counted)


def noise_half(state: Mapping[str, Array], number: int, cell: str) -> bytes:
    """Return a question and this cloud's half of its round's noise, or b"" if there is none."""
    found = state.get(f"{NOISE_HALF}{number}/{cell}")
    return b"" if found is None else found.tobytes()


def without_sums(context: RoundContext, state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the next state if no sum is usable: in preparation as if without records."""
    if context.round.phase == ASK:
        return dict(state)
    if context.round.phase == TRAIN or context.round.evaluates:
        return {name: array for name, array in state.items() if name != THRESHOLD}
    specs = [spec for spec in context.segments if spec.bits and spec.name != SOFTMAX]
    zeros = {spec.name: np.zeros(spec.shape) for spec in specs}
    return context.plan.next_state(state, context.round, zeros, context.min_batch)


def within_bounds(context: RoundContext, of_set: CellSum) -> bool:
    """Return whether no value exceeds the bound of its uploads; otherwise the sum is garbage.

    Correlated noise of a larger round may be in it: then the bound is that of any sum."""
    uploads, sums = of_set
    if context.correlated is not None:
        uploads = context.plan.context.summed
    bounds = {spec.name: uploads * (spec.largest or 0) for spec in context.segments if spec.bits}
    return all(bool(np.all(np.abs(sums[name]) <= bounds[name])) for name in sums)


def joined(batches: Sequence[ValidatedBatch]) -> ValidatedBatch:
    if len(batches) == 1:
        return batches[0]
    result = ValidatedBatch()
    for batch in batches:
        result.accepted += batch.accepted
        result.refused.update(batch.refused)
        for name, arrays in batch.arrays.items():
            before = result.arrays.get(name)
            result.arrays[name] = arrays if before is None else JoinedArrays([before, arrays])
    return result


def joined_sums(by_cell: Sequence[Sequence[CellSum | None]]) -> list[CellSum]:
    """Return the exact sums of all cells, set by set; None marks an unusable sum."""
    result: list[CellSum] = []
    for of_all in zip(*by_cell, strict=True):
        of_set = [one for one in of_all if one is not None]
        if len(of_set) < 2:
            result += of_set
            continue
        names = of_set[0][1]
        sums = {name: np.sum([arrays[name] for _, arrays in of_set], axis=0) for name in names}
        result.append((sum(uploads for uploads, _ in of_set), sums))
    return result


def check_enough(context: RoundContext, uploads: int, least: int = 1) -> None:
    least = max(context.min_batch, least)
    if uploads < least:
        what = f"{uploads} valid uploads, at least {least} are needed"
        fix = f"select more devices, or relax aggregation '{context.job.aggregation.name}'"
        raise TooFewDevices(what, where=context.round.label, fix=fix)


def check_chosen(context: RoundContext, chosen: Sequence[int]) -> None:
    """Raise TooFewDevices if masked uploads are too few for the job, or those of one set are."""
    check_enough(context, len(chosen))
    least = context.min_batch // context.sets
    smallest = min(map(len, dealt(chosen, context.sets)))
    if smallest < least:
        what = f"{smallest} valid uploads in one of {context.sets} groups, {least} are needed"
        fix = "select more devices, or set fewer groups (aggregation.groups)"
        raise TooFewDevices(what, where=context.round.label, fix=fix)


@dataclass(frozen=True)
class RoundFacts:
    attempt: int
    uploads: int
    answers: RoundAnswers
    sent_bytes: int
    taken_bytes: int
    timeline: Mapping[str, float]
    cells: Mapping[str, int] = field(default_factory=dict)
    discarded: int = 0


def round_record(
    context: RoundContext,
    evaluation: Evaluation,
    graph: bytes,
    state: Mapping[str, Array],
    valid: ValidatedBatch,
    facts: RoundFacts,
) -> tuple[RoundRecord, dict[str, Any]]:
    """Test a round's model; return the round's stored record and its event."""
    round, plan, answers = context.round, context.plan, facts.answers
    vectors, counts = list(valid.arrays.get(SOFTMAX, ())), valid.arrays.get(COUNTS, ())
    scores, averaged = clusters(context, vectors), mean_softmax(context, vectors, facts.uploads)
    federated = federated_figures(context, counts, facts.uploads)
    by_sums = cluster_figures(context, state, counts, facts.uploads)
    uploaded = scores.to_dict() if scores else averaged.to_dict() if averaged else None
    kept = dict(uploaded or federated or by_sums or {})
    tested = evaluation.tested(context, graph, state)
    if tested and (guesses := baselines(tested.figures)):
        kept[GUESSING] = guesses
    # The training round's event has these figures, except those that depend on a threshold.
    again = round.evaluates and THRESHOLD not in state
    figures, asked = tested.figures if tested and not again else None, plan.job.test_metric
    if tested and figures is not None and asked is not None:
        labels, outputs = tested.answers
        own = {METRIC: own_metric(asked, labels=labels, outputs=outputs)}
        figures = {**figures, **own}
        if not round.evaluates:
            kept |= own
    schema = plan.job.data.schema_
    if figures and schema is not None and schema.label.names:  # absent without labels
        figures = {**figures, "classes": list(schema.label.names)}
    record = RoundRecord(
        index=round.index,
        phase=round.phase,
        number=round.number,
        attempt=facts.attempt,
        uploads=facts.uploads,
        accuracy=tested.accuracy if tested else None,
        loss=tested.loss if tested else None,
        scores=kept or None,
        seconds=sum(facts.timeline.values()),
        bytes={"cloud_out": facts.sent_bytes, "cloud_in": facts.taken_bytes},
    )
    more = {
        "causes": dict(answers.causes),
        "offline": answers.offline,
        "federated": federated,
        "statistics": answers_of(context, counts, facts.uploads),
        "cells": dict(facts.cells) if any(facts.cells) else None,  # if cells have names
        "discarded": shown_discarded(context, facts.discarded) if facts.discarded else None,
    }
    event = {
        **round_event(record, plan, facts.timeline),
        **shown_facts(plan, state),
        "declined": answers.declined,
        "accepted": len(valid.accepted),
        "refused": dict(valid.refused),
        "clusters": by_sums or shown_clusters(scores, vectors),
        "mean_softmax": averaged.to_dict() if averaged else None,
        "figures": figures or None,
        **{name: value for name, value in more.items() if value},
    }
    return record, event


def shown_discarded(context: RoundContext, uploads: int) -> dict[str, Any]:
    """Return the event data of sums beyond their public bound, with the price already paid."""
    quote = told(context.price(trains=True), context.job.privacy.delta)
    return {
        "uploads": uploads,
        "why": "a sum exceeds its public bound: a device uploaded invalid values. Only groups with"
        " a robust rule (aggregation.groups) keep the other uploads of its round",
        "price": {"training": str(quote.training), "inference": str(quote.inference)},
    }


@dataclass
class OpenedBatches:
    """An attempt's opened batches, of `asked` devices; `files` are those with masks to check."""

    at: RoundId
    batches: Mapping[str, Batch]
    valid: dict[str, ValidatedBatch] = field(default_factory=dict)
    asked: int = 0
    files: dict[str, SpooledBatch] = field(default_factory=dict)

    @property
    def misfits(self) -> dict[str, Misfits]:
        """Uploads, by cell, that no honest device sends; reported to the proxy."""
        return {
            cell: Misfits(self.at, self.batches[cell].blob.digest, choice(of.misfits, of.masked))
            for cell, of in self.valid.items()
            if of.misfits and cell in self.files
        }

    def too_few(self, error: TooFewDevices) -> TooFewUploads:
        refused = Counter[str]()
        for of_it in self.valid.values():
            refused.update(of_it.refused)
        answers = RoundAnswers.of(self.asked, self.batches.values(), dict(refused))
        text = f"{error.what} ({answers})"
        why = TooFewDevices(text, where=error.where, fix=error.fix)
        return TooFewUploads(str(why), answers, self.misfits)


class RoundCommitter:
    """Commits batches; a repeated call returns the earlier commit."""

    def __init__(self, work: CloudWork) -> None:
        self._work, self._store, self._jobs = work, work.store, work.jobs
        self._evaluation = work.evaluation
        self._opened: dict[bytes, OpenedBatches] = {}  # by job, until their masks are checked

    def _round(self, at: RoundId) -> tuple[JobEntry, RoundContext]:
        entry = self._jobs.entry(at.job_id)
        return entry, RoundContext.of(self._jobs.plan(entry), at.round)

    def open_arrived(self, batch: Batch, data: SpooledBatch, cell: str) -> None:
        """Open and sum the arrived part of a masked stream; raises JobFailed or StoreError.

        Only used with the batch that begins with these bytes. Masked numbers reveal nothing, so the
        batch need not be recorded before."""
        if data.digest != batch.stream:
            return  # another batch replaced it
        if data.front is None or data.front.broken:
            at = batch.at
            entry, context = self._round(at)
            secret = self._store.round_key(entry.id, at.round, at.attempt, cell)
            if secret is None:
                return
            opened = RoundSecret.from_bytes(secret)
            work = self._work
            data.front = MaskedUploads(context, opened, at, work.sealing, work.workers)
        data.front.open_front(data, data.front_bytes, batch.counts)

    def commit(
        self, batches: Mapping[str, Batch], data: Callable[[str, Batch], SpooledBatch]
    ) -> RoundCommit | AskChecks | AskUnmask | TooFewUploads:
        """Open each cell's batch and commit the round, or request checks or masks if it is masked.

        `data` returns a cell's spooled batch. Raises JobFailed or StoreError."""
        started_s, at = self._work.clock(), next(iter(batches.values())).at
        entry, context = self._round(at)
        kept = self._store.kept_sums(entry.id, at.round)
        if kept is not None:
            return AskUnmask(kept_unmasks(kept))
        opened, checks = OpenedBatches(at, batches), dict[str, CheckMasks]()
        for cell, batch in batches.items():
            digest = batch.blob.digest
            opening = self._store.open_batch(entry.id, at.round, at.attempt, digest, cell)
            if opening is None:
                return self._again(entry.id, at, context)
            if opening.secret is None:
                raise JobFailed("the round's key is missing", where=context.round.label)
            if not opening.first:
                what = "another batch of this attempt was opened"
                raise JobFailed(what, where=context.round.label)
            secret, spooled = RoundSecret.from_bytes(opening.secret), data(cell, batch)
            opened.asked += len(secret.recipients)
            valid = opened.valid[cell] = validate_batch(
                context,
                secret,
                batch,
                spooled,
                self._work.sealing,
                front=spooled.front if batch.stream else None,
                workers=self._work.workers,
            )
            if valid.uploads is not None:
                opened.files[cell] = spooled
                check = RoundCheck.of(at, secret.membership, disclosed=True)
                checks[cell] = CheckMasks(at, digest, check.key.to_bytes())
        if context.masked:
            if not checks:
                return self._keep_sums(entry, context, opened)
            self._opened[at.job_id] = opened
            return AskChecks(checks)
        everything, before = joined(list(opened.valid.values())), LazyState(self._jobs, entry)
        try:
            score = self._evaluation.score(context, self._jobs.graph(entry), before)
            state, uploads = aggregate(context, before, everything, self._work.random_bytes, score)
        except TooFewDevices as error:
            return opened.too_few(error)
        cells = {cell: uploads_in(of_it) for cell, of_it in opened.valid.items()}
        return self._commit(
            entry, context, batches, everything, before, state, uploads, cells, started_s
        )

    def check(self, task: TakeChecks) -> AskUnmask | TooFewUploads:
        """Drop uploads with wrong masks and store the sums; raises JobFailed or ProtocolError."""
        at = task.at
        entry, context = self._round(at)
        opened = self._opened.pop(at.job_id, None)
        if opened is None or opened.at != at:
            raise JobFailed("the opened batches of this attempt are lost")
        for cell, data in opened.files.items():
            of_it = opened.valid[cell]
            if of_it.uploads is not None and cell in task.checks:
                of_it.uploads.compare(of_it, task.checks[cell], data)
        opened.valid = {cell: one for cell, one in opened.valid.items() if one.uploads is None}
        return self._keep_sums(entry, context, opened)

    def forget(self, job_id: bytes) -> None:
        self._opened.pop(job_id, None)

    def _keep_sums(
        self, entry: JobEntry, context: RoundContext, opened: OpenedBatches
    ) -> AskUnmask | TooFewUploads:
        """Store the sums of cells that reach the floor; each cell's sum is seen by itself."""
        found, short, at = dict[str, KeptSums](), list[TooFewDevices](), opened.at
        for cell, of_it in opened.valid.items():
            try:
                check_chosen(context, of_it.chosen)
            except TooFewDevices as error:
                short.append(error)
            else:
                of_noise = self._noise(entry, at, cell)
                found[cell] = KeptSums.of(opened.batches[cell], of_it, *of_noise)
        if not found:
            return opened.too_few(short[0])
        sums = self._store.keep_sums(entry.id, at.round, at.attempt, pack_kept(found))
        return AskUnmask(kept_unmasks(sums), opened.misfits)

    def _noise(self, entry: JobEntry, at: RoundId, cell: str) -> tuple[bytes, bytes]:
        """Return the factors' key, and the request of the round whose noise is taken back."""
        noise = self._round(at)[1].correlated
        secret = self._store.round_key(entry.id, at.round, at.attempt, cell)
        if noise is None or secret is None:
            return b"", b""
        check = RoundCheck.of(at, RoundSecret.from_bytes(secret).membership, disclosed=True)
        half = noise_half(self._jobs.state(entry), noise.number - 1, cell)
        return check.key.to_bytes(), half[:_QUESTION_BYTES]

    def finish(self, task: TakeMasks) -> RoundCommit:
        """Unmask the stored sums and commit the round; raises JobFailed or StoreError."""
        started_s, at = self._work.clock(), task.at
        entry, context = self._round(at)
        raw = self._store.kept_sums(entry.id, at.round)
        secrets = self._store.round_keys(entry.id, at.round, at.attempt)
        if raw is None or not secrets:
            return self._again(entry.id, at, context)
        all_kept = unpack_kept(raw)
        kept = {cell: all_kept[cell] for cell in task.masks if cell in all_kept}
        before = state_after(self._store.last_commit(entry.id), context.plan)
        noise = context.correlated
        earlier = 0 if noise is None else noise.number - 1
        try:
            by_cell = [
                of_it.sums(
                    context,
                    task.masks[cell],
                    RoundSecret.from_bytes(secrets[cell]),
                    noise_half(before, earlier, cell),
                )
                for cell, of_it in kept.items()
            ]
        except ProtocolError:
            raise JobFailed(
                "the proxy's sums of masks do not match the uploads, and it gives no others"
                " for this round",
                where=context.round.label,
                fix="see that the proxy is sound and of the same version; submit the job anew",
            ) from None
        sound = [[one if within_bounds(context, one) else None for one in of] for of in by_cell]
        sums = joined_sums(sound)
        valid = joined([of_it.valid() for of_it in kept.values()])
        least = context.plan.rule.least if context.sets > 1 and under_rule(context) else 1
        if len(sums) < least:
            sums, state = [], without_sums(context, before)
        else:
            state = combine_sums(context, before, sums, self._work.random_bytes)
            valid.arrays |= {name: [of_set[name] for _, of_set in sums] for name in sums[0][1]}
        if noise is not None:  # halves of earlier rounds are used up
            state = {name: a for name, a in state.items() if not name.startswith(NOISE_HALF)}
            for (cell, of_it), usable in zip(kept.items(), sound, strict=True):
                if usable != [None] and noise.number < noise.rounds:
                    half = np.frombuffer(of_it.half(context), np.uint8)
                    state[f"{NOISE_HALF}{noise.number}/{cell}"] = half
        batches = {cell: of_it.batch for cell, of_it in kept.items()}
        counted = [sum(one[0] for one in of if one is not None and sums) for of in sound]
        cells = dict(zip(kept, counted, strict=True))
        discarded = sum(of_it.uploads for of_it in kept.values()) - sum(counted)
        valid.refused.update({"sum_beyond_bound": discarded} if discarded else {})
        return self._commit(
            entry, context, batches, valid, before, state, sum(counted), cells, started_s, discarded
        )

    def _commit(
        self,
        entry: JobEntry,
        context: RoundContext,
        by_cell: Mapping[str, Batch],
        valid: ValidatedBatch,
        before: Mapping[str, Array],
        state: Mapping[str, Array],
        uploads: int,
        cells: Mapping[str, int],
        started_s: float,
        discarded: int = 0,
    ) -> RoundCommit:
        graph = self._jobs.graph(entry)
        if self._work.recorder is not None:
            sent = context.plan.package(before, context.round)
            model = self._evaluation.weights(context.plan, state)
            self._work.recorder.keep(context, sent, valid.arrays, model)
        batches = list(by_cell.values())
        at = batches[0].at
        marks = self._work.marks[at.job_id]
        timeline = round_timeline(marks.times_s, started_s, self._work.clock())
        facts = RoundFacts(
            at.attempt,
            uploads,
            RoundAnswers.of(0, batches),
            marks.sent_bytes,
            sum(batch.blob.size_bytes for batch in batches),
            timeline,
            cells,
            discarded,
        )
        if discarded:
            data = shown_discarded(context, discarded)
            LOG.warning("sums_discarded", extra={"exchange": context.round.label, **data})
        record, event = round_record(context, self._evaluation, graph, state, valid, facts)
        state = judged(context.plan, before, state, record)
        event |= shown(context.plan, state)
        if answers := event.get("statistics"):
            event |= self._drift(entry.id, context.plan.job.data.source, answers)
        done = self._store.commit_round(
            entry.id,
            record,
            pack_tensors(state),
            [("exchange_committed", event)],
            valid.accepted,
            [batch.blob.digest for batch in batches],
        )
        if not done:
            return self._again(entry.id, at, context)
        return self._absorbed(at, valid.accepted, context, state, event.get("drift"))

    def _drift(self, job: str, source: str, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Return `drift` since the release in use for the data set, or the job's first answers."""
        rollouts = self._store.rollouts.all()
        used = [one for one in rollouts if one.data_set == source and one.stage == "all"]
        if released := max(used, key=lambda one: one.started_at, default=None):
            before = self._store.committed(released.job, "statistics", newest=True)
            since = f"the release of {self._store.job(released.job).name}"
            found = before and drift(before["statistics"], answers, since)
            if found and found["columns"]:
                return {"drift": found}
        before = self._store.committed(job, "statistics", newest=False)
        if before is None:
            return {}
        return {"drift": drift(before["statistics"], answers, f"round {before['number']}")}

    def _again(self, job: str, at: RoundId, context: RoundContext) -> RoundCommit:
        last = self._store.last_commit(job)
        if last is None or last.index != at.round:
            raise JobFailed(f"round {at.round} is over")
        return self._absorbed(at, last.accepted, context, tensor_views(last.state))

    def _absorbed(
        self,
        at: RoundId,
        accepted: Sequence[bytes],
        context: RoundContext,
        state: Mapping[str, Array],
        drift: Mapping[str, Any] | None = None,
    ) -> RoundCommit:
        # Pieces would separate the segments of one upload, so several groups use one piece.
        floor = context.min_batch if len(context.groups) == 1 else len(accepted)
        knows = self._work.knows.values()
        least = floor if knows and min(knows) >= KNOWS_RECORDS else None
        described = describe_record(at, accepted, self._work.limits.part_bytes, least)
        last, columns = is_over(context.plan, state), (drift or {}).get("columns", ())
        drifted = sum(one["drifted"] for one in columns) if columns else None
        return RoundCommit(*described, last=last, drifted=drifted)
