"""Whether a device takes part may not depend on a record: no single one fails its source."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.records import Records, as_records, whole_labels
from edgeveil.parts.features import valid_records
from edgeveil.parts.sources import load_records
from edgeveil.parts.sources.csvfile import csv_faults
from edgeveil.parts.sources.source import Origin

HEADER, GOOD = "a,b,label", ["1,2,0", "3,4,1"]


def csv(path, *lines, label_column=None) -> Records:
    text = "".join(f"{line}\n" for line in lines)
    (path / "a.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    return load_records("csv", Origin(header=True, path=path / "a.csv", label_column=label_column))


def test_labels_that_are_no_class_become_minus_one():
    y = np.array([0, 2.5, np.nan, np.inf, -np.inf, 1e300, 2.0**53 + 2, -3, 7])
    assert whole_labels(y).tolist() == [0, -1, -1, -1, -1, -1, -1, -3, 7]
    assert whole_labels(np.array([2**64 - 1, 2**63, 4], np.uint64)).tolist() == [-1, -1, 4]
    assert whole_labels(np.array([1.5, 3], np.float16)).tolist() == [-1, 3]


@pytest.mark.parametrize("label", [2.5, np.nan, 1e300, np.inf])
def test_a_label_that_is_no_whole_number_drops_its_record_alone(tmp_path, label):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.array([0, label, 2]))
    got = load_records("npz", Origin(path=tmp_path / "a.npz"))
    assert valid_records(got.x, got.y, 3).tolist() == [True, False, True]


def test_a_value_too_large_for_its_type_drops_its_record_alone(recwarn):
    got = as_records(np.array([[1.0, 2.0], [1e300, 0.0]]), np.array([0, 1]), "x")
    assert valid_records(got.x, got.y, 2).tolist() == [True, False]
    assert not recwarn.list


@pytest.mark.parametrize(
    "line",
    [
        *("5,secret,1", "5,6,secret", "5,6,0.5", "5,6,1e300", "5,6,nan", "5,,1", "5,6,", ","),
        *("5,6", "5,6,1,2", "x", '5,"6,1', '"5,6,1', "5,\udcff,1", "5,6\0,1"),
        '"' + "9" * 200_000 + '"',
    ],
    ids=range(16),
)
def test_a_line_out_of_form_drops_its_record_alone(tmp_path, line):
    got = csv(tmp_path, HEADER, GOOD[0], line, GOOD[1])
    assert got.x.shape == (3, 2)
    assert got.x[[0, 2]].tolist() == [[1, 2], [3, 4]]
    assert valid_records(got.x, got.y, 2).tolist() == [True, False, True]
    faults = csv_faults(tmp_path / "a.csv")
    missing_value = line == "5,,1"  # an owner may leave a value empty; it is counted, not a fault
    assert [fault.split(": ")[0] for fault in faults] == (
        [] if missing_value else [f"{tmp_path / 'a.csv'}:3"]
    )
    assert "secret" not in str(faults)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=4))
def test_no_line_makes_a_file_unreadable(tmp_path_factory, lines):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    rows = [line.replace(b"\n", b"").replace(b"\r", b"") for line in lines]
    file.write_bytes(b"a,b,label\n1,2,0\n" + b"".join(row + b"\n" for row in rows) + b"3,4,1\n")
    got = load_records("csv", Origin(header=True, path=file))
    assert len(got) == 2 + sum(bool(row.decode(errors="replace").strip()) for row in rows)
    assert valid_records(got.x, got.y, 2)[[0, -1]].all()
    assert all(fault.startswith(f"{file}:") for fault in csv_faults(file))


def test_a_header_without_records_is_an_empty_data_set(tmp_path):
    got = csv(tmp_path, "kind,u,v", label_column="kind")
    assert (got.x.shape, len(got)) == ((0, 2), 0)
    assert csv_faults(tmp_path / "a.csv") == []


def test_faults_name_the_line_and_the_column(tmp_path):
    csv(tmp_path, "a,b,label", "", "1,2,0", "3,secret,1", "3,1", "5,6,0.5", "5,6,1.5")
    file = tmp_path / "a.csv"
    assert csv_faults(file) == [
        f"{file}:4: column 2 holds text where a number belongs",
        f"{file}:5: 2 columns, the first line has 3",
        f"{file}:6: the label is missing or no whole number",
        f"{file}:7: the label is missing or no whole number",
    ]
