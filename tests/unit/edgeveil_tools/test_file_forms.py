"""Files as people have them: every command and device reads one alike, or refuses its kind."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.io.arff
import soundfile
import yaml
from PIL import Image
from pyarrow import feather, parquet

from edgeveil.config.data import DataSource
from edgeveil.data.encoding import cell_text
from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.errors import DataError
from edgeveil.parts import own_records as device
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph
from edgeveil.parts.sources import Origin, load_records
from edgeveil_edge.inference import JSON, ServedModel
from edgeveil_edge.release_trial import released_session
from edgeveil_tools.cli import main
from edgeveil_tools.describe import describe
from edgeveil_tools.local.data import dealt, held
from edgeveil_tools.local.job import Overrides, local_job

ROWS = [(20.5, 0.31, "ok"), (71.0, 0.88, "hot"), (22.1, 0.35, "ok"), (69.4, 0.91, "hot")]
NAMES = ("temp", "load", "state")


def cut(separator=",", number="{}".format, names=NAMES, end="\n", lead="", extra=()):
    lines = [[number(one) for one in row[:2]] + [row[2]] for row in ROWS]
    every = [list(names), *lines] if names else lines
    whole = [separator.join([*one, *extra]) for one in every]
    return lead + end.join([*whole, ""])


def comma(value):
    return str(value).replace(".", ",")


def grouped(value, decimal, group):
    return f"{value * 1000:,.1f}".replace(",", "_").replace(".", decimal).replace("_", group)


def quoted():
    notes = ['"calm\nday"', '"alarm, then\nquiet"', "plain", "plain"]
    rows = [f"{note},{temp},{state}" for note, (temp, _, state) in zip(notes, ROWS, strict=True)]
    return "\n".join(["note,temp,state", *rows, ""])


def lines_of_json(**more):
    records = [dict(zip(NAMES, row, strict=True)) | more for row in ROWS]
    return "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in records)


def index(end):
    rows = [f"{at},{','.join(map(str, row))}{end}" for at, row in enumerate(ROWS)]
    return "\n".join([f",{','.join(NAMES)}{end}", *rows, ""])


ALL = {"temp": [row[0] for row in ROWS], "load": [row[1] for row in ROWS]}
TEMP = {"temp": ALL["temp"]}
THOUSANDS = {name: [1000 * one for one in values] for name, values in ALL.items()}
SEMICOLON = {"separator": ";", "decimal": ","}
# content, the form that is stated for it, and the columns that are read
READ = {
    "plain": (cut(), {}, ALL),
    "an unnamed index": (index(""), {}, ALL),
    "a trailing comma": (cut(extra=("",)), {}, ALL),
    "semicolons, decimal commas": (cut(";", comma), SEMICOLON, ALL),
    "the same in UTF-16": (
        cut(";", comma).encode("utf-16"),
        SEMICOLON | {"encoding": "utf-16"},
        ALL,
    ),
    "tabs": (cut("\t"), {"separator": "\t"}, ALL),
    "bars": (cut("|"), {"separator": "|"}, ALL),
    "blanks": (cut("   ", lead=" "), {"separator": " "}, ALL),
    "carriage returns": (cut(end="\r"), {}, ALL),
    "lines of Windows": (cut(end="\r\n"), {}, ALL),
    "a byte order mark": (cut().encode("utf-8-sig"), {}, ALL),
    "a comment": (cut(lead="# exported by box 7\n"), {"comment": "#"}, ALL),
    "a preamble": (cut(";", comma, lead="Box;7\n\n"), SEMICOLON | {"skip_lines": 1}, ALL),
    "a line of the separator": (
        cut(";", comma, lead="sep=;\n"),
        SEMICOLON | {"skip_lines": 1},
        ALL,
    ),
    "line breaks in quotes": (quoted(), {"multiline": True}, TEMP),
    "cp1252": (
        cut(names=("temp", "größe", "state")).encode("cp1252"),
        {"encoding": "cp1252"},
        TEMP | {"größe": ALL["load"]},
    ),
    "points in thousands": (
        cut(";", lambda value: grouped(value, ",", ".")),
        SEMICOLON | {"thousands": "."},
        THOUSANDS,
    ),
    "commas in thousands": (
        cut("\t", lambda value: grouped(value, ".", ",")),
        {"separator": "\t", "thousands": ","},
        THOUSANDS,
    ),
    "blanks in thousands": (
        cut(";", lambda value: grouped(value, ",", "\u202f")),
        SEMICOLON | {"thousands": " "},
        THOUSANDS,
    ),
    "two columns of one name": (
        cut(names=("temp", "load", "load", "state")).replace(",0.", ",7,0."),
        {},
        TEMP,
    ),
    "lines of JSON": (lines_of_json(), None, ALL),
    "lines of JSON with more inside": (lines_of_json(more={"a": [1]}), None, ALL),
    "Parquet": (None, None, ALL),
}
# what the notes say of it, beside the keys of its form
SAID_OF = {
    "lines of JSON": ("source 'jsonl'",),
    "lines of JSON with more inside": ("'more' is left out: 4 values are lists",),
    "Parquet": ("source 'parquet'",),
}
REFUSED = {
    "rows wider than the header": (cut(extra=("1",)).replace("state,1", "state"), "4 cells"),
    "rows shorter than the header": (cut(names=(*NAMES, "more")), "3 cells"),
    "JSON": ('{"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": [0]}}}', "JSON"),
    "JSON of many lines": ('{\n "temp": 20.5,\n "state": "ok"\n}\n', "JSON"),
    "lines of JSON in cp1252": (lines_of_json(x="ö").encode("cp1252"), "iconv"),
    "lines of JSON in UTF-16": (lines_of_json().encode("utf-16"), "iconv"),
    "a list of JSON": (json.dumps([dict(zip(NAMES, row, strict=True)) for row in ROWS]), "JSON"),
    "Excel": (b"PK\x03\x04\x14\0\6\0[Content_Types].xml", "Excel"),
    "old Excel": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "Excel"),
    "ARFF": ("% by box 7\n@RELATION box\n@attribute temp real\n@data\n20.5\n", "ARFF"),
    "Feather": (None, "Feather"),
    "gzip": (b"\x1f\x8b\x08\0\0", "gzip"),
    "a page": ("<!DOCTYPE html><html><table></table></html>", "HTML"),
    "bytes": (bytes(range(256)), "binary"),
    "prose": ("It runs quietly, as ever.\nIt howls\nNo, it leaks, it drips, it stops\n", "table"),
    "one column": ("temp\n20.5\n71.0\n", "column"),
    "one column of words": ("state\nok\nhot\n", "table"),
    "nothing": ("", "is empty"),
}


@pytest.fixture(autouse=True)
def forget():
    device.dealt_records.cache_clear()


def written(folder, name, content):
    file = folder / "box.txt"
    if content is None:
        write = parquet.write_table if name == "Parquet" else feather.write_feather
        write(pa.table(dict(zip(NAMES, zip(*ROWS, strict=True), strict=True))), file)
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def said(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def model_of(schema):
    """A model that tells "hot", class 0, where `temp` is in the upper half of its range."""
    shape = schema.input_shape
    weight, at = np.zeros((*shape, len(schema.label.names)), np.float32), 0
    for column in schema.columns:
        if column.names[0] == "temp":
            weight[at] = [9, -9]
        at += column.width * len(column.names)
    graph = build_graph(Identity(IdentityParameters()), shape, 2)
    given = {"centre": np.zeros(shape, np.float32), "radius": np.ones(1, np.float32)}
    return bake(graph, {**given, "weight": weight}, schema_metadata(schema))


def values(schema, x):
    """Invert the scaling of the columns that are numbers."""
    found, at = {}, 0
    for column in schema.columns:
        for name in column.names:
            if column.number is not None:
                low, high = column.number
                found[name] = (x[:, at] + 1) / 2 * (high - low) + low
            at += column.width
    return found


def played(file, folder, capsys):
    """Check the file, draft, check and run its job; returns the job's file and the notes."""
    assert main(["check", str(file), "--json"]) == 0
    (drafted,) = said(capsys)["files"]
    assert main(["init", "--from", str(file), "--out", str(folder / "job"), "--json"]) == 0
    assert said(capsys)["notes"] == drafted["notes"]
    job_file = folder / "job" / "job.yaml"
    text = job_file.read_text().replace("own_records", "public").replace("rounds: 10", "rounds: 1")
    job_file.write_text(text.replace("devices: 20", "devices: 5"))
    assert main(["check", str(job_file), "--json"]) == 0
    run = ["run", str(job_file), "--simulate", "--workers", "0", "--out", str(folder / "out")]
    assert main([*run, "--json", "-q"]) == 0
    assert said(capsys)["status"] == "completed"
    return job_file, drafted["notes"]


@pytest.mark.parametrize("name", READ)
def test_a_table_is_read_alike_by_every_command_and_device(name, tmp_path, capsys):
    content, form, columns = READ[name]
    file = written(tmp_path, name, content)
    job_file, notes = played(file, tmp_path, capsys)
    assert all(key in " ".join(notes) for key in (*(form or ()), *SAID_OF.get(name, ())))
    stated = yaml.safe_load(job_file.read_text())["local_run"]["data"]
    assert stated.get("form", {}) == (form or {})
    assert stated.get("header") == (None if form is None else True)

    job, run = local_job(job_file, Overrides())
    schema = job.data.schema_
    own = DataSource(name="own", **{**stated, "path": file, "form": form and run.data.form})
    x = device.own_records(own, schema).x
    found = values(schema, x)
    every = {name for one in schema.columns for name in one.names}
    assert set(found) == set(columns) == every - {"note"}
    for column, wanted in columns.items():
        assert found[column] == pytest.approx(wanted, rel=1e-5)
    of_run = np.concatenate([dealt(job, run)[0].x, held(job, run).x])
    assert sorted(of_run.tolist()) == sorted(x.tolist())

    (tmp_path / "model.onnx").write_bytes(model_of(schema))
    states = [row[2] for row in ROWS]
    assert main(["predict", str(tmp_path / "model.onnx"), str(file), "--json"]) == 0
    told = said(capsys)
    assert [one["name"] for one in told["predictions"]] == states
    assert (told["accuracy"], told["unread"]) == (1.0, [])
    served = served_by(tmp_path / "model.onnx", schema)
    asked = [{"temp": temp} for temp in columns["temp"]]
    answer = served.predict(posted(records=asked))
    assert [one["name"] for one in answer.plain()] == states


def served_by(path, schema):
    session = released_session(path.read_bytes(), str(path))
    return ServedModel(SimpleNamespace(version="1"), session, schema)


def posted(**what):
    return SimpleNamespace(content_type=JSON, content=json.dumps(what).encode())


@pytest.fixture(scope="module")
def plain_job(tmp_path_factory):
    """A job of the plain table, and its model."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "own.csv").write_text(cut())
    assert main(["init", "--from", str(folder / "own.csv"), "--out", str(folder)]) == 0
    job = folder / "job.yaml"
    job.write_text(job.read_text().replace("own_records", "public"))
    schema = local_job(job, Overrides())[0].data.schema_
    (folder / "model.onnx").write_bytes(model_of(schema))
    return job, folder / "model.onnx", schema


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_is_refused_by_its_kind_and_nothing_is_drafted(
    name, plain_job, tmp_path, capsys
):
    content, kind = REFUSED[name]
    file, (job, model, _) = written(tmp_path, name, content), plain_job
    out = str(tmp_path / "out")
    for command in (
        ["check", str(file)],
        ["init", "--from", str(file), "--out", out],
        ["check", str(job), str(file)],
        ["run", str(job), "--simulate", "--data", str(file), "--out", out],
        ["predict", str(model), str(file)],
    ):
        assert main(command) != 0, command
        shown = capsys.readouterr()
        assert kind in shown.out + shown.err and "ok (records)" not in shown.out, command
    assert not (tmp_path / "out").exists()


ARFF = "@relation box\n@attribute temp numeric\n@attribute load numeric\n"
ARFF += "@attribute state {ok, hot}\n@data\n"


@pytest.mark.parametrize("name", ["Feather", "ARFF"])
def test_the_way_out_that_a_refusal_names_makes_a_table(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, name, None if name == "Feather" else ARFF + cut(names=()))
    assert main(["check", str(file)]) != 0
    (way,) = re.findall(r"(pandas\..*\))", capsys.readouterr().out)
    eval(way, {"pandas": pd, "scipy": scipy, "FILE": file})
    played(tmp_path / "records.parquet", tmp_path, capsys)


REVIEWS = "text,mood\nit runs quietly,good\nit howls and leaks,bad\nit is loud and hot,bad\n"
PERSONS = "p1,young,left,no\np2,old,right,yes\np3,young,right,no\np4,old,left,yes\n"
WHO = "who,temp,state\n" + "".join(f"p{n},{n},{('ok', 'hot')[n % 2]}\n" for n in range(40))
NUMBER, NUMBERS = {"temp": "number"}, {"temp": "number", "load": "number"}
# content, a word of the notes, and the kinds of the columns that are read
NOTED = {
    "units": ("load,temp,state\n31 %,1,ok\n88 %,2,hot\n", "'load' is left out", NUMBER),
    "prices": ("temp,fee,state\n1,$3.50,ok\n2,$ 4,hot\n", "'fee' is left out", NUMBER),
    "names": (WHO, "'who' is left out", NUMBER),
    "pandas": ("Unnamed: 0,temp,state\n0,1,ok\n1,2,hot\n", "'Unnamed: 0' is left out", NUMBER),
    "nothing given": ("temp,none,state\n1,,ok\n2,,hot\n", "'none' is left out", NUMBER),
    "a total": ("temp,state\n" + "1,ok\n2,hot\n" * 10 + "Total,\n", "1 of 21 records", NUMBER),
    "free text": (REVIEWS, "label 'mood'", {"text": "text"}),
    "a first person": (PERSONS, "header false", dict.fromkeys(["v1", "v2", "v3"], "category")),
    "units below the header": (cut().replace("\n", "\nC,%,\n", 1), "a second one", NUMBERS),
    "a header again": (cut() + cut(), "repeat the header", NUMBERS),
    "another word for a gap": ("temp,load,state\n1,n/a,ok\n2,7,hot\n3,n/a,ok\n", "", NUMBERS),
    "a far value": (cut() + cut(names=()) * 5 + "1e9,0.5,ok\n", "'temp' has a wide", NUMBERS),
}


@pytest.mark.parametrize("name", NOTED)
def test_a_draft_notes_what_is_odd_and_a_device_serves_what_predict_says(name, tmp_path, capsys):
    text, note, kinds = NOTED[name]
    (tmp_path / "a.csv").write_text(text)
    job_file, notes = played(tmp_path / "a.csv", tmp_path, capsys)
    assert any(note in one for one in notes)
    schema, model = local_job(job_file, Overrides())[0].data.schema_, tmp_path / "out/model.onnx"
    assert len(schema.label.names) == 2
    found = [(name, one) for one in schema.columns for name in one.names]
    assert [name for name, one in found if getattr(one, kinds[name]) is not None] == list(kinds)
    assert main(["predict", str(model), str(tmp_path / "a.csv"), "--json"]) == 0
    told = said(capsys)
    of_file = {"names": schema.header, "dtype": str, "keep_default_na": False}
    records = pd.read_csv(tmp_path / "a.csv", **of_file)[list(kinds)].to_dict("records")
    answer = served_by(model, schema).predict(posted(records=records))
    assert answer.plain() == told["predictions"]
    assert list(answer.unread) == told["unread"]


GROUPS = (
    "'temp': '{}' may set off thousands; if so, write form: {{decimal: \"{}\", thousands: \"{}\"}}"
)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "day,temp,state\n03.04.2024,1,ok\n05.06.2024,2,hot\n",
            "dates 'day_first': month_first fits as many columns; if that is right, write form:"
            " {dates: month_first}",
        ),
        ("temp;state\n1.234;ok\n21.500;hot\n950;ok\n", GROUPS.format(".", ",", ".")),
        ("temp;state\n1,234;ok\n21,500;hot\n", GROUPS.format(",", ".", ",")),
        (lines_of_json() + "{'temp': 1}\n[2]\n", "2 lines are no JSON objects: left out"),
        ("day,temp,state\n03.04.2024,1,ok\n13.06.2024,2,hot\n", None),
        ("temp;load;state\n1.234;20.5;ok\n21.500;7.25;hot\n", None),  # 20.5 settles it
        ("temp;state\n0.234;ok\n0.500;hot\n", None),
        ("temp;state\n1.234;ok\n2150;hot\n", None),
        ("temp,state\n1.234,ok\n21.500,hot\n", None),
    ],
)
def test_a_draft_notes_what_may_be_meant_otherwise_and_what_is_left_out(text, note, tmp_path):
    (tmp_path / "a").write_text(text)
    notes = [one for one in describe(tmp_path / "a").notes if re.search("write form|left out", one)]
    assert notes == ([] if note is None else [note])


MANY = [f"{n + 0.25}" for n in range(20)]
DAYS = [f"2024-01-{n % 5 + 1:02d}" for n in range(20)]


@pytest.mark.parametrize(
    ("columns", "label", "why", "kind"),
    [
        ({"class": ["a", "b"] * 10, "x": MANY, "z": ["c", "d"] * 10}, "class", "its name", "names"),
        ({"x": MANY, "z": ["c", "d"] * 10, "y1": MANY}, "z", "its few values", "names"),
        ({"x": MANY, "price": MANY}, "price", "the last column", "number"),
        ({"x": MANY, "n": range(20)}, "n", "the last column", "names"),
        ({"x": MANY, "price": MANY, "day": DAYS}, "price", "the last column", "number"),
        ({"x": MANY, "z": ["c", "d"] * 10, "day": DAYS}, "z", "its few values", "names"),
        ({"w": MANY, "x": MANY, "none": [""] * 20}, "x", "the last column", "number"),
    ],
)
def test_a_label_is_guessed_for_the_reason_that_is_said(columns, label, why, kind, tmp_path):
    pd.DataFrame(columns).to_csv(tmp_path / "a.csv", index=False)
    draft = describe(tmp_path / "a.csv")
    found = yaml.safe_load(draft.text)["data"]["schema"]["label"]
    assert found["column"] == label
    assert ("number" in found) == (kind == "number")
    assert any(note.startswith(f"label '{label}': ") and why in note for note in draft.notes)


def test_where_no_column_is_left_nothing_is_drafted(tmp_path):
    (tmp_path / "a.csv").write_text("temp,load,state\n20.5 C,31 %,ok\n71.0 C,88 %,hot\n")
    assert main(["init", "--from", str(tmp_path / "a.csv"), "--out", str(tmp_path / "a")]) == 4
    assert not (tmp_path / "a").exists()


def test_predictions_count_what_they_could_not_read_or_clipped(plain_job, tmp_path, capsys):
    _, model, schema = plain_job
    rows = ["20.5 C,31 %,ok", "71.0,0.9,hot", "1e9,?,ok", "22.1,many,ok", "x,,hot", "71.0,hot"]
    (tmp_path / "a.csv").write_text("\n".join(["temp,load,state", *rows, ""]))
    assert main(["predict", str(model), str(tmp_path / "a.csv"), "--json"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    names = [one.get("name") for one in told["predictions"]]
    assert names == [None, "hot", "hot", "ok", None, None]  # of three nothing was read
    assert told["notes"][-1].startswith("3 of 6 records were not usable")
    assert told["notes"][-1] in shown.err
    assert (told["accuracy"], told["largest_class_rate"]) == pytest.approx((2 / 3, 2 / 3), abs=1e-6)
    counts = {one["name"]: one for one in told["unread"]}
    assert (counts["temp"]["unreadable"], counts["temp"]["clipped"]) == (2, 1)
    assert (counts["load"]["unreadable"], counts["load"]["missing"]) == (3, 1)
    assert "'temp'" in shown.err and "'load'" in shown.err

    (tmp_path / "a.jsonl").write_text('{"temp": 71.0}\nnone\n')
    assert main(["predict", str(model), str(tmp_path / "a.jsonl"), "--json"]) == 0
    assert said(capsys)["notes"][-1].startswith("1 of 2 records")

    served = served_by(model, schema)
    records = [{"temp": "20.5 C"}, {"temp": 71.0}, {"temp": 1e9, "load": 0.5}, {}]
    answer = served.predict(posted(records=records))
    assert [one.get("name") for one in answer.plain()] == [None, "hot", "hot", None]
    counts = {one["name"]: one for one in answer.unread}
    assert (counts["temp"]["unreadable"], counts["temp"]["clipped"]) == (1, 1)
    assert counts["load"]["missing"] == 3


SITE = """edge:
  name: one
  role: train
  broker: {{url: "mqtt://127.0.0.1:1"}}
  proxy_key_file: p.pub
  cloud_key_file: c.pub
  state_dir: {0}/state
  data: {{name: own, source: csv, path: {0}/a.csv, header: true{1}}}
"""


def test_a_devices_owner_learns_that_a_file_has_another_form(plain_job, tmp_path, capsys):
    job = plain_job[0]
    for form, code in (("", DataError.exit_code), (', form: {separator: ";", decimal: ","}', 0)):
        (tmp_path / "a.csv").write_text(cut(";", comma))
        (tmp_path / "edge.yaml").write_text(SITE.format(tmp_path, form))
        assert (main(["check", str(tmp_path / "edge.yaml"), str(job)]) == 0) == (code == 0)
        assert ('separator: ";"' in capsys.readouterr().out) == bool(code)


def test_a_path_that_is_not_there_is_reported_by_a_check(plain_job, tmp_path, capsys):
    text = plain_job[0].read_text().replace("own.csv", "gone.csv")
    (tmp_path / "job.yaml").write_text(text)
    assert main(["check", str(tmp_path / "job.yaml")]) == 0
    assert "gone.csv" in capsys.readouterr().out


FORMATS = ("png", "jpg", "gif", "bmp", "tif", "webp", "ppm", "tga", "ico", "pcx", "jp2")


def test_pictures_of_pillows_formats_are_read_and_others_counted(tmp_path, capsys):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    for kind in FORMATS:
        Image.new("RGB", (640, 320), (250, 250, 250)).save(tmp_path / "cat" / f"a.{kind}")
    Image.new("RGB", (640, 320)).save(tmp_path / "dog" / "a.eps")  # would start Ghostscript
    (tmp_path / "dog" / "notes.txt").write_text("none")
    (tmp_path / "dog" / "a.png").write_bytes(b"none")
    assert main(["check", str(tmp_path), "--json"]) == 0
    (found,) = said(capsys)["files"]
    drafted = yaml.safe_load(found["draft"])["data"]["schema"]
    assert drafted["image"]["size"] == [32, 64]
    assert any(note.startswith("3 files") for note in found["notes"])
    drafted |= {"origin": "public", "image": {"size": [3, 6]}}
    schema = DataSchema.model_validate_json(json.dumps(drafted))
    records = load_records("images", Origin(path=tmp_path, schema=schema))
    assert len(records) == len(FORMATS) + 1
    read = np.isfinite(records.x).all(axis=(1, 2))
    assert read.sum() == len(FORMATS) and records.x[read].min() > 240


def test_recordings_that_are_not_read_are_counted(tmp_path, capsys):
    (tmp_path / "hum").mkdir()
    for name, kind in (("a.wav", "WAV"), ("b.flac", "FLAC"), ("c.wav", "OGG")):
        soundfile.write(tmp_path / "hum" / name, np.zeros(800), 8000, format=kind)
    (tmp_path / "hum" / "d.wav").write_bytes(b"none")
    (tmp_path / "hum" / "notes.txt").write_text("none")
    assert main(["check", str(tmp_path), "--json"]) == 0
    assert any(note.startswith("3 files") for note in said(capsys)["files"][0]["notes"])


def test_json_values_are_read_as_the_text_of_a_cell():
    assert [cell_text(one) for one in (None, True, 3.0, 0.5, [1])] == [
        "",
        "true",
        "3",
        "0.5",
        "\ufffd",
    ]
