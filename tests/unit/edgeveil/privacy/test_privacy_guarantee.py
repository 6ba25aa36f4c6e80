import math
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from edgeveil.privacy.guarantee import (
    Guarantee,
    down,
    guarantee_bounds,
    guarantee_lines,
    protects_nothing,
    up,
    worth,
)

POSITIVE = st.floats(1e-300, 1e300)


def test_figures_are_rounded_up():
    values = (7.9994, 7.991, 1.0004e-5, 20.0001, 99999.0, 0.0, math.inf)
    assert [*map(up, values)] == ["8", "7.991", "1.001e-05", "20.01", "1e+05", "0", "inf"]
    # A sum in float64 that is an exact number, rounded up.
    assert [*map(up, (1e-5 + 1e-5 + 1e-5, 20.000000000000004))] == ["3e-05", "20"]
    assert [*map(down, (49.999, 50.0, 0.0))] == ["49.99", "50", "0"]  # what is left


@given(POSITIVE, st.integers(1, 8))
def test_no_figure_is_below_its_value_and_none_a_digit_above(value, digits):
    shown = Fraction(Decimal(up(value, digits)))
    slack = 1 - Fraction(1, 2**50)
    assert Fraction(value) * slack <= shown <= Fraction(value) * (1 + Fraction(10, 10**digits))


def test_an_epsilon_that_makes_anyone_sure_is_told_to_protect_nothing():
    # Posterior odds of one among all people alive: at most e^ε times the prior ones.
    assert math.exp(22.8) / 8.2e9 < 1 < math.exp(22.9) / 8.2e9
    assert not protects_nothing(22.8) and protects_nothing(22.9)
    assert worth(921_040) == ", so large that it protects nothing"
    assert worth(8) == ""


def test_what_is_printed_tells_of_collusion_and_no_number_for_what_is_claimed():
    alone = Guarantee(30.0, 1e-5, "device", "proven", among_others=70.0)
    shared = Guarantee(8.0, 1e-5, "device", "proven", colluding=alone, honest=20)
    claimed = Guarantee(1.0, 1e-5, "record", "claimed").plain
    assert guarantee_lines({"training": shared.plain, "inference": claimed}) == [
        ("guarantees", "whole job"),
        ("  training", "ε = 8 per device, δ = 1e-05"),
        ("  inference", "no proven guarantee"),
        ("  assumes", "20 honest devices per sum, no collusion of cloud and proxy"),
        ("  if all others collude", "training ε = 30 per device; per record ε = 70"),
    ]
    assert guarantee_bounds(claimed) == ("no proven guarantee",)
