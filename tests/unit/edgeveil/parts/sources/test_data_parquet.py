"""Parquet tables: numbers and a label, gaps that only drop their record, all else refused."""

import datetime
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

from edgeveil.parts.sources import load_records
from edgeveil.parts.sources import tables as reader
from edgeveil.parts.sources.source import Origin

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path, **columns):
    pq.write_table(pa.table(columns), path / "a.parquet", row_group_size=2)
    return path / "a.parquet"


def read(file):
    return load_records("parquet", Origin(path=file))


def test_numbers_of_every_kind_and_gaps_that_drop_their_own_record_alone(tmp_path):
    """The last column is the label."""
    file = write(
        tmp_path,
        a=pa.array([1.5, None, -1.0, 2.5], pa.float64()),
        b=pa.array([1, 2, 3, 4], pa.int8()),
        c=[True, False, True, None],
        kind=pa.array([0, 2, None, 1], pa.uint16()),
    )
    records = read(file)
    wanted = [[1.5, 1, 1], [np.nan, 2, 0], [-1, 3, 1], [2.5, 4, np.nan]]
    assert np.array_equal(records.x, wanted, equal_nan=True)
    assert records.y.tolist() == [0, 2, -1, 1]


@pytest.mark.parametrize(
    "column", [["1_000", "2.5"], [[1.0], [2.0]], [b"x", b"y"], [datetime.date(2020, 1, 1)] * 2]
)
def test_a_column_of_no_numbers_drops_what_is_none_and_is_named_to_the_owner(tmp_path, column):
    file = write(tmp_path, odd=column, kind=[0, 1])
    assert np.array_equal(
        read(file).x, [[np.nan], [2.5 if "2.5" in column else np.nan]], equal_nan=True
    )
    (fault,) = reader.parquet_faults(Origin(file))
    assert "column 'odd'" in fault


def test_one_text_changes_no_number_beside_it(tmp_path):
    """Writers make a column of texts of it, and exact decimals, and switches, are read alike."""
    values = [1.5, -0.1, 2**53 + 1, True]
    texts = read(write(tmp_path, a=[*map(str, values), "none"], kind=[0] * 5)).x[:4]
    plain = read(write(tmp_path, a=pa.array(map(float, values)), kind=[0] * 4)).x
    assert texts.tolist() == plain.tolist()
    assert read(write(tmp_path, a=[Decimal("1.5"), None], kind=[0, 1])).x[0].tolist() == [1.5]


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("listed", [False, True])
def test_how_a_writer_packs_its_texts_changes_no_record(tmp_path, encoding, listed):
    """Writers turn to another encoding once the texts are many: one record may decide it."""
    texts = [None, *(f"{k}.5" for k in range(9999))]
    texts = pa.array([[text] for text in texts] if listed else texts)
    table = pa.table({"a": texts, "kind": [k % 2 for k in range(10000)]})
    usual, otherwise = tmp_path / "usual.parquet", tmp_path / "otherwise.parquet"
    pq.write_table(table, usual, row_group_size=4000)
    encodings = {pq.ParquetFile(usual).schema.column(0).path: encoding, "kind": "PLAIN"}
    options = {"use_dictionary": False, "column_encoding": encodings}
    pq.write_table(table, otherwise, row_group_size=4000, **options)
    one, other = read(usual), read(otherwise)
    assert one.x.tobytes() == other.x.tobytes() and len(one) == 10000
    assert one.y.tobytes() == other.y.tobytes()
    assert reader.parquet_rows(usual) == reader.parquet_rows(otherwise)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("encoding", "kind"), [(None, "string"), ("DELTA_LENGTH_BYTE_ARRAY", "json")]
)
def test_a_text_of_many_rows_takes_memory_once(tmp_path, encoding, kind):
    texts = pa.array(['"' + "x" * 25_000 + '"'] * 4000)
    if kind == "json":
        texts = pa.ExtensionArray.from_storage(pa.json_(), texts)
    encodings = {"column_encoding": {"a": encoding}, "use_dictionary": False} if encoding else {}
    table = pa.table({"a": texts, "kind": pa.array([0] * 4000)})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", **encodings)
    del texts, table
    code = f"""if True:
        import contextlib, re
        with contextlib.suppress(ImportError):
            import pandas  # pyarrow loads it where it is installed
        from edgeveil.parts.sources.source import Origin
        from edgeveil.parts.sources.tables import read_parquet
        import pyarrow.parquet
        from pathlib import Path
        def peak_kb():
            return int(re.search("VmHWM:[^0-9]*([0-9]+)", Path("/proc/self/status").read_text())[1])
        before = peak_kb()
        records = read_parquet(Origin(Path({str(tmp_path / "a.parquet")!r})))
        print((peak_kb() - before) >> 10, len(records))
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown_mb, count = map(int, found.stdout.split())
    assert count == 4000 and grown_mb < 60, found.stdout
