"""Readings as windows: by hand, each alone from its own readings, in any order of the file."""

import json
import tracemalloc
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.data.check import schema_problems
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import RecordLimit
from edgeveil.errors import ConfigError, RecordsError
from edgeveil.jobs import load_plan
from edgeveil.parts.sources import Origin, load_records
from edgeveil.parts.sources.tables import encode_csv, encode_jsonl
from edgeveil_edge.consent import _columns_refusal
from edgeveil_edge.inference import _named
from edgeveil_edge.predict import GivenRecords

GRID = {"length": 4, "time": "t", "every_s": 0.5}
GROUP = {"length": 3, "group": "g"}


def schema(windows, **label):
    given = {
        "origin": "public",
        "label": {"column": "state", **(label or {"classes": ["ok", "worn", "broken"]})},
        "columns": [{"name": "v", "number": [-10, 10]}],
        "windows": windows,
    }
    return DataSchema.model_validate_json(json.dumps(given))


def table(path, rows):
    lines = ["t,g,v,state", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path, windows, rows, limit=None, **label):
    origin = Origin(path=table(path, rows), header=True, limit=limit)
    return encode_csv(origin, schema(windows, **label))


def values(found):
    """Windows' readings as whole numbers, and labels."""
    x = np.rint(found.records.x[:, :, 0] * 10).astype(int).tolist()
    return sorted(zip(x, found.records.y.tolist(), strict=True))


# Places 0 to 3 are a window of half a second each, 4 to 7 the next; time, group, value, state.
ROWS = [
    ("0.0", "a", 1, "ok"),
    ("0.55", "a", 2, "worn"),  # nearest to place 1
    ("1.5", "a", 4, "ok"),  # place 2 is a gap
    ("1970-01-01T00:00:02.5Z", "a", 6, "broken"),  # place 5: a leading gap
    ("1970-01-01 00:00:03", "a", 7, "ok"),
    ("4.0", "a", 9, "ok"),  # alone in its window
    ("-1", "b", -3, "ok"),
    ("-0.5", "b", -1, "strange"),
    ("1_0", "b", 5, "ok"),
]


@pytest.mark.parametrize(
    ("windows", "wanted"),
    [
        (GRID, [([-3, -3, -3, -1], -1), ([1, 2, 2, 4], 0), ([6, 6, 7, 7], 0)]),
        ({**GRID, "label": "any"}, [([-3, -3, -3, -1], 0), ([1, 2, 2, 4], 1), ([6, 6, 7, 7], 2)]),
        ({**GRID, "group": "g"}, [([-3, -3, -3, -1], -1), ([1, 2, 2, 4], 0), ([6, 6, 7, 7], 0)]),
        ({**GRID, "step": 6}, [([1, 2, 2, 4], 0), ([7, 7, 9, 9], 0)]),
        (GROUP, [([-3, -1, 5], 0), ([1, 2, 4], 0)]),
        ({**GROUP, "time": "t"}, [([-3, -1, -1], -1), ([1, 2, 4], 0)]),
    ],
    ids=["grid", "any", "group", "step", "rows", "rows by time"],
)
def test_windows_by_hand_in_any_order_of_the_file(windows, wanted, tmp_path):
    found = read(tmp_path / "t.csv", windows, ROWS)
    assert values(found) == wanted
    if "time" in windows:
        assert values(read(tmp_path / "t.csv", windows, ROWS[::-1])) == wanted
    assert GivenRecords.of(found).notes == found.remarks
    told = " ".join(schema_problems(schema(windows), found))
    assert ("windows have fewer than half" in told) == (
        "every_s" in windows and "step" not in windows
    )


def test_one_reading_more_or_less_changes_its_own_window_alone(tmp_path):
    chance = np.random.default_rng(0)
    places = [k for k in range(40) if k % 7]
    rows = [(k / 2, "ab"[k % 3 > 1], chance.integers(-9, 9), "ok") for k in places]
    rows += [(3.0, "a", 9, "worn"), (3.1, "a", 8, "ok")]  # three in one place
    for windows in (GRID, {**GRID, "group": "g"}, {**GROUP, "time": "t"}, GROUP):
        whole = _bag(read(tmp_path / "t.csv", windows, rows))
        for at in range(len(rows)):
            rest = _bag(read(tmp_path / "t.csv", windows, rows[:at] + rows[at + 1 :]))
            assert (whole - rest).total() <= 1
            assert (rest - whole).total() <= 1


def _bag(found):
    one = found.records
    return Counter(
        (x.tobytes(), int(y), place.tobytes())
        for x, y, place in zip(one.x, one.y, one.stored, strict=True)
    )


def test_windows_of_least_rank_are_kept(tmp_path):
    rows = [(k / 2, "a", k % 9, "ok") for k in range(80)]
    whole, limit = read(tmp_path / "t.csv", GRID, rows).records, RecordLimit(5, bytes(32))
    few = read(tmp_path / "t.csv", GRID, rows, limit).records
    np.testing.assert_array_equal(few.x, whole.x[limit.kept(whole.places)])


def test_a_window_is_laid_out_only_once_its_size_is_allowed(tmp_path):
    windows, rows = {**GROUP, "length": 1 << 16}, [(0, at, 1, "ok") for at in range(300)]
    tracemalloc.start()
    few = read(tmp_path / "t.csv", windows, rows, RecordLimit(2, bytes(32)))
    assert few.records.x.shape == (2, 1 << 16, 1)
    with pytest.raises(RecordsError):
        origin = Origin(path=tmp_path / "t.csv", header=True, max_bytes=1 << 20)
        encode_csv(origin, schema(windows))
    assert tracemalloc.get_traced_memory()[1] < 20e6  # 300 windows take 157 MB
    tracemalloc.stop()


def test_states_of_readings_that_are_normal_or_not(tmp_path):
    rows = [(0, "a", 1, ""), (0.5, "a", 1, "leak"), (1, "a", 1, "ok"), (5, "a", 1, "ok")]
    rows += [(5.5, "a", 1, ""), (9, "a", 1, ""), (9.5, "a", 1, "")]
    found = read(tmp_path / "t.csv", {**GRID, "label": "any"}, rows, normal=["ok"])
    assert sorted(found.records.y.tolist()) == [-1, 0, 1]


def test_empty_and_text_files_of_no_windows(tmp_path):
    for rows in ([], [("soon", "", "x", "y")], [("9" * 400, "a", 1, "ok")]):
        found = read(tmp_path / "t.csv", GRID, rows)
        assert found.records.x.shape == (0, 4, 1)
        assert found.records.places.shape[0] == 0


def test_parquet_times_are_read_alike(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    moments = [datetime.fromtimestamp(k / 2, UTC) for k in range(8)]
    columns = {"t": moments, "g": ["a"] * 8, "v": range(8), "state": ["ok"] * 8}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    origin = Origin(path=tmp_path / "t.parquet", schema=schema(GRID))
    assert load_records("parquet", origin).x.shape == (2, 4, 1)


def test_windows_of_json_lines_are_those_of_the_table(tmp_path):
    rows = [dict(zip(("t", "g", "v", "state"), row, strict=True)) for row in ROWS]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for windows in (GRID, GROUP):
        found = encode_jsonl(Origin(path=tmp_path / "t.jsonl"), schema(windows))
        assert values(found) == values(read(tmp_path / "t.csv", windows, ROWS))


def test_a_device_serves_lists_of_named_readings():
    given = [[{"v": 1}, {"v": 2}, {"v": None}, {}], [{"v": 3}], [{"v": "?"}]]
    found = _named(given, schema(GRID))
    assert values(found)[1:] == [([1, 2, 0, 0], -1), ([3, 3, 3, 3], -1)]
    np.testing.assert_allclose(found.records.x[1], 0.3)  # in the order of the request
    answered = np.isfinite(GivenRecords.of(found).x).all(axis=(1, 2))
    assert answered.tolist() == [True, True, False]  # nothing of the last can be read


JOB = """
job: machines
data:
  source: machines
  nominal_records: 20
  schema:
    origin: public
    label: {{column: state, classes: [ok, worn]}}
    columns: [{{name: [x, y], number: [-1, 1]}}]
    windows: {windows}
features: [{{name: spectra}}, {{name: random, dimension: 32}}]
train: {{method: fm, rounds: 1}}
privacy: {{epsilon: 8}}
"""


def plan(folder, windows):
    (folder / "job.yaml").write_text(JOB.format(windows=windows))
    return load_plan(folder / "job.yaml")


def test_a_job_of_windows_has_their_shape_and_owners_allow_all_its_columns(tmp_path):
    whole = plan(tmp_path, "{length: 16, time: t, every_s: 1, group: m}")
    job = whole.job
    assert any("window of 16 readings" in note for note in whole.notes)
    assert job.data.input_shape == (16, 2)
    assert type(job).from_canonical(job.canonical()) == job
    read = ["x", "y", "state", "t"]
    assert "'m'" in _columns_refusal(job.data.schema_, read, header=True)
    assert _columns_refusal(job.data.schema_, [*read, "m"], header=True) == ""


@pytest.mark.parametrize(
    ("windows", "key"),
    [
        ("{length: 16}", "schema.windows"),
        ("{length: 16, every_s: 1, group: m}", "windows.every_s"),
        ("{length: 16, time: t}", "schema.windows"),
        ("{length: 16, group: m, step: 16}", "windows.step"),
        ("{length: 16, time: t, every_s: 1, step: 8}", "windows.step"),
        ("{length: 16, group: state}", "windows.group"),
        ("{length: 16, time: x, every_s: 1}", "windows.time"),
        ("{length: 0, group: m}", "windows.length"),
        ("{length: 5000, group: m}", "features[0]"),
    ],
)
def test_impossible_windows_are_refused_by_key(windows, key, tmp_path):
    with pytest.raises((ConfigError, ImpossibleMixError)) as raised:
        plan(tmp_path, windows)
    assert key in str(raised.value)
