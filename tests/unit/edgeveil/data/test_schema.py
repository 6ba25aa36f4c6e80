"""A schema's shape, what is impossible in it, and labels that state what is normal."""

import json

import numpy as np
import pytest
import yaml

from edgeveil.data.anomaly import ANOMALOUS, NORMAL, UNKNOWN, UNLABELLED, anomalous, learned_from
from edgeveil.data.check import check_records, schema_problems
from edgeveil.data.encoding import RowEncoder
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema, impossible, schema_in, schema_metadata
from edgeveil.errors import ConfigError, DataError, ProtocolError
from edgeveil.jobs import Job, compile_canonical, parse_plan

LABEL = {"column": "income", "classes": [["<=50K", "<=50K."], ">50K"]}
COLUMNS = [
    {"name": "age", "number": [17, 90]},
    {"name": ["a", "b"], "number": [0, 9], "bins": [3, 6]},
    {"name": "work", "category": ["Private", "State"]},
]
TABLE = {"origin": "public", "label": LABEL, "columns": COLUMNS}
PICTURES = {
    "origin": "public",
    "label": {"classes": ["cat", "dog"]},
    "image": {"size": [4, 6], "channels": 3},
}


def made(plain, **changes):
    return DataSchema.model_validate_json(json.dumps({**plain, **changes}))


def job(schema, features=None, **data):
    plain = {
        "job": "named",
        "data": {"source": "people", "nominal_records": 10, "schema": schema, **data},
        "features": features or [{"name": "identity"}],
        "train": {"method": "fm", "rounds": 1},
        "privacy": {"epsilon": 8},
    }
    return yaml.safe_dump(plain, sort_keys=False)


def test_classes_shape_and_scale_follow_from_it():
    data = parse_plan(job(TABLE)).job.data
    assert (data.classes, data.input_shape) == (2, (1 + 2 * 4 + 3,))
    table = parse_plan(job(TABLE)).job.features[0]
    both = [{"name": "gabor"}, {"name": "identity"}, {"name": "random", "input_scale": 9}]
    grey = {**PICTURES, "image": {"size": [32, 32]}}
    pictures = parse_plan(job(grey, both)).job
    assert (table.input_scale, [one.input_scale for one in pictures.features]) == (1, [255, 255, 9])
    assert pictures.data.input_shape == (32, 32)
    assert made(PICTURES).input_shape == (3, 4, 6)


def test_a_job_with_one_survives_the_wire_and_one_without_keeps_its_bytes():
    for text in (job(TABLE), job(PICTURES)):
        plan = parse_plan(text)
        assert compile_canonical(plan.job.canonical()).job == plan.job
    plain = {"job": "plain", "data": {"source": "d", "classes": 2, "input_shape": [3]}}
    plain["data"]["nominal_records"] = 5
    made_job = Job.model_validate_json(json.dumps({**plain, "train": {"method": "fm"}}))
    assert json.loads(made_job.canonical())["data"] == {**plain["data"], "evaluation_share": 0.1}


@pytest.mark.parametrize(
    ("plain", "changes", "why"),
    [
        (TABLE, {"origin": "own_records"}, r"origin: .*reveal a single record.*set public"),
        (TABLE, {"image": {"size": [2, 2]}}, "columns and image are given"),
        (TABLE, {"columns": None}, "none is given"),
        (TABLE, {"label": {"classes": ["a", "b"]}}, r"label: is missing; name the column"),
        (TABLE, {"label": {**LABEL, "classes": ["a", ["b", "a"]]}}, "'a' occurs twice"),
        (TABLE, {"label": {**LABEL, "column": "age"}}, "both the label and an input"),
        (TABLE, {"columns": [COLUMNS[0], {**COLUMNS[0], "number": [0, 1]}]}, "'age' occurs twice"),
        (TABLE, {"columns": [{"name": "age"}]}, r"columns\[0\]: .*none is given"),
        (TABLE, {"columns": [{"name": "n", "number": [3, 3]}]}, "least and the greatest"),
        (TABLE, {"columns": [{"name": "n", "number": [0, 9], "bins": [0]}]}, "inner edges"),
        (TABLE, {"columns": [{"name": "c", "category": ["x", "x"]}]}, "'x' occurs twice"),
        (TABLE, {"columns": [{"name": "c", "category": [" x"]}]}, "begins or ends with a space"),
        (TABLE, {"columns": [{"name": "c", "category": ["?"]}], "missing": ["?"]}, "has a place"),
        (TABLE, {"header": ["age", "a", "b", "wrk", "income"]}, "'work', did you mean 'wrk'"),
        (TABLE, {"label": {**LABEL, "normal": ["a"]}}, "classes and normal are given"),
        (TABLE, {"label": {"column": "v"}}, "none is given"),
        (TABLE, {"label": {"column": "v", "normal": ["a"], "anomalous": ["a"]}}, "occurs twice"),
        (TABLE, {"label": {**LABEL, "anomalous": ["a"]}}, "needs label.normal"),
        (TABLE, {"label": {"column": "v", "number": [30, 10]}}, "least and the greatest"),
        (TABLE, {"label": {"column": "v", "number": [1.7e9, 1.7e9 + 60]}}, "too narrow"),
        (TABLE, {"label": {"column": "v", "classes": ["a"]}}, "names only one class"),
        (PICTURES, {"missing": ["?"]}, "is for tables"),
        (PICTURES, {"image": {"size": [4, 6], "values": [1, 0]}}, "least and the greatest"),
        (PICTURES, {"label": LABEL}, "not for pictures; name classes"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(plain, changes, why):
    with pytest.raises(ConfigError, match=why) as refused:
        parse_plan(job({k: v for k, v in {**plain, **changes}.items() if v is not None}), "x.yaml")
    assert all(place.line > 1 for place in refused.value.places)


def test_a_schema_that_devices_would_not_take_for_its_size_is_refused():
    many = {"name": "c", "category": [f"category-{k:030}" for k in range(2000)]}
    text = job({**TABLE, "columns": [many]})
    with pytest.raises(ConfigError, match=r"data\.schema: makes the job \d+ bytes, devices accept"):
        parse_plan(text)


def test_a_hostile_cloud_cannot_send_a_schema_that_cannot_be():
    raw = parse_plan(job(TABLE)).job.canonical()
    with pytest.raises(ProtocolError):
        compile_canonical(raw.replace(b'"origin":"public"', b'"origin":"own_records"'))


def test_a_model_carries_it_even_with_the_word_that_no_graph_may_hold():
    schema = made(TABLE, columns=[{"name": "location", "number": [0, 1]}])
    properties = schema_metadata(schema)
    assert not any("location" in text for text in properties.values())
    assert schema_in(properties, schema.input_shape) == schema
    with pytest.raises(DataError, match="differ from the model's"):
        schema_in(properties, (2,))
    assert json.loads(properties["edgeveil.labels"]) == ["<=50K", ">50K"]
    assert schema_in({}, (2,)) is None
    flawed = made(TABLE, columns=[{"name": "n", "number": [1, 0]}])
    assert list(impossible(flawed, "s"))
    for text in ("", "{}", "[" * 10**5, schema_metadata(flawed)["edgeveil.schema"]):
        with pytest.raises(DataError, match="no schema known to this version"):
            schema_in({"edgeveil.schema": text}, (2,))


STATE = {"column": "state", "normal": ["ok", "fine"], "anomalous": ["leak"]}


ANOMALIES = {
    "origin": "public",
    "label": STATE,
    "columns": [{"name": "v", "number": [0, 10]}],
    "missing": ["?"],
}


ROWS = [["1", "ok"], ["2", "fine"], ["3", "leak"], ["4", ""], ["5", "?"], ["6", "odd"]]
LISTED = [NORMAL, NORMAL, ANOMALOUS, UNLABELLED, UNLABELLED, UNKNOWN]


@pytest.mark.parametrize(
    ("label", "names", "wanted"),
    [
        (STATE, ("v", "state"), LISTED),
        ({**STATE, "anomalous": []}, ("v", "state"), [*LISTED[:5], ANOMALOUS]),
        (STATE, ("v",), [UNLABELLED] * 6),  # a file may lack the column
    ],
)
def test_names_become_normal_anomalous_or_none(label, names, wanted):
    encoder = RowEncoder(schema := made(ANOMALIES, label=label), names, "here")
    faults = [encoder.add(row[: len(names)]) for row in ROWS]
    found = encoder.encoded()
    assert found.records.y.tolist() == wanted
    assert found.labelled == (len(names) == 2)
    unknown = wanted.count(UNKNOWN)
    assert found.unknown_labels == unknown == len(schema_problems(schema, found))
    assert [bool(fault) for fault in faults] == [False] * 5 + [bool(unknown)]


def test_learned_from_is_what_is_not_said_to_be_anomalous():
    labels = np.array([NORMAL, UNLABELLED, ANOMALOUS, 7, UNKNOWN])
    assert learned_from(labels).tolist() == [True, True, False, False, False]
    assert anomalous(labels).tolist() == [False, False, True, True, False]
    report = check_records(
        Records(np.zeros((5, 1), np.float32), labels),
        Records(np.zeros((0, 1), np.float32), labels[:0]),
        classes=2,
        anomaly=True,
    )
    assert (report.problems[0][0], report.not_learned, report.usable) == ("1", 2, 4)


def test_a_schema_without_it_keeps_its_bytes_and_one_with_it_is_read_again():
    assert "normal" not in made(TABLE).model_dump_json()
    schema = made(ANOMALIES)
    metadata = schema_metadata(schema)
    assert schema_in(metadata, (1,)) == schema
    assert '"normal", "anomalous"' in metadata["edgeveil.labels"]
    assert not list(impossible(made(ANOMALIES, header=["v", "w"]), "s"))  # its label is not needed
