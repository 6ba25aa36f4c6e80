"""A test set belongs to a data set: what does not fit is said at submit, at no price."""

import csv

import numpy as np
import pytest
import yaml

from edgeveil.config.cloud import CloudSite
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
LINK = {"url": "mqtt://127.0.0.1:1883"}


def a_job(**data):
    plain = small_job().model_dump(mode="json", by_alias=True, exclude_none=True)
    plain["data"] = {"nominal_records": 150, "evaluation_share": 0.1, **data}
    if "schema" in data:
        plain["features"] = [{"name": "identity"}]
    return yaml.safe_dump(plain)


OF_DIGITS = {"source": "digits", "classes": 10, "input_shape": [64]}
OF_PEOPLE = {"source": "people", "schema": SCHEMA}


@pytest.fixture
def control(tmp_path):
    """A control of a cloud with these test sets, which runs no job."""

    def of(*blocks):
        store = Store(f"sqlite:///{tmp_path / 'cloud.sqlite'}")
        host = CloudHost(store, HeldTests(blocks), BroadcastLimits(1 << 20))
        return Control(store, host, None, None), store

    return of


def people_set(folder, name="people", **changes):
    file = write_people(folder / f"{name}.csv")
    return DataSource(name="people", source="csv", path=file, **changes)


def events(store, job):
    return [(one.type, one.data.get("reason")) for one in store.events_after(0, job)]


def test_a_job_of_another_data_set_of_the_same_shape_is_tested_on_nothing_and_told_so(control):
    cloud, store = control(DIGITS)
    other = {**OF_DIGITS, "source": "scans"}
    said = dict(events(store, cloud.submit(a_job(**other))))["untested"]
    assert "'scans'" in said and "'digits'" in said
    data = {**other, "input_shape": (64,), "nominal_records": 9}
    plan = compile_job(small_job(data=data))
    context = RoundContext.of(plan, plan.all_rounds[-1].index)
    for_digits = Evaluation(HeldTests([DIGITS]))
    assert for_digits.tested(context, plan.graph(), plan.cloud.initial_state()) is None


def test_a_job_of_the_cloud_s_own_data_set_is_tested_and_nothing_is_said(control):
    cloud, store = control(DIGITS)
    assert "untested" not in dict(events(store, cloud.submit(a_job(**OF_DIGITS))))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({**OF_DIGITS, "input_shape": [63]}, "shape [64], the job learns from [63]"),
        ({**OF_PEOPLE, "source": "digits"}, "not read by a schema"),
    ],
)
def test_a_test_set_of_the_job_s_data_set_that_does_not_fit_refuses_the_job(control, data, said):
    cloud, store = control(DIGITS)
    with pytest.raises(JobFailed) as refused:
        cloud.submit(a_job(**data))
    assert said in str(refused.value)
    assert not store.jobs(), "nothing is queued, so nothing is paid"


@pytest.mark.parametrize("label", [10, 99, -1, 2.5])
def test_a_test_set_with_a_label_of_no_class_refuses_the_job(control, tmp_path, label):
    """It was accepted, and once all was paid its last model could not be tested."""
    np.savez(tmp_path / "own.npz", x=np.zeros((5, 64)), y=np.array([0, 9, 1, label, 3]))
    own = DataSource(name="digits", source="npz", path=tmp_path / "own.npz")
    cloud, store = control(own)
    with pytest.raises(JobFailed, match="the job's classes are 0 to 9"):
        cloud.submit(a_job(**OF_DIGITS))
    assert not store.jobs()
    cloud, store = control(own, DIGITS)
    assert "untested" not in dict(events(store, cloud.submit(a_job(**OF_DIGITS))))


def test_a_label_that_a_schema_does_not_know_is_left_out_of_the_test(tmp_path):
    own, asked = people_set(tmp_path), parse_plan(a_job(**OF_PEOPLE)).job.data
    data = asked.source, asked.schema_, asked.input_shape, 2
    whole = HeldTests([own]).of(*data)
    write_people(own.path, [*people(), ["30", "State", "40", "", "unknown"]])
    assert len(HeldTests([own]).of(*data)) == len(whole) == 400


def test_an_empty_test_set_hides_no_other_of_its_name(control, tmp_path):
    np.savez(tmp_path / "empty.npz", x=np.zeros((0, 64)), y=np.zeros(0, np.int64))
    empty = DataSource(name="digits", source="npz", path=tmp_path / "empty.npz")
    for sets, said in (((empty, DIGITS), False), ((empty,), True)):
        cloud, store = control(*sets)
        assert ("untested" in dict(events(store, cloud.submit(a_job(**OF_DIGITS))))) is said


def test_a_schema_that_names_a_column_which_the_test_set_lacks_refuses_the_job(control, tmp_path):
    cloud, store = control(people_set(tmp_path))
    lacks = {**SCHEMA, "columns": [{"name": "height", "number": [0, 9]}]}
    with pytest.raises(JobFailed, match="has no column 'height'"):
        cloud.submit(a_job(source="people", schema=lacks))
    assert not store.jobs()
    cloud.submit(a_job(**OF_PEOPLE))


def test_of_several_sets_each_job_is_tested_on_its_own(control, tmp_path):
    turned = tmp_path / "turned.csv"
    with turned.open("w", newline="") as file:
        rows = [["jahre", "rich"], *([row[0], row[-1]] for row in people(50))]
        csv.writer(file).writerows(rows)
    other = DataSource(name="people", source="csv", path=turned)
    cloud, store = control(DIGITS, people_set(tmp_path), other)
    renamed = {
        "origin": "public",
        "label": {"column": "rich", "classes": ["low", "high"]},
        "columns": [{"name": "jahre", "number": [0, 99]}],
    }
    for data in (OF_DIGITS, OF_PEOPLE, {"source": "people", "schema": renamed}):
        job = cloud.submit(a_job(**data))
        assert "untested" not in dict(events(store, job))
        store.cancel(job)


def test_a_test_set_without_a_line_of_names_is_read_as_the_job_names_it(control, tmp_path):
    file = write_people(tmp_path / "bare.csv", names=False)
    cloud, _ = control(DataSource(name="people", source="csv", path=file))
    named = {**SCHEMA, "header": ["age", "work", "hours", "note", "income"]}
    cloud.submit(a_job(source="people", schema=named))


def test_a_site_file_names_one_test_set_or_several(tmp_path):
    plain = {"broker": LINK, "state_dir": tmp_path, "proxy_key_file": tmp_path / "p.pub"}
    one = {"name": "digits", "source": "digits"}
    assert CloudSite.model_validate({**plain, "test_data": one}).test_sets == (DIGITS,)
    assert CloudSite.model_validate({**plain, "test_data": (one, one)}).test_sets == (DIGITS,) * 2
    assert CloudSite.model_validate(plain).test_sets == ()
    with pytest.raises(ValueError, match="npz is read from a file"):
        CloudSite.model_validate({**plain, "test_data": (one, {"name": "own", "source": "npz"})})
