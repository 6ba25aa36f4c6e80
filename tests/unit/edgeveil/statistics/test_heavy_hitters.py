"""Values that nobody listed: what a record adds, what is found, and how rarely a false one is."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeveil.data.encoding import RowEncoder
from edgeveil.errors import ConfigError, ProtocolError
from edgeveil.jobs import parse_job
from edgeveil.parts.methods import METHODS
from edgeveil.privacy.accountant import epsilon, mu_for
from edgeveil.privacy.events import noise_of
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.statistics.heavy_hitters import (
    CANDIDATES,
    CODED,
    FALSE_POSITIVES,
    HASHED,
    KEPT,
    LEVELS,
    PREFIXES,
    HeavyHitters,
    _code,
    likeliest,
    plain_name,
    threshold,
)
from tests.kits.method_context import context

LENGTH = 16
ODD = np.array([np.nan, np.inf, -np.inf, -1.0, 0.5, 256.0, 1e30], np.float32)
HOSTILE = [
    b"<script>x</script",
    b"\x1b[31mred",
    b"line\nbreak: [yaml",
    b"\xff\xfe\xfd\xfc",
    b"caf\xc3\xa9",
    b"\xe2\x80\xaeright to lef",
    b"a\\b",
    b"#",
]


def records(values, length=LENGTH):
    """Records of byte values, cut and padded with zeros; None is a missing value."""
    rows = [
        [np.nan] * length if one is None else list(one[:length].ljust(length, b"\0"))
        for one in values
    ]
    return np.array(rows, np.float32).reshape(-1, length)


def names(seed, count, length=LENGTH):
    chance = np.random.default_rng(seed)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ABCDE0123", np.uint8)
    sizes = chance.integers(3, length + 1, count)
    return [bytes(chance.choice(letters, size)) for size in sizes]


def rounds(x, deviation_of, seed=0, length=LENGTH):
    """The answer after four levels over records, with noise."""
    chance, state = np.random.default_rng(seed), {}
    for level in LEVELS:
        block = HeavyHitters("country", 0, length, level).about(state)
        deviation = deviation_of(block)
        sums = block.of(x) + chance.normal(0.0, deviation, block.cells)
        state |= block.next_kept(sums)
    return block.answer(sums, deviation)


def about(level, kept):
    block = HeavyHitters("country", 0, LENGTH, level)
    return block.about({block.tensor(level): kept})


def no_noise(block):
    return 0.0


# --- what one record adds ---------------------------------------------------------------------


def about_these(level, x, length, words=None):
    """The block of a level, about a broadcast that has most of these records' prefixes."""
    state = {}
    for at in range(level + 1):
        block = HeavyHitters("country", 0, length, at, words).about(state)
        state |= block.next_kept(block.of(x).astype(np.float64))
    return block


@pytest.mark.parametrize("level", LEVELS)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 5), count=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_one_record_adds_no_more_than_is_priced(level, seed, length, count):
    chance = np.random.default_rng(seed)
    x = chance.integers(0, 256, (count, length)).astype(np.float32)
    x[: count // 2] = x[0]
    block = about_these(level, x, length)
    odd = chance.random(x.shape) < 0.1
    x[odd] = chance.choice(ODD, odd.sum())
    gone = int(chance.integers(count))
    added = block.of(x) - block.of(np.delete(x, gone, axis=0))
    assert np.abs(added).max() <= block.whole
    assert int((added**2).sum()) <= block.bound
    assert np.array_equal(added, block.of(x[gone : gone + 1])), "whatever the others are"


@pytest.mark.parametrize("level", LEVELS)
@given(seed=st.integers(0, 2**32), words=st.integers(1, 4), letters=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_a_record_of_several_words_adds_no_more_than_is_priced(level, seed, words, letters):
    """Of few letters, so that a record has a word twice."""
    chance = np.random.default_rng(seed)
    x = chance.integers(97, 97 + letters, (5, words, 2)).astype(np.float32)
    x[chance.random((5, words)) < 0.3] = np.nan
    x = x.reshape(5, -1)
    block = about_these(level, x, 2, words)
    added = block.of(x) - block.of(x[1:])
    assert np.abs(added).max() <= block.whole
    assert int((added**2).sum()) <= block.bound


@pytest.mark.parametrize("words", [None, 3])
def test_the_price_is_of_the_record_that_adds_most(words):
    x = records([b"0123456789abcdef"])
    if words is not None:
        x = np.concatenate([x, records([b"another word"]), records([b"word"])], axis=1)
    for level in LEVELS:
        block = about_these(level, x, LENGTH, words)
        assert int((block.of(x) ** 2).sum()) == block.bound


def test_two_words_of_one_record_under_one_prefix_count_once():
    pairs = np.stack(np.meshgrid(*[np.arange(97, 123)] * 2), axis=-1).reshape(-1, 2)
    words = pairs.astype(np.float32)
    assert HeavyHitters("country", 0, 2).of(words).max() > 1, "some have a prefix in common"
    assert HeavyHitters("country", 0, 2, HASHED, len(words)).of(words.reshape(1, -1)).max() == 1


def test_what_is_no_byte_counts_as_missing():
    x = np.tile(records([b"DE"]), (len(ODD) + 1, 1))
    x[1:, 7] = ODD
    block = about_these(CANDIDATES, x[:1], LENGTH)
    found = block.of(x)
    assert found[KEPT + 1] == len(ODD)
    assert found.sum() == len(x)
    for level in (HASHED, PREFIXES, CODED):
        assert np.abs(about_these(level, x[:1], LENGTH).of(x[1:])).sum() == 0


# --- what is found ----------------------------------------------------------------------------


@pytest.mark.parametrize("frequent", [20, 60])
def test_all_values_of_one_percent_are_found_beside_other_questions(frequent):
    heavy, rare = names(1, frequent - len(HOSTILE)), names(2, 2000)
    heavy += [one[:LENGTH] for one in HOSTILE]
    at, rest = 30000 * 12 // 1000, np.random.default_rng(3).integers(0, len(rare), 30000)
    values = [one for one in heavy for _ in range(at)]
    values += [rare[i] for i in rest[: 30000 - len(values)]]
    blocks = [HeavyHitters("country", 0, LENGTH, level) for level in LEVELS]
    squared = 120 + sum(one.scale**2 * one.bound for one in blocks)  # 120 of other columns

    def deviation(block):
        return math.sqrt(squared) / (block.scale * mu_for(1.0, 1e-6))

    answer = rounds(records(values), deviation)
    assert set(answer["names"]) == {plain_name(one) for one in heavy}
    whole = {one for one in heavy if len(one) < LENGTH and one not in HOSTILE}
    assert set(answer["exact"]) == {one.decode() for one in (*whole, HOSTILE[4], b"#")}
    errors = np.array(answer["value"]) - at
    assert np.abs(errors).max() < 2.2 * answer["plus_minus"]
    away = answer["other"] - (30000 - at * frequent)
    assert abs(away) < 2.2 * answer["other_plus_minus"]


def test_without_noise_counts_are_exact():
    values = [b"DE"] * 5 + [b"D"] * 3 + [None] * 2 + [b"\0\0"] + [b"a\0b"]
    answer = rounds(records(values), no_noise)
    assert answer["names"] == ["DE", "D"]
    assert answer["value"] == [5, 3]
    assert answer["other"] == 2, "a value of zeros, and one with a zero inside"


def test_any_two_code_words_differ_in_six_signs():
    code = _code()
    apart = (16 - code @ code.T) // 2
    assert np.abs(code).min() == 1
    assert apart[np.triu_indices(256, 1)].min() == 6


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_the_first_is_the_likeliest_of_all_values(seed):
    scores = np.random.default_rng(seed).normal(0, 1, (2, 256))
    scores[:, 0] += 2
    both = scores[0][:, None] + scores[1]
    both[0, :] = -np.inf  # no value begins with a zero
    found = likeliest(scores)
    assert tuple(found[0]) == np.unravel_index(both.argmax(), both.shape)
    totals = both[found[:, 0], found[:, 1]]
    assert np.all(np.diff(totals) <= 0)
    assert len(np.unique(found, axis=0)) == len(found)


# --- false values -----------------------------------------------------------------------------


def test_a_false_value_is_as_rare_as_is_said():
    """KEPT values of no record, a thousand times; without the union bound, most times."""
    kept = np.zeros((KEPT, LENGTH), np.uint8)
    kept[:, :2] = np.arange(256, 256 + KEPT).astype(">u2").view(np.uint8).reshape(KEPT, 2)
    block = about(CANDIDATES, kept)
    chance, runs = np.random.default_rng(0), 2000
    false = sum(
        bool(block.answer(chance.normal(0.0, 30.0, block.cells), 30.0)["names"])
        for _ in range(runs)
    )
    assert 0 < false < runs * FALSE_POSITIVES + 5 * math.sqrt(runs * FALSE_POSITIVES)


def test_the_union_bound_has_room_for_the_discreteness():
    tail = math.erfc(threshold(1.0) / math.sqrt(2)) / 2
    assert KEPT * tail + KEPT / (16 * 2**40) < FALSE_POSITIVES
    assert KEPT * tail > 0.9 * FALSE_POSITIVES, "no larger than need be"


def test_a_value_that_no_row_names_is_never_listed():
    block = about(CANDIDATES, np.zeros((KEPT, LENGTH), np.uint8))
    assert block.answer(np.full(block.cells, 1e6), 1.0)["names"] == []


# --- hostile values and broadcasts ------------------------------------------------------------


@given(st.binary(max_size=32), st.binary(max_size=32))
@example(b"\\xff", b"\xff")
@example(b"\\", b"\\\\")
@settings(max_examples=300)
def test_a_name_is_printable_bounded_and_one_values_only(one, other):
    assert plain_name(one).isprintable()
    assert len(plain_name(one)) <= 6 * len(one)
    assert (plain_name(one) == plain_name(other)) == (one == other)


def rising():
    return np.arange(KEPT, dtype=np.int64)


def overflowing():
    """Prefixes that rise twice: each is the one before and less than 2^63, which overflows."""
    turn = np.array([1 << 62, (1 << 63) - 1, -(1 << 63), -1], np.int64)
    return np.concatenate([rising()[: KEPT // 2], turn, rising()[: KEPT // 2 - 4]])


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        (PREFIXES, rising()[:-1]),
        (PREFIXES, rising().astype(np.float64)),
        (PREFIXES, rising()[::-1].copy()),
        (PREFIXES, np.zeros(KEPT, np.int64)),
        (PREFIXES, rising() - 1),
        (PREFIXES, overflowing()),
        (CODED, overflowing()),
        (PREFIXES, rising() + (1 << 13) - KEPT + 1),
        (CODED, rising() + (1 << 19) - KEPT + 1),
        (CANDIDATES, np.ones((KEPT, LENGTH), np.uint8)),
        (CANDIDATES, np.zeros((KEPT, LENGTH), np.int64)),
        (CANDIDATES, np.zeros((KEPT, LENGTH + 1), np.uint8)),
        (CANDIDATES, np.eye(KEPT, LENGTH, dtype=np.uint8)),
    ],
)
def test_another_broadcast_is_refused_before_a_record_is_read(level, kept):
    with pytest.raises(ProtocolError) as refused:
        about(level, kept)
    assert refused.value.reason == "bad_package"


@pytest.mark.parametrize("level", [PREFIXES, CODED])
def test_the_outermost_prefixes_are_accepted(level):
    last = 1 << (13 if level == PREFIXES else 19)
    for kept in (rising(), rising() + last - KEPT):
        about(level, kept)


# --- in a job ---------------------------------------------------------------------------------

JOB = """
job: ask
data: {source: people, nominal_records: 300}
statistics:
  rounds: 4
  columns: [{name: sex, category: [f, m]}, {name: town, values: {length: 12}}]
privacy: {epsilon: 1, delta: 1.0e-6}
"""


WORDS = JOB.replace("length: 12", "length: 12, words: 3")


def halves(unit="record", job=JOB, **changes):
    """The device and cloud halves of a job."""
    parameters = parse_job(job).train
    width = parameters.records_schema.input_shape
    own = {"epsilon": 4.0, "delta": 1e-6, "nominal_records": 300, "input_shape": width}
    s = context(unit=unit, **{**own, **changes})
    return METHODS["statistics"].device(parameters, s), METHODS["statistics"].cloud(parameters, s)


def encoded(rows, job=JOB):
    schema = parse_job(job).train.records_schema
    encoder = RowEncoder(schema, ["sex", "town"], "rows")
    for row in rows:
        encoder.add(row)
    return encoder.encoded().records


def test_values_take_four_exchanges():
    assert parse_job(JOB.replace("  rounds: 4\n", "")).train.rounds == 4
    with pytest.raises(ConfigError, match="take 4 exchanges"):
        parse_job(JOB.replace("rounds: 4", "rounds: 3"))


@pytest.mark.parametrize("unit", ["record", "person", "device"])
def test_a_fleet_finds_its_values_at_the_price_of_the_job(unit):
    rows = [("f", town) for town in ["Łódź"] * 200 + ["New\nYork, NY and more"] * 150 + [""] * 50]
    found, missing = asked_of_three(JOB, rows, unit)
    if unit == "record":
        assert found["names"] == ["Łódź", r"New\nYork, NY"]
        assert found["exact"] == ["Łódź"], "the other is cut, and escaped"
        off = np.abs(np.array([*found["value"], missing["value"]]) - [600, 450, 150])
        assert np.all(off < 2 * found["plus_minus"])
    else:  # all records are one unit's, of which each device has one
        assert found["too_noisy"]
        assert found["names"] == []


def test_a_fleet_finds_the_words_of_its_texts():
    texts = ["The <b>Engine</b> of the"] * 200 + ["engine"] * 50 + ["-- !"] * 40 + ["?"] * 10
    found, missing = asked_of_three(WORDS, [("f", text) for text in texts])
    assert set(found["names"]) == {"engine", "the", "b"}
    assert found["names"][0] == "engine"
    off = np.abs(np.array([*found["value"], missing["value"]]) - [750, 600, 600, 150])
    assert np.all(off < 2 * found["plus_minus"])
    assert "other" not in found


def asked_of_three(job, rows, unit="record"):
    """The answer about values, and the last about missing, of three devices with these rows."""
    device, cloud = halves(unit, job, honest=3)
    records, state, events = encoded(rows, job), cloud.initial_state(), []
    assert len(cloud.plan()) == 4
    for round in cloud.plan():
        package = cloud.package(state, round)
        answers = [device.answer(round, package, records, SeededRandom(k)) for k in range(3)]
        events += answers[0].events
        total = sum(one.segments["sums"] for one in answers)
        state = cloud.absorb(state, round, {"sums": total / 3}, 3)
    assert epsilon(events, 1e-6).epsilon <= 4.0
    answers = cloud.shown(state)["statistics"]["answers"]
    found = next(one for one in answers if one["statistic"] == "values")
    return found, [one for one in answers if one["statistic"] == "missing"][-1]


@pytest.mark.parametrize("job", [JOB, WORDS])
@given(others=st.lists(st.text(max_size=9), max_size=5), text=st.text(max_size=20))
@settings(max_examples=10, deadline=None)
def test_a_row_of_any_text_moves_each_exchange_no_further_than_its_event(job, others, text):
    device, cloud = halves(job=job)
    rows = [("f", one) for one in others]
    before, after = encoded(rows, job), encoded([*rows, ("m", text)], job)
    state = cloud.initial_state()
    for round in cloud.plan():
        event = noise_of(device.asking.event(round))
        vector = device.asking.vector(round).about(cloud.package(state, round))
        clean = device.steps(vector, after, event)
        change = clean - device.steps(vector, before, event)
        steps = change[change != 0].tolist()
        assert sum(one**2 for one in steps) <= event.sensitivity_steps**2
        state = cloud.absorb(state, round, {"sums": clean.astype(np.float64)}, 1)


def test_a_bad_broadcast_is_refused_whatever_the_records():
    device, cloud = halves()
    _, second, *_ = cloud.plan()
    sound = cloud.package(cloud.initial_state(), second)
    package = {name: kept[::-1].copy() for name, kept in sound.items()}
    for rows in ([], [("f", "Rome")]):
        for found in (package, {}):
            with pytest.raises(ProtocolError) as refused:
                device.answer(second, found, encoded(rows), SeededRandom(0))
            assert refused.value.reason == "bad_package"


def test_the_length_of_a_text_is_a_number():
    job = JOB.replace("category: [f, m]", "part: characters, number: [0, 500]")
    x = encoded([("Łódź ", "a"), ("12", "a"), ("", "a")], job).x
    assert x[:2, 0].tolist() == [4, 2]
    assert np.isnan(x[2, 0])
    for wrong in ("part: characters, category: [f]", "number: [0, 500], characters: true"):
        with pytest.raises(ConfigError, match=r"number: \[0, 500\]|part: characters"):
            parse_job(JOB.replace("category: [f, m]", wrong))


@pytest.mark.parametrize(
    "key", ["number: [0, 1], part: characters", "first_bytes: 4", "number: [0, 1], part: height"]
)
def test_a_job_that_learns_reads_none_of_these(key):
    schema = "{origin: public, label: {column: y, classes: [a, b]}, columns: [{name: a, KEY}]}"
    job = f"""
job: learn
data: {{source: people, nominal_records: 300, schema: {schema.replace("KEY", key)}}}
train: {{method: fm, rounds: 2}}
privacy: {{epsilon: 1, delta: 1.0e-6}}
"""
    with pytest.raises(ConfigError, match="a job with a block statistics reads"):
        parse_job(job)
