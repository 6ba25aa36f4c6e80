"""The cloud's broadcasts: a job, a round's model, or a release, sealed and recorded."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgeveil.config.cloud import ReleaseValidity
from edgeveil.crypto.buckets import CAPACITY, bucket_bytes, fitting
from edgeveil.crypto.chunked import chunked_bytes
from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.data.records import Records
from edgeveil.errors import JobFailed
from edgeveil.jobs.artifacts import carried_digests
from edgeveil.jobs.buffered_rounds import closing_uploads
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.round import Array
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud import CountReports, ReportsCounted
from edgeveil.protocol.cloud_job import AskUnmask, Broadcast, CellBroadcasts, SealRound
from edgeveil.protocol.messages import (
    HEALTH,
    KNOWS_BUCKETS,
    KNOWS_CHECKS,
    Manifest,
    ReleaseOutcome,
    RoundId,
    data_set_tag,
)
from edgeveil.protocol.sealed import (
    JobPackage,
    Package,
    ReleasePackage,
    RoundPackage,
    Sealing,
    Terms,
    committed,
    encode_package,
    in_pieces,
)
from edgeveil.protocol.tensors import pack_tensors
from edgeveil.selection import how_many, in_turn, rounded_up, uniform
from edgeveil_cloud.compute.processes import WorkerProcesses
from edgeveil_cloud.early_stopping import is_newest, released
from edgeveil_cloud.evaluation import Evaluation, HeldTests, as_federated
from edgeveil_cloud.open_segments import RoundSecret
from edgeveil_cloud.rollout_store import Stage, report_digest
from edgeveil_cloud.round_report import Recorder, model_card, weights_file
from edgeveil_cloud.store_tables import JobEntry
from edgeveil_cloud.stored_jobs import StoredJobs, wire_id
from edgeveil_cloud.validate_batch import kept_unmasks

if TYPE_CHECKING:
    from edgeveil_cloud.store import Store

_FIGURES_BYTES = 1 << 16  # bound for a release's figures, names and separators


class TemporaryFailure(JobFailed):
    """A job cannot continue now; the cause may pass."""


class TooFewDevices(TemporaryFailure):
    """Too few devices are enrolled or answered for a round."""


class TooManyDevices(TemporaryFailure):
    """More devices are selected than a masked sum or a batch can hold."""


class UnknownAdmissions(TemporaryFailure):
    """The proxy's roster is stale or refused, so a revoked device could be selected."""


Choose = Callable[[Sequence[bytes], int], list[bytes]]
"""Draws a number of the given keys."""


def draw(enrolled: Sequence[bytes], count: int) -> list[bytes]:
    return uniform(enrolled, count, None)


Cohorts = Mapping[str, Sequence[bytes]]
"""Public keys of devices by cell."""


def select(plan: Plan, enrolled: Cohorts, choose: Choose = draw) -> dict[str, list[bytes]]:
    """Draw a new round's public keys from all cells; raises TooFewDevices or TooManyDevices."""
    asked, floor = plan.job.selection, plan.job.round.min_batch
    everybody = [key for cell in enrolled.values() for key in cell]
    count = how_many(asked.devices, len(everybody), asked.over_select)
    drawn = choose(everybody, count) if count >= floor else []
    turns = plan.context.correlation  # in which a cell below the floor is left out
    if turns is not None and len(everybody) < turns.min_separation * count:
        what = f"{len(everybody)} devices take turns of {count}, each after fewer rounds than"
        fix = f"enrol {turns.min_separation * count}, or lower privacy.min_separation"
        raise TooFewDevices(f"{what} {turns.min_separation}", where="selection", fix=fix)
    fill = choose if turns is None else None
    chosen = {
        cell: _whole_batch([k for k in drawn if k in of_it], keys, floor, fill)
        for cell, keys, of_it in ((cell, keys, set(keys)) for cell, keys in enrolled.items())
    }
    chosen = {cell: keys for cell, keys in chosen.items() if keys}
    found, least = sum(map(len, chosen.values())), max(asked.min_devices, floor)
    if found < least:
        there = f"{found if chosen else count} devices can be selected"
        in_each = f", {floor} in each selected cell" if len(enrolled) > 1 else ""
        what = f"{there}, at least {least} are needed{in_each}"
        fix = "enrol more devices, or lower round.min_batch and selection.min_devices"
        raise TooFewDevices(what, where="selection", fix=fix)
    most = plan.context.summed
    largest = max(map(len, chosen.values()))
    if most and largest > most:
        what = f"{largest} devices would be selected, and a secure sum has at most {most}"
        fix = "cancel the job, and submit it with a number of devices in place of 'all'"
        raise TooManyDevices(what, where="selection.devices", fix=fix)
    return chosen


def _whole_batch(
    drawn: list[bytes], cell: Sequence[bytes], floor: int, choose: Choose | None
) -> list[bytes]:
    """Return the keys drawn in a cell; if below the floor of its batch, the floor or none.

    Without `choose` none. The choice is random, so that on average devices of all cells are
    selected equally often."""
    if len(drawn) >= floor or not drawn:
        return drawn
    if choose is None or len(cell) < floor or choose(cell[:floor], 1)[0] not in cell[: len(drawn)]:
        return []
    first = set(drawn)
    others = [key for key in cell if key not in first]
    return drawn + choose(others, floor - len(drawn))


def round_package(context: RoundContext, state: Mapping[str, Array]) -> RoundPackage:
    round, plan = context.round, context.plan
    model = plan.cloud.model(state) if round.carries_model else None
    return RoundPackage(
        round.phase,
        round.number,
        round.infer,
        pack_tensors(plan.package(state, round)),
        b"" if model is None else pack_tensors(model),
    )


def seal_round(
    context: RoundContext,
    state: Mapping[str, Array],
    recipients: Sequence[bytes],
    at: RoundId,
    sequence: int,
    part_bytes: int,
    sealing: Sealing = real_sealing,
    *,
    bucketed: bool = False,
    in_all: int | None = None,
    checked: bool = False,
) -> tuple[Manifest, bytes, RoundSecret]:
    """Return the round's manifest, its blob, and the secret that opens its answers.

    `in_all` counts the devices selected in all cells (default: those of this one)."""
    opening = OpeningKey.generate()
    round, job, closes = context.round, context.job, context.closing
    terms = Terms(
        kind="round",
        at=at,
        sequence=sequence,
        job_digest=job.digest(),
        phase=round.phase,
        min_batch=context.min_batch,
        quorum=closing_uploads(closes, len(recipients), in_all or len(recipients)),
        deadline_s=job.round.deadline_s,
        grace_s=0.0 if closes.mode == "buffered" else closes.grace_s,
        groups=context.groups,
        cloud_key=opening.public().to_bytes(),
        shuffled=context.shuffled,
        masked=context.masked,
        sets=context.sets,
        correlated=context.correlated,
    )
    keys = [SealingKey(raw) for raw in recipients]
    plain = encode_package(round_package(context, state))
    manifest, data, membership = sealing.seal_broadcast(
        terms, plain, keys, part_bytes, bucketed=bucketed
    )
    checked = checked and bool(context.masked)
    if checked:
        manifest = committed(manifest, membership)
    return manifest, data, RoundSecret(opening, membership, tuple(recipients), checked)


def largest_broadcast(plan: Plan, graph: bytes) -> int:
    """Return the largest size, without stanzas, of this job's sealed broadcasts in bytes."""
    import onnx

    inputs = [one for one in onnx.load_model_from_string(graph).graph.input if one.name != "x"]
    shapes = [[dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in inputs]
    weights_bytes = sum(4 * math.prod(shape) for shape in shapes)
    card = sum(len(text.encode()) for entry in model_card(plan).items() for text in entry)
    released = len(graph) + weights_bytes + card + plan.upload_bytes
    state = plan.cloud.initial_state()
    kinds = {(one.phase, one.infer): one for one in plan.all_rounds}.values()
    sent = (encode_package(round_package(RoundContext.of(plan, one.index), state)) for one in kinds)
    largest = max(released, *(len(package) for package in sent))
    return chunked_bytes(largest + _FIGURES_BYTES)


@dataclass(frozen=True)
class BroadcastLimits:
    part_bytes: int
    blob_bytes: int = 256 << 20
    batch_bytes: int = 1 << 30


@dataclass
class _RoundMarks:
    times_s: dict[str, float] = field(default_factory=dict)
    sent_bytes: int = 0


@dataclass
class CloudWork:
    """State shared by sealing and committing; releases expire after `valid_s`."""

    store: Store
    test: Records | HeldTests | None
    limits: BroadcastLimits
    clock: Callable[[], float] = time.monotonic
    sealing: Sealing = real_sealing
    choose: Choose = draw
    recorder: Recorder | None = None
    random_bytes: RandomBytes = os_random
    valid_s: float = ReleaseValidity().valid_s
    workers: WorkerProcesses | None = None

    def __post_init__(self) -> None:
        self.jobs, self.evaluation = StoredJobs(self.store), Evaluation(self.test)
        self.knows: dict[str, int] = {}  # protocol level of a cell's proxy and all its devices
        # Of running jobs, by wire id.
        self.marks = defaultdict[bytes, _RoundMarks](_RoundMarks)

    def checks_masks(self, cells: Iterable[str]) -> bool:
        """Return whether all proxies and devices of these cells support checks of single masks."""
        return all(self.knows.get(cell, KNOWS_CHECKS) >= KNOWS_CHECKS for cell in cells)


class Sealer:
    def __init__(self, work: CloudWork) -> None:
        self._work, self._store, self._jobs = work, work.store, work.jobs
        self._evaluation, self._limits, self._choose = work.evaluation, work.limits, work.choose
        # Keys that each running job was announced to, by cell.
        self._cohorts: dict[str, dict[str, tuple[bytes, ...]]] = {}

    def job(self, entry: JobEntry, cells: Sequence[str]) -> CellBroadcasts:
        """Seal the job and its graph for all enrolled devices, among which rounds select."""
        cohorts = self._enrolled(cells)
        self._cohorts[entry.id] = self._cohorts.get(entry.id, {}) | cohorts
        plan = self._jobs.plan(entry)
        plan.check_artifacts()
        self._evaluation.check(plan)
        backbones = tuple(plan.artifacts[one] for one in carried_digests(plan.job))
        graph = self._jobs.graph(entry)
        package = JobPackage(entry.canonical, graph, backbones)
        manifest, data, _ = self._sealed(
            entry,
            "job",
            package,
            cohorts,
            data_set=data_set_tag(plan.job.data.source),
            min_batch=plan.job.round.min_batch,
            broadcast_bytes=largest_broadcast(plan, graph),
            upload_bytes=plan.upload_bytes,
        )
        self._check_blob("model", manifest.broadcast_bytes + manifest.stanza_bytes)
        return CellBroadcasts(dict.fromkeys(cohorts, Broadcast(manifest, data)))

    def round(self, task: SealRound) -> CellBroadcasts | AskUnmask:
        """Seal a round's model for each cell; return a pending request for masks instead if any."""
        started_s = self._work.clock()
        enrolled = self._enrolled(task.cells)
        entry = self._jobs.entry(task.job_id)
        kept = self._store.kept_sums(entry.id, task.round)
        if kept is not None:
            return AskUnmask(kept_unmasks(kept))
        context = RoundContext.of(self._jobs.plan(entry), task.round)
        recipients = self._recipients(entry, context.plan, task, enrolled)
        in_all = sum(map(len, recipients.values()))
        self._check_size(context.plan, in_all)
        state, sealed = self._jobs.state(entry), dict[str, Broadcast]()
        at = RoundId(task.job_id, task.round, task.attempt)
        for cell, keys in recipients.items():
            sequence = self._announce(entry, "round", len(keys), context.round.label, cell)
            manifest, data, secret = seal_round(
                context,
                state,
                keys,
                at,
                sequence,
                self._limits.part_bytes,
                self._work.sealing,
                bucketed=self._bucketed([cell]),
                in_all=in_all,
                checked=self._work.checks_masks([cell]),
            )
            if manifest.buckets == 1 and len(keys) < len(enrolled[cell]):
                manifest = in_pieces(manifest, data)
            self._store.put_round_key(entry.id, task.round, task.attempt, secret.to_bytes(), cell)
            sealed[cell] = Broadcast(manifest, data)
        marks = self._work.marks[task.job_id]
        marks.times_s = {"seal": started_s, "sealed": self._work.clock()}
        marks.sent_bytes = sum(len(one.data) for one in sealed.values())
        return CellBroadcasts(sealed)

    def forget(self, job: str) -> None:
        self._cohorts.pop(job, None)

    def release(self, entry: JobEntry, cells: Sequence[str]) -> CellBroadcasts:
        from edgeveil.parts.models.heads import bake

        plan = self._jobs.plan(entry)
        if not plan.releases:
            return CellBroadcasts({})
        state, last = self._jobs.state(entry), self._store.last_commit(entry.id)
        weights = self._evaluation.weights(plan, released(plan, state))
        figures = last.record.scores if last and is_newest(plan, state) else None
        card = model_card(plan, as_federated(figures), last.index if last else None)
        onnx = bake(self._jobs.graph(entry), weights, card)
        packed = weights_file(plan, weights)
        del weights  # free memory: as large as the release
        self._store.put_release(entry.id, onnx, packed)
        del packed
        cohorts = self._enrolled(cells)
        rollouts, enrolled = self._store.rollouts, _all_of(cohorts)
        asked, source = plan.job.release, plan.job.data.source
        count = max(asked.canary_floor, rounded_up(len(enrolled), asked.canary_share))
        chosen = self._choose(enrolled, count) if count < len(enrolled) else []
        rollouts.begin(entry.id, source, chosen, self._store.now_s() + self._work.valid_s)
        first = set(rollouts.canary(entry.id))
        canary = {cell: [k for k in keys if k in first] for cell, keys in cohorts.items()}
        return self._release(entry, onnx, cohorts, canary if _all_of(canary) else {})

    def publication(self, entry: JobEntry, cells: Sequence[str]) -> CellBroadcasts:
        cohorts = self._enrolled(cells)
        kept = self._store.release(entry.id)
        if kept is None:
            raise JobFailed("the job has no release")
        return self._release(entry, kept.onnx, cohorts, {})

    def _release(
        self, entry: JobEntry, onnx: bytes, cohorts: Cohorts, canary: Cohorts
    ) -> CellBroadcasts:
        """Seal for the canary or for all; the package's bytes never change between sealings."""
        plan, opening = self._jobs.plan(entry), OpeningKey.generate()
        rollout = next(one for one in self._store.rollouts.all() if one.job == entry.id)
        source = plan.job.data.source
        package = ReleasePackage(entry.name, onnx, source, rollout.expires_s)
        manifest, data, membership = self._sealed(
            entry,
            "release",
            package,
            canary or cohorts,
            groups=(HEALTH,),
            deadline_s=plan.job.release.soak_s / 2,
            cloud_key=opening.public().to_bytes(),
            data_set=data_set_tag(source),
        )
        secret = RoundSecret(opening, membership).to_bytes()
        stage: Stage = "canary" if canary else "all"
        self._store.rollouts.sent(entry.id, manifest.sequence, stage, manifest.selected, secret)
        return CellBroadcasts(dict.fromkeys(cohorts, Broadcast(manifest, data)))

    def count_reports(self, task: CountReports) -> ReportsCounted:
        """Open reports and count each once; drop those not from selected devices."""
        job = self._jobs.name(task.at.job_id)
        found = self._store.rollouts.secret(job, task.at.attempt)
        if found is None:
            return ReportsCounted()
        sequence, secret = found[0], RoundSecret.from_bytes(found[1])
        digest, counted = self._store.job(job).digest, dict[bytes, str]()
        for sealed in task.sealed:
            opened = self._work.sealing.open_segment(
                secret.opening, task.at, digest, HEALTH, secret.membership, sealed
            )
            outcome = ReleaseOutcome.from_bytes(opened) if opened is not None else None
            if outcome is not None:
                counted[report_digest(sealed)] = outcome.value
        self._store.rollouts.count(sequence, counted)
        return ReportsCounted()

    def _bucketed(self, cells: Iterable[str]) -> bool:
        """Return whether all devices support buckets and a bucket fits into a packet."""
        known = all(self._work.knows.get(cell, 0) >= KNOWS_BUCKETS for cell in cells)
        return known and bucket_bytes(CAPACITY) <= self._limits.part_bytes

    def _fitting(self, keys: Sequence[bytes], *, bucketed: bool) -> list[bytes]:
        """Return the keys without random ones that overfill a bucket."""
        if not bucketed or len(fitting(keys)) == len(keys):
            return list(keys)
        return fitting(self._choose(keys, len(keys)))

    def _enrolled(self, cells: Sequence[str]) -> dict[str, tuple[bytes, ...]]:
        """Return devices of cells with a valid roster; raises UnknownAdmissions, TooFewDevices."""
        problems = {cell: self._store.roster_problem(cell) for cell in cells}
        found = {cell: self._store.enrolled(cell) for cell in cells if not problems[cell]}
        if not found:
            raise UnknownAdmissions("; ".join(dict.fromkeys(problems.values())))
        found = {cell: keys for cell, keys in found.items() if keys}
        if not found:
            what = "no device is enrolled"
            raise TooFewDevices(what, fix="admit devices at the proxy: edgeveil proxy admit")
        return found

    def _announce(self, entry: JobEntry, kind: str, selected: int, at: str, cell: str = "") -> int:
        data = {"kind": kind, "selected": selected, "round": at}
        return self._store.announce(entry.id, data | ({"cell": cell} if cell else {}))

    def _sealed(
        self, entry: JobEntry, kind: str, package: Package, recipients: Cohorts, **terms_of_it: Any
    ) -> tuple[Manifest, bytes, bytes]:
        bucketed = self._bucketed(recipients)
        everybody = self._fitting(_all_of(recipients), bucketed=bucketed)
        keys = [SealingKey(raw) for raw in everybody]
        sequence = self._announce(entry, kind, len(keys), kind)
        terms = Terms(
            kind=kind,  # type: ignore[arg-type]
            at=RoundId(wire_id(entry.id), 0, sequence % 2**31),
            sequence=sequence,
            job_digest=entry.digest,
            phase=kind,
            **terms_of_it,
        )
        plain = encode_package(package)
        manifest, data, membership = self._work.sealing.seal_broadcast(
            terms, plain, keys, self._limits.part_bytes, bucketed=bucketed
        )
        self._check_blob(kind, len(data))
        return manifest, data, membership

    def _check_blob(self, kind: str, size_bytes: int) -> None:
        if size_bytes > self._limits.blob_bytes:
            raise JobFailed(
                f"the sealed {kind} has {size_bytes} bytes, the limit is {self._limits.blob_bytes}",
                where=kind,
                fix="use a smaller backbone, or raise limits.blob_bytes at all parties",
            )

    def _recipients(
        self, entry: JobEntry, plan: Plan, task: SealRound, enrolled: Cohorts
    ) -> dict[str, list[bytes]]:
        """Return the first attempt's recipients, else newly drawn ones; never a revoked key."""
        first = self._store.round_keys(entry.id, task.round, 1)
        if not first:
            announced = self._cohorts.get(entry.id, {})
            known = {cell: set(keys) for cell, keys in enrolled.items()}
            cohorts = {
                cell: [key for key in announced.get(cell, ()) if key in keys]
                for cell, keys in known.items()
            }
            chosen = select(plan, cohorts, self._choose_for(plan, task))
            return {
                cell: self._fitting(keys, bucketed=self._bucketed([cell]))
                for cell, keys in chosen.items()
            }
        again, short = dict[str, list[bytes]](), list[TooFewDevices]()
        for cell in [one for one in enrolled if one in first]:
            asked = RoundSecret.from_bytes(first[cell]).recipients
            opened = self._store.any_opened(entry.id, task.round, cell)
            try:
                again[cell] = _asked_again(asked, enrolled[cell], opened, plan.job.round.min_batch)
            except TooFewDevices as error:
                short.append(error)
        if again:
            return again
        nobody = TooFewDevices("none of the selected cells can be reached")
        raise short[0] if short else nobody

    def _choose_for(self, plan: Plan, task: SealRound) -> Choose:
        """Return the usual draw; with correlated noise devices take turns."""
        noise = plan.correlated(plan.round(task.round))
        return self._choose if noise is None else in_turn(task.job_id, noise.number)

    def _check_size(self, plan: Plan, selected: int) -> None:
        """Raise TooManyDevices before devices spend budget on a batch above the limit."""
        if selected * plan.upload_bytes > self._limits.batch_bytes:
            raise TooManyDevices(
                f"{selected} uploads of {plan.upload_bytes} bytes pass the cloud's limit of"
                f" {self._limits.batch_bytes} bytes a batch",
                where="selection.devices",
                fix="raise limits.spool_bytes at cloud and proxy, or select fewer devices",
            )


def _all_of(cohorts: Cohorts) -> list[bytes]:
    """Return all keys sorted by their bytes, an order that reveals nothing, not even the cell."""
    return sorted(key for keys in cohorts.values() for key in keys)


def _asked_again(
    asked: Sequence[bytes], enrolled: Sequence[bytes], opened: bool, floor: int
) -> list[bytes]:
    """Return the cell's recipients of the first attempt; raises TooFewDevices.

    Devices resend the same tensors: next to an opened batch, one without some of its devices would
    show which tensors are theirs."""
    known = set(enrolled)
    again = [key for key in asked if key in known]
    fix = "admit them again, or cancel the job"
    if len(again) < len(asked) and opened:
        raise TooFewDevices(
            f"uploads of this round were opened and refused, and "
            f"{len(asked) - len(again)} of its devices are no longer enrolled: to ask the "
            f"others alone would show whose uploads are missing",
            fix=fix,
        )
    if len(again) < floor:
        raise TooFewDevices(
            f"{len(again)} of the devices selected are still enrolled, at least {floor} are needed",
            fix=fix,
        )
    return again
