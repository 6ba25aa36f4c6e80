"""Labels that say what is normal: what a table's cells become, and what of it is learned from."""

import json

import numpy as np
import pytest

from edgeveil.data.anomaly import ANOMALOUS, NORMAL, UNKNOWN, UNLABELLED, anomalous, learned_from
from edgeveil.data.check import check_records, schema_problems
from edgeveil.data.encoding import RowEncoder
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema, impossible, schema_in, schema_metadata
from edgeveil.errors import DataError

LABEL = {"column": "state", "normal": ["ok", "fine"], "anomalous": ["leak"]}


def schema(label=None, **changes):
    plain = {
        "origin": "public",
        "label": label or LABEL,
        "columns": [{"name": "v", "number": [0, 10]}],
        "missing": ["?"],
        **changes,
    }
    return DataSchema.model_validate_json(json.dumps(plain))


def encoded(rows, of=None, names=("v", "state")):
    encoder = RowEncoder(of or schema(), names, "here")
    said = [encoder.add(row) for row in rows]
    return encoder.encoded(), said


def test_names_become_normal_anomalous_or_none():
    rows = [["1", "ok"], ["2", "fine"], ["3", "leak"], ["4", ""], ["5", "?"], ["6", "odd"]]
    found, said = encoded(rows)
    wanted = [NORMAL, NORMAL, ANOMALOUS, UNLABELLED, UNLABELLED, UNKNOWN]
    assert found.records.y.tolist() == wanted
    assert found.unknown_labels == 1
    assert said[:5] == [""] * 5
    assert said[5] and len(schema_problems(schema(), found)) == 1


def test_without_a_list_any_other_name_is_anomalous():
    found, _ = encoded([["1", "ok"], ["2", "odd"], ["3", ""]], schema({**LABEL, "anomalous": []}))
    assert found.records.y.tolist() == [NORMAL, ANOMALOUS, UNLABELLED]
    assert found.unknown_labels == 0


def test_a_file_may_lack_the_column_and_no_other():
    found, said = encoded([["1"], ["2"]], names=("v",))
    assert found.records.y.tolist() == [UNLABELLED] * 2
    assert (said, found.labelled, found.unknown_labels) == (["", ""], False, 0)
    with pytest.raises(DataError, match="no column 'v'"):
        encoded([], names=("state",))


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


def test_a_header_need_not_name_the_label():
    assert not list(impossible(schema(header=["v", "w"]), "data.schema"))
    plain = schema({"column": "state", "classes": ["a", "b"]}, header=["v", "w"])
    assert "does not hold 'state'" in next(iter(impossible(plain, "data.schema"))).text


def test_a_schema_without_it_keeps_its_bytes_and_one_with_it_is_read_again():
    plain = schema({"column": "state", "classes": ["a", "b"]})
    assert "normal" not in plain.model_dump_json()
    told = schema_metadata(schema())
    assert schema_in(told, (1,)) == schema()
    assert '"normal", "anomalous"' in told["edgeveil.labels"]
    assert (schema().classes, schema().anomaly, plain.anomaly) == (2, True, False)
