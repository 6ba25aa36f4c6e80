"""Each guard holds as the code stands, and its attack finds the flaw that is planted."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.subnormals import set_flushing, subnormals_flushed
from edgeveil_lab.audit.command import guards, judged
from edgeveil_lab.audit.device_timing import TimedDevice, audit_job
from edgeveil_lab.audit.noise_guard import DERIVED_GUARDS
from edgeveil_lab.audit.run_guards import _own_file_job, exact_figures
from edgeveil_lab.audit.timing import (
    SHAPE,
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
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.report.page import holdings

pytestmark = pytest.mark.slow

# Of each guard but those with a stopwatch and those of shared noise, which have tests of their own:
# what its figures say as the code stands, and with the flaw.
FIGURES = {
    "records": (r"at most 1 of 60 records moved", r"ε inf of 8 in training.*inf of 8 in sums"),
    "schema jobs": (r" 0 gave it away", r" [1-9]\d* gave it away"),
    "output of a run": (
        r"none found",
        r"the curve without noise in result.json.*who holds what in report.html",
    ),
    "derived_noise": (r"", r""),
    "sampler": (r"0 of 32 draws do not end", r""),
}
PLAYED = [guard for guard in guards() if guard.mechanism in FIGURES]


@pytest.mark.parametrize("guard", PLAYED, ids=lambda guard: guard.promise)
def test_a_guard_holds_and_sees(guard):
    found = judged(guard.mechanism, guard.promise, quick=True)
    assert (found.verdict, found.stands.broke, found.flawed.broke) == ("holds", False, True), found
    stands, flawed = FIGURES[guard.mechanism]
    assert re.search(stands, found.stands.figure) and re.search(flawed, found.flawed.figure), found


def test_every_guard_is_played():
    others = {"inference", "device answer", "device count", "shared_noise"}
    assert {guard.mechanism for guard in guards()} == FIGURES.keys() | others


def test_the_mean_of_sixteen_fresh_answers_is_four_times_as_near_and_that_of_derived_ones_is_one():
    guard = DERIVED_GUARDS[0]
    told = r"(\d+) of 60 answers are new, their mean off by (.+) σ"
    seen = [re.fullmatch(told, guard.play(flawed, True).figure) for flawed in (False, True)]
    assert [found[1] for found in seen] == ["0", "60"]
    assert [float(found[2]) for found in seen] == pytest.approx([1.0, 0.25], rel=0.25)


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "logs/cloud.log"])
def test_counts_are_found_wherever_they_stand(name, tmp_path):
    job, run = local_job(_own_file_job(tmp_path, 1), Overrides())
    out = tmp_path / "out"
    (out / "logs").mkdir(parents=True)
    (out / name).write_text('{"seconds": 1.5}\n')
    assert list(exact_figures(out, job, run)) == []
    (out / name).write_text(f'{{"records": {holdings(job, run).counts[0].sum()}}}\n')
    found = list(exact_figures(out, job, run))
    assert found == [f"counts of records in {name.rpartition('/')[2]}"]


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


def test_a_graph_that_asks_for_more_than_the_budget_is_declined_once_and_unread(
    tmp_path: Path,
) -> None:
    given = records(4)
    own = Records(given, np.zeros(len(given), np.int64))
    job = audit_job(SHAPE, len(own), 3, budget_s=0.001, rounds=3)
    graph = crafted(SUBNORMAL, given[0])
    device = TimedDevice(tmp_path / "box", graph, own, job, max_records=len(given))
    (tmp_path / "box" / "own.npz").unlink()  # reading it would be told instead
    try:
        for _ in range(2):
            with pytest.raises(PrivacyError, match=r"round\.budget_s"):
                device.seconds()
    finally:
        device.close()
    assert len([line for line in device._said if "a job is declined" in line]) == 1
