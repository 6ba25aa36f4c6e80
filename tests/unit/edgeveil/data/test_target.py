"""A number as a label: by hand, and as near as the steps are fine."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil.data.schema import DataSchema
from edgeveil.data.target import LABELS, STEPS, TargetRange
from edgeveil.parts.sources import Origin, load_records

PLAIN = {
    "origin": "public",
    "label": {"column": "price", "number": [10, 30]},
    "columns": [{"name": "rooms", "number": [1, 9]}],
    "missing": ["99"],
}


def schema(**label):
    return DataSchema.model_validate_json(
        json.dumps({**PLAIN, "label": {**PLAIN["label"], **label}})
    )


@pytest.mark.parametrize(
    ("value", "label"),
    [(10, 0), (20, 4096), (30, 8192), (25, 6144), (-5, 0), (math.inf, 8192), (math.nan, None)],
)
def test_labels_by_hand(value, label):
    assert TargetRange(10, 30).label(value) == label


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
    assert 0 <= label < LABELS
    (back,) = target.values(np.array([label]))
    within = min(max(value, low), high)
    assert abs(back - within) <= (high - low) / STEPS * 0.51


def test_rows_become_labels_and_what_is_no_number_is_dropped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("rooms,price\n1,10\n5,25\n9,1e9\n5,\n5,99\n5,many\n")
    found = load_records("csv", Origin(path=path, header=True, schema=schema()))
    assert found.y.tolist() == [0, 6144, 8192, -1, -1, -1]
    assert found.x[:3, 0].tolist() == [-1, 0, 1]
