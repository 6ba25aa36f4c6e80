"""A user's own records in `edgeveil run`: dealt, tested on, and refused with file and place."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from edgeveil.config.site_files import load_site
from edgeveil.errors import DataError, UsageError
from edgeveil.pages.frozen import thawed
from edgeveil.parts import own_records as device
from edgeveil.parts.own_records import local_records, own_records
from edgeveil_tools.local.data import check_data, dealt, held
from edgeveil_tools.local.job import Overrides, local_job, site_of
from edgeveil_tools.local.run import run_local
from edgeveil_tools.report.compare import compared, comparison_view
from edgeveil_tools.result import Result
from edgeveil_tools.site.provision import provision

COUNT, DEVICES = 60, 5


@pytest.fixture(autouse=True)
def forget():
    device.dealt_records.cache_clear()


@pytest.fixture
def records():
    """(x, y): two values and one of three classes, every class alike."""
    rng = np.random.default_rng(0)
    y = np.arange(COUNT) % 3
    return ((9.0 - 9.0 * y)[:, None] * [1, -1] + rng.normal(size=(COUNT, 2))).round(3), y


def job_file(folder, own, **changes):
    """A small simulated job on records of two values; `own`: its `local_run.data`."""
    plain = {
        "job": "own",
        "data": {"source": "mine", "classes": 3, "input_shape": [2], "nominal_records": 10},
        "features": [{"name": "identity", "input_scale": 20}],
        "train": {"method": "fm", "rounds": 1},
        "privacy": {"epsilon": 10},
        "local_run": {"devices": DEVICES, "simulate": True, "data": own},
    }
    for block, values in changes.items():
        plain[block] = {**plain[block], **values}
    (folder / "job.yaml").write_text(yaml.safe_dump(plain))
    return folder / "job.yaml"


def csv(folder, records, header="a,b,kind", name="own.csv"):
    x, y = records
    lines = [f"{a},{b},{label}" for (a, b), label in zip(x, y, strict=True)]
    (folder / name).write_text("\n".join([header, *lines]))
    return {"source": "csv", "path": name}


def npz(folder, records):
    np.savez(folder / "own.npz", x=records[0], y=records[1])
    return {"source": "npz", "path": "own.npz"}


def parquet_file(folder, records):
    x, y = records
    parquet.write_table(pa.table({"a": x[:, 0], "kind": y, "b": x[:, 1]}), folder / "own.parquet")
    return {"source": "parquet", "path": "own.parquet", "label_column": "kind"}


def idx(folder, records):
    for name, array, kind in (("x", records[0], 0x0D), ("y", records[1], 0x08)):
        header = bytes([0, 0, kind, array.ndim]) + np.asarray(array.shape, ">u4").tobytes()
        values = array.astype(">f4" if kind == 0x0D else "u1").tobytes()
        (folder / f"{name}.idx").write_bytes(header + values)
    return {"source": "idx", "path": "x.idx", "labels_path": "y.idx"}


def python(folder, records):
    return {"source": "python: own_records:make"}


FILES = {"csv": csv, "npz": npz, "parquet": parquet_file, "idx": idx, "python": python}


@pytest.mark.parametrize("kind", FILES)
def test_a_users_records_are_dealt_and_a_fifth_is_held_back(kind, tmp_path, records, monkeypatch):
    if kind == "python":
        code = "import numpy as np\ndef make():\n    return np.load('x.npy'), np.load('y.npy')\n"
        (tmp_path / "own_records.py").write_text(code)
        np.save(tmp_path / "x.npy", records[0])
        np.save(tmp_path / "y.npy", records[1])
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    job, run = local_job(job_file(tmp_path, FILES[kind](tmp_path, records)), Overrides())
    assert check_data(job, run) == []
    pool, shares = dealt(job, run)
    test = held(job, run)
    assert len(pool) + len(test) == COUNT
    assert 4 <= len(test) <= 20
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(pool)))
    assert len(shares) == DEVICES
    everything = sorted(np.float32(records[0]).tolist())
    assert sorted(np.concatenate([pool.x, test.x]).tolist()) == everything
    if kind == "python":
        return
    site = provision(site_of(job, run, tmp_path / "site"))  # whose files share the records so too
    boxes = [own_records(load_site(path).data).x for path in site.edges]
    cloud = local_records(load_site(site.cloud).test_data).x
    assert sorted(np.concatenate([*boxes, cloud]).tolist()) == everything
    assert len(boxes) == DEVICES


@pytest.mark.parametrize("reference", [None, True])
def test_exact_figures_of_own_records_are_there_only_if_asked_for_and_labelled(
    reference, tmp_path, records
):
    path, out, stream = job_file(tmp_path, csv(tmp_path, records)), tmp_path / "out", io.StringIO()
    file = tmp_path / "own.csv"
    file.write_text(file.read_text() + "\n1,2\n")
    assert run_local(path, out, Overrides(), reference=reference, stream=stream) == 0
    result = json.loads((out / "result.json").read_text())
    page = json.dumps(thawed((out / "report.html").read_text()))
    shown = " ".join(stream.getvalue().split())
    assert f"{file}:62: 2 columns" in stream.getvalue().replace("\n", "")
    assert result["final"]["accuracy"] > 0.5
    assert (result["simulated"], result["encryption"]) == (True, "off")
    assert "protects nobody" in shown and "protects nobody" in page
    assert bool(result["reference"]["rounds"]) == bool(reference)
    assert ("Records by device" in page) == bool(reference)
    label = "no guarantee covers it"
    for where in (result["reference"]["note"], shown, page):
        assert (label in where) == bool(reference)
    for where in (result["final"]["measured_on"], shown, page):
        assert "exact figures that no guarantee covers" in where
    one, choice = Result.load(out), "Choosing among runs by figures on own records"
    for runs in ([one], [one, one]):
        page = json.dumps(comparison_view(compared(runs)))
        assert (choice in page) == (len(runs) > 1)


def spoilt(change):
    """A maker of a CSV file whose lines `change` has changed."""

    def make(folder, records):
        data = csv(folder, records)
        lines = (folder / "own.csv").read_text().splitlines()
        (folder / "own.csv").write_text("\n".join(change(lines)))
        return data

    return make


REFUSED = {
    "a label beyond the classes": (
        spoilt(lambda lines: [*lines[:6], "", "1,2,7", *lines[6:]]),
        r"own\.csv:8",
    ),
    "labels in words": (
        spoilt(lambda lines: [lines[0], *(line.rsplit(",", 1)[0] + ",cat" for line in lines[1:])]),
        r"own\.csv:2",
    ),
    "another number of columns": (
        spoilt(lambda lines: ["z," + lines[0], *(f"5,{line}" for line in lines[1:])]),
        r"data\.input_shape",
    ),
    "a file without a header": (spoilt(lambda lines: lines[1:]), r"own\.csv:1"),
    "no labels": (lambda folder, records: {"source": "idx", "path": "x.idx"}, "labels_path"),
}


@pytest.mark.parametrize(("make", "where"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_learned_is_refused_by_its_place_before_training(
    tmp_path, records, make, where
):
    path = job_file(tmp_path, make(tmp_path, records))
    with pytest.raises((DataError, UsageError), match=where):
        run_local(path, tmp_path / "out", Overrides(), stream=io.StringIO())
    assert not (tmp_path / "out").exists()


def test_the_fold_of_the_seed_is_held_back_and_few_records_stop_nothing(tmp_path, records):
    path = job_file(tmp_path, csv(tmp_path, records), local_run={"test_folds": 3})
    held_back = []
    for seed in (7, 8, 9):
        site = provision(site_of(*local_job(path, Overrides(seed=seed)), tmp_path / str(seed)))
        data = load_site(site.cloud).test_data
        assert {load_site(edge).data.test_fold for edge in site.edges} == {data.test_fold}
        held_back.append(local_records(data).x)
    everything = np.concatenate(held_back)
    assert sorted(everything.tolist()) == sorted(records[0].astype(np.float32).tolist())
    few = csv(tmp_path, [part[: DEVICES - 2] for part in records], name="few.csv")
    job = local_job(job_file(tmp_path, few, local_run={"test_share": 0.0}), Overrides())
    assert len(check_data(*job)) == 2
