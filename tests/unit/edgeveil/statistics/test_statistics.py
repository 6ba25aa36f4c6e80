"""Statistics: what one record adds, what the noise is, how far answers are off, what is told."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import edgeveil
from edgeveil.data.encoding import RowEncoder
from edgeveil.data.records import Records
from edgeveil.errors import ConfigError, DataError
from edgeveil.jobs import parse_job
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.statistics import SUMS, UPLOADS
from edgeveil.privacy.accountant import epsilon, mu_for
from edgeveil.privacy.events import noise_of
from edgeveil.privacy.gaussian_mechanism import gaussian
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.statistics.answer_text import rows
from edgeveil.statistics.answers import Sums, answered, at_least_zero
from edgeveil.statistics.blocks import Counts, vectors
from tests.kits.method_context import context

ASKED = {
    "columns": [
        {"name": "age", "number": [0, 100]},
        {"name": "pay", "number": [-10, 10], "bins": [-5, 0, 1], "ask": ["mean", "deviation"]},
        {"name": "sex", "category": ["f", "m"]},
        {"name": "job", "category": ["a", "b", "c"]},
    ],
    "tables": [["sex", "job"], ["age", "sex"]],
    "correlations": [["age", "pay"]],
}
NAMES = ["age", "pay", "sex", "job"]


def asked(**changes):
    return METHODS["statistics"].made(**{**ASKED, **changes})


def encoded(parameters, rows):
    """Records of rows of text, read as a device reads its file."""
    encoder = RowEncoder(parameters.records_schema, NAMES, "rows")
    for row in rows:
        encoder.add(row)
    return encoder.encoded().records


NUMBER = st.one_of(
    st.sampled_from(["", "x", "nan", "1e999", "-1e999", "0", "100", "-10", "10", "1e-40"]),
    st.floats(-200, 200).map(repr),
)
ROW = st.tuples(NUMBER, NUMBER, st.sampled_from(["f", "m", "d", ""]), st.sampled_from("abcx"))


@given(rows=st.lists(ROW, max_size=6), more=ROW, where=st.sampled_from([None, "age > 30"]))
@settings(max_examples=300, deadline=None)
def test_one_record_adds_no_more_than_is_said(rows, more, where):
    parameters = asked(where=where)
    (vector,) = vectors(parameters, 1)
    before, after = (vector.of(encoded(parameters, of).x) for of in (rows, [*rows, more]))
    change = (after - before).tolist()
    assert sum(one**2 for one in change) <= vector.sensitivity_squared
    assert max(map(abs, change), default=0) <= vector.largest


def test_a_record_at_the_ends_of_its_ranges_adds_as_much_as_is_said():
    parameters = asked()
    (vector,) = vectors(parameters, 1)
    change = vector.of(encoded(parameters, [("100", "10", "f", "a")]).x).tolist()
    assert sum(one**2 for one in change) == vector.sensitivity_squared


def test_each_record_is_in_one_cell_of_a_column_and_of_a_table():
    rows = [(v, "1", "f", "a") for v in ("", "-1", "0", "4.999", "5", "100", "101", "1e999", "x")]
    (vector,) = vectors(asked(), 1)
    for block, _, sums in vector.split(vector.of(encoded(asked(), rows).x).astype(np.float64)):
        if hasattr(block, "codes"):
            cells, groups = sums[: block.size], sums[block.size :]
            assert cells.sum() == len(rows) and np.all(sums == np.rint(sums))
            assert not len(groups) or groups.sum() == len(rows)
    block, _, age = next(vector.split(vector.of(encoded(asked(), rows).x) * 1.0))
    age = age[: block.size]
    assert age[0] == 1 and age[-2] == 2 and age[-1] == 2  # below, above, missing
    assert age[1] == 1 and age[3] == 1 and age[4] == 1 and age[-3] == 1  # 0, 4.999, 5, 100


@given(st.lists(ROW, min_size=1, max_size=5), st.lists(ROW, min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_device_or_person_adds_no_more_than_its_event_says(rows, others):
    parameters = asked()
    for unit, kept in (("device", []), ("person", others)):
        device = METHODS["statistics"].device(
            parameters, context(unit=unit, input_shape=(4,), nominal_records=100)
        )
        event, (vector,) = noise_of(device.asking.events[0]), device.asking.vectors
        one, two = encoded(parameters, rows), encoded(parameters, kept)
        places = np.repeat([1.0, 2.0], [len(one), len(two)])[:, None].astype(np.float32)
        both = Records(np.concatenate([one.x, two.x]), np.concatenate([one.y, two.y]), places)
        without = replace(both.at(places[:, 0] == 2))
        change = device.steps(vector, both, event) - device.steps(vector, without, event)
        assert sum(int(step) ** 2 for step in change.tolist()) <= event.sensitivity_steps**2


@given(st.lists(ROW, min_size=1, max_size=12), st.sampled_from([None, "age > 30"]))
@settings(max_examples=50, deadline=None)
def test_a_persons_part_is_the_mean_of_its_records(rows, where):
    parameters = asked(where=where)
    (vector,), x = vectors(parameters, 1), encoded(parameters, rows).x
    owners = np.arange(len(x)) % 3 % len(x)
    parts = [vector.of(x[owners == one]) << 5 for one in range(owners.max() + 1)]
    means = [part // np.sum(owners == one) for one, part in enumerate(parts)]
    assert np.array_equal(vector.means(x, owners, 5), sum(means))


@pytest.mark.parametrize("unit", ["record", "person", "device"])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_all_exchanges_together_cost_what_the_job_says(unit, rounds):
    parameters = asked(rounds=rounds)
    for honest in (0, 7):
        s = context(unit=unit, honest=honest, epsilon=1.0, delta=1e-6)
        events = METHODS["statistics"].device(parameters, s).asking.events
        assert 0.98 < epsilon(list(events), 1e-6).epsilon <= 1.0


def played(parameters, rows, devices=10, seed=0, noisy=True, **changes):
    """Answers of a fleet that deals the rows; `noisy` False: of the exact sums."""
    s = context(
        **{"epsilon": 1.0, "delta": 1e-6, "nominal_records": 100_000, "honest": devices, **changes}
    )
    method = METHODS["statistics"]
    device, cloud = method.device(parameters, s), method.cloud(parameters, s)
    records, state = rows, cloud.initial_state()
    for round in cloud.plan():
        event, vector = device.asking.event(round), device.asking.vector(round)
        total = device.steps(vector, records, noise_of(event))
        for one in range(devices if noisy else 0):
            random = SeededRandom(seed * 1000 + one)
            total = gaussian(total, noise_of(event), random)[0]
        state = cloud.absorb(state, round, {SUMS: total / devices}, devices)
    return cloud, state


def people(count=20_000, seed=1):
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, count)
    pay = np.clip(age / 10 - 5 + rng.uniform(-5, 5, count), -10, 10)
    sex, job = rng.integers(0, 2, count), rng.integers(0, 3, count)
    x = np.stack([age, pay, sex, job], axis=1).astype(np.float32)
    return Records(x, np.zeros(count, np.int64))


def by(answers, statistic, **keys):
    fits = lambda one: all(one.get(key) == value for key, value in keys.items())  # noqa: E731
    return next(one for one in answers if one["statistic"] == statistic and fits(one))


def truth(records):
    """Exact answers, as (statistic, column or columns): array."""
    x = records.x.astype(np.float64)
    age, pay = x[:, 0], x[:, 1]
    return {
        ("mean", "age"): age.mean(),
        ("mean", "pay"): pay.mean(),
        ("deviation", "age"): age.std(),
        ("deviation", "pay"): pay.std(),
        ("histogram", "age"): np.histogram(age, np.linspace(0, 100, 21))[0] / len(x),
        ("categories", "sex"): np.bincount(x[:, 2].astype(int), minlength=2),
        ("categories", "job"): np.bincount(x[:, 3].astype(int), minlength=3),
        ("correlation", ("age", "pay")): np.corrcoef(age, pay)[0, 1],
    }


def test_the_noise_is_that_of_a_trusted_curator_with_the_same_split():
    cloud, _ = played(asked(), people(1000))
    (event,), (vector,) = cloud.asking.events, cloud.asking.vectors
    ours = math.sqrt(10 * noise_of(event).sigma_squared) * 2.0 ** -noise_of(event).grid_bits
    assert ours <= 1.01 * math.sqrt(vector.sensitivity_squared) / mu_for(1.0, 1e-6)


def test_exact_sums_give_exact_answers_and_counts_agree():
    records = people()
    cloud, state = played(asked(rounds=3), records, noisy=False)
    whole = cloud.shown(state)["statistics"]
    assert whole["records"] == len(records) and whole["uploads"] == 10
    for (statistic, name), value in truth(records).items():
        key = {"columns": list(name)} if isinstance(name, tuple) else {"column": name}
        found = np.atleast_1d(by(whole["answers"], statistic, **key)["value"])[: np.size(value)]
        assert np.allclose(found, value, rtol=2e-3, atol=2e-3), (statistic, name)
    found = by(whole["answers"], "quantiles", column="age")
    assert np.allclose(found["value"], np.quantile(records.x[:, 0], found["ranks"]), atol=0.5)


def test_noised_counts_are_none_negative_and_agree_with_their_tables():
    cloud, state = played(asked(), people(300), seed=3)
    whole = cloud.shown(state)["statistics"]
    table = np.array(by(whole["answers"], "table", columns=["sex", "job"])["value"])
    assert table.min() >= 0
    for axis, name in ((1, "sex"), (0, "job")):
        counts = by(whole["answers"], "categories", column=name)["value"]
        assert np.allclose(table.sum(axis=axis), counts, rtol=1e-3, atol=1e-2 * whole["records"])
        assert np.isclose(sum(counts), whole["records"], rtol=1e-4) and min(counts) >= 0
    deciles = by(whole["answers"], "quantiles", column="age")["value"]
    assert deciles == sorted(deciles)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.floats(0, 90))
@settings(deadline=None)
def test_the_nearest_counts_of_zero_or_more_add_up(values, total):
    values = np.array(values)
    found = at_least_zero(values, total)
    assert found.min() >= 0 and math.isclose(found.sum(), total, abs_tol=1e-9)
    for other in (np.full(len(values), total / len(values)), np.eye(len(values))[0] * total):
        assert np.square(found - values).sum() <= np.square(other - values).sum() + 1e-6


def test_a_range_or_list_that_misses_most_is_told_and_noise_alone_says_nothing():
    narrow = asked(
        columns=[
            {"name": "age", "number": [0, 10]},
            {"name": "pay", "number": [-10, 10]},
            {"name": "sex", "category": ["d", "e"]},
            {"name": "job", "category": ["a", "b", "c"]},
        ],
        tables=[],
    )
    records = people()
    records.x[:, 2] = 2  # in no list
    cloud, state = played(narrow, records)
    age, sex = cloud.shown(state)["statistics"]["remarks"]
    assert "'age'" in age and "90%" in age and "'sex'" in sex and "100%" in sex
    records.x[:, [0, 2]] = np.nan
    cloud, state = played(narrow, records)
    age, sex = cloud.shown(state)["statistics"]["remarks"]
    assert "'age': most" in age and "'sex': most" in sex
    cloud, state = played(narrow, records.at(np.zeros(len(records), np.bool_)))
    whole = cloud.shown(state)["statistics"]
    assert by(whole["answers"], "mean", column="age")["too_noisy"]
    assert not whole["remarks"] and ("age", "mean", "too noisy to say") in rows(whole)
    assert state[f"{UPLOADS}/1"] == 10


def test_noise_alone_tells_no_correlation_of_records_that_are_not_there():
    parameters = asked(tables=[])
    (vector,) = vectors(parameters, 1)
    parts = [
        np.full(one.cells, weight * one.whole * (-1.0 if isinstance(one, Counts) else 9.0))
        for weight, one in zip(vector.weights, vector.blocks, strict=True)
    ]
    sums = Sums(vector, np.concatenate(parts), vector.largest, 1)
    found = by(answered(parameters, [sums], {})["answers"], "correlation")
    assert found["too_noisy"] and found["value"] is None


def test_a_filter_leaves_out_what_does_not_meet_it():
    rows = [("30", "1", "f", "a"), ("60", "1", "f", "a"), ("70", "1", "m", "a"), ("", "", "f", "a")]
    for where, count in (
        ("age >= 60", 2),
        ("age >= 60 and sex = f", 1),
        ("sex != 'f'", 1),
        ("age < 1e3", 3),
        ("sex = f and pay = 1 and age > 0", 2),
        (None, 4),
    ):
        (vector,) = vectors(asked(where=where), 1)
        (block, _, sums), *_ = vector.split(vector.of(encoded(asked(), rows).x) * 1.0)
        assert sums[: block.size].sum() == count, where


JOB = """
job: ask
data: {source: people, nominal_records: 300}
statistics: {columns: [{name: age, number: [0, 100]}, {name: sex, category: [f, m]}]MORE}
privacy: {epsilon: 1, delta: 1.0e-6}
"""


def test_a_block_statistics_is_a_job_that_reads_raw_records_of_its_columns():
    job = parse_job(JOB.replace("MORE", ""))
    assert job.train.method == "statistics" and job.data.input_shape == (2,)
    assert job.data.schema_.raw and job.data.evaluation_share == 0
    assert type(job).from_canonical(job.canonical()) == job


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (", where: age", "no comparison"),
        (", where: 'age > old'", "no number"),
        (", where: 'size > 3'", "no number or category of columns"),
        (", where: 'sex = d'", "one of its categories"),
        (", tables: [[age, size]]", "'size' is none of the columns"),
        (", correlations: [[age, sex]]", "two numbers"),
        (", rounds: 9", "at most 3"),
        (", tables: [[age, age]]", "twice"),
        (", where: 'age > 1 and'", "no number"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_reason(more, said):
    with pytest.raises(ConfigError, match=said):
        parse_job(JOB.replace("MORE", more))


def test_statistics_are_of_rows_and_by_sums():
    job = yaml.safe_load(JOB.replace("MORE", ""))
    medians = {**job, "aggregation": {"name": "median"}}
    with pytest.raises(ConfigError, match="which 'median' does not give"):
        parse_job(yaml.safe_dump(medians))
    windows = {"windows": {"length": 4, "time": "t", "every_s": 1}}
    of_windows = {**job, "data": {**job["data"], "schema": windows}}
    with pytest.raises(ConfigError, match="of rows, not of windows"):
        parse_job(yaml.safe_dump(of_windows))


def test_a_job_that_learns_from_pictures_has_no_raw_schema():
    text = """
job: raw
data:
  source: s
  nominal_records: 9
  schema: {origin: public, raw: true, label: {classes: [a]}, image: {size: [8, 8]}}
features: [{name: identity}]
train: {method: fm, rounds: 2}
privacy: {epsilon: 1}
"""
    with pytest.raises(ConfigError, match="raw, and only then"):
        parse_job(text)


def test_a_filter_reads_names_in_quotes_and_refuses_a_question_of_too_many_cells():
    text = JOB.replace("[f, m]", "['f and m', m]")
    found = parse_job(text.replace("MORE", """, where: "sex = 'f and m' and age > 1" """))
    assert [one.literal for one in found.train.conditions] == ["f and m", "1"]
    wide = "[{name: a, number: [0, 9], bins: 240}, {name: b, number: [0, 9], bins: 240}]"
    many = ", ".join(["[a, b]"] * 5)
    with pytest.raises(ConfigError, match="cells of one exchange"):
        parse_job(re.sub(r"\[{name.*}]MORE", f"{wide}, tables: [{many}]", JOB))


def test_a_column_that_a_device_lacks_is_a_fault_of_its_file_and_text_among_numbers_is_missing():
    with pytest.raises(DataError, match="no column 'job'"):
        RowEncoder(asked().records_schema, NAMES[:3], "rows")
    found = encoded(asked(), [("old", "1", "f", "a"), ("3", "1", " m", "")]).x
    assert np.isnan(found[0, 0]) and found[1, 0] == 3 and found[1, 2] == 1 and np.isnan(found[1, 3])


@pytest.mark.parametrize(
    ("changes", "people", "unit"),
    [
        ({}, 1200, "record"),
        ({"privacy.noise": "local", "aggregation.secure": False}, 1200, "record"),
        ({"privacy.unit": "person", "data.person": "who"}, 300, "person"),
        ({"statistics.rounds": 3}, 1200, "record"),
    ],
)
def test_a_simulated_fleet_answers(tmp_path, changes, people, unit):
    rng = np.random.default_rng(0)
    rows = [f"{rng.uniform(0, 100):.3f},{rng.choice(['f', 'm'])},{at % 300}" for at in range(1200)]
    (tmp_path / "people.csv").write_text("\n".join(["age,sex,who", *rows]))
    plain = yaml.safe_load(JOB.replace("MORE", ""))
    plain |= {"round": {"min_batch": 10}, "aggregation": {"name": "fedavg", "secure": True}}
    plain["privacy"] |= {"epsilon": 8, "noise": "shared", "honest_share": 1.0}
    data = {"source": "csv", "path": "people.csv"}
    plain["local_run"] = {"devices": 10, "workers": 0, "data": data}
    for key, value in changes.items():
        block, _, name = key.partition(".")
        plain[block][name] = value
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(plain))
    found = edgeveil.simulate(tmp_path / "job.yaml", out=tmp_path / "out", report=False)
    whole = found.content["statistics"]
    assert whole["unit"] == unit and whole["uploads"] == 10 and found.status == "completed"
    off = whole["records_plus_minus"] + 0.05 * people  # a tenth is held back by a hash
    assert abs(whole["records"] - people) < off
    mean = by(whole["answers"], "mean", column="age")
    assert abs(mean["value"] - 50) < 5 and found.accuracy is None and not found.model.exists()
