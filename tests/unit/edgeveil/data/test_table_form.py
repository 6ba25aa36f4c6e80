"""Rows, numbers and dates of a table by its stated form; no record reaches another."""

import json
import math
from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from edgeveil.config.data import TableForm
from edgeveil.data import table_form
from edgeveil.data.schema import DataSchema
from edgeveil.data.table_form import date_in, number_reader, rows_in, text_rows
from edgeveil.errors import DataError
from edgeveil.parts.sources import Origin, load_records
from edgeveil.storage import json_object


@pytest.mark.parametrize(
    ("form", "cell", "number"),
    [
        ({}, "1.5", 1.5),
        ({}, "1,5", None),
        ({}, "1_000", None),
        ({"thousands": ","}, "1_000", None),
        ({"decimal": ","}, "1,5", 1.5),
        ({"decimal": ","}, "-,5e2", -50),
        ({"decimal": ","}, "1.5", None),
        ({"decimal": ","}, "7", 7),
        ({"thousands": ","}, "1,234,567.5", 1234567.5),
        ({"thousands": ","}, "12,34,567", 1234567),
        ({"thousands": ","}, "1,2", None),
        ({"thousands": ","}, "1,2345", None),
        ({"thousands": "."}, "1.5", None),
        ({"decimal": ",", "thousands": "."}, "-1.234,5", -1234.5),
        ({"thousands": " "}, "1\u00a0234 567", 1234567),
        ({"thousands": "'"}, "1'234.5", 1234.5),
        ({"decimal": ",", "thousands": "."}, "x", None),
    ],
)
def test_a_number_is_read_by_the_stated_signs_alone(form, cell, number):
    if form == {"thousands": "."}:
        with pytest.raises(ValueError, match="decimal"):
            TableForm(**form)
        return
    found = number_reader(TableForm(**form))(cell)
    assert math.isnan(found) if number is None else found == number


@pytest.mark.parametrize(
    ("dates", "cell", "found"),
    [
        ("iso", "2024-12-31", (2024, 12, 1, 24)),
        ("iso", "2024-12-31T23:59:59.5+02:00", (2024, 12, 1, 23)),
        ("iso", "2024/2/29 7:05", (2024, 2, 3, 7)),
        ("iso", "2023-02-29", None),
        ("iso", "31.12.2024", None),
        ("iso", "0000-01-01", None),
        ("day_first", "31.12.2024 14:00", (2024, 12, 1, 14)),
        ("month_first", "12/31/2024 02:15 PM", (2024, 12, 1, 14)),
        ("month_first", "12/31/2024 12:15 AM", (2024, 12, 1, 0)),
        ("month_first", "31/12/2024", None),
        ("iso", "2024-12-31 25:00", (2024, 12, 1, 24)),
        ("iso", "9" * 10_000, None),
    ],
)
def test_a_date_is_read_in_the_stated_order_alone(dates, cell, found):
    assert date_in(cell, TableForm(dates=dates)) == found


@given(st.text(max_size=40), st.sampled_from(["iso", "day_first", "month_first"]))
def test_no_cell_fails(cell, dates):
    date_in(cell, TableForm(dates=dates))
    number_reader(TableForm(decimal=",", thousands="."))(cell)
    json_object(cell)


SPANNING = ['"a\n', 'b",1\n', "c,2\n", "\n", '"d\n', "\n", 'e",3\n']


def test_a_quote_spans_lines_only_where_the_owner_says_so():
    found = list(rows_in(SPANNING, TableForm(multiline=True)))
    assert found == [(1, ["a\nb", "1"]), (3, ["c", "2"]), (5, ["d\n\ne", "3"])]
    assert [at for at, _ in rows_in(SPANNING, TableForm())] == [1, 2, 3, 5, 7]


@pytest.mark.parametrize("opened", ['"', '"' + '","\n' * 99])
def test_a_record_ends_at_its_bound(opened, monkeypatch, tmp_path):
    monkeypatch.setattr(table_form, "RECORD_CHARS", 100)
    lines = "".join(f"{n},{n}\n" for n in range(200))
    (tmp_path / "a").write_text(f"0,0\n{opened}\n{lines}")
    rows = list(text_rows(tmp_path / "a", TableForm(multiline=True)))
    assert rows[0] == (1, ["0", "0"]) and rows[-1][1] == ["199", "199"]
    assert len(rows) > 150 and max(sum(map(len, row)) for _, row in rows) < 300
    (tmp_path / "a").write_text("0,0\n" + "9" * 1000 + "\n1,1\n")
    assert [len(row[0]) for _, row in text_rows(tmp_path / "a", TableForm())] == [1, 100, 1]


def test_utf_16_without_its_mark_is_refused_with_the_fix(tmp_path):
    form = TableForm(encoding="utf-16")
    (tmp_path / "a").write_bytes("a,b\n1,2\n".encode("utf-16"))
    assert [row for _, row in text_rows(tmp_path / "a", form)] == [["a", "b"], ["1", "2"]]
    (tmp_path / "a").write_bytes("a,b\n1,2\n".encode("utf-16-le"))
    with pytest.raises(DataError):
        list(text_rows(tmp_path / "a", form))


DATES = {
    "origin": "public",
    "label": {"column": "y", "classes": ["0", "1"]},
    "columns": [
        {"name": "at", "date": ["year", "month", "weekday", "hour"], "years": [2020, 2030]}
    ],
}


def of_dates(**changes):
    column = {**DATES["columns"][0], **changes}
    return DataSchema.model_validate_json(json.dumps({**DATES, "columns": [column]}))


def test_dates_become_a_year_in_its_range_and_places_on_circles(tmp_path):
    cells = ["2025-01-06T00:00", "2031-04-01T06:00", "2020-07-06", "soon", ""]
    (tmp_path / "a.csv").write_text("at,y\n" + "".join(f"{cell},0\n" for cell in cells))
    schema = of_dates()
    x = load_records("csv", Origin(tmp_path / "a.csv", header=True, schema=schema)).x
    tuesday = 2 * math.pi / 7  # one day past Monday
    wanted = [
        [0, 0, 1, 0, 1, 0, 1],
        [1, 1, 0, math.sin(tuesday), math.cos(tuesday), 1, 0],
        [-1, 0, -1, 0, 1, 0, 0],
        [0] * 7,
        [0] * 7,
    ]
    assert x == pytest.approx(np.array(wanted), abs=1e-6)
    times = [datetime(2025, 1, 6), datetime(2031, 4, 1, 6)]
    parquet.write_table(pa.table({"at": times, "y": [0, 0]}), tmp_path / "a.parquet")
    of_parquet = load_records("parquet", Origin(tmp_path / "a.parquet", schema=schema)).x
    assert of_parquet[:, :5] == pytest.approx(x[:2, :5])
    some = of_dates(date=["weekday", "hour"], years=None)
    assert load_records("csv", Origin(tmp_path / "a.csv", header=True, schema=some)).x.tolist() == (
        x[:, 3:].tolist()
    )


def test_a_key_of_a_json_line_is_a_cell_and_its_other_keys_are_part_of_the_record(tmp_path):
    lines = ['{"at": "2025-01-06", "y": 0}', '{"y": 1, "at": null, "z": 3}', '{"y": 1, "z": 4}']
    lines[1:1] = [f'{{"at": {sign}1{"0" * 400}, "y": 0}}' for sign in ("", "-")]
    (tmp_path / "a").write_text("\n".join([*lines, "[1]", "{", ""]))
    found = load_records("jsonl", Origin(tmp_path / "a", schema=of_dates()))
    assert found.y.tolist() == [0, 0, 0, 1, 1, -1, -1]
    assert np.isnan(found.x).all(axis=1).tolist() == [False] * 5 + [True] * 2
    assert len(np.unique(found.places, axis=0)) == 7
    with pytest.raises(DataError):
        load_records("jsonl", Origin(tmp_path / "a"))
