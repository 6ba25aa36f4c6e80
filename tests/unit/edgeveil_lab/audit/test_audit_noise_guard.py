"""The attacks on derived noise find nothing as the code stands, and the flaw that is planted."""

import re

import pytest

from edgeveil_lab.audit.command import judged
from edgeveil_lab.audit.noise_guard import derived_guards

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("guard", derived_guards(), ids=lambda guard: guard.promise)
def test_a_guard_holds_and_sees(guard):
    found = judged(guard.mechanism, guard.promise, quick=True)
    assert (found.verdict, found.stands.broke, found.flawed.broke) == ("holds", False, True), found


def test_the_mean_of_sixteen_fresh_answers_is_four_times_as_near_and_that_of_derived_ones_is_one():
    guard = derived_guards()[0]
    told = r"(\d+) of 60 answers are new, their mean off by (.+) σ"
    seen = [re.fullmatch(told, guard.play(flawed, True).figure) for flawed in (False, True)]
    assert [found[1] for found in seen] == ["0", "60"]
    assert [float(found[2]) for found in seen] == pytest.approx([1.0, 0.25], rel=0.25)
