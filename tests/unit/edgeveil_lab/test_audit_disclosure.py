"""The guard of what a run on own records leaves behind: nothing found, and the flaw found."""

import pytest

from edgeveil_lab.audit.disclosure import guard
from edgeveil_lab.audit.guards import guards, judged


def test_a_run_on_an_own_file_tells_nothing_exact_and_the_flaw_is_found():
    of = guard()
    assert (of.mechanism, of.promise) in {(g.mechanism, g.promise) for g in guards()}
    found = judged(of.mechanism, of.promise, quick=True)
    assert found.verdict == "holds"
    assert "the curve without noise in result.json" in found.flawed.figure
    assert "who holds what in report.html" in found.flawed.figure


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "logs/cloud.log"])
def test_counts_are_found_wherever_they_stand(name, tmp_path):
    from edgeveil_lab.audit import disclosure as audit_disclosure
    from edgeveil_tools.local.job import Overrides, local_job
    from edgeveil_tools.report.holdings import holdings

    job, run = local_job(audit_disclosure._job(tmp_path, 1), Overrides())
    out = tmp_path / "out"
    (out / "logs").mkdir(parents=True)
    (out / name).write_text('{"seconds": 1.5}\n')
    assert list(audit_disclosure.exact_figures(out, job, run)) == []
    (out / name).write_text(f'{{"records": {holdings(job, run).sizes[0]}}}\n')
    found = list(audit_disclosure.exact_figures(out, job, run))
    assert found == [f"counts of records in {name.rpartition('/')[2]}"]
