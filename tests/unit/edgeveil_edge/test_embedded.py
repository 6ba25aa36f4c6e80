"""A device inside a program: its life, and that its records are checked and stay its own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

import edgeveil
from edgeveil import plugins
from edgeveil.data.records import Records
from edgeveil.errors import DataError, UsageError
from edgeveil_edge import compute_worker as wire
from tests.unit.edgeveil_edge.edge_kit import own_site

X = np.arange(40, dtype=np.float64).reshape(10, 4)
Y = np.arange(10) % 3


def measured():
    return X, Y


def threads():
    """Those that are there for a device; the process's own for dialling stays."""
    return [one for one in threading.enumerate() if not one.name.startswith("edgeveil-dial")]


@pytest.fixture
def own(tmp_path):
    """A site whose data source is a file that is not there: who read it would fail."""
    yield own_site(tmp_path)
    plugins._change(None)  # a device says for the whole process what it takes in


def test_a_device_starts_shows_its_state_stops_clean_and_pauses(own):
    before, children = threads(), psutil.Process().children()
    device = edgeveil.Device(own, records=measured, on_message=lambda _: None)
    assert device.status().state == "stopped"
    with device as same:
        assert same is device
        told = device.status()
        assert (told.state, told.name, told.release, told.error) == ("offline", own.name, "", "")
        assert "edgeveil-enrolment-1" in device.enrolment()
        assert device.ledger()["data_sets"] == []
        for refused in (
            lambda: device.predict(X),  # nothing is released
            device.start,
            edgeveil.Device(own, records=measured).start,  # another holds the folder
        ):
            with pytest.raises(UsageError):
                refused()
    assert device.status().state == "stopped"
    device.stop()
    assert threads() == before
    assert psutil.Process().children() == children
    device.pause()
    with device:  # again
        assert (device.status().id, device.status().state) == (told.id, "paused")
        assert device._process.device.host._work.paused
        device.resume()
        assert not device._process.device.host._work.paused
        assert device.status().state == "offline"


@pytest.mark.parametrize(
    "found",
    [lambda: 1 / 0, lambda: [1, 2], lambda: ([[1.0]], [0]), lambda: (X, Y[:3])],
    ids=["raises", "no pair", "lists", "too few labels"],
)
def test_records_are_checked_before_anything_starts(own, found):
    device = edgeveil.Device(own, records=found)
    with pytest.raises(DataError) as raised:
        device.start()
    assert "records" in raised.value.where
    assert device.status().state == "stopped"


def test_the_computing_process_reads_them_and_not_the_site_s_source(own):
    absent = {"source": "csv", "path": own.state_dir / "absent.csv", "header": True}
    there = own.model_copy(update={"data": own.data.model_copy(update=absent)})
    raw = wire.records_bytes(Records(X.astype(np.float32), Y.astype(np.int64)))
    server = wire.ComputeServer()
    server.change_state(
        wire.encode(wire.AddDevice("box", there.model_dump_json().encode(), bytes(32), raw))
    )
    server.change_state(wire.encode(wire.ReadRecords("box", 0.5)))
    _, computer = server._devices["box"]
    training, evaluation = computer.records(0.5)
    assert len(training) + len(evaluation) == len(X)


def at_once(*calls):
    """What each of the calls raised, None where it returned; all in threads, begun together."""
    begin = threading.Barrier(len(calls))

    def one(call):
        begin.wait()
        call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [done.exception(60) for done in [threads.submit(one, call) for call in calls]]


def test_of_several_threads_that_start_it_one_does_and_all_may_stop_it(own):
    device = edgeveil.Device(own, records=measured)
    for _ in range(2):
        told = at_once(*[device.start] * 3)
        assert sorted(type(error).__name__ for error in told) == ["NoneType", *["UsageError"] * 2]
        assert device.status().state == "offline"
        assert at_once(*[device.stop] * 3) == [None] * 3
        assert device.status().state == "stopped"
