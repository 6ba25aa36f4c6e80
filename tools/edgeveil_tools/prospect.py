"""`edgeveil check JOB --estimate`: what a job can come to, before it costs anybody anything.

Its price, what its noise leaves of a round's signal, the accuracy that simulations reach, the fleet
from which on it is of use, and what a round takes. All of it on records that are public, or made
up where the job's own are not: no device is asked, and no owner's record is read.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.data.schema import Column, DataSchema, Label
from edgeveil.data.target import TargetRange
from edgeveil.errors import ConfigError, EdgeVeilError, UsageError
from edgeveil.evaluation.figures import (
    ACCURACY,
    RMSE,
    leading_text,
    regression_figures,
    spread_of,
)
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs import Job, Plan, compile_job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.parts.exchange import TRAIN
from edgeveil.privacy.guarantee import guarantee_lines
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil.units import byte_text, seconds_text
from edgeveil_cloud.round_report import file_name, summary_of
from edgeveil_tools.checks import price, rehearse
from edgeveil_tools.local.data import dealt, held, input_range, is_published
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import LocalJob, LocalRun
from edgeveil_tools.local.reference import has_reference
from edgeveil_tools.local.run import play
from edgeveil_tools.result import Result

USEFUL = 0.8  # of what learning without noise gains over guessing
WORTH_A_LOOK = 0.02  # accuracy gained by twice as many devices; of RMSE, the share of guessing's
LARGEST_FLEET = 2560  # devices that are simulated
LARGEST_POOL = 400_000  # records of all of them
WITHIN_S = 60.0  # a larger fleet is simulated only before so long
TEST_RECORDS = 2000
MADE_UP_ACCURACY = 0.9  # of the best classifier of made-up records
MADE_UP_R2 = 0.6  # of the variance of a made-up number, what the best model explains
_TO_THE_END = 3  # deviations of a made-up number from the middle to an end of its range
_SMOOTH = 4  # made-up classes differ in waves of at most so many halves along each axis


@dataclass(frozen=True)
class FleetOutcome:
    """What a fleet of `devices` learned: the accuracy of each seed, on records of nobody; the RMSE
    where the label is a number."""

    devices: int
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of all seeds."""
        return float(np.mean(self.accuracies))


@dataclass(frozen=True)
class SignalAndNoise:
    """Root mean square of a coordinate of the first round's mean update: what learning put there,
    and the noise beside it. `uploads` are in the mean; `unit`: that of integers."""

    signal: float
    noise: float
    uploads: int
    unit: str = ""

    @property
    def ratio(self) -> float:
        """Signal by noise; infinite without noise."""
        return self.signal / self.noise if self.noise else math.inf


@dataclass
class Prospect:
    """All that is known before a job runs; `gain` of an accuracy is its share of what learning
    without noise gains over guessing, None where that is not known. Accuracies are of the
    `measure`: where that is RMSE, less is better, and guessing is saying the mean."""

    job: str
    measure: str
    devices: int
    nominal_records: int
    measured_on: str
    guessing: float
    without_noise: float | None
    fleets: list[FleetOutcome]
    round_one: SignalAndNoise | None
    privacy: Mapping[str, Any]
    notes: Sequence[str]
    traffic: Mapping[str, float]
    failure: str = ""
    stopped: str = ""  # why no larger fleet can play the job as it is
    seconds: float = 0.0
    verdict: list[str] = field(default_factory=list)

    def gain(self, accuracy: float) -> float | None:
        """See above."""
        best = self.without_noise
        if best is None or self.above_guessing(best) <= 0:
            return None
        return self.above_guessing(accuracy) / self.above_guessing(best)

    def above_guessing(self, accuracy: float) -> float:
        """How much better than guessing; of RMSE as a share of guessing's."""
        if self.measure == ACCURACY:
            return accuracy - self.guessing
        return 1 - accuracy / self.guessing

    def text(self, accuracy: float | None) -> str:
        """Of an accuracy or RMSE."""
        return leading_text(self.measure, accuracy)

    @property
    def may_improve(self) -> bool:
        """Whether a larger fleet is worth a look: until one is of use; where that is not known,
        while each does better than the one before."""
        if self.without_noise is not None:
            return self.useful_from is None
        *before, last = self.fleets
        reached = self.above_guessing(last.mean)
        return not before or reached >= self.above_guessing(before[-1].mean) + WORTH_A_LOOK

    @property
    def useful_from(self) -> int | None:
        """The smallest simulated fleet that is of use; None where none was."""
        for one in self.fleets:
            gain = self.gain(one.mean)
            if gain is not None and gain >= USEFUL:
                return one.devices
        return None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        signal = self.round_one
        return {
            "job": self.job,
            "devices": self.devices,
            "nominal_records": self.nominal_records,
            "privacy": dict(self.privacy),
            "notes": list(self.notes),
            "measure": self.measure,
            "measured_on": self.measured_on,
            "guessing": self.guessing,
            "without_noise": self.without_noise,
            "fleets": [
                {
                    "devices": one.devices,
                    "accuracies": list(one.accuracies),
                    "gain": self.gain(one.mean),
                }
                for one in self.fleets
            ],
            "useful_from_devices": self.useful_from,
            "round_one": signal
            and {"signal": signal.signal, "noise": signal.noise, "uploads": signal.uploads},
            "round": dict(self.traffic),
            "failure": self.failure,
            "stopped": self.stopped,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
        }


def prospect(
    path: Path,
    say: Callable[[str], None],
    *,
    devices: int | None = None,
    seeds: int = 3,
    larger: bool = True,
) -> Prospect:
    """Simulate the job of the file `path` on public or made-up records, with each seed.

    `devices` of the fleet, None: those of its local_run; `larger`: fleets of growing size too, to
    find from which on the job is of use. Raises ConfigError, UsageError or DataError for a job
    that cannot be played.
    """
    begun_s = time.monotonic()
    job, run = local_job(path, Overrides(devices=devices, simulate=True))
    if job.measure not in (ACCURACY, RMSE):
        raise UsageError(
            f"{job.learns}, and records are made up for classes and numbers alone",
            where=f"{path}: data.schema.label",
            fix=f"see what it comes to: edgeveil run {path} --simulate --reference",
        )
    plan = compile_job(job).with_artifacts(read_artifacts(job))
    rehearse(plan, path)
    records = stand_in(job, run)
    fleets = FleetsOnPaper(job, run, records)
    with tempfile.TemporaryDirectory(prefix="edgeveil-plan-") as folder:
        base: list[float] = []
        first: Result | None = None
        failure = ""
        signal = None
        for seed in range(1, seeds + 1):
            say(f"simulating {run.devices} devices, seed {seed} of {seeds}")
            out = Path(folder) / f"base-{seed}"
            played = fleets.play(run.devices, seed, out, record=seed == 1)
            if played is None:
                failure = fleets.failure
                break
            result, accuracy = played
            base.append(accuracy)
            if first is None:
                first = result
                signal = signal_and_noise(plan, out / "recording", result)
        ceiling = fleets.without_noise(Path(folder) / "free", say) if not failure else None
        found = Prospect(
            job=job.job,
            measure=job.measure,
            devices=run.devices,
            nominal_records=job.data.nominal_records,
            measured_on=records.told,
            guessing=records.guessing,
            without_noise=ceiling,
            fleets=[FleetOutcome(run.devices, tuple(base))] if base else [],
            round_one=signal,
            privacy=summary_of(plan, len(plan.exchanges), None)["privacy"],
            notes=price(job).notes,
            traffic=_traffic(plan, first),
            failure=failure,
        )
        if larger and base:
            for more in _sizes(run.devices, job.data.nominal_records):
                if time.monotonic() - begun_s > WITHIN_S or not found.may_improve:
                    break
                say(f"simulating {more:,} devices")
                played = fleets.play(more, 1, Path(folder) / f"of-{more}")
                if played is None:
                    found.stopped = f"{more:,} devices: {fleets.failure}"
                    break
                found.fleets.append(FleetOutcome(more, (played[1],)))
    found.seconds = time.monotonic() - begun_s
    found.verdict = verdict(found, plan)
    return found


# --- records of nobody ---


@dataclass(frozen=True)
class StandIn:
    """Records that may be looked at: public ones, or such as are made up. `draw(n, chance)` gives n
    to deal to devices, `test` is what models are measured on. With a `target` labels are numbers of
    its range."""

    draw: Callable[[int, np.random.Generator], Records]
    test: Records
    told: str
    target: TargetRange | None = None

    @property
    def guessing(self) -> float:
        """Accuracy of always saying the commonest class of the test; RMSE of saying its mean."""
        if self.target is not None:
            return spread_of(self.test.y, self.target) or 0.0
        counts = np.bincount(self.test.y[self.test.y >= 0])
        return float(counts.max() / len(self.test.y))


def stand_in(job: Job, run: LocalRun) -> StandIn:
    """Those of the public set that the job names, where its files are here; else made-up ones."""
    if is_published(job, run):
        pool, test = dealt(job, run)[0], held(job, run)
        if len(pool) and len(test):
            return _of_public(job, pool, test)
    schema = job.data.schema_
    if schema is not None and schema.columns is not None:
        return _made_up_table(schema) if schema.target is None else _made_up_numbers(schema)
    return _made_up(job)


def _of_public(job: Job, pool: Records, test: Records) -> StandIn:
    spread = 1e-3 * float(pool.x.max(initial=1.0) - pool.x.min(initial=0.0))

    def draw(n: int, chance: np.random.Generator) -> Records:
        if n <= len(pool):
            chosen = chance.permutation(len(pool))[:n]
            return Records(pool.x[chosen], pool.y[chosen])
        chosen = chance.integers(0, len(pool), n)
        # Equal records would all be dealt to one device.
        moved = pool.x[chosen] + chance.normal(0, spread, (n, *pool.x.shape[1:]))
        return Records(moved.astype(np.float32), pool.y[chosen])

    part = slice(0, TEST_RECORDS)
    told = f"the public records of {job.data.source}, drawn again and again for large fleets"
    return StandIn(draw, Records(test.x[part], test.y[part]), told)


def _made_up(job: Job) -> StandIn:
    """Classes that differ in smooth waves, so far apart that the best classifier is right for
    MADE_UP_ACCURACY of the records; the waves are the same each time."""
    shape, classes = job.data.input_shape, job.data.classes
    low, high = input_range(job) or (-1.0, 1.0)
    chance = np.random.default_rng(20)
    centres = np.stack([_wave(shape, chance) for _ in range(classes)]).reshape(classes, -1)
    centres -= centres.mean(axis=0)
    noise = _overlap(centres, chance)
    middle, half = (max(low, 0.0) + high) / 2, (high - max(low, 0.0)) / 2
    scale = half / (np.abs(centres).max() + 3 * noise)

    def draw(n: int, chance: np.random.Generator) -> Records:
        y = chance.integers(0, classes, n)
        x = centres[y] + chance.normal(0, noise, (n, centres.shape[1]))
        values = np.clip(middle + scale * x, middle - half, middle + half)
        return Records(values.reshape(n, *shape).astype(np.float32), y.astype(np.int64))

    told = (
        f"made-up records of the job's form, which a perfect model gets right for"
        f" {MADE_UP_ACCURACY:.0%}: your own may be easier or harder"
    )
    return StandIn(draw, draw(TEST_RECORDS, np.random.default_rng(21)), told)


def _made_up_table(schema: DataSchema) -> StandIn:
    """Rows as the schema encodes them: numbers and categories that depend on the class, so much
    that a linear model is right for about MADE_UP_ACCURACY of the records."""
    width = math.prod(schema.input_shape)
    centres = np.random.default_rng(22).normal(size=(schema.classes, width))

    def draw(n: int, chance: np.random.Generator, noise: float) -> Records:
        y = chance.integers(0, schema.classes, n)
        rows = _as_encoded(schema, centres[y] / noise + chance.normal(size=(n, width)))
        return Records(rows, y.astype(np.int64))

    low, high = 0.05, 100.0
    for _ in range(14):
        noise = math.sqrt(low * high)
        right = _linear_accuracy(*(draw(3000, np.random.default_rng(k), noise) for k in (23, 24)))
        low, high = (noise, high) if right > MADE_UP_ACCURACY else (low, noise)
    told = (
        f"made-up rows of the job's schema, which a linear model gets right for about"
        f" {MADE_UP_ACCURACY:.0%}: your own may be easier or harder"
    )
    test = draw(TEST_RECORDS, np.random.default_rng(21), low)
    return StandIn(lambda n, chance: draw(n, chance, low), test, told)


def _made_up_numbers(schema: DataSchema) -> StandIn:
    """Rows as the schema encodes them, and a number that is their weighted sum and noise: so much
    that nothing explains more than MADE_UP_R2 of its variance."""
    target = schema.target
    if target is None:
        raise ValueError("the schema's label is no number")
    width = math.prod(schema.input_shape)
    weights = np.random.default_rng(22).normal(size=width)
    many = _as_encoded(schema, np.random.default_rng(23).normal(size=(TEST_RECORDS, width)))
    middle, spread = float(np.mean(many @ weights)), float(np.std(many @ weights))
    deviation = target.half / _TO_THE_END

    def draw(n: int, chance: np.random.Generator) -> Records:
        x = _as_encoded(schema, chance.normal(size=(n, width)))
        told = (x @ weights - middle) / spread * math.sqrt(MADE_UP_R2)
        told += chance.normal(0, math.sqrt(1 - MADE_UP_R2), n)
        labels = [target.label(value) for value in target.middle + deviation * told]
        return Records(x, np.array(labels, np.int64))

    text = (
        "made-up rows of the job's schema, whose label a perfect model, a linear one, explains to"
        f" {MADE_UP_R2:.0%}, {_TO_THE_END} deviations from the middle to the ends of its range:"
        " your own may be easier or harder"
    )
    return StandIn(draw, draw(TEST_RECORDS, np.random.default_rng(21)), text, target)


def _as_encoded(schema: DataSchema, x: NDArray[np.float64]) -> NDArray[np.float32]:
    """Normal draws (n, width) as what a schema makes of rows; changes x. Numbers stay within their
    range, of each category or bin the place with the largest draw is 1."""
    at = 0
    for width in (one.width for one in schema.columns or () for _ in one.names):
        place = x[:, at : at + width]
        at += width
        if width == 1:
            np.clip(place / 4, -1, 1, out=place)
        else:
            place[:] = place.argmax(axis=1)[:, None] == np.arange(width)
    return x.astype(np.float32)


def _linear_accuracy(training: Records, test: Records) -> float:
    """Of least squares on the classes, on other records than it has seen."""
    rows = [np.hstack([one.x, np.ones((len(one), 1), np.float32)]) for one in (training, test)]
    wanted = np.eye(int(training.y.max()) + 1)[training.y]
    weights = np.linalg.lstsq(rows[0].astype(np.float64), wanted, rcond=None)[0]
    return float(np.mean((rows[1] @ weights).argmax(axis=1) == test.y))


def _wave(shape: Sequence[int], chance: np.random.Generator) -> NDArray[np.float64]:
    """One smooth function on a grid of this shape."""
    found = np.ones(())
    for size in shape:
        at = (np.arange(size) + 0.5) / size
        waves = np.cos(np.pi * np.outer(np.arange(_SMOOTH), at))
        found = np.multiply.outer(found, chance.normal(size=_SMOOTH) @ waves)
    return np.asarray(found / np.sqrt(np.mean(np.square(found)) + 1e-12), np.float64)


def _overlap(centres: NDArray[np.float64], chance: np.random.Generator) -> float:
    """The deviation of white noise with which the nearest centre is right so often, by bisection on
    one draw."""
    n = 1500
    y = chance.integers(0, len(centres), n)
    drawn = chance.normal(size=(n, centres.shape[1]))
    across = centres @ centres.T
    along = drawn @ centres.T
    norms = np.diagonal(across)
    low, high = 1e-3, 1e3
    for _ in range(40):
        noise = math.sqrt(low * high)
        scores = across[y] + noise * along - norms / 2
        right = float(np.mean(scores.argmax(axis=1) == y))
        low, high = (noise, high) if right > MADE_UP_ACCURACY else (low, noise)
    return low


# --- simulations ---


class FleetsOnPaper:
    """The job, played by fleets of any size on stand-in records."""

    def __init__(self, job: Job, run: LocalRun, records: StandIn) -> None:
        self._job, self._run, self._records = job, run, records
        self.failure = ""

    def play(
        self, devices: int, seed: int, out: Path, *, record: bool = False, reference: bool = False
    ) -> tuple[Result, float] | None:
        """One simulation and the accuracy or RMSE of its model; None where the job did not
        complete."""
        out.mkdir(parents=True)
        wanted = devices * self._job.data.nominal_records
        drawn = self._records.draw(wanted, np.random.default_rng(seed))
        share = 0.2 if reference else 0.0
        path = self._written(drawn, out)
        try:
            played = play(
                self._of_size(devices, path, share),
                out,
                Overrides(devices=devices, seed=seed, simulate=True),
                reference=reference,
                record=record,
                report=False,
            )
        except ConfigError as error:  # a limit that a fleet of this size passes
            self.failure = "; ".join(error.problems)
            return None
        path.unlink()
        if isinstance(played.failure, KeyboardInterrupt):
            raise played.failure
        if played.failure is not None:
            self.failure = str(played.failure)
            return None
        return played.result, self._accuracy(played.result.model)

    def without_noise(self, out: Path, say: Callable[[str], None]) -> float | None:
        """What the same features and rounds come to without noise; None where no reference can be
        trained for the job's method."""
        if not has_reference(self._job):
            return None
        say("learning without noise, to compare with")
        devices = self._run.devices
        if self._job.privacy.noise == "local":  # from more records: what there is to be learned
            devices = max(devices, min(200, 20_000 // self._job.data.nominal_records))
        played = self.play(devices, 1, out, reference=True)
        if played is None:
            return None
        result = played[0]
        return result.reference_accuracy if self._records.target is None else result.reference_rmse

    def _written(self, drawn: Records, out: Path) -> Path:
        """The records' file: only a table by a schema has labels that are numbers."""
        target = self._records.target
        if target is None:
            path = out / "records.npz"
            np.savez(path, x=drawn.x, y=drawn.y)
            return path
        path = out / "records.csv"
        table = np.column_stack([drawn.x, target.values(drawn.y)])
        names = ",".join([*_place_names(drawn.x.shape[1]), _LABEL])
        np.savetxt(path, table, "%.9g", ",", header=names, comments="")
        return path

    def _of_size(self, devices: int, path: Path, test_share: float) -> LocalJob:
        """The same job for a fleet of this size on the records of a file."""
        times = devices / self._run.devices
        job, run = self._job, self._run
        selection, closing = job.selection, job.round
        if isinstance(selection.devices, int):
            wanted = max(1, round(selection.devices * times))
            selection = selection.model_copy(update={"devices": wanted})
        if job.privacy.noise == "shared":  # each device's part follows from the least sum
            least = max(1, round(closing.min_batch * times))
            closing = closing.model_copy(update={"min_batch": least})
        files = run.data.model_copy(
            update={
                **dict.fromkeys(("labels_path", "label_column", "header", "images", "test_path")),
                "source": path.suffix[1:],
                "path": path,
            }
        )
        partition = run.partition.model_copy(update={"lq_user": 0.0, "lq_data": 0.0})
        local = run.model_copy(
            update={
                "data": files,
                "partition": partition,
                "devices": devices,
                "test_records": None,
                "test_share": test_share,
                "test_folds": None,
                "simulate": True,
            }
        )
        given = {name: getattr(job, name) for name in Job.model_fields}
        # The records are numbers already, as the schema would make them.
        target = self._records.target
        plain = None if target is None else _schema_of_numbers(job.data.input_shape, target)
        given["data"] = job.data.model_copy(update={"schema_": plain})
        given |= {"selection": selection, "round": closing, "local_run": local}
        return LocalJob.model_construct(**given)

    def _accuracy(self, model: Path) -> float:
        test, target = self._records.test, self._records.target
        found = OnnxModel(model.read_bytes()).answers(test.x, {})
        if target is not None:
            return float(regression_figures(found[:, 0], test.y, target)["rmse"])
        return float(np.mean(np.argmax(found, axis=1) == test.y))


_LABEL = "label"
_IN_ONE_LIST = 4096  # names, at most, of columns that are read alike


def _place_names(width: int) -> list[str]:
    return [f"v{at}" for at in range(width)]


def _schema_of_numbers(shape: Sequence[int], target: TargetRange) -> DataSchema:
    """What reads records of this shape that are in [-1, 1] already as they are."""
    names = _place_names(math.prod(shape))
    columns = [
        Column(name=tuple(names[at : at + _IN_ONE_LIST]), number=(-1.0, 1.0))
        for at in range(0, len(names), _IN_ONE_LIST)
    ]
    label = Label(column=_LABEL, number=(target.low, target.high))
    return DataSchema(origin="public", label=label, columns=tuple(columns))


def _sizes(devices: int, nominal_records: int) -> Iterator[int]:
    """Twice as many, and twice as many again."""
    while (devices := devices * 2) <= LARGEST_FLEET:
        if devices * nominal_records > LARGEST_POOL:
            return
        yield devices


def signal_and_noise(plan: Plan, recording: Path, result: Result) -> SignalAndNoise | None:
    """Of the first training round, from what its cloud saw: the noise is that of a device without
    records, which by every method's law sends nothing else. None where nothing was trained."""
    exchange = next((one for one in plan.exchanges if one.phase == TRAIN), None)
    if exchange is None or not result.rounds:
        return None
    uploads = int(result.rounds[0]["uploads"])
    sent = unpack_tensors((recording / file_name(exchange, "broadcast")).read_bytes())
    rows = unpack_tensors((recording / file_name(exchange, "uploads")).read_bytes())
    nothing = Records(np.zeros((0, *plan.job.data.input_shape), np.float32), np.zeros(0, np.int64))
    try:
        empty = plan.device.answer(exchange, sent, nothing, SeededRandom(1), "cpu").segments
    except EdgeVeilError:
        return None  # a method that answers only after answers of its own
    noise, total, count = 0.0, 0.0, 0
    for name, of_nothing in empty.items():
        given = [array for row, array in rows.items() if row.rpartition("/")[0] == name]
        if not given:
            continue
        mean = np.sum([array.astype(np.float64) for array in given], axis=0) / uploads
        noise += float(np.square(of_nothing.astype(np.float64)).sum()) / uploads
        total += float(np.square(mean).sum())
        count += mean.size
    if not count:
        return None
    signal = math.sqrt(max(0.0, total - noise) / count)
    whole = all(array.dtype.kind == "i" for array in empty.values())
    return SignalAndNoise(signal, math.sqrt(noise / count), uploads, " grid steps" if whole else "")


# --- what is said of it ---


def verdict(found: Prospect, plan: Plan) -> list[str]:
    """The sentences that a person should read before the job is submitted."""
    if found.failure:
        return [f"The job does not come to its end even in a simulation: {found.failure}"]
    if not found.fleets:
        return []
    base = found.fleets[0]
    gain = found.gain(base.mean)
    epsilon = plan.job.privacy.epsilon
    who = f"{base.devices:,} devices of {found.nominal_records} records"
    at = f" at ε = {epsilon:g}" if epsilon is not None and plan.adds_noise else ""
    reached, guessing = found.text(base.mean), found.text(found.guessing)
    guess = "guessing"
    if found.measure == RMSE:
        reached, guess = f"RMSE {reached}", "saying the mean"
    if gain is None:
        if found.above_guessing(base.mean) <= WORTH_A_LOOK:
            return [f"{who}{at} learn nothing: {reached}, {guess} {guessing}."]
        return [f"{who}{at} reach {reached}; {guess} is {guessing}."]
    level = next(word for least, word in _LEVELS if gain >= least)
    lines = [
        f"{who}{at} learn {level}: {reached}, where {guess} is {guessing} and the"
        f" same without noise {found.text(found.without_noise)}."
    ]
    useful, largest = found.useful_from, found.fleets[-1]
    if gain < USEFUL and useful is not None:
        lines.append(f"From about {useful:,} devices on it is of use ({found.text(largest.mean)}).")
    elif gain < USEFUL and len(found.fleets) > 1:
        lines.append(
            f"Even {largest.devices:,} devices reach {found.text(largest.mean)} and no more;"
            " no larger fleet was simulated."
        )
    if gain < USEFUL:
        lines += _advice(plan)
    return lines


_LEVELS = (
    (0.95, "nearly all there is"),
    (USEFUL, "most of what there is"),
    (0.5, "about half of what there is, or more"),
    (0.2, "little"),
    (math.ulp(0.0), "next to nothing"),
    (-math.inf, "nothing"),
)


def _advice(plan: Plan) -> list[str]:
    """What makes noise smaller beside the signal, as far as this job does not do it yet."""
    job, found = plan.job, []
    if job.privacy.noise == "local":
        found.append("shared noise (privacy.noise: shared, aggregation.secure: true)")
    found += ["fewer rounds or features", "more records a device (data.nominal_records)"]
    if job.privacy.epsilon is not None:
        found.append("a larger ε")
    return [f"What helps: {', '.join(found)}."]


def prospect_lines(found: Prospect) -> Iterator[str]:
    """All of it in lines."""
    yield ""
    yield from found.verdict
    yield ""
    for name, words in guarantee_lines(found.privacy):
        yield f"{name:<16} {words}"
    for note in found.notes:
        yield f"  note: {note}"
    one = found.round_one
    if one is not None:
        yield "Noise against signal, round 1, root mean square of a coordinate"
        seen = f"{one.signal:.3g}{one.unit}" if one.signal else "too small to be told from it"
        ratio = f" (signal / noise {one.ratio:.2g})" if one.noise and one.signal else ""
        noise = f"{one.noise:.3g}{one.unit}"
        yield f"  the mean of {one.uploads} uploads: noise {noise}, signal {seen}{ratio}"
    if found.fleets:
        numbers = found.measure == RMSE
        yield f"{'RMSE' if numbers else 'Accuracy'}, on {found.measured_on}"
        guess = "saying the mean" if numbers else "guessing"
        yield f"  {guess:<18}  {found.text(found.guessing)}"
        for of in found.fleets:
            low, high = min(of.accuracies), max(of.accuracies)
            between = f"  ({found.text(low)} to {found.text(high)})" if low < high else ""
            band = found.text(of.mean) + between
            gain = found.gain(of.mean)
            bar = "" if gain is None else "  " + "█" * round(20 * min(1.0, max(0.0, gain)))
            yield f"  {of.devices:>7,} devices     {band}{bar}"
        yield f"  without noise       {found.text(found.without_noise)}"
        if found.stopped:
            yield f"  not larger: {found.stopped}"
    traffic = found.traffic
    yield "A round"
    yield (
        f"  the cloud sends out {byte_text(traffic['cloud_out_bytes'])}, each device uploads"
        f" {byte_text(traffic['upload_bytes'])},"
        f" the cloud takes in {byte_text(traffic['cloud_in_bytes'])}"
    )
    yield (
        f"  {traffic['rounds']:.0f} rounds after {traffic['preparatory']:.0f} preparatory ones;"
        f" answers leave {traffic['budget_s']:g} s after the package, a round closes at the latest"
        f" {traffic['deadline_s']:g} s after its broadcast"
    )
    took = seconds_text(round(found.seconds))
    yield f"Simulated in {took}; nothing was spent, no device was asked."


def _traffic(plan: Plan, result: Result | None) -> dict[str, float]:
    """Bytes of the largest exchange, and the job's own times."""
    rows = [] if result is None else [*result.content["phases"], *result.content["rounds"]]
    uploads = max((row["uploads"] for row in rows), default=0)
    sent = max((row["bytes"].get("cloud_out", 0) for row in rows), default=0)
    return {
        "cloud_out_bytes": sent,
        "upload_bytes": plan.upload_bytes,
        "cloud_in_bytes": plan.upload_bytes * uploads,
        "rounds": plan.rounds,
        "preparatory": len(plan.of_method) - plan.rounds,
        "budget_s": plan.job.round.time_budget_s,
        "deadline_s": plan.job.round.deadline_s,
    }
