"""A text as numbers: a function of it alone, bounded in size, and the same on every machine."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil.config.base import ImpossibleMixError
from edgeveil.data.check import schema_problems
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import RecordLimit
from edgeveil.data.text import LETTERS, HashedText, hashed_text
from edgeveil.errors import ConfigError
from edgeveil.jobs import load_plan
from edgeveil.parts.sources import Origin, load_records
from edgeveil.parts.sources.tables import encode_csv
from edgeveil_edge.inference import _named

LABEL = {"column": "kind", "classes": ["ham", "spam"]}
WORDS = ["free", "prize", "pri", "##s", "##ze", "!", "see"]
TEXTS = ["Free prize!", "see   PRIZES", "", "unheard", "x" * 5000, "prize " * 40, "\udcff é 🙂"]


def schema(**column):
    columns = [{"name": "note", **column}, {"name": "age", "number": [0, 10]}]
    return DataSchema.model_validate_json(
        json.dumps({"origin": "public", "label": LABEL, "columns": columns})
    )


def table(path, texts):
    rows = [
        "note,age,kind",
        *(f'"{text}",5,{"spam" if "ree" in text else "ham"}' for text in texts),
    ]
    path.write_text("\n".join(rows) + "\n", "utf-8", errors="replace")
    return Origin(path=path, header=True)


def test_counts_by_hand():
    only = HashedText(words=1, characters=None, buckets=4096, cap=3)
    once, thrice = (hashed_text(text, only) for text in ("prize", "prize Prize  PRIZE"))
    assert np.abs(once).sum() == 1
    np.testing.assert_array_equal(thrice, 3 * once)
    np.testing.assert_array_equal(hashed_text("prize " * 9, only), 3 * once)  # capped
    both = hashed_text("free prize", only)
    np.testing.assert_array_equal(both, once + hashed_text("free", only))
    pairs = HashedText(words=2, characters=None, buckets=4096)
    assert np.abs(hashed_text("a b c", pairs)).sum() == 3 + 2
    runs = HashedText(words=0, characters=(2, 3), buckets=4096)
    assert np.abs(hashed_text("abc", runs)).sum() == 4 + 3  # of " abc "
    assert not hashed_text("", HashedText()).any()


def test_the_hash_is_the_same_on_every_machine():
    """A released model reads texts by it for ever."""
    found = hashed_text(
        "Win a prize, call 0800!", HashedText(words=2, characters=(3, 3), buckets=16)
    )
    assert found.tolist() == [-1, 1, -1, 0, 2, 4, 1, 1, -1, 1, -2, 1, 1, 2, 0, -1]


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_text_alone_decides_its_counts_within_the_cap(text, other):
    form = HashedText(buckets=64, cap=2)
    found = hashed_text(text, form)
    hashed_text(other, form)
    np.testing.assert_array_equal(hashed_text(text, form), found)
    assert found.shape == (64,)
    assert np.abs(found).max() <= 2


def test_letters_beyond_the_limit_are_not_read():
    form, text = HashedText(), "word " * LETTERS
    np.testing.assert_array_equal(hashed_text(text, form), hashed_text(text[:LETTERS], form))


IDS = [[2, 3, 7], [8, 3, 5], [], [1], [1], [3] * 8, [1, 1, 1]]


@pytest.mark.parametrize("kind", ["vocabulary", "buckets"])
def test_tokens_of_a_table(kind, tmp_path):
    form = {"vocabulary": WORDS} if kind == "vocabulary" else {"buckets": 50}
    one = schema(tokens={"length": 8, **form})
    origin = table(tmp_path / "t.csv", TEXTS)
    found = encode_csv(origin, one)
    ids = found.records.x[:, :-1]
    assert found.records.x.shape == (len(TEXTS), 9)
    assert (ids >= 0).all()
    assert (ids < one.columns[0].tokens.size).all()
    assert (ids == np.rint(ids)).all()
    if kind == "vocabulary":
        assert ids.tolist() == [row + [0] * (8 - len(row)) for row in IDS]
        assert "3 of 6 values have no token" in " ".join(schema_problems(one, found))
    else:
        assert (ids[0, :3] > 1).all()
        assert not ids[2].any()
    assert "1 of 6 values have more than 8 tokens" in " ".join(schema_problems(one, found))
    named = _named([{"note": TEXTS[1], "age": 5}], one)
    np.testing.assert_array_equal(named.records.x[0], found.records.x[1])  # as a device serves it


@pytest.mark.parametrize("form", [{"text": {"buckets": 64}}, {"tokens": {"buckets": 64}}], ids=str)
def test_no_text_changes_another_record(form, tmp_path):
    one = schema(**form)
    whole = load_records("csv", _with(table(tmp_path / "a.csv", TEXTS), one))
    for gone in range(len(TEXTS)):
        rest = TEXTS[:gone] + TEXTS[gone + 1 :]
        found = load_records("csv", _with(table(tmp_path / f"{gone}.csv", rest), one))
        np.testing.assert_array_equal(found.x, np.delete(whole.x, gone, axis=0))
    limit = RecordLimit(3, bytes(32))
    few = load_records("csv", _with(table(tmp_path / "a.csv", TEXTS), one, limit))
    np.testing.assert_array_equal(few.x, whole.x[limit.kept(whole.places)])


def _with(origin, schema, limit=None):
    return Origin(path=origin.path, header=True, schema=schema, limit=limit)


JOB = """
job: notes
data:
  source: notes
  nominal_records: 20
  schema:
    origin: public
    label: {{column: kind, classes: [ham, spam]}}
    columns: [{{name: note, {column}}}]
features: [{{name: identity}}]
train: {{method: fm, rounds: 1}}
privacy: {{epsilon: 8}}
"""
TOKENIZER = {"model": {"type": "WordPiece", "vocab": {"[PAD]": 0, "[UNK]": 1, "b": 3, "a": 2}}}
FILES = {
    "vocab.txt": "[PAD]\nA\n\nb\na\n",
    "tokenizer.json": json.dumps(TOKENIZER),
    "bpe.json": json.dumps({"model": {"type": "BPE", "vocab": {}}}),
    "broken.json": "{",
    "latin.txt": b"\xff\xfe",
}


def plan(folder, column):
    for name, content in FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "job.yaml").write_text(JOB.format(column=column))
    return load_plan(folder / "job.yaml")


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_a_vocabulary_s_tokens_travel_in_the_job(file, tmp_path):
    job = plan(tmp_path, f"tokens: {{length: 4, file: {file}}}").job
    (column,) = type(job).from_canonical(job.canonical()).data.schema_.columns
    assert column.tokens.vocabulary == ("a", "b")
    assert file.encode() not in job.canonical()


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("tokens: {file: bpe.json}", "tokens"),
        ("tokens: {file: broken.json}", "tokens"),
        ("tokens: {file: latin.txt}", "tokens"),
        ("tokens: {file: gone.txt}", "tokens"),
        ("tokens: {length: 4}", "tokens"),
        ("tokens: {buckets: 9, vocabulary: [a]}", "tokens"),
        ("tokens: {vocabulary: [a, a]}", "vocabulary"),
        ("text: {words: 0, characters: null}", "text"),
        ("text: {characters: [5, 3]}", "characters"),
        ("text: {}, number: [0, 1]", "number"),
    ],
)
def test_faulty_forms_are_refused_by_key(column, key, tmp_path):
    with pytest.raises((ConfigError, ImpossibleMixError)) as raised:
        plan(tmp_path, column)
    assert key in str(raised.value)
