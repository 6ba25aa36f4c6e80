"""Uniform selection: without replacement, every key equally likely."""

from random import Random

import pytest

from edgeveil.errors import UsageError
from edgeveil.selection import how_many, uniform

KEYS = [bytes([k]) * 32 for k in range(10)]


def test_every_key_and_every_place_is_equally_likely():
    random, draws = Random(5), 6000
    first = dict.fromkeys(KEYS, 0)
    chosen = dict.fromkeys(KEYS, 0)
    for _ in range(draws):
        drawn = uniform(KEYS, 3, random)
        first[drawn[0]] += 1
        for key in drawn:
            chosen[key] += 1
    # Five standard deviations of a binomial: sqrt(6000 p (1-p)) is 23 and 36.
    assert all(abs(count - draws / 10) < 5 * 24 for count in first.values())
    assert all(abs(count - draws * 0.3) < 5 * 36 for count in chosen.values())


def test_refusals():
    with pytest.raises(UsageError, match="11 of 10"):
        uniform(KEYS, 11)
    with pytest.raises(UsageError):
        uniform(KEYS, -1)
    with pytest.raises(UsageError, match="twice"):
        uniform([*KEYS, KEYS[0]], 3)


@pytest.mark.parametrize(
    ("devices", "enrolled", "over", "expected"),
    [("all", 7, 2.0, 7), (50, 100, 1.1, 55), (5, 20, 1.5, 8), (5, 3, 3.0, 3)],
)
def test_how_many(devices, enrolled, over, expected):
    assert how_many(devices, enrolled, over) == expected
