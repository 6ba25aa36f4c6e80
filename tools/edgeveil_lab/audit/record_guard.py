"""Remove each record from a file and compute exactly how far the device releases move.

Loader, partitioning and device halves are real. The change of each exact sum and row over the noise
scale is the true μ or ε of the fleet's answers; it must not exceed the job's printed guarantee."""

from __future__ import annotations

import csv
import json
import math
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml
from numpy.typing import NDArray

from edgeveil.config.data import DataSource, Partition
from edgeveil.data.public_order import hold_back
from edgeveil.data.records import Records
from edgeveil.data.split import sample_slots
from edgeveil.errors import PrivacyError
from edgeveil.evaluation.cluster_sums import ONE, STEP_BITS, ClusterSums
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.jobs import parse_plan
from edgeveil.parts import own_records as device
from edgeveil.parts.methods.fm import FmDevice
from edgeveil.parts.own_records import device_records, of_shape
from edgeveil.parts.partitions import PARTITIONS, Shares
from edgeveil.parts.partitions.dealing import disturbed, partition
from edgeveil.parts.round import TRAIN, PlannedRound, Tensors
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import Event, GaussianEvent, LaplaceEvent
from edgeveil.privacy.gaussian_mechanism import counts_event, diagonal_of_triangle
from edgeveil.privacy.grid import Int64
from edgeveil.privacy.laplace_mechanism import SOFTMAX_BITS, scale_of
from edgeveil_lab.audit.guards import AttackOutcome, Guard
from edgeveil_lab.audit.mechanism_attacks import gaussian_law

# --- files of every supported format ---

RECORDS, CLASSES, SIDE, SEED = 60, 3, 4, 7
PYTHON_MODULE = "edgeveil_audit_records"


@dataclass(frozen=True)
class RecordTable:
    """Records before any file format: x (n, side, side) in 0..255, NaN if missing; y (n,)."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]

    def without(self, index: int | None) -> RecordTable:
        gone = [] if index is None else [index]
        return RecordTable(np.delete(self.x, gone, axis=0), np.delete(self.y, gone))


def made_up(count: int = RECORDS) -> RecordTable:
    """Return random images: three equal, one of these of another class, and one broken."""
    chance = np.random.default_rng(SEED)
    x = chance.integers(0, 256, (count, SIDE, SIDE)).astype(np.float64)
    y = np.arange(count) % (CLASSES - 1)
    x[2], x[3], x[5, 0, 0], y[7] = x[0], x[0], math.nan, CLASSES - 1
    return RecordTable(x, y)


def _npz(place: Path, table: RecordTable) -> dict[str, Any]:
    np.savez(f"{place}.npz", x=table.x, y=table.y)
    return {"source": "npz", "path": f"{place}.npz"}


def _columns(table: RecordTable) -> dict[str, list[int | None]]:
    flat = table.x.reshape(len(table.x), SIDE * SIDE).T
    pixels = [[None if math.isnan(v) else int(v) for v in column] for column in flat]
    return {**{f"v{k}": column for k, column in enumerate(pixels)}, "label": table.y.tolist()}


def _csv(place: Path, table: RecordTable) -> dict[str, Any]:
    columns = _columns(table)
    with Path(f"{place}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return {"source": "csv", "path": f"{place}.csv", "header": True}


def _parquet(place: Path, table: RecordTable) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(_columns(table)), f"{place}.parquet")
    return {"source": "parquet", "path": f"{place}.parquet"}


def _hf(place: Path, table: RecordTable) -> dict[str, Any]:
    import pyarrow as pa

    place.mkdir(parents=True)
    found = pa.table(_columns(table))
    with pa.ipc.new_stream(str(place / "data.arrow"), found.schema) as stream:
        stream.write_table(found)
    (place / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    return {"source": "hf", "path": str(place)}


def _idx(place: Path, table: RecordTable) -> dict[str, Any]:
    for name, array in (("x", np.nan_to_num(table.x)), ("y", table.y)):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        Path(f"{place}.{name}").write_bytes(header + array.astype(np.uint8).tobytes())
    return {"source": "idx", "path": f"{place}.x", "labels_path": f"{place}.y"}


def _images(place: Path, table: RecordTable) -> dict[str, Any]:
    from PIL import Image

    names = [f"class-{label}" for label in range(CLASSES)]
    for name in names:
        (place / name).mkdir(parents=True)
    for number, (values, label) in enumerate(zip(table.x, table.y, strict=True)):
        file = place / names[label] / f"{number:03}.png"
        if np.isnan(values).any():
            file.write_bytes(b"no picture")
        else:
            Image.fromarray(values.astype(np.uint8)).save(file)
    images = {"size": [SIDE, SIDE], "classes": names}
    return {"source": "images", "path": str(place), "images": images}


def _python(place: Path, table: RecordTable) -> dict[str, Any]:
    _npz(place, table)
    code = (
        "from functools import partial\nfrom pathlib import Path\nimport numpy as np\n"
        "def read(name):\n    file = np.load(Path(__file__).with_name(name + '.npz'))\n"
        "    return file['x'], file['y']\n"
        "def __getattr__(name):\n    return partial(read, name)\n"
    )
    place.with_name(f"{PYTHON_MODULE}.py").write_text(code)
    return {"source": f"python: {PYTHON_MODULE}:{place.name}"}


FORMS: Mapping[str, Callable[[Path, RecordTable], dict[str, Any]]] = {
    "npz": _npz,
    "hf": _hf,
    "csv": _csv,
    "parquet": _parquet,
    "idx": _idx,
    "images": _images,
    "python": _python,
}
"""By `data.source`: writes a table at or under a path; returns the site file's `data` block."""


REMOVED, REMOVED_QUICK, DEVICES = 50, 4, 4
DELTA = 1e-5
EVALUATION_SHARE, TEST_SHARE = 0.3, 0.2
_POOR = {"kind": "iid", "lq_user": 0.5, "lq_data": 0.5, "lq_range": [0.0, 255.0]}
_DEALINGS: list[dict[str, Any]] = [*({"kind": kind} for kind in PARTITIONS.names()), _POOR]


@dataclass(frozen=True)
class _FleetAnswers:
    held: Counter[tuple[Any, ...]]  # (device, half, record) of each record
    sums: tuple[tuple[Int64, ...], ...]  # by round and device, in steps
    rows: NDArray[np.float64]  # (devices, slots, classes) of one per-sample upload
    clusters: tuple[Int64, ...]  # sums by cluster of each device, in steps


class _DealtFleet:
    def __init__(self, shape: Sequence[int], noise: str) -> None:
        projection = {"name": "ldp_fpca", "keep": 0.4, "noise": "gaussian"}
        plain = {
            "job": "audit-records",
            "data": {"source": "own", "classes": CLASSES, "input_shape": list(shape)}
            | {"nominal_records": 15, "evaluation_share": EVALUATION_SHARE},
            "features": [{"name": "identity", "input_scale": 255, "shift": -0.5}]
            + [projection] * (noise == "gaussian"),
            "train": {"method": "fm", "rounds": 2, "noise": noise},
            "privacy": {"epsilon": 8.0, "delta": DELTA},
            "encrypt": {"laplace_eval": {"laplace_eval_eps": 8.0}},
            "unsupervised": {"every_rounds": 1, "upload": "per_sample", "samples_per_device": 4},
        }
        self.plan = parse_plan(yaml.safe_dump(plain).encode(), "audit")
        self._fm = FmDevice(self.plan.job.train, self.plan.context)  # type: ignore[arg-type]
        self._asked = list(self._queries())
        graph = self.plan.graph()
        self._session = InferenceSession(graph, sha256(graph).digest(), classes=CLASSES)
        rows = np.random.default_rng(SEED).dirichlet(np.ones(CLASSES), CLASSES) * ONE
        self._clusters = ClusterSums(CLASSES).of_broadcast(np.floor(rows).astype(np.int64))
        squared, cells = self._clusters.sensitivity_squared, self._clusters.cells
        event = counts_event("clusters", squared, cells, 8.0, DELTA, 1, fine_bits=STEP_BITS)
        self._of_clusters = gaussian_law(event)

    def released(self, data: dict[str, Any], dealing: dict[str, Any]) -> _FleetAnswers:
        shard = {"devices": DEVICES, "partition": dealing, "seed": SEED, "classes": CLASSES}
        block = {**data, "name": "own", "test_share": TEST_SHARE, "shard": shard}
        held: Counter[tuple[Any, ...]] = Counter()
        sums: list[list[Int64]] = [[] for _ in self._asked]
        rows, clusters = [], []
        for index in range(DEVICES):
            shard["index"] = index
            site, key = DataSource.model_validate_json(json.dumps(block)), bytes([index]) * 32
            halves = device_records(site, key, evaluation_share=EVALUATION_SHARE)
            training, evaluation = (of_shape(one, self.plan.job.data.input_shape) for one in halves)
            for name, half in (("training", training), ("evaluation", evaluation)):
                held.update(
                    (index, name, x.tobytes(), int(y)) for x, y in zip(half.x, half.y, strict=True)
                )
            for found, (round, tensors) in zip(sums, self._asked, strict=True):
                found.append(self._fm.sums(round, tensors, training))
            slots = sample_slots(evaluation.x, 4, key)
            rows.append(self._session.slot_softmax(evaluation.x, self._weights, slots))
            outputs = self._session.single_outputs(evaluation.x, self._weights, CLASSES)
            clusters.append(self._clusters.of(outputs, evaluation.y))
        return _FleetAnswers(held, tuple(map(tuple, sums)), np.stack(rows), tuple(clusters))

    def true_epsilons(self, one: _FleetAnswers, other: _FleetAnswers) -> tuple[float, float, float]:
        """Return the true (training, inference, clusters) ε of the fleet for this pair of files.

        Devices add noise independently, so their squared L2 norms add up, as do their L1 norms."""
        events: list[Event] = []
        pure = 0.0
        for (round, _), before, after in zip(self._asked, one.sums, other.sums, strict=True):
            event = self._fm.budget.events[round.phase]
            moved = [[int(v) for v in (a - b).ravel()] for a, b in zip(before, after, strict=True)]
            if isinstance(event, GaussianEvent):
                squared = sum(_squared(change, event) for change in moved)
                events.append(replace(event, sensitivity_steps=math.isqrt(max(0, squared - 1)) + 1))
            elif isinstance(event, LaplaceEvent):
                pure += sum(abs(v) for change in moved for v in change) / float(scale_of(event))
        steps = np.floor(one.rows * 2.0**SOFTMAX_BITS) - np.floor(other.rows * 2.0**SOFTMAX_BITS)
        softmax = self.plan.softmax_event()
        inference = float(np.abs(steps).sum()) / float(scale_of(softmax))  # type: ignore[arg-type]
        pairs = zip(one.clusters, other.clusters, strict=True)
        squared = sum(int(v) ** 2 for before, after in pairs for v in before - after)
        whole = math.isqrt(max(0, (squared << 2 * self._of_clusters.grid_bits) - 1)) + 1
        clusters = _epsilon([replace(self._of_clusters, sensitivity_steps=whole)])
        return _epsilon(events) + pure, inference, clusters

    @cached_property
    def printed(self) -> tuple[float, float, float]:
        training = self.plan.quote().training
        rows = epsilon([self.plan.softmax_event()], 0.0).epsilon
        return training.epsilon, rows, epsilon([self._of_clusters], DELTA).epsilon

    def _queries(self) -> Iterator[tuple[PlannedRound, Tensors]]:
        chance, cloud = np.random.default_rng(SEED), self.plan.cloud
        state = cloud.initial_state()
        for round in self.plan.all_rounds:
            tensors = cloud.package(state, round)
            yield round, tensors
            (spec,) = cloud.segments(round)
            spread = 1.0 if round.phase == TRAIN else 2.0**24
            answer = (chance.normal(size=spec.shape) * spread).astype(np.float32)
            state = cloud.absorb(state, round, {spec.name: answer}, DEVICES)
        self._weights = {
            name: chance.normal(0, 60, value.shape).astype(value.dtype)
            for name, value in cloud.model(state).items()
        }


_fleet = cache(_DealtFleet)


def _epsilon(events: Sequence[Event]) -> float:
    try:
        return epsilon(events, DELTA).epsilon
    except PrivacyError:  # no finite ε at this δ
        return math.inf


def _squared(change: Sequence[int], event: GaussianEvent) -> int:
    """Return the squared norm in the metric of the noise: of the whole matrix if symmetric."""
    squares: list[int] = [value * value for value in change]
    if event.finest_sigma_squared == event.sigma_squared:
        return sum(squares)
    return 2 * sum(squares) - sum(squares[int(k)] for k in diagonal_of_triangle(len(squares)))


# --- the attack ---


def play(flawed: bool, quick: bool) -> AttackOutcome:
    """Remove records one by one from files of every format under every partition."""
    removed, table = (REMOVED_QUICK if quick else REMOVED), made_up()
    # First an equal record, the last of its class, and the broken one.
    order = [0, 7, 5, *(k for k in range(len(table.y)) if k not in (0, 7, 5))][:removed]
    worst, moved, pairs, broke = np.zeros(3), 0, 0, False
    with by_index() if flawed else nullcontext(), _folder() as folder:
        for number, (form, noise, dealing) in enumerate(_cases()):
            shape = (SIDE * SIDE,) if form in ("csv", "parquet") else (SIDE, SIDE)
            fleet = _fleet(shape, noise)
            place = folder / f"case_{number}"
            whole = fleet.released(FORMS[form](place, table), dealing)
            for index in order:
                place = folder / f"case_{number}_{index}"
                reduced = fleet.released(FORMS[form](place, table.without(index)), dealing)
                changed = (whole.held - reduced.held).total(), (reduced.held - whole.held).total()
                found = fleet.true_epsilons(whole, reduced)
                broke |= changed[0] > 1 or changed[1] > 0
                broke |= any(true > at for true, at in zip(found, fleet.printed, strict=True))
                moved, pairs, worst = max(moved, *changed), pairs + 1, np.maximum(worst, found)
    printed = zip(worst, fleet.printed, strict=True)
    training, rows, sums = (f"{true:.4g} of {claimed:.4g}" for true, claimed in printed)
    figure = (
        f"{pairs} pairs of files, at most {moved} of {len(table.y)} records moved; ε {training} in"
        f" training, {rows} in an inference, {sums} in sums by cluster"
    )
    return AttackOutcome(broke, figure)


def _cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    needs = {"parquet": "pyarrow", "images": "PIL"}
    for form in (one for one in FORMS if one not in needs or find_spec(needs[one])):
        yield from ((form, "gaussian", dealing) for dealing in _DEALINGS)
    yield "npz", "laplace", _POOR


@contextmanager
def by_index() -> Iterator[None]:
    """Plant the flaw: hold back and deal own records by index, as published ones are."""

    def held(records: Records, share: float, _fold: int) -> tuple[Records, Records]:
        return hold_back(records, round(share * len(records)))

    def dealt(
        records: Records, devices: int, rule: Partition, seed: int, _classes: int | None
    ) -> tuple[Records, Shares]:
        shares = partition(records.y, devices, rule, seed)
        return disturbed(records, shares, rule, seed), shares

    with mock.patch.multiple(device, hold_back_share=held, deal_own=dealt):
        yield


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        sys.path.insert(0, name)
        try:
            yield Path(name)
        finally:
            sys.path.remove(name)
            sys.modules.pop(PYTHON_MODULE, None)


RECORDS_GUARD = Guard(
    "records",
    "a record that is added to a file or removed costs what is printed",
    "held back and dealt by index",
    play,
)
