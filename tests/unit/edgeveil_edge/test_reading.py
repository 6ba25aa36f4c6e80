"""A reading in a process of its own: what is handed over, and what comes of one that fails."""

import os
import signal
import time

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import DataError, RecordsError
from edgeveil_edge.compute_worker import read_in_fork

CHANCE = np.random.default_rng(3)


def half(count, stored):
    """Made-up records of images, a row in each."""
    x = CHANCE.normal(size=(count, 2, 300)).astype(np.float32)
    beside = CHANCE.normal(size=(count, 7)).astype(np.float32) if stored else None
    return Records(x, np.arange(count, dtype=np.int64), beside)


@pytest.mark.parametrize("counts", [(400, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("stored", [True, False])
def test_what_was_read_is_handed_over_bit_for_bit(counts, stored):
    given = tuple(half(count, stored) for count in counts)
    found = read_in_fork(lambda: given, 60.0)
    assert not isinstance(found, RecordsError)
    for one, other in zip(given, found, strict=True):
        assert (one.x.tobytes(), one.x.shape) == (other.x.tobytes(), other.x.shape)
        assert one.y.tobytes() == other.y.tobytes()
        assert one.places.tobytes() == other.places.tobytes()
        assert (one.stored is None) == (other.stored is None)


def raising(error):
    def read():
        raise error

    return read


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda: os._exit(0),
        raising(SystemExit(0)),
        raising(RecordsError("there are too many")),
    ],
)
def test_a_reading_that_ends_its_process_or_finds_no_records_is_told(read):
    assert isinstance(read_in_fork(read, 60.0), RecordsError)


def test_a_reading_without_end_is_given_up():
    assert isinstance(read_in_fork(lambda: time.sleep(3600), 0.1), RecordsError)


def test_a_process_that_outlives_the_reading_holds_nothing_up():
    def read():
        if os.fork():
            os._exit(0)
        time.sleep(5)  # holds the pipe
        os._exit(0)

    assert isinstance(read_in_fork(read, 0.2), RecordsError)


def test_a_fault_of_form_is_told_as_one():
    with pytest.raises(DataError) as caught:
        read_in_fork(raising(DataError("no such column", where="x", fix="y")), 60.0)
    assert not isinstance(caught.value, RecordsError)
