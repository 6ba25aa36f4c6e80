"""A device inside a program: its life, and that its records are checked and stay its own."""

import threading

import numpy as np
import psutil
import pytest

import edgeveil
from edgeveil import plugins
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import DataError, UsageError
from edgeveil_edge.compute_worker import (
    AddDevice,
    ComputeServer,
    ReadRecords,
    encode,
    records_bytes,
)
from edgeveil_edge.identity import DeviceIdentity
from tests.unit.edgeveil_edge.edge_kit import site

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
    for peer in ("cloud", "proxy"):
        SigningKey.generate().public().save(tmp_path / f"{peer}.pub")
    DeviceIdentity.load_or_create(tmp_path)
    yield site(tmp_path)
    plugins._change(None)  # a device says for the whole process what it takes in


def test_a_device_starts_is_looked_at_and_stops_clean(own):
    before, children = threads(), psutil.Process().children()
    lines = []
    device = edgeveil.Device(own, records=measured, say=lines.append)
    assert device.status().state == "stopped"
    with device as same:
        assert same is device
        told = device.status()
        assert (told.state, told.name, told.release, told.error) == ("offline", own.name, "", "")
        assert "edgeveil-enrolment-1" in device.enrolment()
        assert device.ledger()["data_sets"] == []
        with pytest.raises(UsageError, match="no released model"):
            device.predict(X)
        with pytest.raises(UsageError, match="runs already"):
            device.start()
        with pytest.raises(UsageError, match="another process uses this state folder"):
            edgeveil.Device(own, records=measured).start()
    assert device.status().state == "stopped"
    device.stop()
    assert threads() == before
    assert psutil.Process().children() == children
    with device:  # again
        assert device.status().id == told.id


def test_the_owner_pauses_it(own, monkeypatch):
    device = edgeveil.Device(own, records=measured)
    device.pause()
    with device:
        assert device.status().state == "paused"
        work = device._process.device.host._work
        assert work.paused
        device.resume()
        assert not work.paused
        assert device.status().state == "offline"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda: 1 / 0, "raised ZeroDivisionError"),
        (lambda: [1, 2], "did not return"),
        (lambda: ([[1.0]], [0]), "returned a list"),
        (lambda: (X, Y[:3]), "store one label for each record"),
    ],
)
def test_records_are_checked_before_anything_starts(own, found, said):
    device = edgeveil.Device(own, records=found)
    with pytest.raises(DataError, match=said) as raised:
        device.start()
    assert "records" in raised.value.where
    assert device.status().state == "stopped"


def test_the_computing_process_reads_them_and_not_the_site_s_source(own):
    from edgeveil.data.records import Records

    absent = own.data.model_copy(
        update={"source": "csv", "path": own.state_dir / "absent.csv", "header": True}
    )
    there = own.model_copy(update={"data": absent})
    raw = records_bytes(Records(X.astype(np.float32), Y.astype(np.int64)))
    server = ComputeServer()
    server.change_state(encode(AddDevice("box", there.model_dump_json().encode(), bytes(32), raw)))
    server.change_state(encode(ReadRecords("box", 0.5)))
    _, computer = server._devices["box"]
    training, evaluation = computer.records(0.5)
    assert len(training) + len(evaluation) == len(X)


def at_once(*calls):
    """What each of the calls raised, None where it returned; all in threads, begun together."""
    begin, told = threading.Barrier(len(calls)), []

    def one(call):
        begin.wait()
        try:
            call()
        except Exception as error:
            told.append(error)
        else:
            told.append(None)

    working = [threading.Thread(target=one, args=(call,)) for call in calls]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join(60)
    return told


def test_of_several_threads_that_start_it_one_does_and_all_may_stop_it(own):
    device = edgeveil.Device(own, records=measured)
    for _ in range(2):
        told = at_once(*[device.start] * 3)
        assert told.count(None) == 1
        for error in filter(None, told):
            assert isinstance(error, UsageError)
            assert "runs already" in str(error)
        assert device.status().state == "offline"
        assert at_once(*[device.stop] * 3) == [None] * 3
        assert device.status().state == "stopped"
