"""A device's records from a real site block, and the report an owner reads."""

import numpy as np

from edgeveil.data.check import check_records
from edgeveil.data.records import Records


def test_the_report_counts_what_learning_drops():
    x = np.array([[0, 1], [np.nan, 0], [np.inf, 0], [0, 30], [5, 5]], np.float32)
    training = Records(x, np.array([0, 1, 1, 2, 9]))
    evaluation = Records(np.ones((2, 2), np.float32), np.array([-1, 0]))
    report = check_records(training, evaluation, classes=3, input_shape=(2,), input_range=(-16, 16))
    assert (report.records, report.training, report.evaluation) == (7, 5, 2)
    assert [line.split()[0] for line in report.problems] == ["2", "2", "1"]
    assert report.usable == 3
    assert report.histogram == {0: 2, 2: 1}
    assert len(report.problems) == 3


def test_a_wrong_shape_makes_every_record_useless_and_empty_halves_are_fine():
    some = Records(np.ones((2, 2), np.float32), np.array([0, 1]))
    none = Records(np.ones((0, 2), np.float32), np.array([], np.int64))
    report = check_records(some, none, classes=2, input_shape=(64,))
    assert report.usable == 0
    assert "(64,)" in report.problems[0]
    assert check_records(some, none, classes=2, input_shape=(2,)).problems == []
