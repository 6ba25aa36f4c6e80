"""Each guard holds as the code stands, and its attack finds the flaw that is planted."""

import re

import pytest

from edgeveil_lab.audit.command import guards, judged
from edgeveil_lab.audit.noise_guard import derived_guards
from edgeveil_lab.audit.run_guards import _own_file_job, exact_figures
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
    "rehearsal": (r"refused before anything was priced", r"spent, then"),
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
    guard = derived_guards()[0]
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
