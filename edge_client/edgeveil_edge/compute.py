"""Computation of a device's answer to one round from its records.

Checks before a record is read are the same for all records. After that, no failure may depend on a
record: if a computation raises, the answer is that of a device without records, noised and priced
as usual.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from edgeveil.config.edge import EdgeSite
from edgeveil.data.records import MAX_BYTES, Records, require_room
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import sample_slots
from edgeveil.errors import EdgeVeilError, ProtocolError, RecordsError
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.artifacts import carried_digests
from edgeveil.jobs.job import Round
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.jobs.rehearsal import rehearse_device
from edgeveil.parts.features import match_artifacts
from edgeveil.parts.own_records import at_most, device_records, of_shape
from edgeveil.parts.round import (
    ASK,
    KEPT,
    TRAIN,
    Answer,
    Array,
    PlannedRound,
    Tensors,
    personal_weights,
)
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.sampler import RandomBytes
from edgeveil.protocol.device_round import WORK_SHARE
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil.subnormals import flushed
from edgeveil_edge.release_trial import try_release

_WARM_RECORDS = 8
TRIAL_MARGIN = 2.0  # an answer gets this multiple of the trial's time
AROUND_S = 0.015  # for opening the package, ledger and a new worker
SLOW_RECORDS = 32  # runs of the graph that may each take 1/64 of the time
READING_S = 0.5  # per reading; plus, per record, several times the cost on a core of 2020:
RECORD_S, PICTURE_S = 100e-6, 2e-3
_TRIES = 3  # the minimum counts, to exclude other load on the box

READINGS = 2  # forms of a job's records at most: to learn from, and raw to ask
Half = Literal["train", "infer", "evaluate"]  # of an answer; "evaluate" is always alone
_Reading = tuple[float, DataSchema | None]  # evaluation share, job's schema


@dataclass(frozen=True)
class TaughtJob:
    plan: Plan
    canonical: bytes
    graph: bytes

    @classmethod
    def of(cls, canonical: bytes, graph: bytes, backbones: Iterable[bytes]) -> Self:
        """Compile a job. Raises ProtocolError `bad_job`, or DataError if a backbone is missing."""
        plan = compile_canonical(canonical)
        kept = match_artifacts(carried_digests(plan.job), backbones)
        return cls(plan.with_artifacts(kept), canonical, graph)


@dataclass(frozen=True)
class Computation:
    """One round's work.

    own        tensors that the device adds from its ledger
    until_s    clock time at which work on records ends
    allowed_s  seconds that this work may take in all
    closes_s   clock time at which the round closes
    """

    job: TaughtJob
    round: PlannedRound
    package: RoundPackage
    own: Tensors
    trains: bool
    noise: RandomBytes
    until_s: float = math.inf
    allowed_s: float = math.inf
    closes_s: float = math.inf

    def fresh_noise(self) -> RandomBytes:
        """Return derived noise rewound for one half of an answer; other streams as they are."""
        noise = self.noise
        return DerivedRandom(noise.to_bytes()) if isinstance(noise, DerivedRandom) else noise


@dataclass(frozen=True)
class ComputedAnswer:
    """Parts of an answer; `without`: why records were not used; `late`: work overran.

    `slowdown`: wall-clock over processor time of the answer without records.
    """

    parts: tuple[Answer, ...]
    without: str = ""
    late: bool = False
    slowdown: float = 1.0


@dataclass(frozen=True)
class JobTrial:
    """Seconds of the longest answer on made-up records, or why this device cannot run the job."""

    needed_s: float = 0.0
    refused: str = ""
    overruns: int = 0
    slowdown: float = 1.0
    """Of work without records: largest recent ratio of wall-clock to processor time."""

    def budget_s(self, round_: Round) -> float:
        """Return the device's time budget in seconds; each overrun doubles it where it may grow."""
        least_s = TRIAL_MARGIN * (self.needed_s + AROUND_S) * self.slowdown / WORK_SHARE
        own_s = round_.device_budget_s(least_s if self.needed_s else 0.0)
        return min(round_.time_budget_s, own_s * 2.0**self.overruns)


class Compute:
    """Where a device computes, one call at a time; here without limits of time or memory."""

    def try_job(self, job: TaughtJob, *, trains: bool) -> JobTrial:
        """Run every kind of round on made-up records; never reads a record."""
        return JobTrial()

    def answer(self, one: Computation) -> ComputedAnswer:
        """Compute the answer. Errors are raised before a record is read."""
        raise NotImplementedError

    def read_ahead(self, share: float, schema: DataSchema | None = None) -> bool:
        """Read records ahead of a round; return False if already read. Errors show later."""
        return False

    def try_release(self, onnx: bytes) -> str:
        """Run a final model on made-up records; return why it cannot be used, or ""."""
        return try_release(onnx)

    def forget(self, job: TaughtJob) -> None: ...


LoadRecords = Callable[[EdgeSite, bytes, float, DataSchema | None], tuple[Records, Records]]


def load_own(
    site: EdgeSite, split_key: bytes, share: float, schema: DataSchema | None = None
) -> tuple[Records, Records]:
    most = site.policy.max_records
    return device_records(site.data, split_key, evaluation_share=share, schema=schema, most=most)


def reading_s(site: EdgeSite) -> float:
    """Return the seconds allowed for reading `policy.max_records`, whatever the content."""
    record_s = PICTURE_S if site.data.source == "images" else RECORD_S
    return READING_S + site.policy.max_records * record_s


class SharedSession:
    """Cache of one graph's inference session; may serve many simulated devices."""

    def __init__(self) -> None:
        self._session: InferenceSession | None = None

    def session(self, graph: bytes, classes: int) -> InferenceSession:
        digest = hashlib.sha256(graph).digest()
        if self._session is None or self._session.digest != digest:
            self._session = InferenceSession(graph, digest, classes=classes)
        return self._session


class Computer(Compute):
    def __init__(
        self,
        site: EdgeSite,
        split_key: bytes,
        load: LoadRecords = load_own,
        inference: SharedSession | None = None,
    ) -> None:
        self._site, self._split_key, self._load = site, split_key, load
        self._inference = inference or SharedSession()
        # Most recently used last. Failures are cached too, else each answer would retry them.
        self._records: dict[_Reading, tuple[Records, Records] | RecordsError] = {}

    def answer(self, one: Computation) -> ComputedAnswer:
        one, parts = replace(one, allowed_s=math.inf), list[Answer]()
        with flushed():
            self.prepare(one)
            records, unread = self.halves(one.job.plan, one.round.phase)
            without = [unread] if unread else []
            for half in self.order(one)[::-1]:
                try:
                    parts.append(self.compute(one, half, *records))
                    without += [parts[-1].without] * bool(parts[-1].without)
                except Exception as error:  # caused by the records: must not be visible
                    parts.append(self.blank(one, half))
                    without.append(failure(error))
        return ComputedAnswer(tuple(parts), "; ".join(without))

    def order(self, one: Computation) -> tuple[Half, ...]:
        """Return the halves to compute, training first: no evaluation record may affect it."""
        if one.round.evaluates:
            return ("evaluate",)
        halves: tuple[tuple[Half, bool], ...] = (("train", one.trains), ("infer", one.round.infer))
        return tuple(half for half, wanted in halves if wanted)

    def prepare(self, one: Computation) -> None:
        plan = one.job.plan
        if one.trains:
            plan.check_backbones()
        if one.round.carries_model:
            self._inference.session(one.job.graph, plan.job.data.classes)

    def blank(self, one: Computation, half: Half) -> Answer:
        empty = _no_records(one.job.plan.job.record_shape(one.round.phase))
        return self.compute(one, half, empty, empty)

    def records(self, share: float, schema: DataSchema | None = None) -> tuple[Records, Records]:
        """Return (training, evaluation) records. Raises RecordsError (cached too) or DataError."""
        reading, most = (share, schema), self._site.policy.max_records
        found = self._records.pop(reading, None)
        if found is None:
            self.make_room()
            try:
                whole = self._load(self._site, self._split_key, share, schema)
                found = at_most(*whole, most, self._split_key)
            except (RecordsError, MemoryError) as error:
                found = RecordsError(str(error) or "they need more memory than this machine has")
        self._records[reading] = found
        if isinstance(found, RecordsError):
            raise found.with_traceback(None)
        return found

    def keep(
        self, share: float, schema: DataSchema | None, found: tuple[Records, Records] | RecordsError
    ) -> None:
        self._records[share, schema] = found

    def make_room(self) -> None:
        while len(self._records) >= READINGS * self._site.policy.max_jobs:
            del self._records[next(iter(self._records))]

    def halves(self, plan: Plan, phase: str = TRAIN) -> tuple[tuple[Records, Records], str]:
        """Return a phase's records, or empty ones and the reason. Raises DataError."""
        shape = plan.job.record_shape(phase)
        try:
            training, evaluation = self.records(*plan.job.reading(phase))
        except RecordsError as error:  # whether the device answers may not depend on records
            return (_no_records(shape), _no_records(shape)), failure(error)
        return (of_shape(training, shape), of_shape(evaluation, shape)), ""

    def compute(
        self, one: Computation, half: Half, training: Records, evaluation: Records
    ) -> Answer:
        """Compute half of an answer with its events. May raise any error of package or records."""
        plan, package, noise = one.job.plan, one.package, one.fresh_noise()
        if half == "train":
            tensors = unpack_tensors(package.tensors)
            if any(name.startswith(KEPT) for name in tensors):
                what = "the cloud names tensors that are the device's own"
                raise ProtocolError("bad_package", what)
            tensors |= one.own
            return plan.device.answer(one.round, tensors, training, noise, self._site.device)
        if one.round.phase == ASK:  # of all records: none is set apart
            return plan.question.answer(training, noise)
        session = self._inference.session(one.job.graph, plan.job.data.classes)
        trained = unpack_tensors(package.model)
        own = {name.removeprefix(KEPT): array for name, array in one.own.items()}
        trained |= personal_weights(own)
        weights = dict(plan.graph_weights(trained))
        row_s = one.allowed_s / (2 * SLOW_RECORDS)
        if half == "evaluate":
            asked = plan.evaluation_of(one.round.phase).about(unpack_tensors(package.tensors))
            return asked.answer(session, weights, evaluation, noise, row_s)
        x, samples = evaluation.x.astype(np.float32, copy=False), plan.softmax_samples
        if samples is None:
            found: Array = session.summed_softmax(x, weights, row_s)
        else:
            persons = None if plan.job.data.person is None else evaluation.stored
            held = sample_slots(x, samples, self._split_key, persons)
            found = session.slot_softmax(x, weights, held, row_s)
        noised, event = plan.noised_softmax(found, noise)
        return Answer({SOFTMAX: noised}, (event,))


def _no_records(shape: tuple[int, ...]) -> Records:
    return Records(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64))


def failure(error: Exception) -> str:
    """Return the owner's line; an unexpected error shows only its type: its text may quote data."""
    why = str(error) if isinstance(error, EdgeVeilError) else type(error).__name__
    return f"computing with the records failed ({why})"


def trial_seconds(job: TaughtJob, site: EdgeSite, *, trains: bool, enough_s: float = 0.0) -> float:
    """Measure the longest answer of a round plus the answer without records, in seconds.

    Uses `policy.max_records` made-up records, since time is not linear in their number and the
    cloud chooses the job's count. Raises DataError, PrivacyError or ProtocolError if this device
    cannot run the job.
    """

    def play(records: int) -> float:
        return rehearse_device(
            job.plan,
            job.graph,
            trains=trains,
            records=records,
            processor=site.device,
            memory_bytes=site.limits.memory_bytes,
        )

    records, asked = site.policy.max_records, job.plan.job
    for phase in asked.phases_read:
        shape = (records, *asked.record_shape(phase))
        require_room(shape, 4, MAX_BYTES, "policy.max_records")
    play(min(records, _WARM_RECORDS))  # warm up libraries
    return _least(play, records, enough_s) + _least(play, 0, 0.0)


def _least(play: Callable[[int], float], records: int, enough_s: float) -> float:
    least_s = math.inf
    for _ in range(_TRIES):
        least_s = min(least_s, play(records))
        if least_s <= enough_s:
            break
    return least_s
