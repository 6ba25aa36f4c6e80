"""Laws of an owner's own records: one record more or less moves no other, and stops no device."""

import hashlib
import hmac
import json
import struct
import sys
from collections import Counter

import numpy as np
import pytest

from edgeveil.config.data import DataSource
from edgeveil.crypto.labels import RECORD_DEALT
from edgeveil.parts import own_records as device
from edgeveil.parts.own_records import device_records, local_records, of_shape
from edgeveil.parts.partitions import PARTITIONS
from edgeveil.parts.partitions.dealing import record_words
from edgeveil_lab.audit.record_guard import CLASSES, FORMS, SIDE, RecordTable, by_index, made_up

DEVICES, KEY = 5, bytes(range(32))
POOR = {"kind": "iid", "lq_user": 0.5, "lq_data": 0.5, "lq_range": [0, 255]}
DEALINGS = [{"kind": kind} for kind in PARTITIONS.names()] + [POOR, {**POOR, "kind": "n_class"}]


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("edgeveil_audit_records", None)


def written(form, place, table):
    return {"name": "own", "test_share": 0.2, **FORMS[form](place, table)}


def fleet(data, dealing, classes=CLASSES):
    """Where each record is: (device and half, or the cloud; its bytes and label)."""
    shard = {"devices": DEVICES, "partition": dealing, "seed": 3, "classes": classes}
    block = lambda **more: DataSource.model_validate_json(json.dumps({**data, **more}))  # noqa: E731
    parts = {("cloud",): local_records(block())}
    for index in range(DEVICES):
        own = block(shard={**shard, "index": index})
        for half, records in enumerate(device_records(own, KEY, evaluation_share=0.3)):
            parts[index, half] = records
    return Counter(
        (place, x.tobytes(), int(y))
        for place, records in parts.items()
        for x, y in zip(records.x, records.y, strict=True)
    )


def moved(form, dealing, folder):
    """The most records that moved when one was removed from the file, beside itself."""
    table = made_up(40)
    whole, worst = fleet(written(form, folder / "whole", table), dealing), 0
    for index in range(40):
        rest = fleet(written(form, folder / f"without_{index}", table.without(index)), dealing)
        worst = max(worst, (whole - rest).total() - 1, (rest - whole).total())
    assert whole.total() == 40
    return worst


@pytest.mark.parametrize("dealing", DEALINGS, ids=range(6))
@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_a_record_removed_from_the_file_moves_no_other(form, dealing, tmp_path):
    assert moved(form, dealing, tmp_path) == 0


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("npz", "parquet")])
def test_nor_does_it_in_another_form(form, tmp_path):
    assert moved(form, DEALINGS[1], tmp_path) == 0


def test_dealt_by_index_it_moves_many(tmp_path):
    with by_index():
        assert moved("npz", {"kind": "iid"}, tmp_path) > 5


def test_a_records_words_are_the_same_on_every_machine():
    # HMAC-SHA256 keyed by SHA-256 of the label, NUL and the seed's text behind its length; of the
    # label, NUL and the record behind its length: worked out apart from this code
    key = hashlib.sha256(b"edgeveil/v1/public-seed\0\0\0\0\x017").digest()
    row = struct.pack("<2f", 0.0, 1.5)
    digest = hmac.digest(key, b"edgeveil/v1/record-dealt\0\0\0\0\x08" + row, "sha256")
    words = record_words(np.array([[-0.0, 1.5]], np.float32), 7, RECORD_DEALT)
    assert words.tolist() == [list(struct.unpack(">4Q", digest))]


@pytest.mark.parametrize("form", FORMS)
def test_a_device_answers_with_however_few_records(form, tmp_path):
    for count in (0, 1, 2):
        table = RecordTable(np.full((count, SIDE, SIDE), 7.0), np.zeros(count, np.int64))
        found = fleet(written(form, tmp_path / f"few{count}", table), POOR)
        assert found.total() == count
        assert len(found) == min(count, 1)  # equal records share a place
    if form == "parquet":  # gaps in every value of a column change no form
        table.x[:] = np.nan
        assert fleet(written(form, tmp_path / "gaps", table), {"kind": "iid"}).total() == 2
    if form == "npz":  # an empty list is no records of any shape
        np.savez(tmp_path / "empty.npz", x=[], y=[])
        block = DataSource(name="own", source="npz", path=tmp_path / "empty.npz")
        for half in device_records(block, KEY, evaluation_share=0.3):
            assert of_shape(half, (4, 4)).x.shape == (0, 4, 4)


def test_equal_records_share_a_fate_whatever_their_labels(tmp_path):
    x = np.repeat(np.random.default_rng(0).integers(0, 255, (30, SIDE, SIDE)), 2, axis=0)
    found = fleet(
        written("npz", tmp_path / "twice", RecordTable(x.astype(float), np.arange(60) % 2)),
        {"kind": "iid"},
    )
    assert len({(place, record) for place, record, _ in found}) == 30


@pytest.mark.parametrize("kind", PARTITIONS.names())
def test_own_records_are_dealt_about_as_the_rule_says(kind, tmp_path):
    x = np.random.default_rng(1).integers(0, 255, (3000, SIDE, SIDE)).astype(float)
    data = written("npz", tmp_path / "many", RecordTable(x, np.arange(3000) % 10))
    found, kinds = fleet(data, {"kind": kind}, classes=10), {}
    for (place, _, label), count in found.items():
        kinds.setdefault(place[0], Counter())[label] += count
    assert abs(kinds.pop("cloud").total() - 600) < 110  # five standard deviations
    sizes = np.array([one.total() for one in kinds.values()])
    shares = sizes / sizes.sum()
    if kind in ("iid", "n_class"):
        assert np.abs(shares - 0.2).max() < 0.05
    if kind == "n_class":
        assert [len(one) for one in kinds.values()] == [2] * DEVICES
        assert {label for one in kinds.values() for label in one} == set(range(10))
    if kind in ("iid", "quantity_skew"):
        assert all(len(one) == 10 for one in kinds.values() if one.total() > 200)
    if kind in ("dirichlet", "quantity_skew"):
        assert shares.max() > 1.3 * shares.min()


def test_labels_outside_the_classes_are_dealt_all_the_same(tmp_path):
    table = made_up(40)
    table.y[:] = [-1, CLASSES, 2**40, 0] * 10
    for dealing in DEALINGS:
        assert fleet(written("npz", tmp_path / "odd", table), dealing).total() == 40
        device.dealt_records.cache_clear()
