"""The audit's attack by jobs that fail late: refused as the code stands, found without the gate."""

from edgeveil_lab.audit.guards import guards, judged
from edgeveil_lab.audit.rehearsal import late_failures


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
    assert judged(guard.mechanism, guard.promise, True).verdict == "holds"
