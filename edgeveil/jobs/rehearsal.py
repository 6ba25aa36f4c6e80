"""Rehearse a device's part of a job on synthetic records, before reading any record."""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from edgeveil.data.records import Records
from edgeveil.data.split import sample_slots
from edgeveil.errors import OF_OTHERS_CODE, DataError, EdgeVeilError, PrivacyError, ProtocolError
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.jobs.federated_evaluation import COUNTS
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.parts.round import ASK, KEPT, TRAIN, Array, PlannedRound, Tensors
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from edgeveil.statistics.blocks import dearest
from edgeveil.statistics.questions import Questions

_REPEATS = (("local_steps", 2), ("local_epochs", 1))
_SEED = 0
_ROW_S = 60.0  # time limit of one run of the graph, enforced as on a device, at the same cost
_SLOT_KEY = bytes(32)  # for slots of synthetic records, not secret


def brief(plan: Plan) -> Plan:
    """Return the same job with the fewest possible repeats of local work."""
    train = plan.job.train
    given: dict[str, Any] = {key: getattr(train, key, ...) for key, _ in _REPEATS}
    fewer = {key: min(given[key], most) for key, most in _REPEATS if given[key] is not ...}
    job = plan.job.model_copy(update={"train": train.model_copy(update=fewer)})
    return Plan(job, plan.artifacts)  # already compiled with more repeats


def synthetic_records(plan: Plan, count: int) -> Records:
    """Return `count` synthetic records, the same in every process, with labels in turn."""
    chance, data = np.random.default_rng(_SEED), plan.job.data
    scales = [getattr(one, "input_scale", None) for one in (plan.job.model, *plan.job.features)]
    largest = max((scale for scale in scales if scale), default=1.0)
    x = chance.random((count, *data.input_shape), dtype=np.float32) * np.float32(largest)
    if isinstance(plan.job.train, Questions):
        return _to_ask(plan.job.train, count, chance)
    pairs = (np.arange(count) // 2).astype(np.float32)[:, None]  # the dearest number of persons
    return Records(x, np.arange(count, dtype=np.int64) % data.classes, pairs)


def _to_ask(questions: Questions, count: int, chance: np.random.Generator) -> Records:
    # Each record is of another person, whose records are summed up alone.
    x, every = dearest(questions, count, chance), np.arange(count, dtype=np.float32)
    return Records(x, np.zeros(count, np.int64), every[:, None])


def rehearse_device(
    plan: Plan,
    graph: bytes,
    *,
    trains: bool,
    records: int,
    processor: str,
    random_bytes: RandomBytes = os_random,
    memory_bytes: int | None = None,
) -> float:
    """Answer each kind of round on synthetic `records` and return the longest answer in seconds.

    `memory_bytes`: most state kept between rounds. Raises DataError, PrivacyError or ProtocolError.
    """
    try:
        made, state = synthetic_records(plan, records), plan.cloud.initial_state()
        if plan.job.anomaly:  # anomalous records train nothing
            made = replace(made, y=np.zeros_like(made.y))
        begun_s, trained_s, evaluated_s = clocks(), 0.0, 0.0
        if any(round.infer for round in plan.all_rounds):
            rehearsed_softmax(plan, graph, plan.cloud.model(state), made.x, random_bytes)
        inferred_s = _seconds_since(begun_s)
        for round in evaluation_kinds(plan):
            begun_s = clocks()
            rehearsed_evaluation(plan, round, graph, state, made, random_bytes)
            evaluated_s = max(evaluated_s, _seconds_since(begun_s))
        if trains:
            plan.check_backbones()
            device = MadeUpDevice(plan, made, processor, random_bytes)
            trained_s = _train(device, plan, state, memory_bytes)
        return max(inferred_s + trained_s, evaluated_s)
    except (DataError, PrivacyError, ProtocolError):
        raise
    except EdgeVeilError as error:
        raise DataError(error.what, where=error.where, fix=error.fix) from error
    except OF_OTHERS_CODE as error:  # a user's own model may raise anything
        what = f"fails on made-up records, {type(error).__name__}: {error}"
        raise DataError(what, where="job", fix="change the job's model or method") from error


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _seconds_since(begun_s: tuple[float, float]) -> float:
    """Return wall-clock time, or processor time if less because the process had to wait."""
    return min(now - begun for now, begun in zip(clocks(), begun_s, strict=True))


def slowdown_since(begun_s: tuple[float, float]) -> float:
    """Return wall-clock time over processor time, at least 1: how long the process had to wait."""
    wall_s, busy_s = (now - begun for now, begun in zip(clocks(), begun_s, strict=True))
    return max(1.0, wall_s / max(busy_s, 1e-3))


def rehearsed_softmax(
    plan: Plan, graph: bytes, weights: Tensors, x: Array, random_bytes: RandomBytes = os_random
) -> Array:
    """Return the noised softmax upload for x (n, ...). Raises DataError for an unfit graph."""
    samples, values = plan.softmax_samples, np.asarray(x, np.float32)
    session, given = _session(plan, graph, weights)
    session.require_probabilities(values[:1], given)
    if samples is None:
        found: Array = session.summed_softmax(values, given, _ROW_S)
    else:
        held = sample_slots(values, samples, _SLOT_KEY)
        found = session.slot_softmax(values, given, held, _ROW_S)
    noised, _ = plan.noised_softmax(found, random_bytes)
    return noised


def rehearsed_evaluation(
    plan: Plan,
    round: PlannedRound,
    graph: bytes,
    state: Tensors,
    records: Records,
    random_bytes: RandomBytes = os_random,
) -> Array:
    """Return the noised counts by the model of the cloud's `state`. Raises DataError.

    Of a question: of as many made-up records as `records`."""
    if round.phase == ASK:
        asks = plan.question
        found = _to_ask(asks.vector.questions, len(records), np.random.default_rng(_SEED))
        return unpack_tensors(pack_tensors(asks.answer(found, random_bytes).segments))[COUNTS]
    session, given = _session(plan, graph, plan.cloud.model(state))
    package = unpack_tensors(pack_tensors(plan.package(state, round)))
    asked = plan.evaluation_of(round.phase).about(package)
    first = session.single_outputs(records.x[:1], given, asked.counts.outputs)
    if not np.isfinite(first).all():
        what, fix = "returns no finite output for a made-up record", "return finite values"
        raise DataError(what, where="ONNX graph", fix=fix)
    answer = asked.answer(session, given, records, random_bytes, _ROW_S)
    return unpack_tensors(pack_tensors(answer.segments))[COUNTS]


def _session(
    plan: Plan, graph: bytes, weights: Tensors
) -> tuple[InferenceSession, dict[str, Array]]:
    classes = plan.job.data.classes
    session = InferenceSession(graph, sha256(graph).digest(), classes=classes)
    return session, dict(plan.graph_weights(unpack_tensors(pack_tensors(weights))))


class MadeUpDevice:
    """A device that trains on `records` and, like a real one, keeps its uploads and state."""

    def __init__(
        self, plan: Plan, records: Records, processor: str, random_bytes: RandomBytes = os_random
    ) -> None:
        self._plan, self._records = plan, records
        self._processor, self._random_bytes = processor, random_bytes
        self._released: dict[str, dict[str, Array]] = {}
        self.kept: dict[str, Array] = {}

    def answer(self, round: PlannedRound, package: Tensors) -> dict[str, Array]:
        """Return a round's segments. Raises ProtocolError or PrivacyError unless as planned."""
        plan, tensors = self._plan, dict(unpack_tensors(pack_tensors(package)))
        for earlier in plan.recalled(round):
            tensors |= self._released.get(earlier.phase, {})
        tensors |= self.kept
        answer = plan.device.answer(
            round, tensors, self._records, self._random_bytes, self._processor
        )
        if answer.without:
            raise DataError(f"on made-up records {answer.without}", where="train")
        if answer.events != plan.device.price(round):
            raise PrivacyError("differs in price from the job's plan", where=round.label)
        segments = unpack_tensors(pack_tensors(answer.segments))
        wanted = {s.name: (s.shape, s.dtype) for s in plan.segments(round) if s.name != SOFTMAX}
        found = {name: (array.shape, str(array.dtype)) for name, array in segments.items()}
        if found != wanted:
            what = f"{round.label} would upload {found}, not {wanted}"
            raise ProtocolError("wrong_shape", what)
        self._released[round.phase] = segments
        self.kept = {KEPT + name: np.asarray(array) for name, array in answer.kept.items()}
        return segments


def training_kinds(plan: Plan) -> tuple[PlannedRound, ...]:
    """Return one training round of each kind, two if there are stages; each of questions."""
    if isinstance(plan.job.train, Questions):
        return tuple(plan.of_method)
    most = 2 if plan.context.stages else 1
    return tuple(e for e in plan.of_method if e.phase != TRAIN or e.number <= most)


def evaluation_kinds(plan: Plan) -> tuple[PlannedRound, ...]:
    first = {e.phase: e for e in reversed(plan.all_rounds) if e.evaluates}
    return tuple(first.values())


def _train(device: MadeUpDevice, plan: Plan, state: Tensors, memory_bytes: int | None) -> float:
    longest_s = 0.0
    for round in training_kinds(plan):
        package = plan.cloud.package(state, round)
        begun_s = clocks()
        device.answer(round, package)
        longest_s = max(longest_s, _seconds_since(begun_s))
        size_bytes = sum(array.nbytes for array in device.kept.values())
        if memory_bytes is not None and size_bytes > memory_bytes:
            what = f"the job stores {size_bytes} bytes between rounds, not {memory_bytes}"
            fix = "raise it, or sit this job out"
            raise PrivacyError(what, where="limits.memory_bytes", fix=fix)
    return longest_s
