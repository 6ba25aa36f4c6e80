"""Parquet tables: numbers and a label, gaps that only drop their record, all else refused."""

import datetime
from decimal import Decimal

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.parts.sources import load_records
from edgeveil.parts.sources import parquet as reader
from edgeveil.parts.sources.source import Origin

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path, **columns):
    pq.write_table(pa.table(columns), path / "a.parquet", row_group_size=2)
    return path / "a.parquet"


def refused(file, **origin):
    with pytest.raises(DataError) as caught:
        load_records("parquet", Origin(path=file, **origin))
    assert caught.value.where
    return str(caught.value)


def test_numbers_of_every_kind_and_the_last_column_as_label(tmp_path):
    file = write(
        tmp_path,
        a=pa.array([1.5, 2.5, -1.0], pa.float64()),
        b=pa.array([1, 2, 3], pa.int8()),
        c=[True, False, True],
        kind=pa.array([0, 2, 1], pa.uint16()),
    )
    records = load_records("parquet", Origin(path=file))
    assert records.x.tolist() == [[1.5, 1.0, 1.0], [2.5, 2.0, 0.0], [-1.0, 3.0, 1.0]]
    assert records.x.dtype == np.float32
    assert records.y.tolist() == [0, 2, 1]


def test_a_named_label_column(tmp_path):
    file = write(tmp_path, kind=[3, 4], a=[1.0, 2.0])
    records = load_records("parquet", Origin(path=file, label_column="kind"))
    assert (records.x.tolist(), records.y.tolist()) == ([[1.0], [2.0]], [3, 4])
    assert "did you mean 'kind'" in refused(file, label_column="kin")


def test_gaps_drop_their_own_record_alone(tmp_path):
    file = write(tmp_path, a=[1.0, None, 3.0], b=[True, None, False], kind=[0, 1, None])
    records = load_records("parquet", Origin(path=file))
    assert np.isnan(records.x).tolist() == [[False, False], [True, True], [False, False]]
    assert records.y.tolist() == [0, 1, -1]


def test_an_empty_table_has_no_records(tmp_path):
    file = write(tmp_path, a=pa.array([], pa.float32()), kind=pa.array([], pa.int64()))
    assert load_records("parquet", Origin(path=file)).x.shape == (0, 1)


@pytest.mark.parametrize(
    "column", [["a", "2.5"], [[1.0], [2.0]], [b"x", b"y"], [datetime.date(2020, 1, 1)] * 2]
)
def test_a_column_of_no_numbers_drops_what_is_none_and_is_named_to_the_owner(tmp_path, column):
    file = write(tmp_path, odd=column, kind=[0, 1])
    found = load_records("parquet", Origin(path=file)).x.tolist()
    assert np.array_equal(found, [[np.nan], [2.5 if "2.5" in column else np.nan]], equal_nan=True)
    (said,) = reader.parquet_faults(file)
    assert "column 'odd' holds" in said


def test_one_text_changes_no_number_beside_it(tmp_path):
    """Writers make a column of texts of it, and exact decimals, and switches, are read alike."""
    values = [1.5, -0.1, 2**53 + 1, True]
    texts = write(tmp_path, a=[*map(str, values), "none"], kind=[0] * 5)
    read = load_records("parquet", Origin(path=texts)).x[:4]
    plain = write(tmp_path, a=pa.array(map(float, values)), kind=[0] * 4)
    assert read.tolist() == load_records("parquet", Origin(path=plain)).x.tolist()
    exact = write(tmp_path, a=[Decimal("1.5"), None], kind=[0, 1])
    assert load_records("parquet", Origin(path=exact)).x[0].tolist() == [1.5]


def test_files_of_another_form_are_told(tmp_path):
    file = write(tmp_path, a=[1.0, 2.0], kind=[0, 1])
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert "is not readable Parquet" in refused(file)
    file.write_bytes(b"a,b\n1,2\n")
    assert "is not readable Parquet" in refused(file)
    assert "fewer than two columns" in refused(write(tmp_path, a=[1.0]))
    assert "no such file" in refused(tmp_path / "none.parquet")


def test_size_is_checked_by_the_footer(tmp_path):
    file = write(tmp_path, a=[1.0, 2.0], kind=[0, 1])
    assert "holds 32 bytes of numbers, the limit is 31" in refused(file, max_bytes=31)


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    file = write(tmp_path, a=[1.0, 2.0], kind=[0, 1])
    monkeypatch.setattr(reader, "find_spec", lambda name: None)
    assert "edgeveil[parquet]" in refused(file)
