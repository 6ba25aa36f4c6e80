"""`edgeveil check JOB --estimate`: accuracy and cost of a job, before budget is spent.

Simulates the job on public or made-up records, without devices or records of owners."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.errors import UsageError
from edgeveil.evaluation.figures import ACCURACY, leading_text
from edgeveil.jobs import Job, Plan, compile_job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.privacy.guarantee import guarantee_lines
from edgeveil.units import byte_text, seconds_text
from edgeveil_cloud.round_report import summary_of
from edgeveil_tools.checks import price, rehearse
from edgeveil_tools.local.data import dealt, held, input_range, is_published
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import LocalJob, LocalRun
from edgeveil_tools.local.run import play

USEFUL = 0.8  # share of the noise-free gain over guessing
TEST_RECORDS = 2000
MADE_UP_ACCURACY = 0.9  # of the best classifier of made-up records
_RARE = 1.5  # normal draws beyond it are counts of a made-up text
_SMOOTH = 4  # half waves along each axis that tell made-up classes apart


@dataclass
class Prospect:
    """Estimate of one job: accuracy by seed, of guessing, and without noise (None if unknown)."""

    job: str
    devices: int
    nominal_records: int
    measured_on: str
    baselines: float
    privacy: Mapping[str, Any]
    notes: Sequence[str]
    round: Mapping[str, float]
    without_noise: float | None = None
    accuracies: list[float] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0
    verdict: list[str] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def gain(self) -> float | None:
        """Share of the gain of noise-free learning over guessing; None if unknown."""
        best = self.without_noise
        if best is None or best <= self.baselines or not self.accuracies:
            return None
        return (self.mean - self.baselines) / (best - self.baselines)


def prospect(
    path: Path, report: Callable[[str], None], *, devices: int | None = None, seeds: int = 3
) -> Prospect:
    """Simulate a job file with each seed; raises ConfigError, UsageError or DataError."""
    begun_s = time.monotonic()
    job, run = local_job(path, Overrides(devices=devices, simulate=True))
    if job.measure != ACCURACY:
        what = f"{job.learns}, and an estimate supports only classes"
        fix = f"simulate it on your records: edgeveil run {path} --simulate --reference"
        raise UsageError(what, where=f"{path}: data.schema.label", fix=fix)
    plan = compile_job(job).with_artifacts(read_artifacts(job))
    rehearse(plan, path)
    records = stand_in(job, run)
    test = records.test
    found = Prospect(
        job=job.job,
        devices=run.devices,
        nominal_records=job.data.nominal_records,
        measured_on=records.origin,
        baselines=float(np.bincount(test.y[test.y >= 0]).max() / len(test)),
        privacy=summary_of(plan, len(plan.all_rounds), None)["privacy"],
        notes=price(job).notes,
        round={
            "upload_bytes": plan.upload_bytes,
            "rounds": plan.rounds,
            "preparatory": len(plan.of_method) - plan.rounds,
        },
    )
    with tempfile.TemporaryDirectory(prefix="edgeveil-plan-") as name:
        folder = Path(name)
        whole = _on_drawn(job, run, folder)
        np.savez(folder / "test.npz", x=test.x, y=test.y)
        for seed in range(1, seeds + 1):
            report(f"simulating {run.devices} devices, seed {seed} of {seeds}")
            wanted = run.devices * job.data.nominal_records
            drawn = records.draw(wanted, np.random.default_rng(seed))
            np.savez(folder / "records.npz", x=drawn.x, y=drawn.y)
            options, out = Overrides(seed=seed, simulate=True), folder / f"seed-{seed}"
            # The reference hardly depends on the seed.
            result, failure = play(whole, out, options, reference=seed == 1, report=False)
            if isinstance(failure, KeyboardInterrupt):
                raise failure
            if failure is not None:
                found.failure = str(failure)
                break
            found.accuracies.append(result.accuracy or 0.0)
            found.without_noise = found.without_noise or result.reference_accuracy
    found.seconds = round(time.monotonic() - begun_s, 1)
    found.verdict = verdict(found, plan)
    return found


def _on_drawn(job: Job, run: LocalRun, folder: Path) -> LocalJob:
    given = {name: getattr(job, name) for name in Job.model_fields}
    # The records are already encoded as by the schema.
    given["data"] = job.data.model_copy(update={"schema_": None})
    given["statistics"] = None  # of raw records, which are not made up
    unread = dict.fromkeys(("labels_path", "label_column", "header", "form", "images"))
    files = {"source": "npz", "path": folder / "records.npz", "test_path": folder / "test.npz"}
    changes = {
        "data": run.data.model_copy(update={**unread, **files}),
        "partition": run.partition.model_copy(update={"lq_user": 0.0, "lq_data": 0.0}),
        **dict.fromkeys(("test_records", "test_share", "test_folds")),
    }
    return LocalJob.model_construct(**given, local_run=run.model_copy(update=changes))


class _StandIn(NamedTuple):
    """Public or made-up records: `draw(n, chance)` for devices, `test` to measure models."""

    draw: Callable[[int, np.random.Generator], Records]
    test: Records
    origin: str


def stand_in(job: Job, run: LocalRun) -> _StandIn:
    """Return records of the job's public set if its files are here, else made-up ones."""
    if not is_published(job, run):
        return _made_up(job)
    pool, test = dealt(job, run)[0], held(job, run)
    if not len(pool) or not len(test):
        return _made_up(job)
    spread = 1e-3 * float(pool.x.max(initial=1.0) - pool.x.min(initial=0.0))

    def draw(n: int, chance: np.random.Generator) -> Records:
        chosen = np.resize(chance.permutation(len(pool)), n)
        x = pool.x[chosen]
        if n > len(pool):  # equal records would all be dealt to one device
            x = (x + chance.normal(0, spread, x.shape)).astype(np.float32)
        return Records(x, pool.y[chosen])

    origin = f"the public records of {job.data.source}, repeated for large fleets"
    return _StandIn(draw, Records(test.x[:TEST_RECORDS], test.y[:TEST_RECORDS]), origin)


def _made_up(job: Job) -> _StandIn:
    """Return rows of the schema, or arrays whose classes differ in smooth waves.

    Their noise is such that the nearest class mean is right for MADE_UP_ACCURACY of the records."""
    shape, classes, schema = job.data.input_shape, job.data.classes, job.data.schema_
    table = schema if schema is not None and schema.columns is not None else None
    chance = np.random.default_rng(20)
    if table is None:
        centres = np.stack([_wave(shape, chance) for _ in range(classes)]).reshape(classes, -1)
        centres -= centres.mean(axis=0)
    else:
        centres = chance.normal(size=(classes, math.prod(shape)))
    low, high = input_range(job) or (-1.0, 1.0)
    middle, half = (max(low, 0.0) + high) / 2, (high - max(low, 0.0)) / 2

    def draw(n: int, chance: np.random.Generator, noise: float) -> Records:
        y = chance.integers(0, classes, n).astype(np.int64)
        x = centres[y] + chance.normal(0, noise, (n, centres.shape[1]))
        if table is not None:
            persons = np.arange(n, dtype=np.float32)[:, None] if table.person else None
            return Records(_as_encoded(table, x / noise), y, persons)
        x *= half / (np.abs(centres).max() + 3 * noise)
        values = np.clip(middle + x, middle - half, middle + half).astype(np.float32)
        return Records(values.reshape(n, *shape), y)

    least, most = 1e-3, 1e3
    for _ in range(20):
        noise = math.sqrt(least * most)
        seen, test = (draw(3000, np.random.default_rng(k), noise) for k in (23, 24))
        right = _nearest_mean_accuracy(seen, test)
        least, most = (noise, most) if right > MADE_UP_ACCURACY else (least, noise)
    origin = (
        "made-up records of the job's form, which the nearest class mean classifies with accuracy"
        f" {MADE_UP_ACCURACY:.0%}; your own records may be easier or harder"
    )
    test = draw(TEST_RECORDS, np.random.default_rng(21), least)
    return _StandIn(lambda n, chance: draw(n, chance, least), test, origin)


def _as_encoded(schema: DataSchema, x: NDArray[np.float64]) -> NDArray[np.float32]:
    """Turn normal draws (n, width) into rows encoded by a schema; changes `x`.

    Numbers stay in their range; the largest draw of each category or bin becomes 1. A text has few
    counts of ±1, tokens are spread over their ids."""
    at, rows = 0, 1 if schema.windows is None else schema.windows.length
    for column in rows * [one for one in schema.columns or () for _ in one.names]:
        width = column.width
        place = x[:, at : at + width]
        at += width
        if column.text is not None:
            place[:] = np.where(np.abs(place) > _RARE, np.sign(place), 0) / column.text.cap
        elif column.tokens is not None:
            place[:] = np.clip((place + 4) / 8, 0, 1) * (column.tokens.size - 1)
            np.rint(place, out=place)
        elif width == 1 or column.date:
            np.clip(place / 4, -1, 1, out=place)
        else:
            place[:] = place.argmax(axis=1)[:, None] == np.arange(width)
    return x.astype(np.float32).reshape(len(x), *schema.input_shape)


def _nearest_mean_accuracy(seen: Records, test: Records) -> float:
    x, tested = (one.x.reshape(len(one), -1).astype(np.float64) for one in (seen, test))
    means = np.stack([x[seen.y == k].mean(axis=0) for k in range(int(seen.y.max()) + 1)])
    scores = tested @ means.T - np.square(means).sum(axis=1) / 2
    return float(np.mean(scores.argmax(axis=1) == test.y))


def _wave(shape: Sequence[int], chance: np.random.Generator) -> NDArray[np.float64]:
    found = np.ones(())
    for size in shape:
        at = (np.arange(size) + 0.5) / size
        waves = np.cos(np.pi * np.outer(np.arange(_SMOOTH), at))
        found = np.multiply.outer(found, chance.normal(size=_SMOOTH) @ waves)
    return np.asarray(found / np.sqrt(np.mean(np.square(found)) + 1e-12), np.float64)


def verdict(found: Prospect, plan: Plan) -> list[str]:
    if found.failure:
        return [f"The job fails in simulation: {found.failure}"]
    gain, epsilon = found.gain, plan.job.privacy.epsilon
    at = f" at ε = {epsilon:g}" if epsilon is not None and plan.adds_noise else ""
    reached = (
        f"{found.devices:,} devices of {found.nominal_records} records{at} reach"
        f" {_text(found.mean)}, where guessing is {_text(found.baselines)}"
    )
    if gain is None:
        return [f"{reached}."]
    share = f"{max(gain, 0.0):.0%} of the gain without noise"
    lines = [f"{reached} and learning without noise {_text(found.without_noise)}: {share}."]
    if gain >= USEFUL:
        return lines
    local = plan.job.privacy.noise == "local"
    helps = ["shared noise (privacy.noise: shared, aggregation.secure: true)"] * local
    helps += ["more devices (--devices N)", "fewer rounds or features"]
    helps += ["more records a device (data.nominal_records)", "a larger ε"]
    return [*lines, f"What helps: {', '.join(helps)}."]


def prospect_lines(found: Prospect) -> Iterator[str]:
    yield from ("", *found.verdict, "")
    for name, words in guarantee_lines(found.privacy):
        yield f"{name:<16} {words}"
    for note in found.notes:
        yield f"  note: {note}"
    if found.accuracies:
        low, high = min(found.accuracies), max(found.accuracies)
        between = f"  ({_text(low)} to {_text(high)})" if low < high else ""
        yield f"Accuracy, on {found.measured_on}"
        yield f"  guessing            {_text(found.baselines)}"
        yield f"  {found.devices:>7,} devices     {_text(found.mean)}{between}"
        yield f"  without noise       {_text(found.without_noise)}"
    traffic = found.round
    yield (
        f"{traffic['rounds']:.0f} rounds after {traffic['preparatory']:.0f} preparation rounds;"
        f" at most {byte_text(traffic['upload_bytes'])} per upload"
    )
    took = seconds_text(round(found.seconds))
    yield f"Simulated in {took}, without spending budget."


def _text(accuracy: float | None) -> str:
    return leading_text(ACCURACY, accuracy)
