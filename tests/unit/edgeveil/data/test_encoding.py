"""What a record becomes by a schema: by hand, the same from every form of a file, alone from
the record, and never a failure for what it holds."""

import csv
import json
import math
import tracemalloc
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from edgeveil.config.data import DataSource
from edgeveil.data.check import schema_problems
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import RecordLimit
from edgeveil.data.target import LABELS as NUMBERS
from edgeveil.data.target import STEPS, TargetRange
from edgeveil.errors import DataError
from edgeveil.parts.own_records import device_records
from edgeveil.parts.partitions import PARTITIONS
from edgeveil.parts.sources import SOURCES, Origin, load_records
from edgeveil.parts.sources.tables import encode_csv, encode_parquet, parquet_rows

KEY = bytes(range(32))
NAMES = ["age", "hours", "work", "income"]
PLAIN = {
    "origin": "public",
    "label": {"column": "income", "classes": ["low", ["high", "high."]]},
    "columns": [
        {"name": "age", "number": [20, 60]},
        {"name": "hours", "number": [0, 90], "bins": [30, 60]},
        {"name": "work", "category": ["Private", "State"]},
    ],
    "missing": ["?"],
}
ROWS = [
    ["20", "30", "Private", "low"],
    ["50", "29.5", "State", "high."],
    ["-1e400", "1000", "private", "high"],  # clipped twice, a category of another spelling
    ["?", "", "?", "low"],
    ["many", "nan", "", "other"],
]
#         age   hours: three bins, missing   Private, State, else
VALUES = [
    [-1.0, 0, 1, 0, 0, 1, 0, 0],
    [0.5, 1, 0, 0, 0, 0, 1, 0],
    [-1.0, 0, 0, 1, 0, 0, 0, 1],
    [0.0, 0, 0, 0, 1, 0, 0, 1],
    [0.0, 0, 0, 0, 1, 0, 0, 1],
]
LABELS = [0, 1, 1, 0, -1]


def schema(**changes):
    return DataSchema.model_validate_json(json.dumps({**PLAIN, **changes}))


def written(path, rows=ROWS, names=NAMES):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows] if names else rows)
    return path


def read(source, path, of=None):
    header = (of or schema()).header is None if source == "csv" else None
    return load_records(source, Origin(path=path, header=header, schema=of or schema()))


def test_rows_become_these_numbers_whatever_the_order_spaces_quotes_or_header(tmp_path):
    turned = written(tmp_path / "b.csv", [row[::-1] for row in ROWS], NAMES[::-1])
    for path in (written(tmp_path / "a.csv"), turned):
        found = read("csv", path)
        assert (found.x.tolist(), found.y.tolist()) == (VALUES, LABELS)
    spaced = tmp_path / "c.csv"
    lines = ["|a comment", ', "x"', *(", ".join(row) for row in ROWS)]
    spaced.write_text("\n".join(lines) + "\n")
    bare = read("csv", spaced, schema(header=NAMES))
    assert bare.x[2:].tolist() == VALUES
    assert np.isnan(bare.x[:2]).all()  # lines of another width are records that learning drops
    assert bare.y[:2].tolist() == [-1, -1]


@pytest.mark.parametrize("gaps", [False, True])
def test_parquet_reads_alike_whether_its_columns_have_gaps_or_not(gaps, tmp_path):
    rows = [["20", "30", "1", "low"], ["50", "60", "2", "high"]] + [["", "", "", "low"]] * gaps
    of = schema(columns=[*PLAIN["columns"][:2], {"name": "work", "category": ["1", "2"]}])
    whole = [
        [int(v) if v else None for v in column] for column in list(zip(*rows, strict=True))[:3]
    ]
    columns = dict(zip(NAMES, [*whole, [row[3] for row in rows]], strict=True))
    columns["hours"] = pa.array(columns["hours"], pa.float64())
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = read("parquet", tmp_path / "a.parquet", of)
    wanted = read("csv", written(tmp_path / "a.csv", rows), of)
    assert np.array_equal(found.x, wanted.x)
    assert np.array_equal(found.places, wanted.places)


NO_VALUES = {
    "a text that is no UTF-8": pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string()),
    "a date beyond the calendar": pa.array([0, 2**31 - 1, 1], pa.int32()).view(pa.date32()),
    "a time in nanoseconds": pa.array([0, 1, 1000], pa.timestamp("ns")),
    "an endless duration": pa.array([0, 2**62, 1], pa.duration("s")),
}


@pytest.mark.parametrize("kind", NO_VALUES)
def test_no_cell_makes_a_parquet_file_unreadable(kind, tmp_path):
    plain = {"age": [20, 40, 50], "hours": [1, 2, 3], "income": ["low", "high", "low"]}
    of = schema(columns=[{"name": "hours", "number": [0, 9]}])
    for name, chosen in (("all", [0, 1, 2]), ("rest", [0, 2])):
        table = pa.table({**plain, "work": NO_VALUES[kind]}).take(chosen)
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    whole, rest = (read("parquet", tmp_path / f"{name}.parquet", of) for name in ("all", "rest"))
    for part in ("x", "y", "places"):
        kept = np.delete(getattr(whole, part), 1, axis=0)
        assert getattr(rest, part).tobytes() == kept.tobytes()


LONG = "a" * (1 << 20)
HUNDRED = np.zeros(100, np.int32)
REPEATED = {
    "a text": pa.DictionaryArray.from_arrays(pa.array(HUNDRED), pa.array([LONG])),
    "a text in lists": pa.ListArray.from_arrays(
        pa.array(range(101), pa.int32()),
        pa.DictionaryArray.from_arrays(pa.array(HUNDRED), pa.array([LONG])),
    ),
}


@pytest.mark.parametrize("as_typed", [False, True])
@pytest.mark.parametrize("kind", [*REPEATED, "two of one name", "JSON"])
def test_what_a_parquet_file_holds_once_is_not_in_memory_for_each_row(kind, as_typed, tmp_path):
    arrays = [pa.array([1] * 100), REPEATED.get(kind, REPEATED["a text"])]
    names = ["hours", "work", "income", "other"]
    if kind == "JSON":
        try:
            arrays[1] = arrays[1].cast(pa.string()).cast(pa.json_(pa.string()))
        except AttributeError:
            pytest.skip("this pyarrow knows no JSON")
    if kind == "two of one name":
        names[3] = "work"
    arrays += [pa.array(["low"] * 100), pa.array(["x"] * 100)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(arrays, names), path, store_schema=as_typed)
    assert path.stat().st_size < 60_000
    of = schema(columns=[{"name": "hours", "number": [0, 9]}])
    limit = RecordLimit(100, KEY)  # as a device reads
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        found = encode_parquet(Origin(path=path, limit=limit), of)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert len(found.records) == 100
    held = 60 * len(LONG)  # of a hundred; few where they are dictionaries
    assert most < held and 0 < pool.max_memory() < 3 * held


LONG_BY_TYPE = {
    "a text in a dictionary": REPEATED["a text"],
    "bytes of one length": pa.array([bytes(1 << 20)] * 100, pa.binary(1 << 20)),
    "lists of numbers": pa.array([np.zeros(1 << 17)] * 100, pa.list_(pa.float64())),
}


@pytest.mark.parametrize("kind", LONG_BY_TYPE)
def test_what_a_parquet_file_would_unpack_to_is_refused_before_it_is(kind, tmp_path):
    """A text in a dictionary only where no limit of records is: see above."""
    plain = {"hours": [1] * 100, "work": LONG_BY_TYPE[kind], "income": ["low"] * 100}
    parquet.write_table(pa.table(plain), tmp_path / "a.parquet")
    of = schema(columns=[{"name": "hours", "number": [0, 9]}])
    room = 8 << 20  # of the numbers
    limit = None if "dictionary" in kind else RecordLimit(100, KEY)
    with pytest.raises(DataError, match=f"the limit is {4 * room}"):
        encode_parquet(Origin(tmp_path / "a.parquet", max_bytes=room, limit=limit), of)


@pytest.mark.parametrize("kind", PARTITIONS.names())
def test_two_schemas_split_and_deal_alike_where_labels_are_alike(kind, tmp_path):
    rng = np.random.default_rng(3)
    rows = [
        [str(rng.integers(10, 99)), str(k), "Private", "low" if k % 3 else "high"]
        for k in range(90)
    ]
    path = written(tmp_path / "a.csv", rows)
    shard = {"devices": 2, "index": 0, "seed": 6, "classes": 2, "partition": {"kind": kind}}
    block = {"name": "own", "source": "csv", "path": str(path), "header": True, "shard": shard}
    block["test_share"] = 0.2
    data = DataSource.model_validate_json(json.dumps(block))
    other = schema(columns=[{"name": "hours", "number": [0, 90]}])
    one, two = (
        device_records(data, KEY, evaluation_share=0.4, schema=of) for of in (schema(), other)
    )
    for mine, theirs in zip(one, two, strict=True):
        assert mine.places.tobytes() == theirs.places.tobytes()
    assert len(read("csv", path)) > sum(map(len, one)) > 5


def test_what_is_not_as_the_schema_says_is_counted_and_never_shown(tmp_path):
    path = written(tmp_path / "a.csv", [*ROWS, ["one cell"]])
    origin = Origin(path=path, header=True, schema=schema())
    problems = schema_problems(schema(), encode_csv(origin, schema()))
    counts = ("'age': 1 of 4 values are no", "'age': 1 of 4 values lie", "'work': 1 of 3 values")
    for count in (*counts, "1 of 6 labels in column 'income'"):
        assert any(count in problem for problem in problems)
    assert not any("private" in problem for problem in problems)
    faults = SOURCES["csv"].faults(origin)
    assert [fault.partition("a.csv:")[2].partition(":")[0] for fault in faults] == ["6", "7"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["age", "hours", "work", "incme"], "did you mean 'incme'"),
        ([*NAMES, "age"], "two columns 'age'"),
        (ROWS[0], "may be a record"),
    ],
)
def test_only_the_files_form_is_refused(tmp_path, names, why):
    assert len(read("csv", written(tmp_path / "a.csv", []))) == 0
    with pytest.raises(DataError, match=why):
        read("csv", written(tmp_path / "a.csv", [], names))
    np.savez(tmp_path / "a.npz", x=np.ones((2, 2)), y=[0, 1])
    with pytest.raises(DataError, match="'npz' is not read by"):
        read("npz", tmp_path / "a.npz")


PICTURES = {
    "origin": "public",
    "label": {"classes": ["cat", "dog"]},
    "image": {"size": [4, 6], "channels": 3},
}


def of_pictures(image=PICTURES["image"], classes=("cat", "dog")):
    plain = {**PICTURES, "label": {"classes": classes}, "image": image}
    return DataSchema.model_validate_json(json.dumps(plain))


def read_npz(folder, schema, x, y):
    np.savez(folder / "a.npz", x=x, y=np.array(y))
    return load_records("npz", Origin(path=folder / "a.npz", schema=schema))


def labels_of(folder, classes, labels):
    schema = of_pictures({"size": [1, 1]}, classes)
    return read_npz(folder, schema, np.zeros((len(labels), 1, 1)), labels).y.tolist()


def test_pictures_in_colour_are_scaled_and_stand_where_their_bytes_say(tmp_path):
    for name in ("cat", "dog", "cow"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (6, 4), (10, 20, 30)).save(tmp_path / "cat" / "a.png")
    Image.new("L", (60, 40), 7).save(tmp_path / "dog" / "b.png")
    Image.new("RGB", (6, 4)).save(tmp_path / "cow" / "c.png")
    (tmp_path / "dog" / "d.png").write_bytes(b"no picture")
    found = load_records("images", Origin(path=tmp_path, schema=of_pictures()))
    assert found.y.tolist() == [0, -1, 1, 1]
    assert found.x.shape == (4, 3, 4, 6)
    assert found.x[0, :, 2, 3].tolist() == [10, 20, 30]
    assert (found.x[2] == 7).all()
    assert np.isnan(found.x[3]).all()
    again = load_records("images", Origin(path=tmp_path, schema=of_pictures({"size": [2, 2]})))
    assert again.places.tobytes() == found.places.tobytes()


@pytest.mark.parametrize("classes", [["1", "0"], ["cat", "dog"], ["a", ["2", "True"]], ["0.0"]])
def test_no_label_of_an_array_changes_what_another_means(classes, tmp_path):
    """NumPy stores the others as texts, as bytes or as numbers of another type beside it."""
    labels = [0, 1, 2, True, 2.0, math.nan, -3, "0", "1", "cat", "dog", b"dog", b"1", 1 + 0j]
    for one in labels:
        (alone,) = labels_of(tmp_path, classes, [one])
        for other in (1, 2.5, 1 + 0j, True, "x", b"x", math.nan, "1", 2**60):
            assert labels_of(tmp_path, classes, [one, other])[0] == alone, (one, other)


@pytest.mark.parametrize(
    ("classes", "labels", "wanted"),
    [
        (["1", "0"], [0, 1, 2], [1, 0, -1]),
        (["cat", "dog"], [0, 1, 2], [0, 1, 2]),
        (["cat", "dog"], [b"dog", b"cat", b"1"], [1, 0, 1]),
        (["3", ["5", "4"]], [0, 3, 4, 5.0], [-1, 0, 1, 1]),
    ],
)
def test_where_a_class_is_called_by_a_number_all_labels_are_names(
    classes, labels, wanted, tmp_path
):
    assert labels_of(tmp_path, classes, labels) == wanted


BIG, NOON = 7 * 10**17 + 1, datetime(2024, 1, 1, 12)


@pytest.mark.parametrize(
    ("cells", "other"),
    [
        ([BIG, 3], None),
        ([Decimal("1.5"), Decimal(20)], Decimal("1.95")),
        ([Decimal("0.5")], Decimal(10**20)),
        ([{"a": 1}, {"a": 2}], {"a": 1, "b": 2}),
        ([[1], [2]], [2.5]),
        (["a", "1"], b"b"),
        ([NOON], NOON.replace(tzinfo=timezone(timedelta(hours=3)))),
        ([NOON.replace(hour=0)], NOON.replace(tzinfo=timezone(timedelta(hours=3)))),
    ],
)
def test_no_cell_of_a_column_changes_the_text_of_another(cells, other, tmp_path):
    """Parquet gives a column one type; tools make floats of whole numbers beside a gap."""

    def texts(*values):
        gap = None in values
        values = [float(v) if gap and isinstance(v, int) else v for v in values]
        parquet.write_table(pa.table({"id": values, "y": [0] * len(values)}), tmp_path / "a")
        return [row[0] for row in parquet_rows(tmp_path / "a")[1]]

    assert texts(*cells, other)[:-1] == texts(other, *cells)[1:] == texts(*cells)
    assert all(texts(*cells))


def test_arrays_of_pictures_have_names_and_a_range(tmp_path):
    schema = of_pictures({**PICTURES["image"], "values": [-1, 1]})
    x = np.zeros((3, 4, 6, 3), np.float32)  # colours last, as many libraries have them
    x[0], x[1, :, :, 2] = -7, 1
    found = read_npz(tmp_path, schema, x, ["dog", "cat", "cow"])
    assert found.y.tolist() == [1, 0, -1]
    assert (found.x[0] == 0).all()
    assert found.x[1, :, 0, 0].tolist() == [127.5, 127.5, 255]
    with pytest.raises(DataError, match=r"shape \[6, 4, 3\]"):
        read_npz(tmp_path, schema, np.zeros((1, 6, 4, 3)), [0])


PRICES = {
    "origin": "public",
    "label": {"column": "price", "number": [10, 30]},
    "columns": [{"name": "rooms", "number": [1, 9]}],
    "missing": ["99"],
}


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30), st.floats())
def test_a_label_is_as_near_as_its_steps_and_never_outside(one, other, value):
    low, high = sorted((one, other))
    target = TargetRange(low, high)
    if not target.distinct_in_float32:
        return
    label = target.label(value)
    if label is None:
        assert math.isnan(value)
        return
    assert 0 <= label < NUMBERS
    (back,) = target.values(np.array([label]))
    within = min(max(value, low), high)
    assert abs(back - within) <= (high - low) / STEPS * 0.51


def test_rows_become_labels_and_what_is_no_number_is_dropped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("rooms,price\n1,10\n5,25\n9,1e9\n5,\n5,99\n5,many\n")
    schema = DataSchema.model_validate_json(json.dumps(PRICES))
    found = load_records("csv", Origin(path=path, header=True, schema=schema))
    assert found.y.tolist() == [0, 6144, 8192, -1, -1, -1]
    assert found.x[:3, 0].tolist() == [-1, 0, 1]
