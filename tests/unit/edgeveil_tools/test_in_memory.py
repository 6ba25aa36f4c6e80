"""`simulate(job, data=…)` and `predict` on arrays, tables, dicts and data sets in memory."""

import json

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
import yaml
from PIL import Image

import edgeveil
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError, EdgeVeilError, UsageError
from edgeveil.parts.sources import load_records
from edgeveil.parts.sources.memory import holders_of, opened, read_opened
from edgeveil.parts.sources.source import Origin

SCHEMA = {
    "origin": "public",
    "label": {"column": "rich", "classes": ["no", "yes"]},
    "columns": [
        {"name": "age", "number": [17, 90]},
        {"name": "hours", "number": [0, 80]},
        {"name": "work", "category": ["a", "b"]},
    ],
}
ROUNDS = {
    "job": "tiny",
    "train": {"method": "fm", "rounds": 2},
    "privacy": {"epsilon": 8},
    "round": {"min_batch": 2},
    "unsupervised": {"eval_type": "NOT_EVAL"},
    "local_run": {"devices": 3, "data": {"source": "memory"}},
}
BY_NAME = {
    **ROUNDS,
    "data": {"source": "mine", "nominal_records": 20, "schema": SCHEMA},
    "features": [{"name": "identity"}],
}
OF_NUMBERS = {
    **ROUNDS,
    "data": {"source": "mine", "nominal_records": 20, "classes": 2, "input_shape": [3]},
    "features": [{"name": "identity", "input_scale": 4}],
}
READ = DataSchema.model_validate_json(json.dumps(SCHEMA), strict=True)
QUICK = {"report": False, "workers": 0}


def people(count=60):
    chance = np.random.default_rng(0)
    age = chance.integers(17, 90, count)
    hours = chance.integers(0, 160, count) / 2 + 0.25
    frame = pd.DataFrame({"age": age, "hours": hours, "work": chance.choice(["a", "b"], count)})
    frame["rich"] = np.where(age > 50, "yes", "no")
    frame.loc[3, "hours"], frame.loc[5, "work"], frame.loc[7, "rich"] = None, "other", None
    return frame


def plain(frame):
    return frame.astype(object).where(frame.notna(), None)


def stored(frame, folder, kind):
    path = folder / f"people.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return load_records(kind, Origin(path=path, header=True, schema=READ))


IN_MEMORY = {
    "pandas": lambda frame: frame,
    "pandas, objects": lambda frame: frame.astype(object),
    "pandas, categories": lambda frame: frame.astype({"work": "category"}),
    "pandas and labels": lambda frame: (frame.drop(columns="rich"), frame["rich"]),
    "polars": pl.from_pandas,
    "arrow": pa.table,
    "columns": lambda frame: plain(frame).to_dict("list"),
    "rows": lambda frame: plain(frame).to_dict("records"),
    "hugging face": datasets.Dataset.from_pandas,
}


@pytest.mark.parametrize("form", IN_MEMORY)
def test_a_table_in_memory_gives_the_records_of_the_same_table_in_files(form, tmp_path):
    frame = people()
    found = read_opened(opened(IN_MEMORY[form](frame)), READ)
    assert [column.missing for column in found.columns] == [0, 1, 0]
    assert [column.unknown for column in found.columns] == [0, 0, 1]
    assert found.unknown_labels == 1
    for kind in ("csv", "parquet"):
        wanted = stored(frame, tmp_path, kind)
        for name in ("x", "y", "stored"):
            given = getattr(found.records, name), getattr(wanted, name)
            assert given[0].tobytes() == given[1].tobytes(), (kind, name)


def numbers(count=60):
    chance = np.random.default_rng(1)
    x = chance.integers(-8, 9, (count, 3)).astype(np.float32) / 4
    return x, (x[:, 0] > 0).astype(np.int64)


X, Y = numbers()
FRAME = pd.DataFrame(X, columns=list("abc")).assign(label=Y)
OF_ARRAYS = {
    "arrays": (X, Y),
    "lists": (X.tolist(), Y.tolist()),
    "tensors": (torch.tensor(X), torch.tensor(Y)),
    "torch": torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "torch, pairs": torch.utils.data.Subset(list(zip(X, Y.tolist(), strict=True)), range(len(X))),
    "pandas": FRAME,
    "arrays of a frame": (FRAME[list("abc")], FRAME["label"]),
    "polars": pl.from_pandas(FRAME),
    "columns": {name: FRAME[name].to_numpy() for name in FRAME},
}


@pytest.mark.parametrize("form", OF_ARRAYS)
def test_numbers_in_memory_are_the_same_records_in_every_form(form):
    found = read_opened(opened(OF_ARRAYS[form]), None).records
    assert found.x.tobytes() == X.tobytes() and found.y.tolist() == Y.tolist()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    for name, job in (("names", BY_NAME), ("numbers", OF_NUMBERS)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(job))
    return folder


def test_a_simulation_in_this_process_is_that_of_workers_to_the_bit(jobs, tmp_path):
    torch.set_num_threads(2)
    of_file = {**OF_NUMBERS, "local_run": {"devices": 3, "data": {"source": "npz"}}}
    np.savez(tmp_path / "numbers.npz", x=X, y=Y)
    of_file["local_run"]["data"]["path"] = str(tmp_path / "numbers.npz")
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(of_file))
    runs = [
        edgeveil.simulate(jobs / "numbers.yaml", data=(X, Y), **QUICK),
        edgeveil.simulate(jobs / "numbers.yaml", data=(X, Y), report=False, workers=2),
        edgeveil.simulate(tmp_path / "file.yaml", **QUICK),
    ]
    weights = {run.model.with_suffix(".safetensors").read_bytes() for run in runs}
    assert (len(weights), torch.get_num_threads()) == (1, 2)
    assert [run.content["engine"]["workers"] for run in runs] == [1, 2, 1]


def test_a_fleet_says_who_holds_what_and_a_test_set_is_tested_on_alone(jobs):
    frame = people().assign(site=["north", "south", "west", "south"] * 15)
    run = edgeveil.simulate(jobs / "names.yaml", data=frame, fleet="site", **QUICK)
    assert run.content["devices"] == 3
    codes = holders_of(opened(frame), "site")
    assert codes.tolist() == [0, 1, 2, 1] * 15
    again = edgeveil.simulate(
        jobs / "names.yaml", data=frame.drop(columns="site"), fleet=frame["site"], **QUICK
    )
    assert again.model.read_bytes() == run.model.read_bytes()
    tested = edgeveil.simulate(
        jobs / "names.yaml", data=frame, fleet="site", test_data=frame[:10], **QUICK
    )
    assert sum(map(sum, tested.content["final"]["figures"]["confusion"])) == 9  # one has no label


def test_each_holder_trains_on_its_own_records_alone(jobs):
    from edgeveil_tools.local.data import dealt
    from edgeveil_tools.local.job import local_job

    fleet = np.arange(len(X)) % 4
    options = {"data": (X, Y), "fleet": fleet, "simulate": True, "test_data": (X[:5], Y[:5])}
    job, run = local_job(jobs / "numbers.yaml", options)
    records, shares = dealt(job, run)
    assert run.devices == 4 and len(records) == len(X)
    for number, share in enumerate(shares):
        assert records.x[share].tobytes() == X[fleet == number].tobytes()


def test_a_loss_that_is_nan_at_one_holder_is_named_and_costs_its_own_answers_alone(tmp_path):
    job = OF_NUMBERS | {"model": {"name": "mlp"}, "train": {"method": "sgd", "rounds": 2}}
    job |= {"features": [], "privacy": {"accept_unproven": True}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    fleet, models, logs = np.arange(len(X)) % 3, [], []
    how = {"fleet": fleet, "test_data": (X, Y), "accept_unprotected": True, **QUICK}
    for value in (3e38, np.nan):  # NaN: no record of this holder is learned from
        x = np.where(fleet[:, None] == 0, np.float32(value), X)
        run = edgeveil.simulate(tmp_path / "job.yaml", data=(x, Y), **how)
        models.append(run.model.read_bytes())
        logs.append((run.folder / "logs/simulation.log").read_text().count("not finite"))
    assert models[0] == models[1] and logs == [2, 0]


def test_hugging_face_class_numbers_and_pictures_are_read_by_a_schema():
    names = ["cat", "dog"]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    pictures = [np.full((4, 4), 40 * n, np.uint8) for n in range(4)]
    held = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(one) for one in pictures], "label": [0, 1, 1, 0]},
        features=datasets.Features(features),
    )
    schema = {"origin": "public", "label": {"classes": ["dog", "cat"]}, "image": {"size": [4, 4]}}
    read = DataSchema.model_validate_json(json.dumps(schema), strict=True)
    found = read_opened(opened(held.select([2, 0])), read).records
    assert found.y.tolist() == [0, 1]
    assert found.x[:, 0, 0].tolist() == [80.0, 0.0] and found.stored.shape == (2, 32)
    arrays = read_opened(opened((np.stack(pictures), ["cat", "dog", "dog", "cat"])), read).records
    assert arrays.y.tolist() == [1, 0, 0, 1] and arrays.x.shape == (4, 4, 4)


# --- predict ---


@pytest.fixture(scope="module")
def model(jobs):
    return edgeveil.simulate(jobs / "names.yaml", data=people(), **QUICK).model


def test_predict_reads_frames_and_dicts_by_name_and_gives_a_frame(model, tmp_path):
    frame = people()[["work", "rich", "hours", "age"]].iloc[10:14]
    found = edgeveil.predict(model, frame)
    table = found.frame()
    assert list(table.index) == [10, 11, 12, 13] and list(table["label"]) == found.labels.tolist()
    assert found.given.tolist() == (frame["rich"] == "yes").astype(int).tolist()
    unlabelled = [frame.drop(columns="rich"), plain(frame).to_dict("records")]
    for records in (*unlabelled, pl.from_pandas(frame), pa.table(frame)):
        assert np.array_equal(edgeveil.predict(model, records).probabilities, found.probabilities)
    datasets.Dataset.from_pandas(frame).save_to_disk(tmp_path / "saved")
    saved = edgeveil.predict(model, tmp_path / "saved")
    assert np.array_equal(saved.probabilities, found.probabilities)
    assert saved.given.tolist() == found.given.tolist()
    one = edgeveil.predict(model, plain(frame).to_dict("records")[0])
    assert np.array_equal(one.probabilities, found.probabilities[:1])


# --- what does not fit is named ---

P = people()
REFUSED = {
    "a column is missing": ({"data": P.drop(columns="age")}, "data", "'age'"),
    "no names": ({"data": P.to_numpy()}, "data", "names"),
    "no record": ({"data": P[:0]}, "data", "no record"),
    "fewer labels": ({"data": (P.drop(columns="rich"), P["rich"][:5])}, "data", "[5]"),
    "a label twice": ({"data": (P, P["rich"])}, "data", "'rich'"),
    "lists of other lengths": ({"data": {"age": [1, 2], "work": ["a"]}}, "data", "'work': 1"),
    "no data at all": ({"data": object()}, "data", "object"),
    "rows of other widths": ({"data": ([[1, 2], [1]], [0, 1])}, "data", "no array"),
    "fewer holders": ({"data": P, "fleet": [1, 2]}, "fleet", "2 holders of 60"),
    "no such column": ({"data": P, "fleet": "wrok"}, "fleet", "'wrok'"),
    "no holder": ({"data": P, "fleet": P["hours"]}, "fleet", "of 1 records"),
    "a column of arrays": ({"data": (X, Y), "fleet": "site"}, "fleet", "'site'"),
    "another number of devices": ({"data": P, "fleet": P["age"] % 5, "devices": 3}, "devices", "5"),
    "a fleet without records": ({"fleet": [1]}, "fleet", "in memory"),
    "a test without records": ({"test_data": P}, "test_data", "in memory"),
    "a test without a column": (
        {"data": P, "test_data": P.drop(columns="work")},
        "test_data",
        "'work'",
    ),
}

HELD = datasets.Dataset.from_pandas(P)
PACKED = {
    "a loader": (torch.utils.data.DataLoader(OF_ARRAYS["torch"]), "DataLoader"),
    "several splits": (datasets.DatasetDict(train=HELD), "DatasetDict"),
    "splits of streams": (
        datasets.IterableDatasetDict(train=HELD.to_iterable_dataset()),
        "IterableDatasetDict",
    ),
    "a stream": (HELD.to_iterable_dataset(), "IterableDataset"),
    "a stream of unknown columns": (HELD.to_iterable_dataset().map(dict), "IterableDataset"),
}
REFUSED |= {why: ({"data": data}, "data", what) for why, (data, what) in PACKED.items()}


@pytest.mark.parametrize("why", PACKED)
def test_the_way_out_that_a_refusal_names_gives_the_records(why):
    data = PACKED[why][0]
    while True:
        try:
            assert len(opened(data)) == len(P)
            return
        except DataError as error:
            way = error.fix.removeprefix("pass ")
            data = eval(way, {"data": data, "datasets": datasets})


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_fit_is_named_before_anything_runs(why, jobs, tmp_path):
    options, where, what = REFUSED[why]
    with pytest.raises(EdgeVeilError) as raised:
        edgeveil.simulate(jobs / "names.yaml", out=tmp_path / "out", **QUICK, **options)
    assert raised.value.where.startswith(where) and what in raised.value.what
    assert raised.value.fix and not (tmp_path / "out").exists()


WRONG_NUMBERS = {
    "texts": (FRAME.assign(b="x"), "'b'"),
    "texts among numbers": (FRAME.astype(object).replace({"b": {0.0: "x"}}), "'b'"),
    "lists among numbers": ({"a": [1, [2]], "b": [1, 2], "c": [0, 1]}, "no array"),
    "text labels": ((X, np.where(Y, "yes", "no")), "y has type"),
    "another width": ((X[:, :2], Y), "[2]"),
    "no labels": (X, "labels"),
    "shapes of torch": (
        torch.utils.data.Subset([(X[0], 1), (X[0, :2], 0)], [0, 1]),
        "no array",
    ),
    "no pairs of torch": (torch.utils.data.Subset([1, 2], [0, 1]), "pairs"),
}


@pytest.mark.parametrize("why", WRONG_NUMBERS)
def test_numbers_of_a_wrong_type_or_form_are_named(why, jobs):
    data, what = WRONG_NUMBERS[why]
    with pytest.raises(EdgeVeilError) as raised:
        edgeveil.simulate(jobs / "numbers.yaml", data=data, **QUICK)
    assert what in raised.value.what


def test_records_in_memory_never_reach_a_site_or_a_file(jobs, tmp_path):
    with pytest.raises(UsageError) as raised:
        edgeveil.run(jobs / "names.yaml", data=P, out=tmp_path / "out")
    assert raised.value.where == "data"
    with pytest.raises(UsageError, match="is dict"):
        edgeveil.simulate(BY_NAME, data=P, out=tmp_path / "out")
    run = edgeveil.simulate(jobs / "names.yaml", data=P, out=tmp_path / "out", **QUICK)
    written = yaml.safe_load((run.folder / "job.yaml").read_text())
    assert written["local_run"]["data"]["source"] == "memory"
    assert set(written["local_run"]["data"]) <= {"source", "path", *_file_keys()}
    with pytest.raises(DataError) as raised:  # a job file holds no records
        edgeveil.simulate(run.folder / "job.yaml", **QUICK)
    assert raised.value.where == "data.source memory"


def _file_keys():
    return ("labels_path", "label_column", "images", "test_path", "header")


def test_a_table_is_changed_by_nothing_that_reads_it():
    frame = people()
    before = frame.copy()
    table = opened(frame)
    read_opened(table.without(["unknown"]), READ)
    pd.testing.assert_frame_equal(frame, before)


# --- other values ---


def test_a_changed_copy_is_checked_and_leaves_the_job_alone(jobs):
    job = edgeveil.load_job(jobs / "names.yaml")
    before = job.canonical()
    assert job.with_() == job
    swept = [job.with_(epsilon=one, rounds=3) for one in np.logspace(-1, 1, 3)]
    assert [(one.privacy.epsilon, one.train.rounds) for one in swept] == [(0.1, 3), (1, 3), (10, 3)]
    assert job.canonical() == before and job.with_(seed=9).local_run.seed == 9
    assert job.with_(**{"data.nominal_records": np.int64(9)}).data.nominal_records == 9
    assert isinstance(job.with_(job="other"), edgeveil.Job)
    for changes, kind, where in (
        ({"epsilom": 1}, UsageError, "epsilom"),
        ({"noise": "shared"}, UsageError, "noise"),  # of privacy and of train
        ({"epsilon": -1}, edgeveil.errors.ConfigError, "privacy.epsilon: "),
        ({"devices": 1}, edgeveil.errors.ConfigError, "round.min_batch: "),
        ({"train.roundz": 1}, edgeveil.errors.ConfigError, "train.roundz: "),
    ):
        with pytest.raises(kind) as raised:
            job.with_(**changes)
        assert where in str(raised.value)
