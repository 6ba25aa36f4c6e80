"""Rounds of a job without parties: the cloud's part here, the devices' in workers.

The model equals, bit for bit, that of the parties over the memory transport (`edgeveil.testing`):
the same devices and noise are drawn, sums are exact, and uploads have the order of the proxy's
shuffle. No device is late."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.ring import NOISE_BITS
from edgeveil.errors import EdgeVeilError
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.aggregation.mean import ExactSum, Grids
from edgeveil.parts.models.heads import bake
from edgeveil.parts.own_records import local_records
from edgeveil.parts.round import Array, PlannedRound
from edgeveil.parts.stage import NOISE
from edgeveil.protocol.cloud_reasons import RoundAnswers, all_declined
from edgeveil.protocol.messages import DECLINE_CAUSES, RoundId
from edgeveil.protocol.proxy_rounds import ShuffleRound
from edgeveil.protocol.sealed import dealt, encode_package
from edgeveil.selection import in_turn
from edgeveil.statistics.drift import drift
from edgeveil.testing import KEY_BYTES, SimulationSeeds
from edgeveil_cloud.broadcasts import TooFewDevices, TooManyDevices, round_package, select
from edgeveil_cloud.commit_round import (
    NOISE_HALF,
    RoundFacts,
    aggregate,
    check_chosen,
    combine_sums,
    round_record,
)
from edgeveil_cloud.early_stopping import is_newest, is_over, judged, released, shown
from edgeveil_cloud.evaluation import Evaluation
from edgeveil_cloud.round_report import Recorder, model_card, summary_of, weights_file
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_cloud.validate_batch import ValidatedBatch, norm_limit
from edgeveil_proxy.shuffle import batch_order
from edgeveil_tools.simulation.canaries import Auditor, Canaries
from edgeveil_tools.simulation.devices import DeviceAnswer
from edgeveil_tools.simulation.workers import Call, Workers
from edgeveil_tools.site.provision import SiteSpec

CHUNK = 16  # devices in one call, after which progress is shown
_NUMBER_BYTES = 4
_MARK = b""  # in place of the digest of an accepted segment: nothing was sealed

Notify = Callable[[str, Mapping[str, Any]], object]
"""Called with an event of the job: its type and its data."""


class SimulatedRounds:
    """One job from its first round to its model; `play` may be called once.

    Args:
        notify: called with the job's events as the cloud would store them.
        report: called with each line that a device (its number) writes for its owner.
        look: called several times a second.
        canaries: devices, from the first, that audit the run.

    `uploads` and `declined` count the answers of the open round."""

    def __init__(
        self,
        job: Job,
        site: SiteSpec,
        workers: Workers,
        *,
        notify: Notify,
        report: Callable[[int, str], object],
        look: Callable[[], object],
        canaries: int = 0,
    ) -> None:
        self.uploads = self.declined = 0
        self._plan = compile_job(job).with_artifacts(read_artifacts(job))
        self._site, self._workers, self._seeds = site, workers, SimulationSeeds(site.seed)
        self._notify, self._report, self._look = notify, report, look
        self._evaluation = Evaluation(local_records(site.source, job.data.schema_))
        self._draws = self._seeds.draws()
        self._graph = b""
        self._asked: tuple[int, Mapping[str, Any]] | None = None  # first round with answers
        self._recorder = Recorder(site.record_dir) if site.record_dir else None
        held = Canaries(self._plan, self._seeds, canaries)
        self.auditor = Auditor(held) if canaries else None

    def play(self) -> tuple[bytes, bytes] | None:
        """Return the model as (ONNX, safetensors); None if the job learned or completed none."""
        plan = self._plan
        self._evaluation.check(plan)
        self._graph, devices = plan.graph(), self._site.devices
        accuracy, federated, state = None, None, plan.cloud.initial_state()
        self._notify("job_submitted", {"name": plan.job.job})
        self._notify("job_running", {})
        started = {"job_id": wire_id(plan.job.job).hex(), "rounds": len(plan.all_rounds)}
        self._notify("job_started", started)
        self._notify("broadcast", {"kind": "job", "selected": devices, "round": "job"})
        for round in plan.all_rounds:
            asked = round.index - 1
            try:
                selected = self._selected(round)
                label = {"kind": "round", "selected": len(selected), "round": round.label}
                self._notify("broadcast", label)
                asked += 1
                state, event = self._round(RoundContext.of(plan, round.index), state, selected)
            except _AllDeclined as error:
                ends = error.answers.ends_job(round.index) and not round.evaluates
                if ends:
                    why = {"round": round.index, "declined": error.answers.declined}
                    self._notify("all_declined", {**why, "causes": dict(error.answers.causes)})
                how = "failed" if ends else "paused"
                self._end(how, str(error), round.index - 1, accuracy)
                return None
            except (TooFewDevices, TooManyDevices) as error:
                self._end("paused", str(error), asked, accuracy)
                return None
            accuracy, federated = event["accuracy"], event.get("federated")
            self._notify("exchange_committed", event)
            if is_over(plan, state):
                break
        model = None
        if plan.releases:
            weights = self._evaluation.weights(plan, released(plan, state))
            figures = federated if is_newest(plan, state) else None
            onnx = bake(self._graph, weights, model_card(plan, figures, round.index))
            model = onnx, weights_file(plan, weights)
            self._notify("broadcast", {"kind": "release", "selected": devices, "round": "release"})
        self._notify("job_completed", summary_of(plan, round.index, accuracy, state))
        return model

    def _end(self, how: str, reason: str, asked: int, accuracy: float | None) -> None:
        self._notify(f"job_{how}", {"reason": reason, **summary_of(self._plan, asked, accuracy)})

    # --- one round ---

    def _selected(self, round: PlannedRound) -> list[int]:
        noise = self._plan.correlated(round)
        turns = None if noise is None else in_turn(self._seeds.split_key(0), noise.number)
        everybody = range(1, self._site.devices + 1)
        keys = [number.to_bytes(_NUMBER_BYTES, "big") for number in everybody]
        chosen = select(self._plan, {"": keys}, turns or self._seeds.choose)[""]
        return sorted(int.from_bytes(key, "big") for key in chosen)

    def _round(
        self, context: RoundContext, state: Mapping[str, Array], selected: Sequence[int]
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        plan, times_s = context.plan, [time.monotonic()]
        self.uploads = self.declined = 0
        package = round_package(context, state)
        sent_bytes = len(encode_package(package)) + KEY_BYTES * len(selected)
        times_s.append(time.monotonic())
        answers = self._answers(context, package, selected)
        times_s.append(time.monotonic())
        gave = [one for one in answers if one.groups]
        causes = Counter(one.cause for one in answers if one.cause)
        known = {cause: causes[cause] for cause in DECLINE_CAUSES if causes[cause]}
        counts = RoundAnswers(len(selected), len(gave), len(answers) - len(gave), causes=known)
        if not gave and counts.declined >= len(selected):
            raise _AllDeclined(counts)
        floor = max(context.min_batch, self._site.min_batch_floor, 1)
        if len(gave) < floor:
            raise TooFewDevices(f"{counts}: below the minimum")
        self._notify("batch", {"round": context.round.index, "uploads": len(gave)})
        batch = _Batch.of(context, gave, floor, self._seeds.shuffle, partial(HeldArrays, self))
        valid = batch.valid
        try:
            after, uploads = self._combined(context, state, batch)
        except TooFewDevices as error:
            what = f"{error.what} ({replace(counts, void=dict(valid.refused))})"
            raise TooFewDevices(what, where=error.where, fix=error.fix) from None
        if self.auditor is not None:
            numbers, sent = [one.number for one in gave], plan.package(state, context.round)
            self.auditor.observe(context, sent, numbers, valid.arrays, self.arrays)
        if self._recorder is not None:
            sent = plan.package(state, context.round)
            weights = self._evaluation.weights(plan, after)
            self._recorder.keep(context, sent, valid.arrays, weights)
        seal, sealed, answered = times_s
        timeline = {
            "seal_s": round(sealed - seal, 6),
            "broadcast_s": 0.0,
            "wait_s": round(answered - sealed, 6),
            "absorb_s": round(time.monotonic() - answered, 6),
        }
        facts = RoundFacts(1, uploads, counts, sent_bytes, batch.size_bytes, timeline)
        record, event = round_record(context, self._evaluation, self._graph, after, valid, facts)
        after = judged(plan, state, after, record)
        if asked := event.get("statistics"):
            number, before = self._asked = self._asked or (record.number, asked)
            if before is not asked:
                event["drift"] = drift(before, asked, f"round {number}")
        return after, event | shown(plan, after)

    def _answers(
        self, context: RoundContext, package: Any, selected: Sequence[int]
    ) -> list[DeviceAnswer]:
        begin: Call = ("begin", (context.round.index, package, len(selected)))
        calls: list[list[Call]] = [
            [begin, *(("answer", (of[at : at + CHUNK],)) for at in range(0, len(of), CHUNK))]
            for of in self._of_workers(selected)
        ]
        found: list[DeviceAnswer] = []
        for _, answers in self._workers.each(calls, self._look):
            for one in answers or ():
                found.append(one)
                self.uploads += bool(one.groups)
                self.declined += bool(one.declined)
                declined = f"round {context.round.index} declined: {one.declined}"
                for line in (*[declined] * bool(one.declined), *one.notes):
                    self._report(one.number, line)
        return sorted(found, key=lambda one: one.number)

    def _combined(
        self, context: RoundContext, state: Mapping[str, Array], batch: _Batch
    ) -> tuple[dict[str, Array], int]:
        valid = batch.valid
        if not context.masked:
            score = self._evaluation.score(context, self._graph, state)
            return aggregate(context, state, valid, self._draws, score)
        check_chosen(context, valid.chosen)
        sums = list[tuple[int, dict[str, NDArray[np.int64]]]]()
        for members in dealt(valid.chosen, context.sets):
            numbers = [batch.together[at] for at in members]
            held = {one.group: HeldArrays(self, one.group, numbers) for one in context.masked}
            of_set = {context.segments[group].name: one.integers() for group, one in held.items()}
            sums.append((len(numbers), of_set))
        kept = self._take_back(context, state, sums)
        after = combine_sums(context, state, sums, self._draws) | kept
        valid.arrays |= {name: [of_set[name] for _, of_set in sums] for name in sums[0][1]}
        return after, len(valid.chosen)

    def _take_back(
        self,
        context: RoundContext,
        state: Mapping[str, Array],
        sums: Sequence[tuple[int, dict[str, NDArray[np.int64]]]],
    ) -> dict[str, Array]:
        """Take back a share of the round before's noise in `sums`; return this round's, to keep."""
        if context.correlated is None:
            return {}
        number, of_set = context.correlated.number, sums[0][1]
        noise = of_set.pop(NOISE)
        before = state.get(f"{NOISE_HALF}{number - 1}/")
        if before is not None:
            product = -context.correlated.coefficient * np.asarray(before, np.int64)
            # What cloud and proxy drop by rounding their halves adds up as with a uniform half.
            dropped = np.frombuffer(self._draws(len(product)), np.uint8).astype(np.int64)
            share, start = ((product - dropped) >> NOISE_BITS) + 1, 0
            for name, array in of_set.items():
                of_set[name] = array + share[start : start + array.size].reshape(array.shape)
                start += array.size
        return {f"{NOISE_HALF}{number}/": noise}

    # --- arrays in the workers ---

    def added(self, group: int, numbers: Sequence[int], grids: Grids | None) -> ExactSum:
        """Return the exact sum of one or more devices' arrays in one group."""
        calls: list[list[Call]] = [
            [("added", (group, of, grids))] if of else [] for of in self._of_workers(numbers)
        ]
        parts = [part for _, part in self._workers.each(calls, self._look)]
        for part in parts[1:]:
            parts[0].join(part)
        found: ExactSum = parts[0]
        return found

    def arrays(self, group: int, numbers: Sequence[int]) -> dict[int, Array]:
        shared = self._of_workers(numbers)
        calls: list[list[Call]] = [[("arrays", (group, of))] if of else [] for of in shared]
        found = dict[int, Array]()
        for worker, arrays in self._workers.each(calls, self._look):
            found |= zip(shared[worker], arrays, strict=True)
        return found

    def _of_workers(self, numbers: Sequence[int]) -> list[list[int]]:
        shared: list[list[int]] = [[] for _ in range(self._workers.count)]
        for number in numbers:
            shared[(number - 1) % self._workers.count].append(number)
        return shared


class HeldArrays(Sequence[Array]):
    """Arrays of one group in workers: summed there, fetched `BLOCK` at a time."""

    BLOCK = 64

    def __init__(
        self, rounds: SimulatedRounds, group: int, numbers: Sequence[int], most: float = 0.0
    ) -> None:
        self._rounds, self._group, self._numbers = rounds, group, numbers
        self.largest = most  # absolute value in all of them

    def added(self, grids: Grids | None) -> ExactSum:
        return self._rounds.added(self._group, self._numbers, grids)

    def integers(self) -> NDArray[np.int64]:
        shape: tuple[int, ...] = self[0].shape
        return self.added(None).integers().reshape(shape)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Array]:
        for start in range(0, len(self), self.BLOCK):
            numbers = self._numbers[start : start + self.BLOCK]
            found = self._rounds.arrays(self._group, numbers)
            yield from (found[number] for number in numbers)

    def __getitem__(self, index: int | slice) -> Any:
        numbers = self._numbers[index]
        if isinstance(numbers, int):
            return self._rounds.arrays(self._group, [numbers])[numbers]
        return HeldArrays(self._rounds, self._group, numbers, self.largest)


class _AllDeclined(EdgeVeilError):  # noqa: N818 - the state's name
    """All selected devices declined."""

    def __init__(self, answers: RoundAnswers) -> None:
        super().__init__(all_declined(answers))
        self.answers = answers


@dataclass
class _Batch:
    """A round's validated batch; `together` are the shuffled devices of groups kept together."""

    size_bytes: int
    together: list[int]
    valid: ValidatedBatch

    @classmethod
    def of(
        cls,
        context: RoundContext,
        gave: Sequence[DeviceAnswer],
        floor: int,
        shuffle: Callable[[list[int]], None],
        held: Callable[[int, Sequence[int], float], Sequence[Array]],
    ) -> _Batch:
        """Shuffle and validate answers in order of arrival; `held` makes the arrays of a group."""
        sizes, masked = context.segment_bytes, frozenset(one.group for one in context.masked)
        task = ShuffleRound(
            RoundId(bytes(16), context.round.index, 1),
            sizes,
            max(1, sum(sizes)),
            floor,
            tuple((slot, tuple(one.groups)) for slot, one in enumerate(gave)),
            keep_order=not context.shuffled,
            together=masked,
        )
        groups = [[gave[slot] for slot in slots] for slots in batch_order(task, shuffle)]
        together = [one.number for one in groups[min(masked)]] if masked else []
        valid, refused = ValidatedBatch(), Counter[str]()
        for index, spec in enumerate(context.segments):
            if index in masked:
                continue
            rows = [(one.number, *one.groups[index]) for one in groups[index]]
            finite = [row for row in rows if np.isfinite(row[1])]
            limit = norm_limit([norm for _, _, norm in finite])
            usual = [row for row in finite if row[2] <= limit]
            refused["not_finite"] += len(rows) - len(finite)
            refused["norm"] += len(finite) - len(usual)
            most = max((value for _, value, _ in usual), default=0.0)
            valid.arrays[spec.name] = held(index, [number for number, _, _ in usual], most)
            valid.accepted += [_MARK] * len(usual)
        valid.chosen, valid.masked = list(range(len(together))), len(together)
        valid.accepted += [_MARK] * (len(together) * len(masked))
        valid.refused = +refused
        whole = sum(size * len(group) for size, group in zip(sizes, groups, strict=True))
        return cls(whole, together, valid)
