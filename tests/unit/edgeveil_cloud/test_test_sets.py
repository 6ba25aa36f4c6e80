"""A test set belongs to a data set: what does not fit is said at submit, at no price."""

import csv

import numpy as np
import pytest
import yaml

from edgeveil.config.data import DataSource
from edgeveil.errors import JobFailed
from edgeveil.jobs import compile_job
from edgeveil.jobs.load import parse_plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.control import Control
from edgeveil_cloud.evaluation import Evaluation, HeldTests
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.store import Store
from tests.kits.fleet import small_job
from tests.kits.people import SCHEMA, people, write_people

DIGITS = DataSource(name="digits", source="digits")


def a_job(**data):
    plain = small_job().model_dump(mode="json", by_alias=True, exclude_none=True)
    plain["data"] = {"nominal_records": 150, "evaluation_share": 0.1, **data}
    if "schema" in data:
        plain["features"] = [{"name": "identity"}]
    return yaml.safe_dump(plain)


OF_DIGITS = {"source": "digits", "classes": 10, "input_shape": [64]}
OF_PEOPLE = {"source": "people", "schema": SCHEMA}


@pytest.fixture
def submit(tmp_path):
    """Submit a job to a cloud with these test sets: why it is not tested on one, "" if it is."""
    store = Store(f"sqlite:///{tmp_path / 'cloud.sqlite'}")

    def submitted(sets, **data):
        host = CloudHost(store, HeldTests(sets), BroadcastLimits(1 << 20))
        entry = Control(store, host, None, None).submit(a_job(**data))
        told = {one.type: one.data.get("reason") for one in store.events_after(0, entry)}
        store.cancel(entry)
        return told.get("untested", "")

    submitted.store = store
    yield submitted
    store.close()


def saved(path, x, y):
    np.savez(path, x=x, y=y)
    return DataSource(name="digits", source="npz", path=path)


def people_set(folder, name="people", **how):
    return DataSource(name="people", source="csv", path=write_people(folder / f"{name}.csv", **how))


def test_a_job_is_tested_on_its_own_data_set_and_told_where_that_is_another(submit):
    assert not submit([DIGITS], **OF_DIGITS)
    other = {**OF_DIGITS, "source": "scans"}
    reason = submit([DIGITS], **other)
    assert "'scans'" in reason and "'digits'" in reason
    data = {**other, "input_shape": (64,), "nominal_records": 9}
    plan = compile_job(small_job(data=data))
    context = RoundContext.of(plan, plan.all_rounds[-1].index)
    for_digits = Evaluation(HeldTests([DIGITS]))
    assert for_digits.tested(context, plan.graph(), plan.cloud.initial_state()) is None


NO_COLUMN = {**SCHEMA, "columns": [{"name": "height", "number": [0, 9]}]}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({**OF_DIGITS, "input_shape": [63]}, r"shape \[64\], the job learns from \[63\]"),
        ({**OF_PEOPLE, "source": "digits"}, "not read by a schema"),
        ({**OF_PEOPLE, "schema": NO_COLUMN}, "no column 'height'"),
    ],
)
def test_a_test_set_of_the_job_s_data_set_that_does_not_fit_refuses_the_job(
    submit, tmp_path, data, why
):
    with pytest.raises(JobFailed, match=why):
        submit([DIGITS, people_set(tmp_path)], **data)
    assert not submit.store.jobs(), "nothing is queued, so nothing is paid"


@pytest.mark.parametrize("label", [10, -1, 2.5])
def test_a_test_set_with_a_label_of_no_class_refuses_the_job(submit, tmp_path, label):
    """It was accepted, and once all was paid its last model could not be tested."""
    own = saved(tmp_path / "own.npz", np.zeros((5, 64)), np.array([0, 9, 1, label, 3]))
    with pytest.raises(JobFailed, match="0 to 9"):
        submit([own], **OF_DIGITS)
    assert not submit.store.jobs()
    assert not submit([own, DIGITS], **OF_DIGITS)


def test_a_label_that_a_schema_does_not_know_is_left_out_of_the_test(tmp_path):
    own, asked = people_set(tmp_path), parse_plan(a_job(**OF_PEOPLE)).job.data
    data = asked.source, asked.schema_, asked.input_shape, 2
    whole = HeldTests([own]).of(*data)
    write_people(own.path, [*people(), ["30", "State", "40", "", "unknown"]])
    assert len(HeldTests([own]).of(*data)) == len(whole) == 400


def test_of_several_sets_each_job_is_tested_on_its_own(submit, tmp_path):
    turned = tmp_path / "turned.csv"
    with turned.open("w", newline="") as file:
        rows = [["jahre", "rich"], *([row[0], row[-1]] for row in people(50))]
        csv.writer(file).writerows(rows)
    sets = [DIGITS, people_set(tmp_path), DataSource(name="people", source="csv", path=turned)]
    renamed = {
        "origin": "public",
        "label": {"column": "rich", "classes": ["low", "high"]},
        "columns": [{"name": "jahre", "number": [0, 99]}],
    }
    for data in (OF_DIGITS, OF_PEOPLE, {"source": "people", "schema": renamed}):
        assert not submit(sets, **data)
    bare = people_set(tmp_path, "bare", names=False)  # without a line of names
    named = {**SCHEMA, "header": ["age", "work", "hours", "note", "income"]}
    assert not submit([bare], source="people", schema=named)
