"""The timing attacks find what is planted, and what is asked of them is what they measure."""

import math

import numpy as np
import pytest

from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.subnormals import set_flushing, subnormals_flushed
from edgeveil_lab.audit.command import guards, judged
from edgeveil_lab.audit.timing import (
    SUBNORMAL,
    SUBNORMALS,
    OperatorChain,
    attacked,
    auc,
    crafted,
    not_flushing,
    play,
    records,
    subnormal_case,
    tells,
)

pytestmark = pytest.mark.slow


def test_the_auc_is_the_share_of_pairs_in_order():
    assert auc([2, 3], [0, 1]) == 1
    assert auc([0, 1], [2, 3]) == 0
    assert auc([1, 1], [1]) == 0.5
    assert auc([0, 2], [1]) == 0.5
    assert auc([math.inf, 1], [math.inf, 1]) == 0.5
    assert auc([math.inf], [3]) == 1


def test_more_than_chance_is_wider_for_fewer_runs():
    assert tells(0.61, 200)
    assert tells(0.39, 200)
    assert not tells(0.59, 200)
    assert not tells(0.65, 40)
    assert tells(0.91, 12)


def test_the_crafted_graphs_pass_the_check_and_find_their_record_alone():
    loud = OperatorChain((("Relu", None),), scale=4.0, repeats=1, doublings=0)
    given = records(8)
    model = OnnxModel(crafted(loud, given[3]))
    shown = crafted(loud, given[3])
    check_graph(shown)
    found = model.probabilities(given, {})
    np.testing.assert_allclose(found, 1 / 3, atol=1e-6)


def test_every_batch_is_found_to_hold_the_record_or_not():
    ends = OperatorChain(
        (("Log", None),), scale=1.0, repeats=1, doublings=0
    )  # log 1 = 0, log 0 = -inf
    given = records(9)
    model = OnnxModel(crafted(ends, given[4]))
    assert np.isfinite(model.probabilities(given, {})).all()
    assert np.isnan(model.probabilities(np.delete(given, 4, axis=0), {})).all()


def test_a_device_that_tells_by_its_time_is_found():
    case = subnormal_case()

    def telling(graph, x):
        return 1.0 + (x is case.present)

    def late(graph, x):
        return math.inf if x is case.present else 1.0

    assert attacked(telling, [case], 12).broke
    assert attacked(late, [case], 12).broke
    assert not attacked(lambda graph, x: 1.0, [case], 12).broke
    assert not attacked(lambda graph, x: math.inf, [case], 12).broke


def test_runs_with_and_without_stand_side_by_side():
    case, order = subnormal_case(), []

    def told(_graph, x):
        order.append(x is case.present)
        return float(order[-1])

    present, absent = play(told, case, 4)
    assert order == [True, False, False, True, True, False, False, True]
    assert (present, absent) == ([1.0] * 4, [0.0] * 4)


def test_the_flaw_is_undone():
    before = set_flushing(False)
    with not_flushing():
        pass
    assert set_flushing(True) is False
    assert subnormals_flushed()
    set_flushing(before)


def test_the_chain_answers_with_a_distribution():
    given = records(5)
    found = OnnxModel(crafted(SUBNORMAL, given[0])).probabilities(given, {})
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)


def test_the_audit_plays_the_subnormals():
    assert SUBNORMALS in guards()
    found = judged(SUBNORMALS.mechanism, SUBNORMALS.promise, quick=True)
    assert found.verdict == "holds", found
