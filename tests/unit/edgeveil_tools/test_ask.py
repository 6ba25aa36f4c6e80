"""Questions to a simulated fleet, from Python and from the command line, and a schema from them."""

import copy
import json
import random
import re

import numpy as np
import pytest
import yaml

import edgeveil
from edgeveil.data.schema import DataSchema, impossible
from edgeveil.errors import ConfigError, UsageError
from edgeveil.jobs import parse_plan
from edgeveil.statistics.blocks import vectors
from edgeveil_tools.cli import main
from edgeveil_tools.local.job import job_of
from edgeveil_tools.statistics.ask import job_to_ask
from edgeveil_tools.statistics.draft import cost_shares, drafted
from tests.kits.statistics_answers import ANSWERS, HOSTILE

PUBLIC = {"ranges": {"age": (0, 100), "pulse": (40, 160)}, "categories": {"sex": ["f", "m"]}}


def people(count=600):
    chance = random.Random(5)
    return {
        "age": [chance.randrange(20, 60) for _ in range(count)],
        "pulse": [f"{chance.gauss(80, 5):.1f}" for _ in range(count)],
        "sex": [chance.choice("ffm") for _ in range(count)],
        "ward": [f"w{chance.randrange(6)}" for _ in range(count)],
        "room": ["r0"] * count,
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    data = people()
    rows = [",".join(data), *(",".join(map(str, row)) for row in zip(*data.values(), strict=True))]
    path = tmp_path_factory.mktemp("people") / "people.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_fleet_answers_within_what_it_says_and_only_what_was_asked():
    data = people()
    found = edgeveil.ask(
        data, mean="age", histogram=("pulse", 12), table=("sex", "room"), fleet="ward",
        epsilon=9, delta=1e-3, **{**PUBLIC, "categories": {"sex": ["f", "m"], "room": ["r0"]}},
    )  # fmt: skip
    asked = [(one["statistic"], one.get("column")) for one in found]
    assert ("mean", "age") in asked and ("histogram", "pulse") in asked
    assert ("mean", "pulse") not in asked and ("quantiles", "age") not in asked
    mean = found["mean", "age"]
    assert abs(mean["value"] - sum(data["age"]) / 600) < 2 * mean["plus_minus"] < 4
    assert len(found["histogram", "pulse"]["value"]) == 12
    assert found.content["uploads"] == 6  # a device for each holder


def test_the_holder_of_records_is_not_asked_about():
    job, _ = job_to_ask(people(), {}, fleet="ward")
    assert [one.name for one in job.train.columns] == ["age", "pulse", "sex", "room"]


def test_what_is_read_from_records_is_warned_of_and_what_is_given_is_not():
    with pytest.warns(UserWarning, match="pulse, nominal_records were read from the records"):
        edgeveil.ask(people(60), mean=["age", "pulse"], ranges={"age": (0, 100)}, devices=3)
    asked = {"mean": ["age", "pulse"], **PUBLIC}
    job, read = job_to_ask(people(60), asked, nominal_records=20)
    unlike, _ = job_to_ask({**people(60), "ward": ["?"] * 60}, asked, nominal_records=20)
    assert read == "" and job.digest() == unlike.digest()  # texts of a missing value are public


@pytest.mark.parametrize(
    ("questions", "why"),
    [
        ({"mean": "agee"}, "agee.*is no column.*'age'"),
        ({"mean": "sex", **PUBLIC}, "sex.*is no number"),
        ({"histogram": ("sex", 3), **PUBLIC}, "sex.*is no number"),
        ({"mean": "age", "ranges": {"agee": (0, 100)}}, "agee.*is no column.*'age'"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(questions, why):
    with pytest.raises(UsageError, match=why):
        job_to_ask(people(60), questions)


def test_a_word_that_is_no_question_is_no_keyword():
    with pytest.raises(TypeError, match="keyword argument 'men'"):
        edgeveil.ask(people(60), men="age")


def test_a_cloud_s_records_need_public_ranges_and_their_number():
    with pytest.raises(UsageError, match="asks nobody"):
        job_to_ask(None, {"mean": "age"}, source="people")
    how = {"source": "people", "nominal_records": 30}
    with pytest.raises(UsageError, match="age: has no public range or list"):
        job_to_ask(None, {"mean": "age"}, **how)
    job, read = job_to_ask(None, {"mean": "age", **PUBLIC}, devices=40, **how)
    assert (job.data.source, job.round.min_batch, read) == ("people", 40, "")
    assert job.local_run is None
    everything, _ = job_to_ask(None, PUBLIC, **how)
    assert [one.name for one in everything.train.columns] == ["age", "pulse", "sex"]


def test_a_filtered_column_is_read_and_a_file_without_names_gets_some(tmp_path):
    job, _ = job_to_ask(people(60), {"mean": "age", "where": "sex = 'f' and pulse > 80", **PUBLIC})
    assert {one.name: one.ask for one in job.train.columns if one.number} == {
        "age": ("mean",),
        "pulse": (),
    }
    rows = [f"{age},{pulse}" for age, pulse in zip(people()["age"], people()["pulse"], strict=True)]
    (tmp_path / "bare.csv").write_text("\n".join(rows) + "\n")
    job, read = job_to_ask(tmp_path / "bare.csv", {})
    assert job.data.schema_.header == ("v1", "v2") and read.startswith(
        "v1, v2, nominal_records were read"
    )


def test_the_command_prints_answers_and_a_schema_follows_from_them(table, tmp_path, capsys):
    out = str(tmp_path / "out")
    how = ["--epsilon", "9", "--delta", "1e-3", "--devices", "6", "--records", "100", "--out", out]
    lists = ["--category", "sex=f,m", "--category", "ward=w0,w1,w2,w3,w4,w5,w9"]
    ranges = ["--range", "age=0,100", "--histogram", "age=10", "--count", "sex,ward"]
    assert main(["ask", str(table), *ranges, *lists, *how, "--json"]) == 0
    printed = capsys.readouterr()
    assert "simulated" in printed.err and "were read" not in printed.err
    assert {one["column"] for one in json.loads(printed.out)["answers"]} == {"age", "sex", "ward"}
    assert main(["draft", "--from-statistics", out, "--label", "sex"]) == 0
    text = capsys.readouterr().out
    data = yaml.safe_load(text)["data"]
    schema = DataSchema.model_validate_json(json.dumps(data["schema"]), strict=True)
    assert list(impossible(schema, "data.schema")) == []
    assert schema.label.classes == ("f", "m")
    age, ward = schema.columns
    assert age.number == (20, 60)
    assert set(ward.category) == {f"w{n}" for n in range(6)}  # not w9, which nobody has
    assert data["nominal_records"] == 100
    assert len(re.findall(r"[#;] cost \d", text)) == 3


def test_a_job_with_ranges_of_records_is_submitted_and_drafted_from_only_after_review(
    table, tmp_path, capsys
):
    out = tmp_path / "out"
    how = ["--epsilon", "9", "--delta", "1e-3", "--devices", "6", "--out", str(out)]
    assert main(["ask", str(table), "--mean", "age", *how]) == 0
    assert "age, nominal_records were read" in capsys.readouterr().err
    text = (out / "job.yaml").read_text()
    with pytest.raises(ConfigError, match="review each"):
        parse_plan(text)
    assert main(["draft", "--from-statistics", str(out), "--label", "age"]) != 0
    assert parse_plan(text.replace("own_records", "public")).job.train.columns[0].name == "age"
    block = "statistics: {columns: [{name: age, number: [17, 89]}]}"
    with pytest.raises(ConfigError, match="review each"):
        parse_plan(
            "job: a\ndata: {source: s, nominal_records: 9, schema: {origin: own_records}}\n" + block
        )


@pytest.mark.parametrize(
    "words",
    [
        ["--range", "age=0"],
        ["--table", "age"],
        ["--histogram", "age=many"],
        ["--range", "age=9,3"],
        ["--range", "age=0,9", "--histogram", "age=0"],
        ["--where", "age is old", "--count", "age"],
    ],
)
def test_words_that_make_no_question_are_usage_errors(table, words, capsys):
    assert main(["ask", str(table), *words]) in (2, 4)
    said = capsys.readouterr().err
    assert "Traceback" not in said and "data.schema" not in said


def asked_of(columns):
    job = {"job": "census", "data": {"source": "people", "nominal_records": 300}}
    privacy = {"epsilon": 1, "delta": 1e-6, "noise": "shared"}
    secure = {"aggregation": {"name": "fedavg", "secure": True}}
    return job_of({**job, "statistics": {"columns": columns}, "privacy": privacy, **secure})


def test_a_schema_from_answers_leaves_out_noise_and_escapes_names():
    columns = [
        {"name": "age", "number": [0, 100]},
        {"name": "workclass", "category": ["private", "public"]},
        {"name": "country", "values": {}},
        {"name": "note", "values": {"words": 2}},
        {"name": "letter", "part": "characters", "number": [0, 1000], "ask": []},
    ]
    whole = copy.deepcopy(ANSWERS)
    words = {"statistic": "values", "column": "note", "names": ["well"], "value": [500.0]}
    whole["answers"].append({**words, "plus_minus": 30.0, "threshold": 90.0})
    whole["answers"].append({**whole["answers"][0], "column": "letter:characters"})
    histogram = next(one for one in whole["answers"] if one["statistic"] == "histogram")
    histogram["plus_minus"] = [0.001] * 4
    text = drafted(whole, asked_of(columns), "workclass")
    assert not any(c < " " for c in text if c != "\n")
    data = yaml.safe_load(text)["data"]
    assert data["schema"]["columns"] == [
        {"name": "age", "number": [0, 75]},
        {"name": "country", "category": ["DE", HOSTILE]},
        {"name": "note", "text": {}},
        {"name": "letter", "text": {}},
    ]
    assert "class_weights: [0.659, 2.07]" in text
    histogram["plus_minus"] = [0.01] * 4  # hides more than a range may leave out
    assert "{name: age, number: [0, 100]}" in drafted(whole, asked_of(columns), "workclass")
    with pytest.raises(UsageError, match="was not asked about"):
        drafted(ANSWERS, asked_of(columns), "income")


def test_the_costs_of_columns_and_pairs_are_the_whole():
    columns = [{"name": "a", "number": [0, 1]}, {"name": "b", "category": ["x", "y"]}]
    job = asked_of(columns)
    asked, alone = cost_shares(job)
    assert asked["a"].number == (0, 1)
    assert sum(alone.values()) == pytest.approx(1)
    (vector,) = vectors(job.train, 1)
    of_b = next(k for k, one in enumerate(vector.blocks) if "b" in getattr(one, "columns", ()))
    counted = vector.weights[of_b] ** 2  # a record adds 1 to one cell
    assert alone["b"] == pytest.approx(counted / vector.sensitivity_squared)


def test_a_job_that_learns_has_no_answers_to_draft_from():
    with pytest.raises(UsageError):
        cost_shares(edgeveil.load_job("tests/kits/quickstart.yaml"))


def test_an_estimate_foresees_the_error_of_each_answer(tmp_path, capsys):
    data = people(2000)
    how = {"fleet": [k % 20 for k in range(2000)], "delta": 1e-3}
    questions = {"mean": ["age", "pulse"], "histogram": ("age", 5), "count": "sex"}
    found = edgeveil.ask(data, epsilon=4, **how, **questions, **PUBLIC)
    plain = {
        "job": "people",
        "data": {"source": "people", "nominal_records": 100},
        "statistics": {
            "columns": [
                {"name": "age", "number": [0, 100], "bins": 5, "ask": ["mean", "histogram"]},
                {"name": "pulse", "number": [40, 160], "ask": ["mean"]},
                {"name": "sex", "category": ["f", "m"]},
            ]
        },
        "privacy": {"epsilon": 4, "delta": 1e-3, "noise": "shared"},
        "aggregation": {"name": "fedavg", "secure": True},
        "round": {"min_batch": 20},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    assert main(["check", str(path), "--estimate", "--devices", "20", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)["files"][0]["estimate"]
    named = {(one["statistic"], one["column"]): one for one in estimate["answers"]}
    assert len(named) == len(list(found))
    for (name, column), one in named.items():
        off = found[name, column]["plus_minus"]
        rel = 0.6 if name == "clipped" else 0.25  # less if the noise leaves one end of two at 0
        assert one["plus_minus"] == pytest.approx(off, rel=rel)
        assert one["value"] is None
    assert main(["check", str(path), "--estimate", "--devices", "2"]) == 2
    assert "a round needs 20 uploads" in capsys.readouterr().err
    plain["data"]["nominal_records"], plain["privacy"]["epsilon"] = 2, 0.01
    path.write_text(yaml.safe_dump(plain))
    assert main(["check", str(path), "--estimate"]) == 0
    text = capsys.readouterr().out
    assert "20 devices of 2 records" in text
    assert re.search(r"^pulse +mean +too noisy to say$", text, re.MULTILINE)


def test_a_folder_of_pictures_is_asked_drafted_from_and_learned(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    chance, folder = np.random.default_rng(6), tmp_path / "eyes"
    for at in range(240):
        ill, large = at % 3 == 0, at % 8 == 0
        shape = (40, 60, 3) if large else (20, 30, 3)
        file = folder / ("ill" if ill else "well") / f"{at}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = chance.integers(0, 21, shape).astype(np.uint8)
        half = shape[1] // 2
        pixels[:, slice(half) if ill else slice(half, None)] += 200
        image.fromarray(pixels).save(file)
    (folder / "ill" / "broken.png").write_bytes(b"no picture")
    asked, drafted_to = tmp_path / "asked", tmp_path / "eyes.yaml"
    how = ["--epsilon", "9", "--delta", "1e-3", "--devices", "3", "--records", "80"]
    how += ["--out", str(asked)]
    public = ["--range", "picture:height=0,100", "--range", "picture:width=0,100"]
    lists = ["--category", "picture:class=ill,well,dead"]
    assert main(["ask", str(folder), *how, *public, *lists, "--json"]) == 0
    printed = capsys.readouterr()
    assert "were read" not in printed.err
    answers = {(one["statistic"], one["column"]): one for one in json.loads(printed.out)["answers"]}
    of_class = answers["categories", "picture:class"]
    assert np.allclose(of_class["value"][:3], [81, 160, 0], atol=2 * of_class["plus_minus"][0])
    grey = answers["mean", "picture:brightness"]
    assert abs(grey["value"] - 110) < 2 * grey["plus_minus"] + 1
    draft = ["draft", "--from-statistics", str(asked), "--out", str(drafted_to), "--label"]
    assert main([*draft, "picture:height"]) == 2
    assert main([*draft, "picture:class"]) == 0
    text = drafted_to.read_text()
    assert len(re.findall(r"[#;] cost \d", text)) == 2
    schema = yaml.safe_load(text)["data"]["schema"]
    assert schema["label"] == {"classes": ["ill", "well"]}
    assert schema["image"] == {"size": [20, 30], "channels": 3}
    assert list(impossible(DataSchema.model_validate_json(json.dumps(schema)), "")) == []
    run = {"source": "images", "path": str(folder)}
    job = {
        "job": "eyes",
        **yaml.safe_load(text),
        "features": [{"name": "identity"}],
        "train": {"method": "fm", "rounds": 3},
        "privacy": {"epsilon": 8, "noise": "shared"},
        "aggregation": {"name": "fedavg", "secure": True},
        "round": {"min_batch": 3},
        "local_run": {"devices": 3, "simulate": True, "workers": 0, "data": run},
    }
    found = edgeveil.simulate(job_of(job), report=False, out=tmp_path / "run")
    assert found.accuracy > 0.9


def test_arrays_have_parts_of_pictures_too():
    x, y = np.full((60, 3, 4, 6), 9.0), np.arange(60) % 2
    with pytest.warns(UserWarning, match="picture:height, picture:width, picture:class"):
        found = edgeveil.ask((x, y), devices=3, epsilon=9, delta=1e-3)
    for part, value in (("height", 4), ("width", 6), ("channels", 3), ("brightness", 9)):
        mean = found["mean", f"picture:{part}"]
        assert abs(mean["value"] - value) < 2 * mean["plus_minus"] + 0.1


def test_a_column_of_dates_is_asked_by_its_parts_and_drafted_as_one():
    days = [f"{2018 + at % 5}-{1 + at % 12:02}-{1 + at % 28:02}" for at in range(900)]
    data = {"came": [f"{day} {at % 24}:10" for at, day in enumerate(days)], "born": days}
    data["state"] = [["ill", "well"][at % 7 == 0] for at in range(900)]
    job, read = job_to_ask(data, {"table": ("came:hour", "state")})
    assert [one.name for one in job.train.columns] == ["state", "came:hour"] and "hour" not in read
    job, read = job_to_ask(data, {"categories": {"state": ["ill", "well"]}})
    names = [f"came:{part}" for part in ("year", "month", "weekday", "hour")]
    born = [f"born:{part}" for part in ("year", "month", "weekday")]
    assert [one.name for one in job.train.columns] == ["state", *names, *born]
    assert read.startswith("came:year, born:year, nominal_records were read")
    ranges = {"came:year": (2000, 2040), "born:year": (2000, 2040)}
    lists = {"state": ["ill", "well"]}
    asked = edgeveil.ask(
        data, ranges=ranges, categories=lists, epsilon=9, delta=1e-3, devices=3, seed=2
    )
    job, _ = job_to_ask(data, {"ranges": ranges, "categories": lists})
    schema = yaml.safe_load(drafted(asked.content, job, "state"))["data"]["schema"]
    came, born = schema["columns"]
    assert came["date"] == ["year", "month", "weekday", "hour"] and born["date"] == came["date"][:3]
    for low, high in (came["years"], born["years"]):  # whole bins, and what noise hides
        assert 2014 <= low <= 2018 and 2022 < high <= 2028
    assert list(impossible(DataSchema.model_validate_json(json.dumps(schema)), "")) == []
