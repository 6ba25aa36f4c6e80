"""Guards of whole runs: nothing found as the code stands, and the planted flaw found."""

import pytest

from edgeveil_lab.audit.command import guards, judged
from edgeveil_lab.audit.run_guards import (
    _own_file_job,
    disclosure_guard,
    exact_figures,
    late_failures,
)
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.report.page import holdings

pytestmark = pytest.mark.slow


def test_a_run_on_an_own_file_tells_nothing_exact_and_the_flaw_is_found():
    of = disclosure_guard()
    assert (of.mechanism, of.promise) in {(g.mechanism, g.promise) for g in guards()}
    found = judged(of.mechanism, of.promise, quick=True)
    assert found.verdict == "holds"
    assert "the curve without noise in result.json" in found.flawed.figure
    assert "who holds what in report.html" in found.flawed.figure


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "logs/cloud.log"])
def test_counts_are_found_wherever_they_stand(name, tmp_path):
    job, run = local_job(_own_file_job(tmp_path, 1), Overrides())
    out = tmp_path / "out"
    (out / "logs").mkdir(parents=True)
    (out / name).write_text('{"seconds": 1.5}\n')
    assert list(exact_figures(out, job, run)) == []
    (out / name).write_text(f'{{"records": {holdings(job, run).sizes[0]}}}\n')
    found = list(exact_figures(out, job, run))
    assert found == [f"counts of records in {name.rpartition('/')[2]}"]


def test_jobs_that_fail_late_cost_nothing():
    seen = late_failures(False, True)
    assert not seen.broke, seen.figure
    assert "refused before anything was priced" in seen.figure


def test_without_the_rehearsal_the_attack_finds_spent_budget():
    seen = late_failures(True, True)
    assert seen.broke
    assert "spent, then" in seen.figure


def test_it_is_one_of_the_audits_guards():
    (guard,) = (one for one in guards() if one.mechanism == "rehearsal")
    assert guard.play is late_failures
