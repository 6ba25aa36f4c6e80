"""Parts of texts, dates and pictures: what is read of each record, and what one record adds."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.encoding import RowEncoder
from edgeveil.data.records import Records
from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.statistics import SUMS
from edgeveil.parts.sources import Origin, images, load_records
from edgeveil.parts.sources.memory import opened, read_opened
from edgeveil.privacy.events import noise_of
from edgeveil.statistics.blocks import dearest, vectors
from tests.kits.method_context import context

Image = pytest.importorskip("PIL.Image")

VISITS = {
    "columns": [
        {"name": "came", "part": "hour"},
        {"name": "came", "part": "weekday"},
        {"name": "came", "part": "month"},
        {"name": "came", "part": "year", "number": [2015, 2025]},
        {"name": "note", "part": "characters", "number": [0, 40]},
        {"name": "note", "category": ["ill", "well"]},
    ],
    "tables": [["came:hour", "note"]],
    "correlations": [["came:hour", "note:characters"]],
}
PICTURES = {
    "columns": [
        {"name": "eye", "part": "height", "number": [0, 64]},
        {"name": "eye", "part": "width", "number": [0, 64]},
        {"name": "eye", "part": "channels"},
        {"name": "eye", "part": "brightness"},
        {"name": "eye", "part": "class", "category": ["ill", "well"]},
    ],
    "tables": [["eye:class", "eye:brightness"]],
    "correlations": [["eye:height", "eye:brightness"]],
}
CELL = st.one_of(
    st.sampled_from(["", "?", "ill", "2020-02-30", "2020-01-01", "0024-01-01 24:00", "9999-12-31"]),
    st.datetimes().map(lambda one: one.strftime("%Y-%m-%d %H:%M")),
    st.text(max_size=60),
)


def asked(questions, **changes):
    return METHODS["statistics"].made(**{**questions, **changes})


def encoded(rows, parameters):
    encoder = RowEncoder(parameters.records_schema, ["note", "came"], "rows")
    for row in rows:
        encoder.add(row)
    return encoder.encoded().records


def require_one_record_apart(parameters, before, after, at):
    """Compare records with the same and one more at index `at`."""
    assert np.array_equal(np.delete(after.x, at, axis=0), before.x, equal_nan=True)
    (vector,) = vectors(parameters, 1)
    change = (vector.of(after.x) - vector.of(before.x)).tolist()
    assert 0 < sum(one**2 for one in change) <= vector.sensitivity_squared
    assert max(map(abs, change)) <= vector.largest


@given(rows=st.lists(st.tuples(CELL, CELL), max_size=6), more=st.tuples(CELL, CELL), data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_record_with_a_date_adds_no_more_than_is_said(rows, more, data):
    parameters, at = asked(VISITS), data.draw(st.integers(0, len(rows)))
    after = [*rows[:at], more, *rows[at:]]
    before, after = encoded(rows, parameters), encoded(after, parameters)
    require_one_record_apart(parameters, before, after, at)


def test_parts_of_dates_are_numbers_and_missing_without_them():
    x = encoded(
        [("Łódź", "2024-02-29 23:59"), ("ill", "2023-01-01"), ("", "2023-02-29"), ("x", "")],
        asked(VISITS),
    ).x
    nan = np.nan
    assert np.array_equal(x[:, 0], [23, nan, nan, nan], equal_nan=True)
    assert np.array_equal(x[:, 1], [3, 6, nan, nan], equal_nan=True)  # Thursday, Sunday
    assert np.array_equal(x[:, 2], [2, 1, nan, nan], equal_nan=True)
    assert np.array_equal(x[:, 3], [2024, 2023, nan, nan], equal_nan=True)
    assert np.array_equal(x[:, 4], [4, 3, nan, 1], equal_nan=True)
    assert np.array_equal(x[:, 5], [2, 0, nan, 2], equal_nan=True)


def exact(parameters, records):
    """Answers of ten devices without noise, by (statistic, column)."""
    s = context(epsilon=8.0, delta=1e-6, nominal_records=100_000, honest=10)
    device, cloud = (
        getattr(METHODS["statistics"], one)(parameters, s) for one in ("device", "cloud")
    )
    (round,) = cloud.plan()
    sums = device.steps(device.asking.vector(round), records, noise_of(device.asking.event(round)))
    state = cloud.absorb(cloud.initial_state(), round, {SUMS: sums / 10}, 10)
    answers = cloud.shown(state)["statistics"]["answers"]
    return {(one["statistic"], one.get("column")): one for one in answers}


def test_answers_about_parts_are_those_of_numpy():
    chance = np.random.default_rng(2)
    days = np.datetime64("2016-01-01") + chance.integers(0, 3000, 4000)
    hours = chance.integers(0, 24, 4000)
    rows = [("ill", f"{day} {hour:02}:15") for day, hour in zip(days, hours, strict=True)]
    parameters = asked(VISITS, where="came:hour >= 6", tables=[], correlations=[])
    found = exact(parameters, encoded(rows, parameters))
    kept, late = days[hours >= 6], hours[hours >= 6]
    months = kept.astype("datetime64[M]").astype(int) % 12 + 1
    weekdays = (kept.astype(int) + 3) % 7  # 1970 began on a Thursday
    for name, values, low in (("hour", late, 0), ("month", months, 1), ("weekday", weekdays, 0)):
        shares = found["histogram", f"came:{name}"]["value"]
        counts = np.bincount(values - low, minlength=len(shares))
        assert np.allclose(shares, counts / len(late), atol=2e-3)
        assert found["mean", f"came:{name}"]["value"] == pytest.approx(values.mean(), abs=0.02)
        median = found["quantiles", f"came:{name}"]["value"][5]
        assert abs(median - np.median(values)) < 0.5


def drawn(chance):
    """Bytes of a random picture, or of none, and of its form."""
    size = tuple(chance.integers(1, 40, 2))
    kind = chance.integers(0, 5)
    if kind == 0:
        return b"\x89PNG\r\n\x1a\n" + chance.bytes(30)
    if kind == 1:  # 16 bits a pixel
        return Image.fromarray(chance.integers(0, 1 << 16, size).astype(np.uint16))
    shape = size if kind == 2 else (*size, kind)  # 3: colours, 4: with transparency
    return Image.fromarray(chance.integers(0, 256, shape).astype(np.uint8))


def put(folder, name, picture):
    file = folder / name
    file.parent.mkdir(exist_ok=True, parents=True)
    if isinstance(picture, bytes):
        file.write_bytes(picture)
    else:
        picture.save(file)


def of_folder(folder, parameters, **more):
    return load_records("images", Origin(folder, schema=parameters.records_schema, **more))


def test_a_picture_adds_no_more_than_is_said(tmp_path):
    chance, parameters = np.random.default_rng(3), asked(PICTURES)
    for name in ("ill", "well", "other"):
        (tmp_path / name).mkdir()
    before, names = of_folder(tmp_path, parameters), []
    for number in chance.permutation(60).tolist():
        names.append(f"{chance.choice(['ill', 'other', 'well'])}/{number:02}.png")
        put(tmp_path, names[-1], drawn(chance))
        after = of_folder(tmp_path, parameters)
        require_one_record_apart(parameters, before, after, sorted(names).index(names[-1]))
        before = after
    assert 0 < np.isnan(before.x[:, 0]).sum() < 60 and not np.isnan(before.x[:, 4]).any()
    assert (before.y == 0).all()
    exactly = {key: one["value"] for key, one in exact(parameters, before).items() if key[1]}
    unread = np.isnan(before.x[:, 3])
    assert exactly["missing", "eye:brightness"] == pytest.approx(unread.sum(), abs=0.1)
    for at, part in enumerate(("height", "width", "channels", "brightness")):
        mean = before.x[~unread, at].mean()
        assert exactly["mean", f"eye:{part}"] == pytest.approx(mean, rel=0.02)
    of_class = [sum(one.startswith(name) for one in names) for name in ("ill", "well", "other")]
    assert np.allclose(exactly["categories", "eye:class"], [*of_class, 0], atol=0.1)


def test_parts_of_pictures_are_their_own_also_of_large_and_broken_ones(tmp_path, monkeypatch):
    put(tmp_path, "ill/a.png", Image.new("RGB", (5, 3), (90, 60, 30)))
    put(tmp_path, "ill/b.png", Image.new("L", (4, 4), 7))
    put(tmp_path, "ill/c.png", Image.new("I;16", (2, 1), 100 << 8))
    put(tmp_path, "new/d.png", Image.new("1", (20, 30)))  # more than may be read
    whole = tmp_path / "ill" / "a.png"
    put(tmp_path, "well/e.png", whole.read_bytes()[:-30])  # ends early
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    found = of_folder(tmp_path, asked(PICTURES))
    nan, luma = np.nan, 0.299 * 90 + 0.587 * 60 + 0.114 * 30
    assert np.allclose(found.x[0], [3, 5, 3, luma, 0], atol=0.5)
    assert np.array_equal(found.x[1:3], [[4, 4, 1, 7, 0], [1, 2, 1, 100, 0]])
    assert np.array_equal(found.x[3:], [[nan] * 4 + [2], [nan] * 4 + [1]], equal_nan=True)
    assert len(np.unique(found.places, axis=0)) == 5


SHAPES = [
    ((5, 7), (5, 7, 1)),
    ((3, 5, 7), (5, 7, 3)),
    ((5, 7, 3), (5, 7, 3)),
    ((1, 5, 7), (5, 7, 1)),
    ((64,), (8, 8, 1)),
    ((65,), (np.nan, np.nan, np.nan)),
    ((2, 5, 7), (np.nan, np.nan, np.nan)),
]


@pytest.mark.parametrize(("shape", "form"), SHAPES)
def test_an_array_adds_no_more_than_is_said_and_its_parts_are_its_own(tmp_path, shape, form):
    chance, parameters = np.random.default_rng(4), asked(PICTURES)
    file, schema = tmp_path / "eyes.npz", parameters.records_schema
    x, y = chance.normal(100, 50, (9, *shape)), chance.choice(["ill", "well", "else"], 9)
    x[2], x[3].flat[0], x[4] = np.nan, np.inf, 1e300

    def read(count):
        np.savez(file, x=x[:count], y=y[:count])
        return load_records("npz", Origin(file, schema=schema))

    for count in range(1, 9):
        require_one_record_apart(parameters, read(count), read(count + 1), count)
    rows = read(9).x
    with np.errstate(over="ignore"):
        plain = x.astype(np.float32)[:1]
    if form[2] == 3:
        plain = plain if shape[0] == 3 else np.moveaxis(plain, -1, 1)
        plain = np.tensordot([0.299, 0.587, 0.114], plain[0], axes=1)
    assert rows[0, 3] == pytest.approx(plain.mean(), rel=1e-5)
    assert np.array_equal(rows[:, :3], [form] * 9, equal_nan=True)
    assert np.array_equal(rows[:, 4], [{"ill": 0, "well": 1}.get(one, 2) for one in y])
    assert np.isnan(rows[2, 3]) and rows[3, 3] == rows[4, 3] == np.inf


def test_a_published_set_and_own_arrays_have_classes_by_number():
    digits = {"columns": [{**PICTURES["columns"][4], "category": ["0", "1", "2.0"]}]}
    parameters = asked(digits, tables=[], correlations=[])
    found = load_records("digits", Origin(schema=parameters.records_schema))
    y = load_records("digits").y
    assert np.array_equal(found.x[:, 0], np.minimum(y, 3)) and isinstance(found, Records)


def test_made_up_records_take_every_part_within_its_range():
    for questions in (VISITS, PICTURES):
        parameters = asked(questions)
        x = dearest(parameters, 50, np.random.default_rng(0))
        assert x.shape == (50, parameters.records_schema.width)
        for one in parameters.columns:
            values, (low, high) = x[:, parameters.places[one.name]], one.number or (0, 2)
            assert low <= values.min() and values.max() <= high


WRONG = [
    ("{name: a, part: hour, category: [x]}", "number: "),
    ("{name: a, part: year}", "one of number"),
    ("{name: a, part: class, number: [0, 1]}", "category: "),
    ("{name: a, part: [hour]}", "part"),
    ("{name: a, part: month}, {name: a, part: month}", "once"),
    ("{name: a, part: month}, {name: a, part: height, number: [0, 9]}", "apart"),
]


@pytest.mark.parametrize(("columns", "why"), WRONG)
def test_parts_that_cannot_be_read_are_refused(columns, why):

    text = "job: a\ndata: {source: s, nominal_records: 9}\nprivacy: {epsilon: 1, delta: 1.0e-6}\n"
    with pytest.raises(ConfigError, match=why) as refused:
        parse_job(f"{text}statistics: {{columns: [{columns}]}}")
    assert "statistics.columns" in str(refused.value)
    parse_job(f"{text}statistics: {{columns: [{{name: a, part: hour}}, {{name: a, part: month}}]}}")


def test_pictures_in_a_table_are_read_by_their_bytes():
    pa = pytest.importorskip("pyarrow")
    png = io.BytesIO()
    Image.new("L", (3, 2), 9).save(png, "PNG")
    stored = [{"bytes": one, "path": None} for one in (png.getvalue(), b"none", None)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"eye": pa.array(stored, kind), "state": ["ill", "new", "well"]})
    found = read_opened(opened(table), asked(PICTURES).records_schema).records
    nan = [np.nan] * 4
    assert np.array_equal(found.x, [[2, 3, 1, 9, 0], [*nan, 2], [*nan, 1]], equal_nan=True)
    assert found.y.tolist() == [0, 0, 0]
