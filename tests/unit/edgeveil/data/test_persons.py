"""Whole persons: what the reader takes for one, and that all records of one have the same fate."""

import csv
import json
from collections import Counter

import numpy as np
import pytest

from edgeveil.config.data import DataSource
from edgeveil.config.edge import EdgeSite
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import EMPTY, sample_slots
from edgeveil.errors import ConfigError, DataError
from edgeveil.jobs import compile_job
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.parts.own_records import device_records, local_records
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_edge.compute import Computation, Computer, TaughtJob
from edgeveil_edge.round_work import check_price
from edgeveil_tools.local.local_run import load_local_job

KEY, DEVICES = bytes(range(32)), 4
PLAIN = {
    "origin": "public",
    "label": {"column": "state", "classes": ["ok", "ill"]},
    "columns": [{"name": "a", "number": [0, 1]}, {"name": "b", "number": [0, 1]}],
    "missing": ["?"],
    "person": "who",
}
NAMES = ["a", "b", "who", "state"]


def schema(**changes):
    return DataSchema.model_validate_json(json.dumps({**PLAIN, **changes}))


def table(persons=40, largest=50):
    """Rows of persons with 1 to 8 records, of one with `largest`, and of nobody's."""
    rng = np.random.default_rng(2)
    counts = {f"p{k}": int(rng.integers(1, 9)) for k in range(persons)} | {"much": largest}
    names = [name for name, count in counts.items() for _ in range(count)] + ["", " ", "?"]
    rows = [[f"{rng.random():.4f}", f"{rng.random():.4f}", who] for who in names]
    rows = [[*row, ["ok", "ill"][int(rng.integers(2))]] for row in rows]
    return [rows[at] for at in rng.permutation(len(rows))]


def source(path, rows, names=NAMES, **more):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    plain = {"name": "own", "source": "csv", "path": str(path), "header": True, **more}
    return DataSource.model_validate_json(json.dumps(plain))


def fates(path, rows, **how):
    """Where each record is: the cloud's test, or a device and half; by its values."""
    parts = {"test": local_records(source(path, rows, test_share=0.2), schema())}
    for index in range(DEVICES):
        shard = {"devices": DEVICES, "index": index, "seed": 3, "partition": {"kind": "iid"}}
        data = source(path, rows, test_share=0.2, shard=shard)
        both = device_records(data, KEY, evaluation_share=0.3, schema=schema(), **how)
        parts |= {(index, half): records for half, records in enumerate(both)}
    return {x.tobytes(): place for place, records in parts.items() for x in records.x}


def values(row):
    number = np.array([float(row[0]), float(row[1])]) * 2.0 - 1.0
    return number.astype(np.float32).tobytes()


def test_all_records_of_a_person_have_one_fate_and_a_person_removed_moves_no_other(tmp_path):
    rows = table()
    found = fates(tmp_path / "whole.csv", rows)
    assert len(found) == len(rows)
    places = {row[2].strip().replace("?", ""): set() for row in rows}
    for row in rows:
        places[row[2].strip().replace("?", "")].add(found[values(row)])
    assert {len(place) for place in places.values()} == {1}  # nobody's records are one person's
    assert len({place for of in places.values() for place in of}) > DEVICES
    for gone in ("much", "p3", ""):
        rest = [row for row in rows if row[2].strip().replace("?", "") != gone]
        left = fates(tmp_path / f"without_{gone}.csv", rest)  # a path is read once
        assert left == {values(row): found[values(row)] for row in rest}


def test_owners_are_persons_or_the_device_or_each_record(tmp_path):
    rows = table()
    records, _ = device_records(
        source(tmp_path / "a.csv", rows), KEY, evaluation_share=0, schema=schema()
    )
    owners = records.owners("person")
    sizes = Counter(row[2].strip().replace("?", "") for row in rows)
    assert sorted(np.unique(owners, return_counts=True)[1]) == sorted(sizes.values())
    assert set(records.owners("device")) == {0}
    assert records.owners("record") is None
    none, _ = device_records(
        source(tmp_path / "a.csv", rows), KEY, evaluation_share=0, schema=schema(), most=30
    )
    assert len(none) == 30
    assert len(set(none.owners("person"))) < 15  # whole persons are left out, all but the last


def test_a_persons_records_share_a_slot_and_one_at_most_counts():
    rng = np.random.default_rng(1)
    persons = rng.integers(0, 9, (80, 1)).astype(np.float32)
    held = sample_slots(rng.random((80, 3), np.float32), 40, KEY, persons)
    counting = persons[held[held != EMPTY], 0]
    assert len(counting) == len(set(counting)) > 5


def test_windows_belong_to_their_groups_person(tmp_path):
    rows = [[f"{k % 7 / 7}", "0.5", f"p{k // 12}", "ok"] for k in range(60)]
    of = schema(windows={"length": 4, "group": "who", "time": "b", "every_s": 1})
    rows = [[a, str(k), who, y] for k, (a, _, who, y) in enumerate(rows)]
    of = of.model_copy(update={"columns": of.columns[:1]})
    records, _ = device_records(
        source(tmp_path / "w.csv", rows), KEY, evaluation_share=0, schema=of
    )
    assert records.x.shape == (15, 4, 1)
    assert sorted(np.unique(records.owners("person"), return_counts=True)[1]) == [3] * 5


def test_a_column_of_persons_that_stands_twice_or_not_at_all_is_refused(tmp_path):
    rows = table(4, 2)
    twice = [[*row, row[2]] for row in rows]
    with pytest.raises(DataError, match=r"two columns 'who'.*its own name"):
        device_records(
            source(tmp_path / "a.csv", twice, [*NAMES, "who"]),
            KEY,
            evaluation_share=0,
            schema=schema(),
        )
    gone = source(tmp_path / "b.csv", [[*row[:2], row[3]] for row in rows], ["a", "b", "state"])
    with pytest.raises(DataError, match="no column 'who'"):
        device_records(gone, KEY, evaluation_share=0, schema=schema())


def test_a_dealing_by_class_would_part_a_person(tmp_path):
    shard = {"devices": 2, "index": 0, "classes": 2, "partition": {"kind": "n_class"}}
    with pytest.raises(DataError, match="one person may have records of several"):
        device_records(
            source(tmp_path / "a.csv", table(4, 2), shard=shard),
            KEY,
            evaluation_share=0,
            schema=schema(),
        )


JOB = """
job: persons
data:
  source: own
  nominal_records: 20
  {person}
  schema:
    origin: public
    label: {{column: state, classes: [ok, ill]}}
    columns: [{{name: [a, b], number: [0, 1]}}]
    {more}
features: [{{name: identity}}]
train: {{method: {method}}}
privacy: {{epsilon: 8, unit: {unit}}}
"""


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("data.person: .*text", {"person": "person: [who, whose]"}),
        ("data.person: 'a' is also an input or the label.*leave it out", {"person": "person: a"}),
        ("data.person: 'state' is also an input or the label", {"person": "person: state"}),
        ("privacy.unit: needs the column that names persons", {"person": ""}),
        ("data.schema.person: is set by data.person", {"person": "", "more": "person: who"}),
        ("data.schema.header: does not hold 'who'", {"more": "header: [a, b, state]"}),
        ("windows.group to 'who'", {"more": "windows: {length: 4, group: home}"}),
        ("train.noise: bounds what a record adds", {"method": "fm, noise: laplace"}),
        ("cannot bound what a person adds; use dp_sgd, ", {"method": "pca_residual"}),
        ("cannot bound what a device adds; use fm", {"method": "dp_sgd", "unit": "device"}),
    ],
)
def test_impossible_persons_are_refused_with_their_key(message, changes, tmp_path):
    plain = {"person": "person: who", "more": "", "method": "fm", "unit": "person", **changes}
    (tmp_path / "job.yaml").write_text(JOB.format(**plain))
    with pytest.raises(ConfigError, match=message):
        load_local_job(tmp_path / "job.yaml")


def computer_of(data, halves, folder):
    site = EdgeSite(
        name="box",
        broker={"url": "mqtt://127.0.0.1:1"},
        state_dir=folder,
        cloud_key_file=folder / "cloud.pub",
        proxy_key_file=folder / "proxy.pub",
        data=data,
        device="cpu",
    )
    return Computer(site, KEY, lambda *_: halves)


@pytest.mark.parametrize("upload", ["mean", "per_sample", "sums"])
def test_every_answer_of_a_job_that_hides_persons_has_the_price_of_its_plan(upload, tmp_path):
    asked = {"mean": "", "per_sample": ", samples_per_device: 4", "sums": ", epsilon: 2"}[upload]
    plain = {"person": "person: who", "more": "", "method": "fm, rounds: 1", "unit": "person"}
    text = JOB.format(**plain) + "federated_evaluation: {epsilon: 2}\n"
    text += f"unsupervised: {{every_rounds: 1, upload: {upload}{asked}}}\n"
    if upload != "sums":
        text += "encrypt: {laplace_eval: {laplace_eval_eps: 20}}\n"
    (tmp_path / "job.yaml").write_text(text)
    plan = compile_job(load_local_job(tmp_path / "job.yaml")[0].alone)
    rows = [row for row in table() if row[2].strip() not in ("", "?")]
    data = source(tmp_path / "a.csv", rows)
    halves = device_records(data, KEY, evaluation_share=0.3, schema=plan.job.data.schema_)
    computer = computer_of(data, halves, tmp_path)
    job, state = TaughtJob(plan, b"", plan.graph()), plan.cloud.initial_state()
    for round in plan.all_rounds:
        model = pack_tensors(plan.cloud.model(state)) if round.carries_model else b""
        tensors = pack_tensors(plan.package(state, round))
        package = RoundPackage(round.phase, round.number, round.infer, tensors, model)
        work = Computation(job, round, package, {}, True, SeededRandom(1))
        found = computer.answer(work)
        assert not found.without
        check_price(plan.price(round, trains=True), found.parts)
        units = {event.unit for part in found.parts for event in part.events}
        assert units <= {"person", "device"}
    assert plan.quote().inference.unit == "person"
    assert plan.quote().training.unit == "person"


def test_a_device_s_answer_has_one_row_of_a_person_with_fifty_records(tmp_path):
    plain = {"person": "person: who", "more": "", "method": "fm, rounds: 1", "unit": "person"}
    text = JOB.format(**plain) + "encrypt: {laplace_eval: {laplace_eval_eps: 20}}\n"
    text += "unsupervised: {every_rounds: 1, upload: per_sample, samples_per_device: 8}\n"
    (tmp_path / "job.yaml").write_text(text)
    plan = compile_job(load_local_job(tmp_path / "job.yaml")[0].alone)
    draws, round = np.random.default_rng(3), next(e for e in plan.all_rounds if e.infer)
    x, y, who = draws.random((50, 2), np.float32), np.zeros(50, np.int64), np.ones((50, 1))
    theirs = Records(x, y, who.astype(np.float32))
    model = plan.cloud.model(plan.cloud.initial_state())
    model = {n: draws.normal(size=a.shape).astype(a.dtype) for n, a in model.items()}
    package = RoundPackage(round.phase, round.number, round.infer, b"", pack_tensors(model))
    rows = []
    for own in (theirs, theirs.at(np.zeros(0, np.int64))):
        computer = computer_of(source(tmp_path / "a.csv", []), (own, own), tmp_path)
        work = Computation(
            TaughtJob(plan, b"", plan.graph()), round, package, {}, True, SeededRandom(1)
        )
        rows.append(computer.compute(work, "infer", own, own).segments[SOFTMAX])
    assert (rows[0] != rows[1]).any(axis=1).sum() == 1
