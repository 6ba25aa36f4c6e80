"""What the bare relay is given to carry, and how the two are compared."""

import pytest

from edgeveil_lab.load.raw_relay import ratio


def test_the_ratio_is_of_uploads_a_second_over_all_rounds():
    rounds = [
        {"uploads": 100, "uploads_per_s": 50.0},  # 2 s
        {"uploads": 100, "uploads_per_s": 100.0},  # 1 s
        {"uploads": 0, "uploads_per_s": None},
    ]
    assert ratio({"rounds": rounds}, {"uploads_per_s": 200.0}) == pytest.approx(1 / 3)
    assert ratio({"rounds": []}, {"uploads_per_s": 200.0}) is None
