"""The attacks on derived noise find nothing as the code stands, and the flaw that is planted."""

import pytest

from tools.audit_derived import derived_guards
from tools.audit_guards import judged


@pytest.mark.parametrize("guard", derived_guards(), ids=lambda guard: guard.promise)
def test_a_guard_holds_and_sees(guard):
    found = judged(guard.mechanism, guard.promise, quick=True)
    assert (found.verdict, found.stands.broke, found.flawed.broke) == ("holds", False, True), found


def test_the_average_of_fresh_answers_finds_the_record_and_that_of_derived_ones_is_one_answer():
    guard = derived_guards()[0]
    assert guard.play(False, True).figure.startswith("0 of 60 answers are new")
    assert guard.play(True, True).figure == "60 of 60 answers are new, the record: 4/4"
